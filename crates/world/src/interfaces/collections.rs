//! Collections of an array's members, agreed on by the host that has their flash software.
//!
//! A member whose collector works is slow, and so is every request of which it has a part. In turn, one at a
//! time is slow; together, all are, and then none. What nobody agrees to change: a collector without which
//! the host would have to wait works.

use ftl::policy::GcControl;
use runtime::{Rt, Span};

use plan::Collections;

/// The collector of one member's flash software.
pub struct Collector {
    /// Units of a superblock.
    pub superblock_units: i64,
    /// Units that can be written before it has to begin.
    pub slack: Box<dyn Fn() -> i64>,
    pub lead: Box<dyn Fn(GcControl)>,
}

/// How often members are looked at. Assumed: a look is a few loads for each, and costs nothing here.
const LOOK: Span = Span::us(100);
/// By how many superblocks' worth of space one begins sooner than it has to.
const EARLY: u32 = 1;

/// Starts what agrees on them.
pub(super) fn start(rt: &Rt, collectors: Vec<Collector>, agreed: Collections) {
    match agreed {
        Collections::Free => {}
        Collections::InTurn => drop(rt.spawn(in_turn(rt.clone(), collectors))),
        Collections::Together => drop(rt.spawn(together(rt.clone(), collectors))),
    }
}

/// What one has when it need not begin early.
fn enough(of: &Collector) -> i64 {
    i64::from(EARLY) * of.superblock_units
}

/// One has the turn until it has enough; the next is whoever has least.
async fn in_turn(rt: Rt, collectors: Vec<Collector>) {
    let mut turn: Option<usize> = None;
    collectors.iter().for_each(|one| (one.lead)(GcControl::Held));
    loop {
        turn = turn.filter(|at| {
            let goes_on = (collectors[*at].slack)() < enough(&collectors[*at]);
            if !goes_on {
                (collectors[*at].lead)(GcControl::Held);
            }
            goes_on
        });
        if turn.is_none() {
            turn = least(&collectors);
            turn.iter().for_each(|at| (collectors[*at].lead)(GcControl::Early(EARLY)));
        }
        rt.sleep(LOOK).await;
    }
}

/// Who has the least space, if that is not enough.
fn least(collectors: &[Collector]) -> Option<usize> {
    let slacks = collectors.iter().map(|one| (one.slack)()).enumerate();
    let least = slacks.min_by_key(|(_, slack)| *slack);
    least.filter(|(at, slack)| *slack < enough(&collectors[*at])).map(|(at, _)| at)
}

/// All begin when one has to, and end when all have enough.
async fn together(rt: Rt, collectors: Vec<Collector>) {
    let mut working = false;
    collectors.iter().for_each(|one| (one.lead)(GcControl::Held));
    loop {
        let short = collectors.iter().any(|one| (one.slack)() < 0);
        let lacking = collectors.iter().any(|one| (one.slack)() < enough(one));
        let works = short || (working && lacking);
        if works != working {
            let lead = if works { GcControl::Early(EARLY) } else { GcControl::Held };
            collectors.iter().for_each(|one| (one.lead)(lead));
            working = works;
        }
        rt.sleep(LOOK).await;
    }
}
