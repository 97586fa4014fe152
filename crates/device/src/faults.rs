//! Fault injection: which commands are affected, when, and how.
//!
//! If faults are configured, a controller calls [`Faults`] for each command that it begins. One instance is
//! shared by device and medium. Each fault has its own RNG stream and counter, and each injection is logged
//! as `fault KIND N ID`, with the fault's index in the plan and the command's queue and identifier as
//! `queue << 16 | identifier`; all ones if no command was affected.
//!
//! A world uses one type for its medium, with or without faults and tags (`world::medium`), so an interface
//! is compiled once for each bus. Without faults this costs a few branches that always go the same way. The
//! faults use paths that exist anyway: a lost command ends as a held one does (its slot is freed, no
//! completion is posted); a hung one waits in its slot, where Abort, queue deletion and reset cancel it as
//! any other; lost interrupts, reordered and dropped completions are injected where completions are posted. A
//! dead link silences the device at once, and the bus when the task that runs the device notices it: at the
//! same moment in virtual time, within milliseconds live.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::rc::Rc;

use flash::chips::DieFault;
use media::{Flip, Harm};
use runtime::{Rng, Rt, Signal, Span, Time};
use wire::nvme::entry::Sqe;
use wire::nvme::opcode::io;
use wire::nvme::status::Status;

use crate::meter::Meter;

/// Unlimited duration.
pub const FOREVER: Span = Span(u64::MAX);

/// A fault of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Name, used for its counter and as the seed of its RNG stream.
    pub name: String,
    /// Effect.
    pub what: What,
    /// Condition.
    pub when: When,
}

/// Effect of a fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// The command begins this much later.
    Delay(Span),
    /// The command is lost: it is not executed and never completes, even after an Abort.
    Drop,
    /// The command hangs until it is aborted, its queue deleted or the controller reset.
    Hang,
    /// The completion is delayed until later completions of its queue have been posted.
    Reorder {
        /// Number of later completions to wait for.
        behind: u32,
        /// Maximum delay.
        at_most: Span,
    },
    /// The command completes with this status and is not executed.
    Status(Status),
    /// One bit of the data flips between host memory and medium.
    CorruptData,
    /// One bit of the metadata flips between host memory and controller.
    CorruptMetadata,
    /// One bit of the blocks flips on the medium: before a read, after a write.
    CorruptMedium,
    /// The medium completes no access for this time; [`FOREVER`]: permanently.
    StuckMedium(Span),
    /// A fault of a flash die.
    Die {
        /// Die number; consecutive numbers are on consecutive channels.
        die: u32,
        /// Kind of die fault.
        of: DieFault,
    },
    /// For this time, flushes complete and make nothing durable, and so do writes with FUA; a power cut loses
    /// written blocks at random. [`FOREVER`]: permanently.
    IgnoreFlush(Span),
    /// The interrupt of the completion is lost.
    LostInterrupt,
    /// The link goes down permanently.
    LinkDown,
    /// The controller fails and sets CSTS.CFS.
    Fatal,
}

impl What {
    /// Keyword in plans and in the event log.
    pub const fn word(&self) -> &'static str {
        match self {
            What::Delay(_) => "delay",
            What::Drop => "drop",
            What::Hang => "hang",
            What::Reorder { .. } => "reorder",
            What::Status(_) => "status",
            What::CorruptData => "corrupt-data",
            What::CorruptMetadata => "corrupt-metadata",
            What::CorruptMedium => "corrupt-medium",
            What::StuckMedium(_) => "stuck-medium",
            What::Die { of: DieFault::Stuck(_), .. } => "stuck-die",
            What::Die { of: DieFault::Slow { .. }, .. } => "slow-die",
            What::Die { of: DieFault::Unreadable(_), .. } => "unreadable-die",
            What::IgnoreFlush(_) => "ignore-flush",
            What::LostInterrupt => "lost-interrupt",
            What::LinkDown => "link-down",
            What::Fatal => "fatal",
        }
    }
}

/// Condition of a fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum When {
    /// At this time after the start of the device, independent of commands.
    At(Span),
    /// On commands.
    Commands(Match),
}

