//! Stages of latency breakdowns, by the component that records them. An interface lists its own stages and
//! takes the others from here, so a new stage of a medium appears under every interface.

/// Concatenates lists of stages, as a constant.
#[macro_export]
macro_rules! joined_stages {
    ($($part:expr),+ $(,)?) => {{
        const PARTS: &[&[&str]] = &[$($part),+];
        const ALL: [&str; $crate::interfaces::stages::count(PARTS)] =
            $crate::interfaces::stages::join(PARTS);
        &ALL
    }};
}
pub use joined_stages as joined;

/// Before the request reaches the driver.
pub const ABOVE_DRIVER: &[&str] = &[
    "queueing delay",
    "benchmark",
    "system call",
    "call entry",
    "file layer",
    "block layer",
    "block driver",
    "copy",
    "cache sync",
    "call exit",
];

/// From the doorbell until the controller has parsed the command and read its data from host memory.
pub const FETCH: &[&str] = &[
    "fetch",
    "dispatch",
    "power state",
    "device processor wait",
    "parse",
    "fault",
    "prp list",
    "place list",
    "sgl segment",
    "host read",
];

/// The medium: banks, or flash with its FTL.
pub const MEDIUM: &[&str] = &[
    "mount",
    "flash software wait",
    "flash software",
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
    "decode",
    "media wait",
    "media",
];

/// Transfer of data and completion entry.
pub const TRANSFER: &[&str] =
    &["link wait", "data transfer", "completion queue full", "post completion"];

/// From the arrival of the completion until the caller continues.
pub const COMPLETE: &[&str] = &["completion", "poll", "interrupt", "context switch", "complete"];

/// An NVMe command, from the call of its driver on.
pub const COMMAND: &[&str] = joined!(
    &["slot wait", "core wait", "guard", "submit", "doorbell"],
    FETCH,
    MEDIUM,
    TRANSFER,
    COMPLETE
);

/// Lists of what records in every world, whichever the interface.
pub(super) const EVERYWHERE: &[&[&str]] =
    &[ABOVE_DRIVER, bus::sim::STAGES, bus::live::STAGES, plan::HOST_COSTS, plan::DEVICE_COSTS];

/// Lists of an NVMe command: driver, controller, and the media of a drive.
pub(super) const NVME_PARTS: &[&[&str]] = &[
    host::nvme::STAGES,
    host::nvme::COSTS,
    device::nvme::STAGES,
    device::nvme::COSTS,
    flash::drive::STAGES,
    flash::chips::STAGES,
    flash::bridge::STAGES,
    media::STAGES,
];

/// Returns true if `stages` has every name of `parts`.
pub(super) const fn covers(stages: &[&str], parts: &[&[&str]]) -> bool {
    let mut part = 0;
    while part < parts.len() {
        let mut name = 0;
        while name < parts[part].len() {
            if !runtime::is_listed(stages, parts[part][name]) {
                return false;
            }
            name += 1;
        }
        part += 1;
    }
    true
}

/// The number of names in all parts.
pub const fn count(parts: &[&[&str]]) -> usize {
    let (mut sum, mut part) = (0, 0);
    while part < parts.len() {
        sum += parts[part].len();
        part += 1;
    }
    sum
}

/// Concatenation of all parts; `N` is their [`count`].
pub const fn join<const N: usize>(parts: &[&[&'static str]]) -> [&'static str; N] {
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
