//! Coordination of garbage collection across the members of an array whose FTLs are on the host.
//!
//! A member that collects is slow, and so is every request with a part on it. With `InTurn` at most one
//! member is slow at a time; with `Together` all members are slow at the same time. A collector always runs
//! if writes would stall otherwise.

use ftl::policy::GcControl;
use runtime::{Rt, Span};

use super::windows;
use plan::{Array, Collections};

/// Garbage collector of one member's FTL.
pub struct Collector {
    /// Units of a superblock.
    pub superblock_units: i64,
    /// Mapping units that can be written before the collector must start.
    pub slack: Box<dyn Fn() -> i64>,
    pub control: Box<dyn Fn(GcControl)>,
}

/// Poll interval of the members. Assumed: the poll takes no simulated time, because it is a few loads per
/// member.
const POLL: Span = Span::us(100);
/// Free superblocks by which a collector starts ahead of need.
const EARLY: u32 = 1;

pub(super) fn start(rt: &Rt, collectors: Vec<Collector>, array: &Array) {
    match array.collections {
        Collections::Free => {}
        Collections::InTurn => drop(rt.spawn(in_turn(rt.clone(), collectors))),
        Collections::Together => drop(rt.spawn(together(rt.clone(), collectors))),
        Collections::Windows(_) => {
            for (member, collector) in (0..).zip(collectors) {
                let of_one = Array { member, ..array.clone() };
                let window = of_one.window().expect("members collect in windows");
                rt.spawn(windows::follow(rt.clone(), window, collector.control));
            }
        }
    }
}

/// Slack in units with which a member does not need to collect ahead.
fn enough(of: &Collector) -> i64 {
    i64::from(EARLY) * of.superblock_units
}

/// One member collects until it has enough slack; the next one is the member with the least slack.
async fn in_turn(rt: Rt, collectors: Vec<Collector>) {
    let mut turn: Option<usize> = None;
    collectors.iter().for_each(|one| (one.control)(GcControl::Held));
    loop {
        turn = turn.filter(|at| {
            let goes_on = (collectors[*at].slack)() < enough(&collectors[*at]);
            if !goes_on {
                (collectors[*at].control)(GcControl::Held);
            }
            goes_on
        });
        if turn.is_none() {
            turn = least(&collectors);
            turn.iter().for_each(|at| (collectors[*at].control)(GcControl::Early(EARLY)));
        }
        rt.sleep(POLL).await;
    }
}

/// Index of the member with the least slack, if that is not enough.
fn least(collectors: &[Collector]) -> Option<usize> {
    let slacks = collectors.iter().map(|one| (one.slack)()).enumerate();
    let least = slacks.min_by_key(|(_, slack)| *slack);
    least.filter(|(at, slack)| *slack < enough(&collectors[*at])).map(|(at, _)| at)
}

/// All members start when one must, and stop when all have enough slack.
async fn together(rt: Rt, collectors: Vec<Collector>) {
    let mut working = false;
    collectors.iter().for_each(|one| (one.control)(GcControl::Held));
    loop {
        let short = collectors.iter().any(|one| (one.slack)() < 0);
        let lacking = collectors.iter().any(|one| (one.slack)() < enough(one));
        let works = short || (working && lacking);
        if works != working {
            let control = if works { GcControl::Early(EARLY) } else { GcControl::Held };
            collectors.iter().for_each(|one| (one.control)(control));
            working = works;
        }
        rt.sleep(POLL).await;
    }
}
