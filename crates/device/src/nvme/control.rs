//! Registers: capabilities, enable, disable, shutdown.

use std::cell::Cell;
use std::rc::Rc;

use bus::DevicePort;
use media::Media;
use runtime::{Signal, Span, race};
use wire::nvme::admin::Priority;
use wire::nvme::registers::{
    ACQ, AQA, ASQ, Aqa, CAP, CC, CSTS, Cap, Cc, Csts, INTMC, INTMS, VERSION_1_4, VS,
    cq_head_doorbell, sq_tail_doorbell,
};
use wire::nvme::status::Status;
use wire::{BusAddr, QueueId};

use super::queue::{Cq, Given, Sq, ends_in_address_space};
use super::slot::Cut;
use super::threads::What;
use super::{Controller, Options, READY_TIMEOUT};

/// CAP.MPSMAX: memory pages of up to 2^(12 + 4) bytes.
const PAGE_LOG2_MAX: u8 = 4;

/// The registers, and what follows from their last accepted values.
pub(super) struct Registers {
    /// Each empty poll compares it with the register.
    cap: Cap,
    /// Doorbell stride of the queues, as in CAP.DSTRD: 0 is 4 bytes.
    stride: u8,
    /// The register is a copy: host writes to it are ignored.
    csts: Cell<Csts>,
    /// CC at the time that the controller was enabled.
    pub settings: Cell<Cc>,
    /// Last value of CC seen by a watcher.
    pub cc_noticed: Cell<u32>,
    pub control_written: Signal,
    /// Commands are fetched.
    pub ready: Cell<bool>,
}

impl Registers {
    /// Of a controller that is disabled, on one of several threads or on one alone, over a medium that starts
    /// within this time.
    pub fn new(options: &Options, threads: bool, medium: Option<Span>) -> Registers {
        let stride = if threads { options.widest_stride() } else { 0 };
        let cap = Cap::new()
            .with_mqes((options.queue_entries_max - 1) as u16)
            .with_cqr(true)
            .with_ams(if threads { 0 } else { Cap::AMS_WEIGHTED })
            .with_dstrd(stride)
            .with_to(ready_timeout(medium))
            .with_css(Cap::CSS_NVM)
            .with_mpsmax(PAGE_LOG2_MAX);
        Registers {
            cap,
            stride,
            csts: Cell::new(Csts::new()),
            settings: Cell::new(Cc::new()),
            cc_noticed: Cell::new(0),
            control_written: Signal::default(),
            ready: Cell::new(false),
        }
    }
}

/// CAP.TO in units of 500 ms: at least [`READY_TIMEOUT`], and at least the medium's start time.
fn ready_timeout(medium: Option<Span>) -> u8 {
    let halves = medium.unwrap_or_default().0.div_ceil(Span::ms(500).0);
    u8::try_from(halves).unwrap_or(u8::MAX).max(READY_TIMEOUT)
}

impl<P: DevicePort, M: Media> Controller<P, M> {
    /// Sets the host's read-only registers. Host writes to them have no effect: they are overwritten, and
    /// never read.
    pub(super) fn publish_read_only(&self) {
        let cap = self.registers.cap.into_bits();
        let csts = self.registers.csts.get().into_bits();
        let registers =
            [(CAP, cap as u32), (CAP + 4, (cap >> 32) as u32), (VS, VERSION_1_4), (CSTS, csts)];
        for (register, value) in registers {
            if self.port.load(register) != value {
                self.port.store(register, value);
            }
        }
    }

    fn cc(&self) -> Cc {
        Cc::from_bits(self.port.load(CC))
    }

    fn set_status(&self, csts: Csts) {
        self.registers.csts.set(csts);
        self.port.store(CSTS, csts.into_bits());
    }

    /// Task of the registers: processes writes to CC.
    pub(super) async fn control(self: Rc<Self>) {
        let mut seen = Cc::new();
        loop {
            let version = self.registers.control_written.version();
            let cc = self.cc();
            // Record the value read here as noticed. Otherwise a later value equal to the watcher's last one
            // would be missed.
            self.registers.cc_noticed.set(cc.into_bits());
            if cc == seen {
                race(self.registers.control_written.changed(&self.rt, version), self.expire())
                    .await;
                continue;
            }
            self.rt.log("device", "cc", u64::from(cc.into_bits()), 0);
            match (seen.en(), cc.en()) {
                (false, true) => {
                    media::ready(&*self.media).await;
                    if self.cc() != cc {
                        // The host has changed CC meanwhile. The medium continues to start.
                        continue;
                    }
                    self.order_all(|| What::Enable(cc)).await;
                    self.enable(cc);
                }
                (true, false) => self.disable().await,
                _ => {}
            }
            if cc.shn() != 0 && cc.shn() != seen.shn() {
                self.shut_down().await;
            }
            seen = cc;
        }
    }

