//! Faults on purpose: which commands they strike, when, and what they do to them.
//!
//! A front end asks its [`Faults`] about every command that it begins, if there are any. They are shared,
//! count, draw from one stream of dice for each fault, and log what they do:
//! `fault KIND N ID`, with the fault's number from 0 in the plan's order, and the command's queue and
//! identifier as `queue << 16 | identifier`; all ones where no command was struck.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::rc::Rc;

use crate::flash::DieFault;
use media::{Flip, Harm};
use runtime::{Rng, Rt, Signal, Span, Time};
use wire::nvme::entry::Sqe;
use wire::nvme::opcode::io;
use wire::nvme::status::Status;

/// Longer than anything lasts.
pub const FOREVER: Span = Span(u64::MAX);

/// A fault of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Its name, by which it is counted and which seeds its dice.
    pub name: String,
    /// What it does.
    pub what: What,
    /// When.
    pub when: When,
}

/// What a fault does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// The command begins so much later.
    Delay(Span),
    /// The command is lost: nothing is done, and nobody hears of it again, an Abort included.
    Drop,
    /// The command hangs until it is aborted, its queue deleted or the controller reset.
    Hang,
    /// The completion waits until so many later ones of its queue have been posted.
    Reorder {
        /// How many.
        behind: u32,
        /// The longest that it waits for them.
        at_most: Span,
    },
    /// The command ends with this status, and nothing is done.
    Status(Status),
    /// A bit of the data turns over between host memory and medium.
    CorruptData,
    /// A bit of the metadata that lie beside the data turns over between host memory and controller.
    CorruptMetadata,
    /// A bit of the blocks turns over on the medium: before a read, after a write.
    CorruptMedium,
    /// The medium ends no access for so long; [`FOREVER`]: never again.
    StuckMedium(Span),
    /// A die of flash falls ill.
    Die {
        /// Which: dies are counted round the channels first.
        die: u32,
        /// Of what.
        of: DieFault,
    },
    /// The interrupt that tells of the completion is lost.
    LostInterrupt,
    /// The link goes down, for good.
    LinkDown,
    /// The controller stops, and says so (CSTS.CFS).
    Fatal,
}

impl What {
    /// Its word, in plans and in the event log.
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
            What::LostInterrupt => "lost-interrupt",
            What::LinkDown => "link-down",
            What::Fatal => "fatal",
        }
    }
}

/// When a fault strikes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum When {
    /// So long after the device has started, whatever it does.
    At(Span),
    /// At commands.
    Commands(Match),
}

/// Which commands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Match {
    /// Those with this opcode; none: any.
    pub opcode: Option<u8>,
    /// Those of this queue; none: of any queue but the admin queue, which is 0.
    pub queue: Option<u16>,
    /// Those whose entry names a block of these.
    pub lbas: Option<RangeInclusive<u64>>,
    /// Those that begin so long after the device has started, or later.
    pub from: Span,
    /// And before so long after.
    pub until: Span,
    /// Of those.
    pub which: Which,
    /// At most so many.
    pub times: u64,
}

/// Which of the commands that match, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// All.
    Each,
    /// This one.
    Nth(u64),
    /// Every so many: the one of this number, of twice this number, and so on.
    Every(u64),
    /// One in so many, by the fault's own dice.
    OneIn(u64),
}

impl Which {
    /// Whether it is the match of this number.
    fn takes(self, number: u64, rng: &mut Rng) -> bool {
        match self {
            Which::Each => true,
            Which::Nth(n) => number == n,
            Which::Every(n) => number.is_multiple_of(n),
            Which::OneIn(n) => rng.chance(1, n),
        }
    }
}

/// A command, as far as faults look at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// Its queue; 0 is the admin queue.
    pub queue: u16,
    /// Its identifier.
    pub cid: u16,
    /// Its opcode, as NVMe numbers it.
    pub opcode: u8,
    /// Its first block and how many, if its entry names them.
    pub lbas: Option<(u64, u32)>,
}

impl Order {
    /// A command of an NVMe queue. Of those that name blocks in their entry: read, write, compare, verify
    /// and write zeroes (NVM command set 1.0, 3.2: SLBA in dwords 10 and 11, NLB in dword 12).
    pub fn nvme(queue: u16, sqe: &Sqe) -> Order {
        let names = queue != 0
            && [io::READ, io::WRITE, io::COMPARE, io::VERIFY, io::WRITE_ZEROES]
                .contains(&sqe.opcode);
        let slba = u64::from(sqe.cdw11.get()) << 32 | u64::from(sqe.cdw10.get());
        let lbas = names.then(|| (slba, (sqe.cdw12.get() & 0xffff) + 1));
        Order { queue, cid: sqe.cid.get(), opcode: sqe.opcode, lbas }
    }

    /// Whether it finds the blocks that its entry names as they are on the medium.
    pub fn is_read(&self) -> bool {
        [io::READ, io::COMPARE, io::VERIFY].contains(&self.opcode)
    }

    fn id(&self) -> u64 {
        u64::from(self.queue) << 16 | u64::from(self.cid)
    }
}

impl Match {
    /// Whether a command that begins so long after the start is meant.
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

/// How a struck command goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Disposition {
    /// As ever.
    #[default]
    Works,
    /// With this status, and nothing done.
    Fails(Status),
    /// Not at all, until it is cut.
    Hangs,
    /// Not at all.
    IsLost,
}

