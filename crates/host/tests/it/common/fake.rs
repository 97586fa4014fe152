//! Scripted NVMe controller. It follows NVMe as far as the driver needs it; its traits make it late, silent,
//! wrong or malicious.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use bus::sim::SimDevice;
use bus::{Carry, DevicePort, Posting, Segment};
use runtime::{Rng, Span, Time};
use wire::nvme::admin::{self, Command, CreateCq, CreateSq};
use wire::nvme::entry::{Cqe, DataPointer, Sqe};
use wire::nvme::features::{NumberOfQueues, fid};
use wire::nvme::identify::{IdentifyController, IdentifyNamespace, NamespaceList, cns, vwc};
use wire::nvme::io;
use wire::nvme::registers::{self as regs, Aqa, Cap, Cc, Csts};
use wire::nvme::status::Status;
use wire::{BusAddr, CommandId, Nsid, QueueId};
use zerocopy::{FromZeros, IntoBytes};

use super::pattern;

/// Handling of an I/O command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    After(Span),
    /// This status without data, after this span.
    Fails(Span, Status),
    /// No completion, unless the command is aborted.
    Never,
    /// Success, with two completions for one command.
    Twice,
    /// Success, preceded by completions with another queue, with a head beyond the queue, with a missing slot
    /// and with another use of the slot.
    AmongForgeries,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aborts {
    /// The command ends as aborted.
    Work,
    /// The Abort reports that it did not abort.
    Fail,
    /// The Abort is never completed.
    Silent,
}

/// Behaviour on enable or disable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turns {
    After(Span),
    /// Never ready.
    Never,
    /// Reports a fatal status (CSTS.CFS).
    Fatal,
}

/// Properties of the controller. Tests change them while it runs.
pub struct Traits {
    pub cap: Cap,
    pub controller: IdentifyController,
    pub namespace: IdentifyNamespace,
    pub namespaces: Vec<Nsid>,
    pub queues: u32,
    pub on: Turns,
    pub off: Turns,
    pub aborts: Aborts,
    /// Status of failing admin commands, by opcode.
    pub admin_fails: BTreeMap<u8, Status>,
    /// Opcodes of admin commands that are never completed.
    pub admin_silent: BTreeSet<u8>,
    /// Every other interrupt is dropped.
    pub loses_interrupts: bool,
    /// Handling of the n-th I/O command.
    pub io: Script,
}

/// Chooses the handling of each I/O command.
pub type Script = Box<dyn FnMut(u64, &io::Request) -> Answer>;

impl Default for Traits {
    fn default() -> Traits {
        let mut controller = IdentifyController::new_zeroed();
        controller.mdts = 5;
        controller.vwc = vwc::PRESENT;
        let mut namespace = IdentifyNamespace::new_zeroed();
        namespace.nsze = 4096.into();
        namespace.lbaf[0].ds = 9;
        Traits {
            cap: Cap::new().with_mqes(1023).with_to(2).with_css(Cap::CSS_NVM),
            controller,
            namespace,
            namespaces: vec![Nsid(1)],
            queues: 4,
            on: Turns::After(Span::ms(20)),
            off: Turns::After(Span::ms(5)),
            aborts: Aborts::Work,
            admin_fails: BTreeMap::new(),
            admin_silent: BTreeSet::new(),
            loses_interrupts: false,
            io: Box::new(|_, _| Answer::After(Span::us(10))),
        }
    }
}

#[derive(Clone, Copy)]
pub(super) struct SqState {
    at: BusAddr,
    entries: u32,
    head: u32,
    cq: u16,
}

#[derive(Clone, Copy)]
pub(super) struct CqState {
    at: BusAddr,
    entries: u32,
    tail: u32,
    phase: bool,
    vector: Option<u16>,
}

