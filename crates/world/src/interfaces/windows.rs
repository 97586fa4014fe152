//! Windows of time in which one member of an array at a time collects ahead of need.
//!
//! ```text
//!   member 0  ▓▓▓▓░░░░░░░░░░░░▓▓▓▓░░░░░░░░      ▓ collects early: its window
//!   member 1  ░░░░▓▓▓▓░░░░░░░░░░░░▓▓▓▓░░░░      ░ collects only if writes would wait
//!   member 2  ░░░░░░░░▓▓▓▓░░░░░░░░░░░░▓▓▓▓
//! ```
//!
//! For members that control their collection themselves and do not report it: the plan is all that they
//! have to agree on, as drives with NVMe's Predictable Latency Mode agree on deterministic windows. Their
//! clocks are one clock here.

use std::rc::Rc;

use ::flash::collections::Collections as Directed;
use ftl::policy::{GcControl, Window};
use runtime::Rt;

use crate::medium::Reach;
use plan::Plan;

/// Lets the flash software of a member collect in its windows, if the plan has any.
pub(super) fn of_member(rt: &Rt, medium: &Reach, plan: &Plan) {
    let Some(window) = plan.array.as_ref().and_then(plan::Array::window) else { return };
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
pub(super) async fn follow(rt: Rt, window: Window, control: impl Fn(GcControl)) {
    loop {
        let (is_open, until) = window.at(rt.now());
        control(if is_open { GcControl::Early(window.early) } else { GcControl::Held });
        rt.sleep_until(until).await;
    }
}