/// Selection of commands; all conditions must hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Match {
    /// Opcode. `None`: any.
    pub opcode: Option<u8>,
    /// Queue. `None`: any except the admin queue, which is 0.
    pub queue: Option<u16>,
    /// Range of blocks; the command's entry must give a range that overlaps it. `None`: any.
    pub lbas: Option<RangeInclusive<u64>>,
    /// Earliest begin of the command, relative to the start of the device.
    pub from: Span,
    /// End of the time window, exclusive, relative to the start of the device.
    pub until: Span,
    /// Selection among the matching commands.
    pub which: Which,
    /// Maximum number of injections.
    pub times: u64,
}

/// Selection among the matching commands, which are counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// All.
    Each,
    /// Only the match with this number.
    Nth(u64),
    /// Every Nth match: N, 2N, and so on.
    Every(u64),
    /// Each match with probability 1/N, drawn from the fault's own RNG.
    OneIn(u64),
}

impl Which {
    /// Returns true if the match with this number is selected.
    fn takes(self, number: u64, rng: &mut Rng) -> bool {
        match self {
            Which::Each => true,
            Which::Nth(n) => number == n,
            Which::Every(n) => number.is_multiple_of(n),
            Which::OneIn(n) => rng.chance(1, n),
        }
    }
}

/// The attributes of a command that conditions match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// Queue; 0 is the admin queue.
    pub queue: u16,
    /// Command identifier.
    pub cid: u16,
    /// Opcode, as in NVMe.
    pub opcode: u8,
    /// First block and number of blocks, if the entry gives them.
    pub lbas: Option<(u64, u32)>,
}

impl Order {
    /// A command of an NVMe queue. Some give blocks in their entry (NVM command set 1.0, 3.2: SLBA in
    /// dwords 10 and 11, NLB in dword 12).
    pub fn nvme(queue: u16, sqe: &Sqe) -> Order {
        let names = queue != 0 && io::names_blocks(sqe.opcode);
        let slba = u64::from(sqe.cdw11.get()) << 32 | u64::from(sqe.cdw10.get());
        let lbas = names.then(|| (slba, (sqe.cdw12.get() & 0xffff) + 1));
        // A read by places is a read.
        let opcode = if sqe.opcode == io::READ_PLACED { io::READ } else { sqe.opcode };
        Order { queue, cid: sqe.cid.get(), opcode, lbas }
    }

    /// Returns true if the command reads the blocks of its entry from the medium.
    pub fn is_read(&self) -> bool {
        [io::READ, io::COMPARE, io::VERIFY].contains(&self.opcode)
    }

    fn id(&self) -> u64 {
        u64::from(self.queue) << 16 | u64::from(self.cid)
    }
}

impl Match {
    /// Returns true if a command matches; `after` is its begin relative to the start.
    fn means(&self, order: &Order, after: Span) -> bool {
        let queue = match self.queue {
            Some(queue) => queue == order.queue,
            None => order.queue != 0,
        };
        let block = |lbas: &RangeInclusive<u64>| {
            order.lbas.is_some_and(|(first, blocks)| {
                let last = first.saturating_add(u64::from(blocks) - 1);
                first <= *lbas.end() && *lbas.start() <= last
            })
        };
        queue
            && self.opcode.is_none_or(|opcode| opcode == order.opcode)
            && self.lbas.as_ref().is_none_or(block)
            && (self.from..self.until).contains(&after)
    }
}

/// Disposition of a command after injection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Disposition {
    /// Executes normally.
    #[default]
    Works,
    /// Completes with this status, without execution.
    Fails(Status),
    /// Hangs until cancelled.
    Hangs,
    /// Never completes.
    IsLost,
}

/// Faults injected into one command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Effect {
    /// Delay before it begins.
    pub delay: Span,
    /// Disposition after the delay.
    pub disposition: Disposition,
    /// Random value that selects the bit to flip in the data in transfer.
    pub data: Option<u64>,
    /// Random value that selects the bit to flip in the metadata in transfer.
    pub metadata: Option<u64>,
    /// Random value that selects the bit to flip on the medium.
    pub medium: Option<u64>,
    /// Number of later completions to wait for, and the maximum wait.
    pub reorder: Option<(u32, Span)>,
    /// The interrupt is lost.
    pub silent: bool,
}

/// The faults of a plan and their counters, shared by the device, its medium and the run.
#[derive(Default)]
pub struct Faults {
    faults: RefCell<Vec<Rc<Played>>>,
    is_on: Cell<bool>,
    seed: u64,
    /// Faults of the medium.
    pub harm: Rc<Harm>,
    /// Counts of commands.
    pub meter: Meter,
    spoiled: RefCell<BTreeMap<u16, u64>>,
    silent: RefCell<BTreeSet<(u16, u16)>>,
    posted: RefCell<BTreeMap<u16, u64>>,
    any_posted: Signal,
    down: Cell<bool>,
    went_down: Signal,
    /// Called for each injected die fault.
    dies: RefCell<Option<FailDie>>,
    /// Numbers of faults that must stop the controller.
    fatal: RefCell<Vec<u64>>,
    is_fatal: Signal,
}

