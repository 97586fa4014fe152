//! `serve --shared`: hosts in two processes on one SSD, with reservations.

use std::path::PathBuf;

use wire::nvme::admin::{Command, Identify, Request, SetFeatures};
use wire::nvme::entry::Sqe;
use wire::nvme::features::fid;
use wire::nvme::identify::cns;
use wire::nvme::io;
use wire::nvme::reservation::{Acquire, Acquiring, Kind, Persistence, Register, Registering};
use wire::nvme::status::Status;
use wire::{CommandId, Lba, Nsid};

use crate::common::{Folder, Server, doorbell};
use crate::vfio_user::nvme::{Pages, Pair, create_pair, data, enable, perform};
use crate::vfio_user::raw::{Raw, file};
use crate::vfio_user::serving::SETS;

const PAGE: u64 = 4096;
const PAGES: u64 = 8;
const BASE: u64 = 0x10_0000;
const NS: Nsid = Nsid(1);
const AT: u64 = BASE + 5 * PAGE;

fn serve(folder: &Folder, sets: &[&str]) -> (Server, [PathBuf; 2]) {
    let words = ["serve", "live", "--vfio-user", "one", "--vfio-user", "two", "--shared"];
    let mut command = doorbell(folder, &words);
    let mut server =
        Server::begin(folder, command.args(SETS).args(sets.iter().flat_map(|set| ["--set", set])));
    for _ in 0..2 {
        server.log_mentions("waiting for a client\n");
    }
    // Nothing reads its further lines, and it must not block on them.
    server.read_by_a_thread();
    (server, ["one", "two"].map(|name| folder.path(name)))
}

/// A client that drives its controller by hand.
struct Client {
    raw: Raw,
    pages: Pages,
    admin: Pair,
    io: Pair,
}

impl Client {
    fn connect(socket: &std::path::Path, host: u64) -> Client {
        let mut raw = Raw::greeted(socket);
        let file = file(PAGES * PAGE);
        raw.map(BASE, PAGES * PAGE, 3, Some((&file, 0))).expect("a mapping");
        let page = |n: u64| (BASE + n * PAGE, file.try_clone().expect("a descriptor"), n * PAGE);
        let pages = Pages((0..PAGES).map(page).collect());
        raw.bus_master(true);
        let (mut admin, ready) = enable(&mut raw, &pages, BASE, BASE + PAGE);
        assert!(ready);
        let queues = (BASE + 2 * PAGE, BASE + 3 * PAGE);
        let io = create_pair(&mut raw, &pages, &mut admin, queues, None);
        let mut client = Client { raw, pages, admin, io };
        client.pages.write(AT, &host.to_le_bytes());
        let set = SetFeatures { fid: fid::HOST_IDENTIFIER, ..SetFeatures::default() };
        let (cid, nsid, command) = (CommandId(7), Nsid(0), Command::SetFeatures(set));
        let sqe = Request { cid, nsid, data: data(AT, 0), command }.to_sqe();
        let status = perform(&mut client.raw, &client.pages, &mut client.admin, &sqe);
        assert_eq!(status, Status::SUCCESS);
        client
    }

    fn io(&mut self, sqe: &Sqe) -> Status {
        perform(&mut self.raw, &self.pages, &mut self.io, sqe).kind()
    }

    fn reserve(&mut self, command: io::Command, keys: [u64; 2]) -> Status {
        self.pages.write(AT, &keys.map(u64::to_le_bytes).concat());
        self.io(&io::Request { cid: CommandId(5), nsid: NS, data: data(AT, 0), command }.to_sqe())
    }

    fn register(&mut self, key: u64) -> Status {
        let action = Registering::Register;
        let how = Register { action, ignore_key: false, persistence: Persistence::Unchanged };
        self.reserve(io::Command::ReservationRegister(how), [0, key])
    }

    fn acquire(&mut self, action: Acquiring, keys: [u64; 2]) -> Status {
        let how = Acquire { action, kind: Kind::WriteExclusive };
        self.reserve(io::Command::ReservationAcquire(how), keys)
    }

    fn write(&mut self, byte: u8) -> Status {
        self.write_to(NS, byte)
    }

    fn write_to(&mut self, nsid: Nsid, byte: u8) -> Status {
        self.pages.write(AT, &[byte; 512]);
        self.io(&io::write(CommandId(1), nsid, Lba(9), 1, false, data(AT, 0)))
    }

    fn read(&mut self) -> u8 {
        self.read_from(NS).expect("a namespace of this host's")
    }

