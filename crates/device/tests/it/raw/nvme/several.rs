//! Test bench with several controllers of one subsystem, each with its own link, host and host memory.

use std::rc::Rc;

use bus::sim::{SimBus, SimDevice, SimHost};
use device::faults::Faults;
use device::nvme::{Controller, Subsystem};
use media::Labels;
use runtime::{Log, Rng, Rt, Span};
use wire::Nsid;
use wire::nvme::admin::{Command, Request, Select, SetFeatures};
use wire::nvme::entry::Sqe;
use wire::nvme::features::fid;
use wire::nvme::io;
use wire::nvme::reservation::{
    Acquire, Acquiring, Kind, Notification, Persistence, Register, Registering, Release, Releasing,
    Report,
};
use wire::nvme::status::Status;
use wire::{BusAddr, CommandId};
use zerocopy::{FromBytes, IntoBytes};

use super::bench::Bench;
use super::world::Setup;
use super::{NS, Pair, Raw};

/// A host with a controller of its own.
pub struct Party {
    pub raw: Raw<SimHost>,
    pub pair: Pair,
    /// Two pages for the data of commands.
    pub at: BusAddr,
}

pub struct Several {
    pub rt: Rt,
    pub medium: Rc<Bench>,
    pub hosts: Vec<Party>,
    /// The controllers, in the same order.
    pub controllers: Vec<Rc<Controller<SimDevice, Bench>>>,
}

/// Runs a test with `hosts` hosts, whose controllers are enabled.
pub fn with_hosts<T>(hosts: usize, setup: Setup, test: impl AsyncFnOnce(Several) -> T) -> T {
    let rt = Rt::simulated(None, Log::Off);
    if let Some(seed) = setup.shuffle {
        rt.shuffle_ready_tasks(Rng::for_part(seed, "shuffle"));
    }
    let medium = Rc::new(Bench::new(&rt, setup.blocks, setup.block_bytes));
    medium.labelled.set(setup.label.is_some());
    medium.set_label(setup.label.as_deref().unwrap_or_default()).expect("a label of some bytes");
    medium.metadata.set(setup.metadata);
    medium.span.set(Span::us(1));
    let options = device::nvme::Options { controllers: hosts as u16, ..setup.options.clone() };
    let subsystem = Subsystem::new(medium.clone(), &options);
    let buses: Vec<SimBus> = (0..hosts).map(|_| SimBus::new(&rt, setup.spec())).collect();
    let start = |(id, bus): (u16, &SimBus)| {
        subsystem.start_controller(id, bus.device(), options.clone(), Faults::none())
    };
    let controllers = (1..).zip(&buses).map(start).collect();
    let result = rt.block_on(async {
        let mut all = Vec::new();
        for bus in &buses {
            let mut raw = Raw::new(bus.host(0));
            let pair = raw.up().await;
            let at = raw.place(8192, 4096);
            all.push(Party { raw, pair, at });
        }
        test(Several { rt: rt.clone(), medium, hosts: all, controllers }).await
    });
    rt.drop_tasks();
    result
}

impl Party {
    pub async fn io(&mut self, sqe: &Sqe) -> Status {
        let mut pair = self.pair;
        let status = self.raw.run(&mut pair, sqe).await.status();
        self.pair = pair;
        status
    }

    /// Submits an I/O command without waiting.
    pub fn begin(&mut self, sqe: &Sqe) -> CommandId {
        let mut sq = self.pair.sq;
        self.raw.submit(&mut sq, sqe);
        self.pair.sq = sq;
        sqe.id()
    }

    /// The next I/O completion, or `None` after `span`.
    pub async fn next(&mut self, span: Span) -> Option<(CommandId, Status)> {
        let mut cq = self.pair.cq;
        let cqe = self.raw.next_within(&mut cq, span).await;
        self.pair.cq = cq;
        cqe.map(|cqe| (cqe.id(), cqe.status()))
    }

    /// A reservation command with these keys.
    pub fn form(&self, nsid: Nsid, command: io::Command, keys: &[u64]) -> Sqe {
        self.raw.memory.write(self.at, keys.as_bytes()).expect("a place");
        let (cid, data) = (self.raw.cid(), self.raw.data(self.at, 4096));
        io::Request { cid, nsid, data, command }.to_sqe()
    }

