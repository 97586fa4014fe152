//! Errors: why a plan does not suit an interface, why a driver failed, and why a run failed.

use std::io;
use std::path::{Path, PathBuf};

use bus::OutOfMemory;
use bus::live::ProcessError;
use bus::vfio::VfioError;
use bus::vfio_user::VfioUserError;
use host::pci::{Trouble, VectorError};
use host::{InitError, IoError};
use media::contents::Keep;
use plan::{Plan, PlanErrors, Unsupported};

use crate::work::WorkError;

/// Requirement of an interface, or of its world, that a plan does not meet.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CheckError {
    /// A table is missing, or a configuration is for other drivers.
    #[error(transparent)]
    Plan(#[from] Unsupported),
    /// A key has no supported value.
    #[error("{origin}: {key}: {}expected {expected}", found_text(.found.as_deref()))]
    Key {
        origin: String,
        /// The full key: `device.mdts`.
        key: String,
        /// The value, if the expectation alone does not imply it.
        found: Option<String>,
        expected: String,
    },
    /// The flash cannot be addressed by this number of endpoints.
    #[error("{origin}: pages.endpoints: {why}")]
    Endpoints { origin: String, why: device::pages::Unfit },
    /// The interface has simulated worlds only.
    #[error(
        "interface {interface}: found a live world, expected a simulated one (doorbell run --world sim)"
    )]
    NotLive { interface: &'static str },
    /// The interface's device is not a PCI function.
    #[error("{interface} is not a PCI function")]
    NoFunction { interface: &'static str },
}

impl CheckError {
    /// Error of a key of this plan.
    pub fn key(plan: &Plan, key: impl Into<String>, expected: impl Into<String>) -> CheckError {
        let (origin, key, expected) = (plan.origin.clone(), key.into(), expected.into());
        CheckError::Key { origin, key, found: None, expected }
    }

    /// Error of a key of this plan, with the value found.
    pub fn found(
        plan: &Plan,
        key: impl Into<String>,
        found: impl ToString,
        expected: impl Into<String>,
    ) -> CheckError {
        let (origin, key, expected) = (plan.origin.clone(), key.into(), expected.into());
        CheckError::Key { origin, key, found: Some(found.to_string()), expected }
    }
}

fn found_text(found: Option<&str>) -> String {
    found.map_or_else(String::new, |found| format!("found {found}, "))
}

/// Name that no interface has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("interface: found {found:?}, expected one of {}", known.join(", "))]
pub struct UnknownInterface {
    pub found: String,
    pub known: Vec<&'static str>,
}

/// Why a driver could not reset, stop or recover.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DriverError {
    /// The device did not stop or start.
    #[error(transparent)]
    Init(#[from] InitError),
    #[error(transparent)]
    Io(#[from] IoError),
    /// The interface does not support the operation; the text names both.
    #[error("{0}")]
    Unsupported(&'static str),
}

/// Why a run could not start, or did not end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The plan is invalid, or does not serve the purpose.
    #[error(transparent)]
    Plan(#[from] PlanErrors),
    /// The interface does not support the plan.
    #[error(transparent)]
    Check(#[from] CheckError),
    /// There is no such interface.
    #[error(transparent)]
    Interface(#[from] UnknownInterface),
    /// A job file or recording is invalid.
    #[error(transparent)]
    Work(#[from] WorkError),
    /// The buffers of a job do not fit in host memory.
    #[error(transparent)]
    Buffers(#[from] Box<BuffersTooLarge>),
    /// The driver could not be started.
    #[error(transparent)]
    Init(#[from] InitError),
    /// The driver could not be stopped or recovered.
    #[error(transparent)]
    Driver(#[from] DriverError),
    #[error(transparent)]
    Io(#[from] IoError),
    /// The device-accessible memory is exhausted.
    #[error(transparent)]
    OutOfMemory(#[from] OutOfMemory),
    /// A reset under I/O failed.
    #[error("reset under I/O: {0}")]
    Reset(DriverError),
    /// A thread of the host got no queue.
    #[error("thread {number} of {of}: {why}")]
    Queue {
        /// Number of the thread, from 1.
        number: usize,
        of: usize,
        why: InitError,
    },
    /// A function of the simulated PCI hierarchy has no memory, or no room for its registers.
    #[error(transparent)]
    Pci(#[from] Trouble),
    /// A function's interrupt vectors cannot be set.
    #[error(transparent)]
    Vectors(#[from] VectorError),
    /// The enumeration did not find a device.
    #[error("a device's function was not found")]
    FunctionNotFound,
    /// The system does not provide the memory that host and device share.
    #[error("memory for host and device: {0}")]
    Memory(io::Error),
    /// The device in another process, through shared memory, cannot be used.
    #[error(transparent)]
    Socket(#[from] ProcessError),
    /// The vfio-user device cannot be used.
    #[error(transparent)]
    VfioUser(#[from] VfioUserError),
    /// The PCI function cannot be used through VFIO.
    #[error(transparent)]
    Vfio(#[from] VfioError),
    /// A call of the system failed.
    #[error(transparent)]
    System(#[from] io::Error),
    /// A thread could not be started.
    #[error("{thread}: {why}")]
    Thread { thread: &'static str, why: io::Error },
    #[error("{0} has panicked")]
    Panicked(&'static str),
    /// The medium could not be built, filled or saved.
    #[error(transparent)]
    Medium(#[from] MediumError),
    /// Another error of the program that runs the world, such as a server.
    #[error("{0}")]
    Other(String),
}

impl RunError {
    /// An error of another program or layer, of which only the text is kept.
    pub fn of(error: impl std::fmt::Display) -> RunError {
        RunError::Other(error.to_string())
    }
}

/// Hint for errors about buffers that do not fit in host memory.
pub(crate) const BUFFER_HINT: &str =
    "expected a smaller bs, iodepth or numjobs, or a larger host.memory";

/// Buffers of a job that do not fit in host memory.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{}:{line}: {job}: found {clones} of numjobs={numjobs} with iodepth={depth} buffers of {each} bytes \
     each ({of}, rounded up), {taken} bytes with the other jobs of the group: host.memory has {left} of \
     {all} bytes left: {}",
    file.display(), BUFFER_HINT
)]
pub struct BuffersTooLarge {
    pub file: PathBuf,
    /// Line of the job, from 1.
    pub line: u32,
    pub job: String,
    /// Clones of the job on this thread.
    pub clones: u64,
    pub numjobs: u32,
    pub depth: u64,
    /// Size of a buffer, bytes.
    pub each: u64,
    /// Origin of the size: `bs`, or the place of an operation of a recording.
    pub of: String,
    /// Size of all buffers of the group up to this job, bytes.
    pub taken: u64,
    /// Host memory left, bytes.
    pub left: u64,
    /// Host memory, bytes.
    pub all: u64,
}

/// Why a running device could not be changed or copied.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChangeError {
    #[error("medium.kind: expected a medium with the table medium.timing")]
    NoTiming,
    #[error("medium.pace: found immediate, expected modelled")]
    Immediate,
    /// A key of the timing that a running drive keeps.
    #[error("medium.timing.{0}: cannot change while the drive runs")]
    Fixed(&'static str),
    #[error("medium.kind: expected flash, which wears")]
    NoFlash,
    #[error("medium.bridge: found one, expected none: its state has no file")]
    Bridge,
    #[error("the flash software is on the host: expected it on the drive")]
    HostSoftware,
    /// Chips that cannot be copied.
    #[error(transparent)]
    Nand(#[from] media::nand::Error),
    /// Blocks that cannot be copied.
    #[error(transparent)]
    Contents(#[from] media::contents::Error),
}

/// Why the medium of a device could not be built, filled or saved.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MediumError {
    /// The chips, or their state file.
    #[error(transparent)]
    Nand(#[from] media::nand::Error),
    /// Blocks without flash.
    #[error(transparent)]
    Contents(#[from] media::contents::Error),
    /// The plan lacks a value of the timing model.
    #[error(transparent)]
    Model(#[from] PlanErrors),
    /// A write through the FTL failed.
    #[error(transparent)]
    Write(#[from] media::MediaError),
    /// The FTL cannot mount the chips.
    #[error(transparent)]
    Mount(#[from] ftl::MountError),
    #[error(transparent)]
    Ftl(#[from] ftl::Error),
    /// The state file keeps other parts of the blocks than the plan.
    #[error(
        "{}: medium.keep: found {found}, expected {expected} by the plan; to run with this state: --set \
         medium.keep={found}",
        state.display(), found = keep_text(*found), expected = keep_text(*expected)
    )]
    OtherKeep {
        state: PathBuf,
        /// Value of the state file.
        found: Keep,
        expected: Keep,
    },
    /// The flash software cannot mount the state.
    #[error("{}: flash software can't mount it: {why}; see doorbell state check", state.display())]
    NotMounted { state: PathBuf, why: String },
    /// The state file has chips of another shape or seed.
    #[error("{}: found other chips, expected those of the plan, its seed included", state.display())]
    OtherChips { state: PathBuf },
    /// The interface has no front end for the bus.
    #[error("interface {interface}: no device front end for this bus")]
    NoFrontEnd { interface: &'static str },
    /// The interface supports one host per device.
    #[error("interface {interface}: found several hosts, expected one")]
    OneHost { interface: &'static str },
    /// The queues of the interface cannot be dealt to several device threads.
    #[error("interface {interface}: found several device threads, expected one")]
    OneThread { interface: &'static str },
    /// The interface supports one client per device.
    #[error(
        "interface {interface}: found clients with extents, expected one client with the whole drive"
    )]
    OneClient { interface: &'static str },
    /// Blocks past the end of the medium.
    #[error("{} blocks from {}: expected blocks of the medium, which has {blocks}", range.blocks, range.from)]
    NotOnMedium {
        range: media::Range,
        /// Blocks of the medium.
        blocks: u64,
    },
}

impl MediumError {
    pub(crate) fn not_mounted(state: &Path, why: &impl ToString) -> MediumError {
        MediumError::NotMounted { state: state.into(), why: why.to_string() }
    }
}

fn keep_text(keep: Keep) -> &'static str {
    if keep == Keep::Stamps { "stamps" } else { "everything" }
}
