//! `serve --shared`: hosts in two processes on one SSD, with reservations.

use std::path::PathBuf;

use wire::nvme::admin::{Command, Request, SetFeatures};
use wire::nvme::entry::Sqe;
use wire::nvme::features::fid;
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

fn serve(folder: &Folder) -> (Server, [PathBuf; 2]) {
    let words = ["serve", "live", "--vfio-user", "one", "--vfio-user", "two", "--shared"];
    let mut command = doorbell(folder, &words);
    let mut server = Server::begin(folder, command.args(SETS));
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
        self.pages.write(AT, &[byte; 512]);
        self.io(&io::write(CommandId(1), NS, Lba(9), 1, false, data(AT, 0)))
    }

    fn read(&mut self) -> u8 {
        let sqe = io::read(CommandId(2), NS, Lba(9), 1, false, data(AT, 0));
        assert_eq!(self.io(&sqe), Status::SUCCESS);
        let mut bytes = [0; 512];
        self.pages.read(AT, &mut bytes);
        bytes[0]
    }
}

/// Each host reads the other's data; a reservation excludes the other host, through each controller, and
/// outlasts resets of the holder's controller and its disconnect.
#[test]
fn shared_ssd_serves_two_hosts_with_reservations() {
    let folder = Folder::new("vfu-sharing");
    let (_server, sockets) = serve(&folder);
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
