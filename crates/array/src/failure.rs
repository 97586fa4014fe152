//! Meaning of a member's error for the array.

use host::Kind;

/// Returns true if a member with this error is out.
pub fn is_lost(kind: Kind) -> bool {
    use Kind::{Closed, DeviceFailed, Gone, Reset, TimedOut};
    matches!(kind, Gone | Closed | TimedOut | DeviceFailed | Reset)
}

/// Returns true if other members can replace a failed read with this error.
pub fn is_unreadable(kind: Kind) -> bool {
    matches!(kind, Kind::MediaFailed | Kind::Corrupted)
}

/// Returns true if a member with this write error is out.
pub fn does_not_write(kind: Kind) -> bool {
    is_lost(kind) || is_unreadable(kind) || kind == Kind::Full
}