    async fn reserve(&mut self, command: io::Command, keys: &[u64]) -> Status {
        let sqe = self.form(NS, command, keys);
        self.io(&sqe).await
    }

    pub async fn register_how(&mut self, how: Register, current: u64, new: u64) -> Status {
        self.reserve(io::Command::ReservationRegister(how), &[current, new]).await
    }

    pub async fn register(&mut self, key: u64) -> Status {
        self.register_how(plainly(Registering::Register), 0, key).await
    }

    pub async fn unregister(&mut self, key: u64) -> Status {
        self.register_how(plainly(Registering::Unregister), key, 0).await
    }

    pub async fn acquire(&mut self, key: u64, kind: Kind) -> Status {
        let how = Acquire { action: Acquiring::Acquire, kind };
        self.reserve(io::Command::ReservationAcquire(how), &[key, 0]).await
    }

    pub async fn preempt(&mut self, key: u64, other: u64, kind: Kind) -> Status {
        let how = Acquire { action: Acquiring::Preempt, kind };
        self.reserve(io::Command::ReservationAcquire(how), &[key, other]).await
    }

    pub async fn release(&mut self, key: u64, kind: u8) -> Status {
        let how = Release { action: Releasing::Release, kind };
        self.reserve(io::Command::ReservationRelease(how), &[key]).await
    }

    pub async fn clear(&mut self, key: u64) -> Status {
        let how = Release { action: Releasing::Clear, kind: 0 };
        self.reserve(io::Command::ReservationRelease(how), &[key]).await
    }

    /// The first 512 bytes of a reservation report.
    pub async fn report(&mut self, extended: bool) -> Result<Vec<u8>, Status> {
        let how = Report { bytes: 512, extended };
        let status = self.reserve(io::Command::ReservationReport(how), &[]).await;
        status.ok().map(|()| self.raw.bytes(self.at, 512))
    }

    /// Sets the host identifier, of eight or sixteen bytes.
    pub async fn expect_holder(&mut self, id: &[u8]) -> Status {
        self.raw.memory.write(self.at, id).expect("a place");
        let cdw11 = u32::from(id.len() == 16);
        self.set(fid::HOST_IDENTIFIER, Nsid::NONE, cdw11).await
    }

    pub async fn set(&mut self, fid: u8, nsid: Nsid, cdw11: u32) -> Status {
        let set = SetFeatures { fid, cdw11, ..SetFeatures::default() };
        let (cid, data) = (self.raw.cid(), self.raw.data(self.at, 4096));
        let command = Command::SetFeatures(set);
        let sqe = Request { cid, nsid, data, command }.to_sqe();
        self.raw.admin(&sqe).await.status()
    }

    pub async fn get(&mut self, fid: u8, nsid: Nsid, cdw11: u32) -> Result<u32, Status> {
        let (cid, data) = (self.raw.cid(), self.raw.data(self.at, 4096));
        let command = Command::GetFeatures { fid, select: Select::Current, cdw11 };
        let sqe = Request { cid, nsid, data, command }.to_sqe();
        let cqe = self.raw.admin(&sqe).await;
        cqe.status().ok().map(|()| cqe.dw0.get())
    }

    /// The oldest notification: number, type, further notifications, namespace.
    pub async fn notification(&mut self) -> (u64, u8, u8, u32) {
        let data = self.raw.data(self.at, 64);
        let lid = wire::nvme::log::lid::RESERVATION;
        let sqe = wire::nvme::admin::get_log_page(self.raw.cid(), lid, 64, data);
        self.raw.admin_ok(&sqe).await;
        let page = Notification::read_from_bytes(&self.raw.bytes(self.at, 64)).expect("64 bytes");
        (page.count.get(), page.kind, page.more, page.nsid.get())
    }
}

/// Reservation Register options with IEKEY clear and persistence unchanged.
pub fn plainly(action: Registering) -> Register {
    Register { action, ignore_key: false, persistence: Persistence::Unchanged }
}
