//! Access to chips beside their commands: power cuts, copies, wear, and a view of each die.

use std::cell::RefCell;

use media::nand::{Error, Errors, Nand, TORN_OF, YEAR_S};
use runtime::Time;

use super::die::{Die, Work};
use super::{ChipState, Chips, planes_at_once, tear, tear_erase, undo};

/// A die, as it is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DieView {
    /// Current operation of the array: `idle`, `read`, `program` or `erase`.
    pub doing: &'static str,
    /// True if that is of the collector.
    pub collects: bool,
    /// Operations that wait behind it.
    pub waiting: u32,
    /// Mean of the program/erase cycles of its blocks.
    pub cycles_mean: u32,
    /// The most of them.
    pub cycles_most: u32,
    /// Its bad blocks.
    pub bad_blocks: u32,
}

impl Chips {
    /// Power cut, now: operations in progress are torn unless capacitors complete them, and queued operations
    /// have no effect. The result is determined by seed and time.
    pub fn cut(self) -> ChipState {
        self.come_of_age();
        self.lose_power(&mut self.nand.borrow_mut());
        self.nand.borrow_mut().power_is_off();
        let buffer = self.options.protected_buffer.then(|| {
            let mut buffer = self.buffer.into_inner();
            buffer.lose_power(self.options.nv_slots);
            buffer
        });
        ChipState { nand: self.nand.into_inner(), buffer }
    }

    /// The effect of a power cut now on the contents.
    fn lose_power(&self, nand: &mut Nand) {
        let at_once = self.options.timing.as_ref().map_or(0, planes_at_once);
        let capacitors = (self.options.held_up, at_once);
        lose_power(nand, &self.dies, self.shape, self.rt.now(), capacitors);
    }

    /// The state that a power cut now would leave, while the chips go on. Copy-on-write: it uses memory only
    /// for differences. It has no write buffer.
    ///
    /// # Errors
    /// [`Error::BadSpec`]: the pages are in a file, which is overwritten while the copy exists.
    pub fn fork(&self) -> Result<Nand, Error> {
        self.come_of_age();
        let nand = self.nand.borrow();
        if nand.has_pages() {
            let expected = "0: all pages in memory, or in the state";
            return Err(Error::BadSpec { key: "files of pages", found: 1, expected });
        }
        let mut nand = nand.fork();
        self.lose_power(&mut nand);
        Ok(nand)
    }

    /// Wears the chips as by use: each good block by this number of program/erase cycles, and all of them by
    /// an age in years of 365 days, up to the highest that they can have.
    pub fn wear_out(&self, cycles: u32, years: u32) {
        self.come_of_age();
        let mut nand = self.nand.borrow_mut();
        for block in 0..nand.geometry().all_blocks() {
            if cycles > 0 && !nand.is_bad(block) {
                nand.wear_out(block, cycles);
            }
        }
        let more = years.saturating_mul(YEAR_S);
        self.age_s.set(self.age_s.get().saturating_add(more));
        let age_s = nand.age_s().saturating_add(more);
        nand.age_to(age_s);
    }

    /// Mean program/erase cycles of the good blocks in percent of the rated ones, up to 255. Without an error
    /// model flash does not wear: 0.
    pub(super) fn mean_wear_percent(&self) -> u8 {
        let nand = self.nand.borrow();
        let errors = &nand.spec().errors;
        if *errors == Errors::none() {
            return 0;
        }
        let good = (0..nand.geometry().all_blocks()).filter(|block| !nand.is_bad(*block));
        let (blocks, cycles) = good.fold((0_u64, 0_u64), |(blocks, cycles), block| {
            (blocks + 1, cycles + u64::from(nand.wear(block).cycles))
        });
        let rated = (blocks * u64::from(errors.rated_cycles)).max(1);
        u8::try_from(cycles.saturating_mul(100) / rated).unwrap_or(u8::MAX)
    }

    /// All dies, in the order of their numbers.
    pub fn dies(&self) -> Vec<DieView> {
        let (now, nand) = (self.rt.now(), self.nand.borrow());
        let blocks = self.shape.planes * self.shape.blocks;
        let views = self.dies.iter().zip(0_u32..).map(|(die, number)| {
            let all = number * blocks..(number + 1) * blocks;
            let cycles = || all.clone().map(|block| nand.wear(block).cycles);
            let sum: u64 = cycles().map(u64::from).sum();
            let (doing, collects, waiting) = die.borrow().look(now);
            DieView {
                doing,
                collects,
                waiting,
                cycles_mean: (sum / u64::from(blocks)) as u32,
                cycles_most: cycles().max().unwrap_or(0),
                bad_blocks: all.clone().filter(|block| nand.is_bad(*block)).count() as u32,
            }
        });
        views.collect()
    }
}

/// Tears what the dies do at `now`. The last: whether capacitors complete it, and planes at once.
fn lose_power(
    nand: &mut Nand,
    dies: &[RefCell<Die>],
    shape: ftl::Shape,
    now: Time,
    (held_up, at_once): (bool, u32),
) {
    for die in dies {
        for turn in die.borrow().under_way() {
            let begun = turn.begin < now;
            let done = if held_up { TORN_OF } else { turn.done_at(now) };
            match turn.work {
                Work::Program(row) if begun => tear(nand, shape, row, done, at_once),
                Work::Program(row) => undo(nand, shape, row),
                Work::Erase(blocks) if begun => tear_erase(nand, shape, blocks, done, at_once),
                Work::Read | Work::Erase(_) => {}
            }
        }
    }
}
