//! Version negotiation and limits of each side (vfio-user, "VFIO_USER_VERSION").

use std::format;
use std::string::{String, ToString};

use serde_json::{Value, json};
use wire::vfio_user::TRANSFER_BYTES_DEFAULT;

use super::error::LimitsError;
use super::limits;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    /// Maximum number of descriptors in one message.
    pub fds: usize,
    /// Maximum bytes of data in one message.
    pub transfer_bytes: usize,
}

/// Our limits as zero-terminated JSON, with at most `maps_max` mappings.
pub(super) fn ours(maps_max: usize) -> String {
    let capabilities = json!({
        "capabilities": {
            "max_msg_fds": limits::MESSAGE_FDS_MAX,
            "max_data_xfer_size": limits::TRANSFER_BYTES_MAX,
            "max_dma_maps": maps_max,
            "pgsizes": 4096,
        }
    });
    format!("{capabilities}\0")
}

/// Parses the peer's limits. Missing values have the protocol's defaults; unknown capabilities are ignored.
pub(super) fn theirs(capabilities: &[u8]) -> Result<Limits, LimitsError> {
    let mut limits = Limits { fds: 1, transfer_bytes: TRANSFER_BYTES_DEFAULT as usize };
    let text = capabilities.trim_ascii();
    if text.is_empty() {
        return Ok(limits);
    }
    let said: Value = serde_json::from_slice(text).map_err(LimitsError::NotJson)?;
    let Some(said) = said.get("capabilities") else { return Ok(limits) };
    let number = |name, default: usize| match said.get(name) {
        None => Ok(default as u64),
        Some(value) => {
            value.as_u64().ok_or_else(|| LimitsError::NotANumber { name, value: value.to_string() })
        }
    };
    let transfer = number("max_data_xfer_size", limits.transfer_bytes)?;
    if transfer == 0 {
        return Err(LimitsError::NoTransfer);
    }
    limits.fds = number("max_msg_fds", limits.fds)?.min(limits::MESSAGE_FDS_MAX as u64) as usize;
    limits.transfer_bytes = transfer.min(limits::TRANSFER_BYTES_MAX as u64) as usize;
    let pages = number("pgsizes", 4096)?;
    if pages & 4096 == 0 {
        return Err(LimitsError::Pages { pages });
    }
    Ok(limits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_limits_have_protocol_defaults() {
        let none = Limits { fds: 1, transfer_bytes: 1 << 20 };
        for text in ["", " \n", "{}", r#"{"capabilities":{}}"#, r#"{"capabilities":{"new":[]}}"#] {
            assert_eq!(theirs(text.as_bytes()).unwrap(), none, "{text}");
        }
        let text = r#"{"capabilities":{"max_msg_fds":4,"max_data_xfer_size":512}}"#;
        assert_eq!(theirs(text.as_bytes()).unwrap(), Limits { fds: 4, transfer_bytes: 512 });
        let ours = ours(1);
        let ours = theirs(ours.trim_end_matches('\0').as_bytes());
        assert_eq!(ours.unwrap(), Limits { fds: 8, transfer_bytes: 1 << 20 });
    }

    #[test]
    fn malformed_limits_are_rejected_with_reason() {
        for (text, part) in [
            ("{", "not JSON"),
            (r#"{"capabilities":{"max_msg_fds":-1}}"#, "max_msg_fds is -1"),
            (r#"{"capabilities":{"max_data_xfer_size":0}}"#, "max_data_xfer_size is 0"),
            (r#"{"capabilities":{"pgsizes":2097152}}"#, "pgsizes is 0x200000"),
        ] {
            let error = theirs(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
        // At any nesting depth.
        let deep = "[".repeat(100_000);
        assert!(theirs(deep.as_bytes()).is_err());
    }
}