/// What strikes one command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Effect {
    /// It begins so much later.
    pub delay: Span,
    /// Then this.
    pub disposition: Disposition,
    /// A draw for the bit that turns over on the data's way.
    pub data: Option<u64>,
    /// A draw for the bit that turns over on the metadata's way.
    pub metadata: Option<u64>,
    /// A draw for the bit that turns over on the medium.
    pub medium: Option<u64>,
    /// Its completion waits for so many later ones, no longer than so long.
    pub reorder: Option<(u32, Span)>,
    /// Its interrupt is lost.
    pub silent: bool,
}

/// The faults of a plan, and how often they have struck. The device, its medium and whoever runs it hold
/// the same ones.
#[derive(Default)]
pub struct Faults {
    faults: Vec<Played>,
    since: Time,
    /// What is wrong with the medium.
    pub harm: Rc<Harm>,
    spoiled: RefCell<BTreeMap<u16, u64>>,
    silent: RefCell<BTreeSet<(u16, u16)>>,
    posted: RefCell<BTreeMap<u16, u64>>,
    any_posted: Signal,
    down: Cell<bool>,
    went_down: Signal,
    /// Who is told of dies that fall ill.
    dies: RefCell<Option<FailDie>>,
    /// Faults that are to stop the controller.
    fatal: RefCell<Vec<u64>>,
    is_fatal: Signal,
}

/// Tells a die that it falls ill.
type FailDie = Box<dyn Fn(u32, DieFault)>;

struct Played {
    fault: Fault,
    matched: Cell<u64>,
    injected: Cell<u64>,
    rng: RefCell<Rng>,
}

impl Faults {
    /// No faults.
    pub fn none() -> Rc<Faults> {
        Rc::default()
    }

    /// These faults, from now on.
    pub fn start(rt: &Rt, faults: &[Fault], seed: u64) -> Rc<Faults> {
        let played = |fault: &Fault| Played {
            rng: RefCell::new(Rng::for_part(seed, &format!("fault {}", fault.name))),
            fault: fault.clone(),
            matched: Cell::new(0),
            injected: Cell::new(0),
        };
        let played = Rc::new(Faults {
            faults: faults.iter().map(played).collect(),
            since: rt.now(),
            ..Faults::default()
        });
        for (number, fault) in faults.iter().enumerate() {
            if let When::At(after) = fault.when {
                let (rt, played) = (rt.clone(), played.clone());
                rt.clone().spawn(async move {
                    rt.sleep_until(played.since + after).await;
                    played.strike(&rt, number, None, &mut Effect::default());
                });
            }
        }
        played
    }

    /// How often each has struck, by its name, in the plan's order.
    pub fn counts(&self) -> Vec<(String, u64)> {
        self.faults.iter().map(|one| (one.fault.name.clone(), one.injected.get())).collect()
    }

    /// From now on `tell` is told of dies that fall ill.
    pub fn on_die_fault(&self, tell: impl Fn(u32, DieFault) + 'static) {
        *self.dies.borrow_mut() = Some(Box::new(tell));
    }

    /// Waits until the link goes down.
    pub async fn link_down(&self, rt: &Rt) {
        while !self.down.get() {
            self.went_down.changed(rt, self.went_down.version()).await;
        }
    }

    fn strike(&self, rt: &Rt, number: usize, order: Option<&Order>, effect: &mut Effect) {
        let one = &self.faults[number];
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

    /// Whether there are any: without, a front end asks nothing else.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        !self.faults.is_empty()
    }

    /// A command begins: what strikes it.
    pub(crate) fn begin(&self, rt: &Rt, order: &Order) -> Effect {
        let (mut effect, after) = (Effect::default(), rt.now().since(self.since));
        if self.down.get() {
            effect.disposition = Disposition::Hangs;
            return effect;
        }
        for (number, one) in self.faults.iter().enumerate() {
            let When::Commands(of) = &one.fault.when else { continue };
            if one.injected.get() == of.times || !of.means(order, after) {
                continue;
            }
            one.matched.set(one.matched.get() + 1);
            let injected = of.which.takes(one.matched.get(), &mut one.rng.borrow_mut());
            if injected {
                self.strike(rt, number, Some(order), &mut effect);
            }
        }
        effect
    }

    /// A bit of the data of the command in this slot will turn over on their way, by this draw.
    pub(crate) fn spoil(&self, slot: u16, draw: u64) {
        self.spoiled.borrow_mut().insert(slot, draw);
    }

    /// What was said of the data of the command in this slot. Asked once.
    pub(crate) fn spoiled(&self, slot: u16) -> Option<u64> {
        self.spoiled.borrow_mut().remove(&slot)
    }

    /// A bit of this block of the medium turns over.
    pub(crate) fn harm(&self, block: u64, flip: Flip) {
        self.harm.turn(block, flip);
    }

    /// The interrupt of the command's completion is lost.
    pub(crate) fn silence(&self, order: &Order) {
        self.silent.borrow_mut().insert((order.queue, order.cid));
    }

    /// Whether the interrupt for this completion is lost. Asked once.
    pub(crate) fn is_silent(&self, queue: u16, cid: u16) -> bool {
        self.silent.borrow_mut().remove(&(queue, cid))
    }

    /// A completion has been posted in this queue.
    pub(crate) fn posted(&self, rt: &Rt, queue: u16) {
        *self.posted.borrow_mut().entry(queue).or_default() += 1;
        self.any_posted.notify(rt);
    }

    /// Waits until so many completions have been posted in this queue, no longer than so long.
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

    /// Whether the link is down: nothing leaves the device any more.
    pub fn is_down(&self) -> bool {
        self.down.get()
    }

    /// Waits until the controller is to stop; gives the fault's number.
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
    fn a_command_is_meant_by_all_that_is_said_of_it() {
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

    /// The numbers, from 1, of the matches that are struck.
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
    fn matches_are_counted() {
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
    fn a_fault_draws_from_rng_of_its_own() {
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
