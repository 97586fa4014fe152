//! The stages of breakdowns, by the parts of the machine that mark them: an interface names its own, and
//! takes the others from here. So what a medium begins to tell is told under every interface that stands
//! on it.

/// Lists, one after the other, as one.
macro_rules! joined {
    ($($part:expr),+ $(,)?) => {{
        const PARTS: &[&[&str]] = &[$($part),+];
        const ALL: [&str; $crate::interfaces::stages::count(PARTS)] =
            $crate::interfaces::stages::join(PARTS);
        &ALL
    }};
}
pub(super) use joined;

/// Before a driver has the request.
pub(super) const ASKED: &[&str] = &["queueing delay", "benchmark", "system call", "block driver"];

/// From the doorbell until a controller knows what is asked, and has what it needs of the host's memory.
pub(super) const TAKEN: &[&str] = &[
    "fetch",
    "dispatch",
    "power state",
    "device processor wait",
    "parse",
    "fault",
    "prp list",
    "sgl segment",
    "host read",
];

/// The medium: banks, or flash with its software.
pub(super) const MEDIUM: &[&str] = &[
    "mount",
    "buffer wait",
    "collector at buffer",
    "flush",
    "collector at flush",
    "map read",
    "die wait",
    "collector at die",
    "die",
    "channel wait",
    "channel",
    "media wait",
    "media",
];

/// Data and completion, until they have left.
pub(super) const MOVED: &[&str] =
    &["link wait", "data transfer", "completion queue full", "post completion"];

/// Until the caller goes on.
pub(super) const SEEN: &[&str] = &["completion", "poll", "interrupt", "context switch", "complete"];

/// A command of NVMe, from its driver's call on.
pub(super) const COMMAND: &[&str] =
    joined!(&["slot wait", "core wait", "guard", "submit", "doorbell"], TAKEN, MEDIUM, MOVED, SEEN);

pub(super) const fn count(parts: &[&[&str]]) -> usize {
    let (mut sum, mut part) = (0, 0);
    while part < parts.len() {
        sum += parts[part].len();
        part += 1;
    }
    sum
}

/// All of them; `N` is their [`count`].
pub(super) const fn join<const N: usize>(parts: &[&[&'static str]]) -> [&'static str; N] {
    let (mut all, mut to, mut part) = ([""; N], 0, 0);
    while part < parts.len() {
        let mut from = 0;
        while from < parts[part].len() {
            all[to] = parts[part][from];
            (to, from) = (to + 1, from + 1);
        }
        part += 1;
    }
    all
}
