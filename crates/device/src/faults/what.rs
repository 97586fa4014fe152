//! Effects of faults.

use flash::chips::DieFault;
use runtime::Span;
use wire::nvme::status::Status;

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
    /// The medium completes no access for this time; [`super::FOREVER`]: permanently.
    StuckMedium(Span),
    /// A fault of a flash die.
    Die {
        /// Die number; consecutive numbers are on consecutive channels.
        die: u32,
        /// Kind of die fault.
        of: DieFault,
    },
    /// For this time, flushes complete and make nothing durable, and so do writes with FUA; a power cut loses
    /// written blocks at random. [`super::FOREVER`]: permanently.
    IgnoreFlush(Span),
    /// The interrupt of the completion is lost.
    LostInterrupt,
    /// The interrupt of the completion is sent twice.
    DuplicateInterrupt,
    /// A read of host memory by the device gets no completion for this time (PCIe base 4.0, 2.8): the command
    /// then fails with Data Transfer Error.
    CompletionTimeout(Span),
    /// The data of a command to the device arrive poisoned (PCIe base 4.0, 2.7.2): it fails with Data
    /// Transfer Error, and nothing is written. Commands without such data are not selected.
    PoisonedTlp,
    /// The link retrains for this time: commands that would begin or complete wait until then.
    LinkRetrain(Span),
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
            What::DuplicateInterrupt => "duplicate-interrupt",
            What::CompletionTimeout(_) => "completion-timeout",
            What::PoisonedTlp => "poisoned-tlp",
            What::LinkRetrain(_) => "link-retrain",
            What::LinkDown => "link-down",
            What::Fatal => "fatal",
        }
    }
}