    /// CC.EN was set: the controller becomes ready, or sets CSTS.CFS.
    fn enable(&self, cc: Cc) {
        let aqa = Aqa::from_bits(self.port.load(AQA));
        let sense = cc.css() == 0
            && (cc.ams() == Cc::AMS_ROUND_ROBIN
                || cc.ams() == Cc::AMS_WEIGHTED && self.shared.place.is_none())
            && cc.mps() <= PAGE_LOG2_MAX
            && aqa.sq_entries() >= 2
            && aqa.cq_entries() >= 2;
        let (asq, acq) = (self.load_address(ASQ), self.load_address(ACQ));
        let queue = |at: BusAddr, bytes: u32| {
            at.page_offset(cc.page_bytes()) == 0 && ends_in_address_space(at, bytes)
        };
        if !sense || !queue(asq, aqa.sq_entries() * 64) || !queue(acq, aqa.cq_entries() * 16) {
            self.fail("enabling with settings of no sense", u64::from(cc.into_bits()));
            return;
        }
        self.registers.settings.set(cc);
        self.install_cq(QueueId::ADMIN, Cq::new(QueueId::ADMIN, acq, aqa.cq_entries(), Some(0)));
        self.install_sq(
            QueueId::ADMIN,
            Sq::new(QueueId::ADMIN, asq, aqa.sq_entries(), QueueId::ADMIN, Priority::Medium),
        );
        // If it can't be saved here, its owner tries again and reports the error.
        let _ = self.options.life.enabled(self.shared.bit, self.rt.now());
        self.registers.ready.set(true);
        self.set_status(Csts::new().with_rdy(true));
    }

    fn load_address(&self, register: u32) -> BusAddr {
        let low = u64::from(self.port.load(register));
        BusAddr(u64::from(self.port.load(register + 4)) << 32 | low)
    }

    /// Installs a new queue. Its doorbell is reset to zero, whatever the host last wrote to it.
    pub(super) fn install_sq(&self, qid: QueueId, mut sq: Sq) {
        self.queues.shadows.changed();
        sq.tail_doorbell = sq_tail_doorbell(qid, self.registers.stride);
        self.port.store(sq.tail_doorbell, 0);
        self.queues.sqs.borrow_mut()[usize::from(qid.0)] = Some(sq);
        self.queues.sqs_end.set(self.queues.sqs_end.get().max(qid.0 + 1));
    }

    pub(super) fn remove_sq(&self, qid: QueueId) {
        let mut sqs = self.queues.sqs.borrow_mut();
        if sqs[usize::from(qid.0)].take().is_some_and(|sq| sq.first.is_some()) {
            self.queues.firsts.set(self.queues.firsts.get() - 1);
        }
        let last = sqs.iter().rposition(Option::is_some).unwrap_or(0);
        self.queues.sqs_end.set(last as u16 + 1);
    }

    /// As [`install_sq`](Self::install_sq).
    pub(super) fn install_cq(&self, qid: QueueId, mut cq: Cq) {
        self.queues.shadows.changed();
        cq.head_doorbell = cq_head_doorbell(qid, self.registers.stride);
        self.port.store(cq.head_doorbell, 0);
        self.queues.cqs.borrow_mut()[usize::from(qid.0)] = Some(cq);
    }

    /// CC.EN was cleared. Once the host reads CSTS.RDY as zero, the controller does not write host memory any
    /// more: every command has been cancelled, and earlier posted writes arrive before the read completion.
    async fn disable(&self) {
        self.registers.ready.set(false);
        self.reset_ends_self_test();
        // The commands of this thread first: one of them may be making a queue of another thread.
        self.forget_queues().await;
        self.order_all(|| What::Disable).await;
        self.drop_reports();
        self.queues.given.replace(Given::default());
        let queues = self.queues.sqs.borrow().len() as u16;
        for qid in (0..queues).map(QueueId) {
            self.port.store(sq_tail_doorbell(qid, self.registers.stride), 0);
            self.port.store(cq_head_doorbell(qid, self.registers.stride), 0);
        }
        self.forget_nameless_host();
        self.shared.member.forget();
        *self.health.events.borrow_mut() = Default::default();
        if self.features.power.feature().ps() != 0 {
            self.faults.meter.power.enter(0, self.rt.now(), self.rt.now());
        }
        self.features.power.reset();
        self.forget_keep_alive();
        self.revoke_gc_control();
        self.revoke_host_map();
        self.port.store(INTMS, 0);
        self.port.store(INTMC, 0);
        self.drive_pin();
        self.set_status(Csts::new());
    }