    fn read_from(&mut self, nsid: Nsid) -> Result<u8, Status> {
        let sqe = io::read(CommandId(2), nsid, Lba(9), 1, false, data(AT, 0));
        match self.io(&sqe) {
            Status::SUCCESS => {
                let mut bytes = [0; 512];
                self.pages.read(AT, &mut bytes);
                Ok(bytes[0])
            }
            status => Err(status),
        }
    }

    /// The first active namespaces, by Identify.
    fn namespaces(&mut self) -> [u32; 2] {
        let identify = Identify { cns: cns::ACTIVE_NAMESPACES, ..Identify::default() };
        let (cid, nsid, command) = (CommandId(6), Nsid(0), Command::Identify(identify));
        let sqe = Request { cid, nsid, data: data(AT, 0), command }.to_sqe();
        let status = perform(&mut self.raw, &self.pages, &mut self.admin, &sqe);
        assert_eq!(status, Status::SUCCESS);
        let mut bytes = [0; 8];
        self.pages.read(AT, &mut bytes);
        [0, 4].map(|at| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes")))
    }
}

/// Each host reads the other's data; a reservation excludes the other host, through each controller, and
/// outlasts resets of the holder's controller and its disconnect.
#[test]
fn shared_ssd_serves_two_hosts_with_reservations() {
    let folder = Folder::new("vfu-sharing");
    let (_server, sockets) = serve(&folder, &[]);
    let (conflict, ok) = (Status::RESERVATION_CONFLICT, Status::SUCCESS);
    let mut one = Client::connect(&sockets[0], 101);
    let mut two = Client::connect(&sockets[1], 102);
    assert_eq!(one.write(1), ok);
    assert_eq!(two.read(), 1);
    assert_eq!(two.write(2), ok);
    assert_eq!(one.read(), 2);
    assert_eq!((one.register(11), two.register(22)), (ok, ok));
    assert_eq!(one.acquire(Acquiring::Acquire, [11, 0]), ok);
    assert_eq!((two.write(3), one.write(4), two.read()), (conflict, ok, 4));
    // A function-level reset of the holder's controller, then its disconnect.
    one.raw.reset();
    assert_eq!(two.write(5), conflict);
    drop(one);
    assert_eq!(two.write(6), conflict);
    let mut again = Client::connect(&sockets[0], 101);
    assert_eq!((again.write(7), two.read()), (ok, 7));
    assert_eq!(two.acquire(Acquiring::PreemptAndAbort, [22, 11]), ok);
    assert_eq!((again.write(8), two.write(9)), (conflict, ok));
    // Clients connect and disconnect during the other's work.
    drop(again);
    for round in 10..20 {
        let mut again = Client::connect(&sockets[0], 101);
        assert_eq!((two.write(round), again.read()), (ok, round));
        assert_eq!(again.write(0), conflict);
    }
}

/// With `device.own_namespaces` each host sees one namespace, and commands for the other's are refused.
#[test]
fn own_namespaces_of_a_shared_ssd_keep_two_hosts_apart() {
    let folder = Folder::new("vfu-own-namespaces");
    let sets = ["device.namespaces=2", "device.own_namespaces=true"];
    let (_server, sockets) = serve(&folder, &sets);
    let mut hosts = [(0, 101), (1, 102)].map(|(at, id)| Client::connect(&sockets[at], id));
    for (host, own) in hosts.iter_mut().zip([1, 2]) {
        assert_eq!(host.namespaces(), [own, 0]);
        assert_eq!(host.write_to(Nsid(own), 10 + own as u8), Status::SUCCESS);
    }
    for (host, (own, other)) in hosts.iter_mut().zip([(1, 2), (2, 1)]) {
        assert_eq!(host.read_from(Nsid(other)), Err(Status::INVALID_FIELD));
        assert_eq!(host.write_to(Nsid(other), 99), Status::INVALID_FIELD);
        assert_eq!(host.read_from(Nsid(own)), Ok(10 + own as u8));
    }
    // Neither a reset nor another client changes that.
    let [one, mut two] = hosts;
    drop(one);
    let mut again = Client::connect(&sockets[0], 103);
    assert_eq!((again.namespaces(), again.read_from(Nsid(1))), ([1, 0], Ok(11)));
    assert_eq!(again.read_from(Nsid(2)), Err(Status::INVALID_FIELD));
    assert_eq!(two.read_from(Nsid(2)), Ok(12));
}