pub struct Fake<D: DevicePort = SimDevice> {
    pub(super) device: D,
    pub traits: RefCell<Traits>,
    pub(super) sqs: RefCell<BTreeMap<u16, SqState>>,
    pub(super) cqs: RefCell<BTreeMap<u16, CqState>>,
    pub(super) blocks: RefCell<BTreeMap<u64, Vec<u8>>>,
    /// I/O commands in the device, by queue and command identifier.
    pub(super) live: RefCell<BTreeSet<(u16, u16)>>,
    /// Those that are never completed.
    pub(super) held: RefCell<BTreeSet<(u16, u16)>>,
    /// Last use count seen of each slot of queue 1.
    pub(super) uses: RefCell<BTreeMap<u16, u16>>,
    /// If set, entries for a full completion queue are dropped.
    pub lenient: Cell<bool>,
    pub(super) event_requests: RefCell<Vec<CommandId>>,
    pub(super) cc: Cell<u32>,
    /// Incremented on each disable: work of an earlier epoch ends silently.
    pub(super) epoch: Cell<u64>,
    pub(super) transfers: Cell<u32>,
    pub(super) interrupts: Cell<u64>,
    pub commands: Cell<u64>,
    pub flushes: Cell<u64>,
    pub aborts_seen: Cell<u64>,
    pub aborts_at_once_max: Cell<u32>,
    pub(super) aborts_now: Cell<u32>,
    pub enables: Cell<u64>,
    /// Admin opcodes in order of arrival.
    pub admin_log: RefCell<Vec<u8>>,
    pub shutdown_seen: Cell<bool>,
}

impl<D: DevicePort> Fake<D> {
    pub fn start(device: D, traits: Traits) -> Rc<Fake<D>> {
        let fake = Rc::new(Fake {
            device,
            traits: RefCell::new(traits),
            sqs: RefCell::default(),
            cqs: RefCell::default(),
            blocks: RefCell::default(),
            live: RefCell::default(),
            held: RefCell::default(),
            uses: RefCell::default(),
            lenient: Cell::new(false),
            event_requests: RefCell::default(),
            cc: Cell::new(0),
            epoch: Cell::new(0),
            transfers: Cell::new(0),
            interrupts: Cell::new(0),
            commands: Cell::new(0),
            flushes: Cell::new(0),
            aborts_seen: Cell::new(0),
            aborts_at_once_max: Cell::new(0),
            aborts_now: Cell::new(0),
            enables: Cell::new(0),
            admin_log: RefCell::default(),
            shutdown_seen: Cell::new(false),
        });
        let cap = fake.traits.borrow().cap.into_bits();
        fake.device.store(regs::CAP, cap as u32);
        fake.device.store(regs::CAP + 4, (cap >> 32) as u32);
        fake.device.store(regs::VS, regs::VERSION_1_4);
        fake.device.rt().spawn(fake.clone().run());
        fake
    }

    fn stride(&self) -> u8 {
        self.traits.borrow().cap.dstrd()
    }

    /// Handles changes of CC and doorbells.
    async fn run(self: Rc<Self>) {
        loop {
            let check = || {
                let cc = self.device.load(regs::CC);
                if cc != self.cc.get() {
                    return Some(None);
                }
                let sqs = self.sqs.borrow();
                sqs.iter().find_map(|(qid, sq)| {
                    let doorbell = regs::sq_tail_doorbell(QueueId(*qid), self.stride());
                    (self.device.load(doorbell) != sq.head).then_some(Some(*qid))
                })
            };
            match self.device.on_registers(check).await {
                None => self.configure().await,
                Some(qid) => self.fetch(qid).await,
            }
        }
    }

    async fn configure(self: &Rc<Self>) {
        let (old, new) = (Cc::from_bits(self.cc.get()), self.device.load(regs::CC));
        self.cc.set(new);
        let new = Cc::from_bits(new);
        if new.shn() != old.shn() && new.shn() != 0 {
            self.shutdown_seen.set(true);
            let csts = Csts::new().with_rdy(true).with_shst(Csts::SHST_COMPLETE);
            self.device.store(regs::CSTS, csts.into_bits());
        }
        if new.en() && !old.en() {
            self.turn_on().await;
        } else if !new.en() && old.en() {
            self.turn_off().await;
        }
    }