/// Injects a fault into a die.
type FailDie = Box<dyn Fn(u32, DieFault)>;

struct Played {
    fault: Fault,
    /// The times of the fault count from here.
    since: Time,
    is_cleared: Cell<bool>,
    matched: Cell<u64>,
    injected: Cell<u64>,
    rng: RefCell<Rng>,
}

impl Faults {
    /// No faults.
    pub fn none() -> Rc<Faults> {
        Rc::default()
    }

    /// Starts these faults; their times count from now.
    pub fn start(rt: &Rt, faults: &[Fault], seed: u64) -> Rc<Faults> {
        let started = Rc::new(Faults { seed, ..Faults::default() });
        started.set(rt, faults);
        started
    }

    /// Replaces the faults, while the device runs. One that was there before keeps its counts; the times of a
    /// new one count from now.
    pub fn set(self: &Rc<Self>, rt: &Rt, faults: &[Fault]) {
        let before = self.faults.take();
        let kept = |fault: &Fault| before.iter().find(|one| one.fault == *fault).cloned();
        let all: Vec<_> = faults
            .iter()
            .map(|fault| kept(fault).unwrap_or_else(|| Rc::new(self.played(rt, fault))))
            .collect();
        for one in before.iter().filter(|one| !all.iter().any(|other| Rc::ptr_eq(one, other))) {
            one.is_cleared.set(true);
            self.undo(&one.fault.what);
        }
        self.is_on.set(!all.is_empty());
        *self.faults.borrow_mut() = all.clone();
        for (number, one) in all.into_iter().enumerate() {
            let When::At(after) = one.fault.when else { continue };
            if before.iter().any(|other| Rc::ptr_eq(&one, other)) {
                continue;
            }
            let (rt, faults) = (rt.clone(), self.clone());
            rt.clone().spawn(async move {
                rt.sleep_until(one.since + after).await;
                if !one.is_cleared.get() {
                    faults.strike(&rt, number, &one, None, &mut Effect::default());
                }
            });
        }
    }

    fn played(&self, rt: &Rt, fault: &Fault) -> Played {
        Played {
            rng: RefCell::new(Rng::for_part(self.seed, &format!("fault {}", fault.name))),
            fault: fault.clone(),
            since: rt.now(),
            is_cleared: Cell::new(false),
            matched: Cell::new(0),
            injected: Cell::new(0),
        }
    }

    /// Ends the lasting effect of a fault that is cleared. A link that is down and a controller that has
    /// failed stay so.
    fn undo(&self, what: &What) {
        match what {
            What::StuckMedium(_) => self.harm.stick_only_until(Time::ZERO),
            // Not zero: the next flush makes durable what was written since.
            What::IgnoreFlush(_) => self.harm.ignore_flushes_until(Time(1)),
            _ => {}
        }
        self.silent.borrow_mut().clear();
    }

    /// Number of injections per fault name, in the plan's order.
    pub fn counts(&self) -> Vec<(String, u64)> {
        let faults = self.faults.borrow();
        faults.iter().map(|one| (one.fault.name.clone(), one.injected.get())).collect()
    }

    /// Sets the receiver of die faults.
    pub fn on_die_fault(&self, tell: impl Fn(u32, DieFault) + 'static) {
        *self.dies.borrow_mut() = Some(Box::new(tell));
    }

    /// Waits until the link goes down.
    pub async fn link_down(&self, rt: &Rt) {
        while !self.down.get() {
            self.went_down.changed(rt, self.went_down.version()).await;
        }
    }

