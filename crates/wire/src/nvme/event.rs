//! Completions of Asynchronous Event Request (NVMe base 2.0, 5.2.1).

use bitfield_struct::bitfield;

use super::log::lid;

/// Dword 0 of the completion of an Asynchronous Event Request.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct AsyncEvent {
    /// Type: 0 error, 1 SMART and health, 2 notice, 6 command set specific, 7 vendor specific.
    #[bits(3)]
    pub kind: u8,
    #[bits(5)]
    __: u8,
    /// Event of that type.
    pub info: u8,
    /// Log page with details; reading it re-enables such events.
    pub log_page: u8,
    __: u8,
}

impl AsyncEvent {
    /// Write to the doorbell of a queue that does not exist.
    pub const INVALID_DOORBELL_REGISTER: AsyncEvent = AsyncEvent::of(0, 0, lid::ERROR);
    /// Doorbell write with a value outside the queue, or equal to the current one.
    pub const INVALID_DOORBELL_VALUE: AsyncEvent = AsyncEvent::of(0, 1, lid::ERROR);
    /// Persistent internal error that is not specific to a command.
    pub const PERSISTENT_INTERNAL_ERROR: AsyncEvent = AsyncEvent::of(0, 3, lid::ERROR);
    /// The device is no longer reliable.
    pub const RELIABILITY: AsyncEvent = AsyncEvent::of(1, 0, lid::SMART_HEALTH);
    /// A temperature has passed its threshold.
    pub const TEMPERATURE: AsyncEvent = AsyncEvent::of(1, 1, lid::SMART_HEALTH);
    /// Spare capacity has fallen below its threshold.
    pub const SPARE: AsyncEvent = AsyncEvent::of(1, 2, lid::SMART_HEALTH);
    /// Identify data of a namespace have changed.
    pub const NAMESPACE_ATTRIBUTE_CHANGED: AsyncEvent =
        AsyncEvent::of(2, 0, lid::CHANGED_NAMESPACES);
    /// A reservation notification is available.
    pub const RESERVATION: AsyncEvent = AsyncEvent::of(6, 0, lid::RESERVATION);
    /// A sanitize has ended, with success or failure.
    pub const SANITIZED: AsyncEvent = AsyncEvent::of(6, 1, lid::SANITIZE);

    /// Vendor-specific: less space is left than the threshold of host-directed GC.
    pub const SPACE_SHORT: AsyncEvent = AsyncEvent::of(7, 0, lid::SUPERBLOCKS);

    /// Vendor-specific: mapping units have moved, and the host that keeps the map has not read where.
    pub const MOVED: AsyncEvent = AsyncEvent::of(7, 1, lid::MOVES);

    const fn of(kind: u8, info: u8, log_page: u8) -> AsyncEvent {
        AsyncEvent::new().with_kind(kind).with_info(info).with_log_page(log_page)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn async_events_match_spec_values() {
        assert_eq!(AsyncEvent::INVALID_DOORBELL_VALUE.into_bits(), 0x0001_0100);
        assert_eq!(AsyncEvent::SPARE.into_bits(), 0x0002_0201);
        assert_eq!(AsyncEvent::NAMESPACE_ATTRIBUTE_CHANGED.into_bits(), 0x0004_0002);
    }
}