    async fn turn_on(&self) {
        self.enables.set(self.enables.get() + 1);
        let turns = self.traits.borrow().on;
        match turns {
            Turns::Never => return,
            Turns::Fatal => {
                self.device.store(regs::CSTS, Csts::new().with_cfs(true).into_bits());
                return;
            }
            Turns::After(span) => self.device.rt().sleep(span).await,
        }
        let load64 = |at| {
            let (low, high) = (self.device.load(at), self.device.load(at + 4));
            BusAddr(u64::from(high) << 32 | u64::from(low))
        };
        let aqa = Aqa::from_bits(self.device.load(regs::AQA));
        let sq = SqState { at: load64(regs::ASQ), entries: aqa.sq_entries(), head: 0, cq: 0 };
        let cq = CqState {
            at: load64(regs::ACQ),
            entries: aqa.cq_entries(),
            tail: 0,
            phase: true,
            vector: Some(0),
        };
        self.sqs.borrow_mut().insert(0, sq);
        self.cqs.borrow_mut().insert(0, cq);
        self.device.store(regs::CSTS, Csts::new().with_rdy(true).into_bits());
    }

    async fn turn_off(&self) {
        self.epoch.set(self.epoch.get() + 1);
        self.sqs.borrow_mut().clear();
        self.cqs.borrow_mut().clear();
        self.live.borrow_mut().clear();
        self.held.borrow_mut().clear();
        self.event_requests.borrow_mut().clear();
        self.aborts_now.set(0);
        while self.transfers.get() > 0 {
            self.device.rt().sleep(Span::us(1)).await;
        }
        let turns = self.traits.borrow().off;
        let Turns::After(span) = turns else { return };
        self.device.rt().sleep(span).await;
        for qid in 0..=8 {
            self.device.store(regs::sq_tail_doorbell(QueueId(qid), self.stride()), 0);
            self.device.store(regs::cq_head_doorbell(QueueId(qid), self.stride()), 0);
        }
        self.device.store(regs::CSTS, 0);
    }

    async fn fetch(self: &Rc<Self>, qid: u16) {
        let Some(sq) = self.sqs.borrow().get(&qid).copied() else { return };
        let at = BusAddr(sq.at.0 + u64::from(sq.head) * 64);
        let mut sqe = Sqe::new_zeroed();
        let epoch = self.epoch.get();
        let from = [Segment { at, bytes: 64 }];
        self.device.read(&from, sqe.as_mut_bytes(), Carry::All).await.unwrap();
        if epoch != self.epoch.get() {
            return;
        }
        if let Some(sq) = self.sqs.borrow_mut().get_mut(&qid) {
            sq.head = (sq.head + 1) % sq.entries;
        }
        if qid == 0 {
            self.admin(&sqe).await;
        } else {
            let fake = self.clone();
            self.device.rt().spawn(async move { fake.io(qid, &sqe, epoch).await });
        }
    }

    async fn admin(self: &Rc<Self>, sqe: &Sqe) {
        self.admin_log.borrow_mut().push(sqe.opcode);
        if self.traits.borrow().admin_silent.contains(&sqe.opcode) {
            return;
        }
        let fails = self.traits.borrow().admin_fails.get(&sqe.opcode).copied();
        let cid = sqe.id();
        if let Some(status) = fails {
            return self.complete(0, Cqe::new(cid, status));
        }
        let request = admin::parse(sqe).expect("the driver sends sense");
        let result = match request.command {
            Command::Identify(identify) => {
                self.identify(identify.cns, request.nsid, request.data).await;
                0
            }
            Command::GetLogPage(get) => {
                let zeros = vec![0; get.bytes as usize];
                self.put_page(request.data, &zeros).await;
                0
            }
            Command::SetFeatures(set) if set.fid == fid::NUMBER_OF_QUEUES => {
                let queues = self.traits.borrow().queues;
                NumberOfQueues::of(queues, queues).into_bits()
            }
            Command::CreateCq(create) => self.create_cq(&create, request.data),
            Command::CreateSq(create) => self.create_sq(&create, request.data),
            Command::DeleteSq { qid } if !self.sqs.borrow().contains_key(&qid.0) => {
                return self.complete(0, Cqe::new(cid, Status::INVALID_QUEUE_IDENTIFIER));
            }
            Command::DeleteSq { qid } => self.delete_sq(qid.0),
            Command::DeleteCq { qid } => {
                assert!(self.cqs.borrow_mut().remove(&qid.0).is_some());
                0
            }
            Command::Abort { sqid, cid: victim } => {
                let fake = self.clone();
                let epoch = self.epoch.get();
                let abort = async move { fake.abort(cid, sqid.0, victim, epoch).await };
                self.device.rt().spawn(abort);
                return;
            }
            Command::AsyncEventRequest => {
                self.event_requests.borrow_mut().push(cid);
                return;
            }
            _ => 0,
        };
        self.complete(0, Cqe::new(cid, Status::SUCCESS).with_result(result));
    }