    fn strike(
        &self,
        rt: &Rt,
        number: usize,
        one: &Played,
        order: Option<&Order>,
        effect: &mut Effect,
    ) {
        one.injected.set(one.injected.get() + 1);
        let id = order.map_or(u64::MAX, Order::id);
        rt.log("fault", one.fault.what.word(), number as u64, id);
        match one.fault.what {
            What::Delay(span) => effect.delay += span,
            What::Drop => effect.disposition = Disposition::IsLost,
            What::Hang => effect.disposition = Disposition::Hangs,
            What::Reorder { behind, at_most } => effect.reorder = Some((behind, at_most)),
            What::Status(status) => effect.disposition = Disposition::Fails(status),
            What::CorruptData => effect.data = Some(one.rng.borrow_mut().next_u64()),
            What::CorruptMetadata => effect.metadata = Some(one.rng.borrow_mut().next_u64()),
            What::CorruptMedium => effect.medium = Some(one.rng.borrow_mut().next_u64()),
            What::StuckMedium(span) => {
                let for_ever = span == FOREVER;
                self.harm.stick(if for_ever { Time::NEVER } else { rt.now() + span });
            }
            What::IgnoreFlush(span) => {
                let for_ever = span == FOREVER;
                let until = if for_ever { Time::NEVER } else { rt.now() + span };
                self.harm.ignore_flushes_until(until);
            }
            What::Die { die, of } => {
                if let Some(tell) = &*self.dies.borrow() {
                    tell(die, of);
                }
            }
            What::LostInterrupt => effect.silent = true,
            What::LinkDown => {
                effect.disposition = Disposition::Hangs;
                self.down.set(true);
                self.went_down.notify(rt);
            }
            What::Fatal => {
                effect.disposition = Disposition::Hangs;
                self.fatal.borrow_mut().push(number as u64);
                self.is_fatal.notify(rt);
            }
        }
    }

