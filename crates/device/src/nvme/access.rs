//! Access state of a namespace.

use wire::nvme::status::Status;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Door {
    /// Accessible, if the namespace exists.
    #[default]
    Open,
    /// Format in progress: I/O fails.
    Formatting,
    /// Being created, attached, detached or deleted.
    Hidden,
    /// Sanitize in progress: I/O fails.
    Sanitizing,
    /// The last sanitize failed: I/O fails.
    FailedSanitize,
    /// A host holds a reservation: access depends on the host.
    Reserved,
}

impl Door {
    /// Status that rejects any command. `None`: accessible, hidden, or reserved.
    pub fn refusal(self) -> Option<Status> {
        match self {
            Door::Open | Door::Hidden | Door::Reserved => None,
            Door::Formatting => Some(Status::FORMAT_IN_PROGRESS),
            Door::Sanitizing => Some(Status::SANITIZE_IN_PROGRESS),
            Door::FailedSanitize => Some(Status::SANITIZE_FAILED),
        }
    }

    /// Returns true if no operation is in progress.
    pub fn is_settled(self) -> bool {
        matches!(self, Door::Open | Door::Reserved)
    }
}