    fn create_cq(&self, create: &CreateCq, data: DataPointer) -> u32 {
        let vector = create.irq_enabled.then_some(create.vector);
        // Doorbell values from before the creation are discarded.
        self.device.store(regs::cq_head_doorbell(create.qid, self.stride()), 0);
        let (at, _) = data.prps().expect("admin commands take PRPs");
        let cq = CqState { at, entries: create.size, tail: 0, phase: true, vector };
        let before = self.cqs.borrow_mut().insert(create.qid.0, cq);
        assert!(before.is_none(), "completion queue {} exists", create.qid);
        0
    }

    fn create_sq(&self, create: &CreateSq, data: DataPointer) -> u32 {
        let (at, _) = data.prps().expect("admin commands take PRPs");
        self.device.store(regs::sq_tail_doorbell(create.qid, self.stride()), 0);
        let sq = SqState { at, entries: create.size, head: 0, cq: create.cqid.0 };
        assert!(self.cqs.borrow().contains_key(&create.cqid.0));
        let before = self.sqs.borrow_mut().insert(create.qid.0, sq);
        assert!(before.is_none(), "submission queue {} exists", create.qid);
        0
    }

    /// Deletes a queue; held commands complete as aborted.
    fn delete_sq(&self, qid: u16) -> u32 {
        assert!(self.sqs.borrow_mut().remove(&qid).is_some());
        let held: Vec<_> = self.held.borrow().iter().copied().collect();
        for (queue, cid) in held.into_iter().filter(|(queue, _)| *queue == qid) {
            self.held.borrow_mut().remove(&(queue, cid));
            let cqe = Cqe::new(CommandId(cid), Status::ABORTED_SQ_DELETION);
            self.complete(queue, cqe);
        }
        0
    }

    async fn identify(&self, cns: u8, nsid: Nsid, data: DataPointer) {
        let bytes = {
            let traits = self.traits.borrow();
            match cns {
                cns::CONTROLLER => traits.controller.as_bytes().to_vec(),
                cns::NAMESPACE => {
                    assert!(traits.namespaces.contains(&nsid));
                    traits.namespace.as_bytes().to_vec()
                }
                cns::ACTIVE_NAMESPACES => {
                    let all = traits.namespaces.iter().copied();
                    NamespaceList::after(nsid, all).as_bytes().to_vec()
                }
                _ => panic!("Identify {cns:#x}"),
            }
        };
        self.put_page(data, &bytes).await;
    }

    async fn put_page(&self, data: DataPointer, bytes: &[u8]) {
        let (at, _) = data.prps().expect("admin commands take PRPs");
        let to = [Segment { at, bytes: bytes.len() as u32 }];
        self.device.write(&to, bytes, Posting::STRICT, Time::ZERO).await.unwrap();
    }

    /// An Abort takes time, so that several overlap.
    async fn abort(&self, cid: CommandId, queue: u16, victim: CommandId, epoch: u64) {
        self.aborts_seen.set(self.aborts_seen.get() + 1);
        self.aborts_now.set(self.aborts_now.get() + 1);
        let most = self.aborts_at_once_max.get().max(self.aborts_now.get());
        self.aborts_at_once_max.set(most);
        let aborts = self.traits.borrow().aborts;
        if aborts == Aborts::Silent {
            return;
        }
        self.device.rt().sleep(Span::us(100)).await;
        if epoch != self.epoch.get() {
            return;
        }
        self.aborts_now.set(self.aborts_now.get() - 1);
        let done = aborts == Aborts::Work && self.held.borrow_mut().remove(&(queue, victim.0));
        if done {
            self.complete(queue, Cqe::new(victim, Status::ABORT_REQUESTED));
        }
        self.complete(0, Cqe::new(cid, Status::SUCCESS).with_result(u32::from(!done)));
    }

    /// Contents of a block.
    pub fn block(&self, lba: u64) -> Vec<u8> {
        self.blocks.borrow().get(&lba).cloned().unwrap_or_else(|| pattern(lba))
    }

