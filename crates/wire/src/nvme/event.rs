//! What an Asynchronous Event Request completes with (NVMe base 2.0, 5.2.1).

use bitfield_struct::bitfield;

use super::log::lid;

/// Dword 0 of the completion of an Asynchronous Event Request.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct AsyncEvent {
    /// 0 error, 1 SMART and health, 2 notice, 6 command set's own, 7 vendor's own.
    #[bits(3)]
    pub kind: u8,
    #[bits(5)]
    __: u8,
    /// Which event of that type.
    pub info: u8,
    /// The log page that tells more; reading it lets such events come again.
    pub log_page: u8,
    __: u8,
}

impl AsyncEvent {
    /// The host rang the doorbell of a queue that doesn't exist.
    pub const INVALID_DOORBELL_REGISTER: AsyncEvent = AsyncEvent::of(0, 0, lid::ERROR);
    /// The host wrote a value outside the queue, or the one already there, to a doorbell.
    pub const INVALID_DOORBELL_VALUE: AsyncEvent = AsyncEvent::of(0, 1, lid::ERROR);
    /// An internal error that no command can carry, and that stays.
    pub const PERSISTENT_INTERNAL_ERROR: AsyncEvent = AsyncEvent::of(0, 3, lid::ERROR);
    /// The device can no longer be relied on.
    pub const RELIABILITY: AsyncEvent = AsyncEvent::of(1, 0, lid::SMART_HEALTH);
    /// A temperature has passed its threshold.
    pub const TEMPERATURE: AsyncEvent = AsyncEvent::of(1, 1, lid::SMART_HEALTH);
    /// Spare capacity has fallen below its threshold.
    pub const SPARE: AsyncEvent = AsyncEvent::of(1, 2, lid::SMART_HEALTH);
    /// What Identify says of a namespace has changed.
    pub const NAMESPACE_ATTRIBUTE_CHANGED: AsyncEvent =
        AsyncEvent::of(2, 0, lid::CHANGED_NAMESPACES);
    /// There is a notification about a reservation.
    pub const RESERVATION: AsyncEvent = AsyncEvent::of(6, 0, lid::RESERVATION);
    /// A Sanitize has ended, well or not.
    pub const SANITIZED: AsyncEvent = AsyncEvent::of(6, 1, lid::SANITIZE);

    /// Of our own: less space is left than whoever names superblocks wanted to be told of.
    pub const SPACE_SHORT: AsyncEvent = AsyncEvent::of(7, 0, lid::SUPERBLOCKS);

    const fn of(kind: u8, info: u8, log_page: u8) -> AsyncEvent {
        AsyncEvent::new().with_kind(kind).with_info(info).with_log_page(log_page)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_as_the_specification_numbers_them() {
        assert_eq!(AsyncEvent::INVALID_DOORBELL_VALUE.into_bits(), 0x0001_0100);
        assert_eq!(AsyncEvent::SPARE.into_bits(), 0x0002_0201);
        assert_eq!(AsyncEvent::NAMESPACE_ATTRIBUTE_CHANGED.into_bits(), 0x0004_0002);
    }
}
