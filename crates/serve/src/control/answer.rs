//! Answer to a request of the control socket.

use serde_json::Value;

/// Error of a request, as JSON-RPC has it.
#[derive(Debug)]
pub(super) struct Failed {
    pub code: i32,
    pub message: String,
}

pub(super) fn rejected(message: impl Into<String>) -> Failed {
    Failed { code: -32602, message: message.into() }
}

pub(super) fn failed(message: String) -> Failed {
    Failed { code: -32000, message }
}

pub(super) type Answer = Result<Value, Failed>;