    /// Returns true if there are faults. Otherwise this check is the only cost.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.is_on.get()
    }

    /// Returns true if there are faults, or may be later.
    pub(crate) fn may_be_on(&self) -> bool {
        self.is_on.get() || self.meter.is_watched()
    }

    /// A command begins: returns the faults injected into it.
    pub(crate) fn begin(&self, rt: &Rt, order: &Order) -> Effect {
        let (mut effect, now) = (Effect::default(), rt.now());
        if self.down.get() {
            effect.disposition = Disposition::Hangs;
            return effect;
        }
        for (number, one) in self.faults.borrow().iter().enumerate() {
            let after = now.since(one.since);
            let When::Commands(of) = &one.fault.when else { continue };
            if one.injected.get() == of.times || !of.means(order, after) {
                continue;
            }
            one.matched.set(one.matched.get() + 1);
            let injected = of.which.takes(one.matched.get(), &mut one.rng.borrow_mut());
            if injected {
                self.strike(rt, number, one, Some(order), &mut effect);
            }
        }
        effect
    }

    /// Requests a bit flip in the data of the command in this slot; `draw` selects the bit.
    pub(crate) fn spoil(&self, slot: u16, draw: u64) {
        self.spoiled.borrow_mut().insert(slot, draw);
    }

    /// Takes the bit flip requested for the command in this slot.
    pub(crate) fn spoiled(&self, slot: u16) -> Option<u64> {
        self.spoiled.borrow_mut().remove(&slot)
    }

    /// Flips a bit of this block on the medium.
    pub(crate) fn harm(&self, block: u64, flip: Flip) {
        self.harm.turn(block, flip);
    }

    /// Suppresses the interrupt of this command's completion.
    pub(crate) fn silence(&self, order: &Order) {
        self.silent.borrow_mut().insert((order.queue, order.cid));
    }

    /// Takes the request to suppress the interrupt of this completion.
    pub(crate) fn is_silent(&self, queue: u16, cid: u16) -> bool {
        self.silent.borrow_mut().remove(&(queue, cid))
    }

    /// A completion was posted in this queue.
    pub(crate) fn posted(&self, rt: &Rt, queue: u16) {
        *self.posted.borrow_mut().entry(queue).or_default() += 1;
        self.any_posted.notify(rt);
    }

    /// Waits until `count` more completions have been posted in this queue, or for `at_most`.
    pub(crate) async fn others(&self, rt: &Rt, queue: u16, count: u32, at_most: Span) {
        let so_far = || self.posted.borrow().get(&queue).copied().unwrap_or(0);
        let enough = so_far() + u64::from(count);
        let come = async {
            while so_far() < enough {
                self.any_posted.changed(rt, self.any_posted.version()).await;
            }
        };
        runtime::race(come, rt.sleep(at_most)).await;
    }

    /// Returns true if the link is down: nothing leaves the device any more.
    pub fn is_down(&self) -> bool {
        self.down.get()
    }

    /// Waits until the controller must stop. Returns the fault's number.
    pub(crate) async fn fatal(&self, rt: &Rt) -> u64 {
        loop {
            let next = self.fatal.borrow_mut().pop();
            match next {
                Some(number) => return number,
                None => self.is_fatal.changed(rt, self.is_fatal.version()).await,
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use runtime::Log;

    fn any() -> Match {
        Match {
            opcode: None,
            queue: None,
            lbas: None,
            from: Span::ZERO,
            until: FOREVER,
            which: Which::Each,
            times: u64::MAX,
        }
    }

    fn order(queue: u16, opcode: u8, lbas: Option<(u64, u32)>) -> Order {
        Order { queue, cid: 7, opcode, lbas }
    }

    fn read(lba: u64, blocks: u32) -> Order {
        order(1, io::READ, Some((lba, blocks)))
    }

    #[test]
    fn fault_matches_queue_opcode_lba_and_time() {
        let now = Span::us(5);
        assert!(any().means(&read(0, 1), now));
        assert!(!any().means(&order(0, 6, None), now), "no admin command, unless it is asked for");
        assert!(Match { queue: Some(0), ..any() }.means(&order(0, 6, None), now));
        assert!(!Match { queue: Some(2), ..any() }.means(&read(0, 1), now));
        assert!(!Match { opcode: Some(io::WRITE), ..any() }.means(&read(0, 1), now));
        let some = Match { lbas: Some(10..=19), ..any() };
        for (lba, blocks, meant) in
            [(0, 10, false), (0, 11, true), (19, 1, true), (20, 4, false), (0, 100, true)]
        {
            assert_eq!(some.means(&read(lba, blocks), now), meant, "{lba} {blocks}");
        }
        assert!(!some.means(&order(1, io::FLUSH, None), now), "it names no blocks");
        assert!(!some.means(&read(u64::MAX, 2), now), "blocks past the end of all numbers");
        let between = Match { from: Span::us(5), until: Span::us(6), ..any() };
        assert!(between.means(&read(0, 1), Span::us(5)));
        assert!(
            !between.means(&read(0, 1), Span::us(6)) && !between.means(&read(0, 1), Span::us(4))
        );
    }

    /// Numbers, from 1, of the matches selected for injection.
    fn injected(which: Which, times: u64, seed: u64) -> Vec<u64> {
        let rt = Rt::simulated(None, Log::Off);
        let when = When::Commands(Match { which, times, ..any() });
        let fault = Fault { name: "x".into(), what: What::Status(Status::WRITE_FAULT), when };
        let faults = Faults::start(&rt, &[fault], seed);
        let hit = |_: &u64| faults.begin(&rt, &read(0, 1)).disposition != Disposition::Works;
        let numbers = (1..=1000).filter(hit).collect::<Vec<_>>();
        assert_eq!(faults.counts(), [("x".to_owned(), numbers.len() as u64)]);
        numbers
    }

    #[test]
    fn fault_selects_each_nth_every_and_random_matches() {
        assert_eq!(injected(Which::Each, 3, 1), [1, 2, 3]);
        assert_eq!(injected(Which::Nth(7), u64::MAX, 1), [7]);
        assert_eq!(injected(Which::Every(300), u64::MAX, 1), [300, 600, 900]);
        assert_eq!(injected(Which::Every(300), 2, 1), [300, 600]);
        let drawn = injected(Which::OneIn(10), u64::MAX, 1);
        // 1000 draws of one in ten: 100, give or take six standard deviations of 9.5.
        assert!((43..=157).contains(&drawn.len()), "{}", drawn.len());
        assert_eq!(drawn, injected(Which::OneIn(10), u64::MAX, 1));
        assert_ne!(drawn, injected(Which::OneIn(10), u64::MAX, 2));
    }

    #[test]
    fn fault_rng_stream_is_independent_of_other_faults() {
        let rt = Rt::simulated(None, Log::Off);
        let when = || When::Commands(Match { which: Which::OneIn(4), ..any() });
        let fault = |name: &str, what| Fault { name: name.into(), what, when: when() };
        let one = fault("one", What::Delay(Span::us(1)));
        let two = fault("two", What::CorruptData);
        let pattern = |faults: &[Fault]| -> Vec<bool> {
            let faults = Faults::start(&rt, faults, 9);
            (0..200).map(|_| faults.begin(&rt, &read(0, 1)).delay > Span::ZERO).collect()
        };
        assert_eq!(pattern(std::slice::from_ref(&one)), pattern(&[two, one]));
    }
}
