//! One of several threads that share the queues of a controller.

use super::divided::Stop;
use super::row::Boxed;

/// The device side on one thread.
pub struct Dealt {
    /// Serves the queues of a thread that is not the first, until the first one ends its part. That of the
    /// first thread never ends: its controller's tasks serve its queues.
    pub serve: Boxed<'static, ()>,
    /// Ends the controller's tasks at once: no further access to the memory of the host.
    pub stop: Stop,
}
