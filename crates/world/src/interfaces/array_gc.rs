//! Garbage collection of the members of an array: which of them collects when.
//!
//! A member that collects is slow, and so is every request with a part on it. If the FTLs are on the host, a
//! coordinator leads them: with `InTurn` at most one member is slow at a time; with `Together` all members
//! are slow at the same time. A collector always runs if writes would stall otherwise. With windows one
//! member at a time collects ahead of need:
//!
//! ```text
//!   member 0  ▓▓▓▓░░░░░░░░░░░░▓▓▓▓░░░░░░░░      ▓ collects early: its window
//!   member 1  ░░░░▓▓▓▓░░░░░░░░░░░░▓▓▓▓░░░░      ░ collects only if writes would wait
//!   member 2  ░░░░░░░░▓▓▓▓░░░░░░░░░░░░▓▓▓▓
//! ```
//!
//! Windows are also for members that control their collection themselves and do not report it: the plan is
//! all that they have to agree on, as drives with NVMe's Predictable Latency Mode agree on deterministic
//! windows. Their clocks are one clock here.

use std::rc::Rc;

use ::flash::collections::Collections as Directed;
use ftl::policy::{GcControl, Window};
use runtime::{Rt, Span};

use crate::medium::Reach;
use plan::{Array, Collections, Plan};

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
                rt.spawn(follow(rt.clone(), window, collector.control));
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

/// Lets the flash software of a member collect in its windows, if the plan has any.
pub(super) fn follow_windows(rt: &Rt, medium: &Reach, plan: &Plan) {
    let Some(window) = plan.array.as_ref().and_then(Array::window) else { return };
    let drives: Vec<Rc<dyn Directed>> = match medium {
        // A part is of a client, and shared blocks are of threads: neither is in an array.
        Reach::Blocks(_) | Reach::Part(_) | Reach::Shared(_) => return,
        Reach::Flash(drive) => vec![drive.clone()],
        Reach::Bridged(bridge) => {
            bridge.controllers().map(|drive| drive.clone() as Rc<dyn Directed>).collect()
        }
    };
    let control = move |to| drives.iter().for_each(|drive| drive.lead(to));
    rt.spawn(follow(rt.clone(), window, control));
}

/// Passes what is allowed in each part of the cycle. To a member that is not ready it has no effect; the next
/// change has.
async fn follow(rt: Rt, window: Window, control: impl Fn(GcControl)) {
    loop {
        let (is_open, until) = window.at(rt.now());
        control(if is_open { GcControl::Early(window.early) } else { GcControl::Held });
        rt.sleep_until(until).await;
    }
}