    /// Cancels the commands of this thread, forgets its queues, and restores the defaults of its features. No
    /// doorbell of another thread's queue is touched.
    pub(super) async fn forget_queues(&self) {
        self.registers.ready.set(false);
        self.queues.shadows.reset();
        for slot in self.slots.iter() {
            slot.cut(&self.rt, Cut::Silently);
        }
        self.until_idle(|_| true).await;
        let queues = self.queues.sqs.borrow().len() as u16;
        for qid in 0..queues {
            self.remove_sq(QueueId(qid));
            self.queues.cqs.borrow_mut()[usize::from(qid)] = None;
        }
        self.features.reset(&self.options);
        self.fetching.arbiter.reset();
    }

    /// Waits until no slot holds a command of these queues, and no fetch of their entries is in flight.
    pub(super) async fn until_idle(&self, of: impl Fn(QueueId) -> bool) {
        loop {
            let version = self.slots.quiet.version();
            let busy =
                self.slots.iter().any(|slot| slot.busy.get().is_some_and(|(qid, _)| of(qid)));
            let fetching = |(qid, sq): (u16, &Option<Sq>)| {
                of(QueueId(qid)) && sq.as_ref().is_some_and(|sq| sq.fetching)
            };
            let looking = self.queues.shadows.looks_at(&of);
            if !busy && !looking && !(0..).zip(self.queues.sqs.borrow().iter()).any(fetching) {
                return;
            }
            self.slots.quiet.changed(&self.rt, version).await;
        }
    }

    /// CC.SHN was set: makes all written data durable. From here to the next reset no command is fetched or
    /// executed, so that what is acknowledged is durable.
    async fn shut_down(&self) {
        self.set_status(self.registers.csts.get().with_shst(Csts::SHST_OCCURRING));
        self.host_is_alive();
        self.stop_commands().await;
        self.order_all(|| What::ShutDown).await;
        if self.flush().await.is_err() {
            self.fail("making data durable at shutdown", 0);
        } else {
            let _ = self.options.life.shut_down(self.shared.bit, self.rt.now());
        }
        self.set_status(self.registers.csts.get().with_shst(Csts::SHST_COMPLETE));
    }

    /// Fetches no further commands, aborts those of this thread, and waits until none is executed any more.
    pub(super) async fn stop_commands(&self) {
        self.registers.ready.set(false);
        for slot in self.slots.iter().filter(|slot| !slot.completing.get()) {
            slot.cut(&self.rt, Cut::With(Status::ABORTED_POWER_LOSS));
        }
        loop {
            let version = self.slots.quiet.version();
            if !self.slots.iter().any(|slot| slot.busy.get().is_some() && !slot.completing.get()) {
                return;
            }
            self.slots.quiet.changed(&self.rt, version).await;
        }
    }

    /// True from a shutdown notification to the next reset.
    pub(super) fn is_shut_down(&self) -> bool {
        self.registers.csts.get().shst() != 0
    }

    /// An error that no completion can report: the controller stops and sets CSTS.CFS.
    pub(super) fn fail(&self, what: &'static str, at: u64) {
        self.registers.ready.set(false);
        self.rt.log("device", what, at, 0);
        self.fail_all();
        if !self.is_other() {
            self.set_status(self.registers.csts.get().with_cfs(true));
        }
    }

    /// Cancels the commands of a queue that is being deleted, and waits for their completion.
    pub(super) async fn drain_sq(&self, qid: QueueId) {
        for slot in self.slots.iter() {
            if slot.busy.get().is_some_and(|(busy, _)| busy == qid) {
                slot.cut(&self.rt, Cut::With(Status::ABORTED_SQ_DELETION));
            }
        }
        self.until_idle(|busy| busy == qid).await;
    }
}