    /// Completes a command, with the queue's current head.
    pub fn complete(&self, sqid: u16, cqe: Cqe) {
        let sq = self.sqs.borrow().get(&sqid).copied();
        let (head, cq) = sq.map_or((0, sqid), |sq| (sq.head as u16, sq.cq));
        self.live.borrow_mut().remove(&(sqid, cqe.cid.get()));
        self.publish(cq, cqe.with_queue(QueueId(sqid), head));
    }

    /// Writes an entry with the right phase to a completion queue, and raises its interrupt.
    pub fn publish(&self, cqid: u16, cqe: Cqe) {
        if self.lenient.get() && !self.has_room(cqid) {
            return;
        }
        assert!(self.has_room(cqid), "the driver has let completion queue {cqid} fill up");
        let mut cqs = self.cqs.borrow_mut();
        let Some(cq) = cqs.get_mut(&cqid) else { return };
        let next = (cq.tail + 1) % cq.entries;
        let at = BusAddr(cq.at.0 + u64::from(cq.tail) * 16);
        self.device.publish(at, cqe.with_phase(cq.phase).as_bytes(), false).unwrap();
        cq.tail = next;
        cq.phase ^= next == 0;
        let vector = cq.vector;
        drop(cqs);
        if let Some(vector) = vector {
            self.interrupts.set(self.interrupts.get() + 1);
            let lost = self.traits.borrow().loses_interrupts && cqid != 0;
            if !lost || self.interrupts.get().is_multiple_of(2) {
                self.device.interrupt(vector);
            }
        }
    }

    /// Returns true if this completion queue exists.
    pub fn has_queue(&self, cqid: u16) -> bool {
        self.cqs.borrow().contains_key(&cqid)
    }

    /// Returns true if the completion queue has space, or does not exist.
    pub fn has_room(&self, cqid: u16) -> bool {
        self.cqs.borrow().get(&cqid).is_none_or(|cq| {
            let head = self.device.load(regs::cq_head_doorbell(QueueId(cqid), self.stride()));
            (cq.tail + 1) % cq.entries != head
        })
    }

    /// Returns true if this completion could match a command when it lands: the last use of the slot, or one
    /// of the next ones.
    pub fn is_plausible(&self, cqid: u16, cqe: &Cqe) -> bool {
        let entries = self.sqs.borrow().get(&cqid).map_or(0, |sq| sq.entries);
        let (slot, generation) = (cqe.cid.get() & 0x3ff, cqe.cid.get() >> 10);
        let last = self.uses.borrow().get(&slot).copied().unwrap_or(0);
        let ahead = (generation + 63 - last) % 63;
        cqe.queue() == QueueId(cqid) && u32::from(cqe.sq_head.get()) < entries && ahead < 12
    }

    /// Completes the oldest Asynchronous Event Request.
    pub fn send_event(&self, event: u32) -> bool {
        if self.event_requests.borrow().is_empty() {
            return false;
        }
        let cid = self.event_requests.borrow_mut().remove(0);
        self.complete(0, Cqe::new(cid, Status::SUCCESS).with_result(event));
        true
    }

    pub fn complete_held(&self) {
        let held = std::mem::take(&mut *self.held.borrow_mut());
        for (qid, cid) in held {
            self.complete(qid, Cqe::new(CommandId(cid), Status::SUCCESS));
        }
    }

    pub fn held(&self) -> usize {
        self.held.borrow().len()
    }

    pub fn fail(&self) {
        let csts = Csts::new().with_rdy(true).with_cfs(true);
        self.device.store(regs::CSTS, csts.into_bits());
    }

    /// Writes garbage over a whole completion queue.
    pub fn spray(&self, cqid: u16, rng: &mut Rng) {
        let Some(cq) = self.cqs.borrow().get(&cqid).copied() else { return };
        for entry in 0..cq.entries {
            let mut bytes = [0; 16];
            for half in bytes.chunks_mut(8) {
                half.copy_from_slice(&rng.next_u64().to_le_bytes());
            }
            // Often plausible: the right queue, a small command identifier.
            if rng.chance(3, 4) {
                bytes[8..12].copy_from_slice(&[0, 0, cqid as u8, 0]);
                bytes[13] &= 0x07;
            }
            let at = BusAddr(cq.at.0 + u64::from(entry) * 16);
            self.device.publish(at, &bytes, false).unwrap();
        }
    }

    pub fn device(&self) -> &D {
        &self.device
    }
}
