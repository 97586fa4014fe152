//! Features and their packing into dword 11 of Set Features (NVMe base 2.0, 5.27.1). Dword 0 of a Get
//! Features completion has the same packing.

use bitfield_struct::bitfield;
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::collect::HostCollection;
use super::host_map::HostMap;
use super::reservation::{HostIdentifier, NotificationMask, PersistThroughPowerLoss};
use super::status::Status;

/// Feature identifiers.
pub mod fid {
    /// Arbitration: commands taken from one queue per turn.
    pub const ARBITRATION: u8 = 0x01;
    /// Power state.
    pub const POWER_MANAGEMENT: u8 = 0x02;
    /// Temperature thresholds for warnings.
    pub const TEMPERATURE_THRESHOLD: u8 = 0x04;
    /// Time limit of error recovery.
    pub const ERROR_RECOVERY: u8 = 0x05;
    /// Use of a volatile write cache.
    pub const VOLATILE_WRITE_CACHE: u8 = 0x06;
    /// Number of I/O queues, requested and allocated.
    pub const NUMBER_OF_QUEUES: u8 = 0x07;
    /// Number of completions that may share an interrupt, and maximum delay.
    pub const INTERRUPT_COALESCING: u8 = 0x08;
    /// Vectors without coalescing.
    pub const INTERRUPT_VECTOR_CONFIG: u8 = 0x09;
    /// Atomicity of writes other than across a power failure.
    pub const WRITE_ATOMICITY: u8 = 0x0a;
    /// Enabled asynchronous events.
    pub const ASYNC_EVENT_CONFIG: u8 = 0x0b;
    /// Autonomous power state transitions; the data are an [`super::ApstTable`].
    pub const AUTONOMOUS_POWER: u8 = 0x0c;
    /// Keep alive timeout, after which the controller assumes that the host has failed.
    pub const KEEP_ALIVE_TIMER: u8 = 0x0f;
    /// Host behavior support; the data are a [`super::HostBehavior`].
    pub const HOST_BEHAVIOR: u8 = 0x16;
    /// Host identifier; the data are 8 or 16 bytes.
    pub const HOST_IDENTIFIER: u8 = 0x81;
    /// Reservation notifications that are masked.
    pub const RESERVATION_NOTIFICATION_MASK: u8 = 0x82;
    /// Persistence of reservations across power loss.
    pub const RESERVATION_PERSISTENCE: u8 = 0x83;
    /// Vendor-specific: host-directed GC.
    pub const HOST_COLLECTION: u8 = 0xc0;
    /// Vendor-specific: the host keeps the map.
    pub const HOST_MAP: u8 = 0xc1;
}

/// A valid value of a feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feature {
    /// [`fid::ARBITRATION`].
    Arbitration(Arbitration),
    /// [`fid::POWER_MANAGEMENT`].
    PowerManagement(PowerManagement),
    /// [`fid::TEMPERATURE_THRESHOLD`].
    TemperatureThreshold(TemperatureThreshold),
    /// [`fid::ERROR_RECOVERY`].
    ErrorRecovery(ErrorRecovery),
    /// [`fid::VOLATILE_WRITE_CACHE`].
    VolatileWriteCache(VolatileWriteCache),
    /// [`fid::NUMBER_OF_QUEUES`].
    NumberOfQueues(NumberOfQueues),
    /// [`fid::INTERRUPT_COALESCING`].
    InterruptCoalescing(InterruptCoalescing),
    /// [`fid::INTERRUPT_VECTOR_CONFIG`].
    InterruptVectorConfig(InterruptVectorConfig),
    /// [`fid::WRITE_ATOMICITY`].
    WriteAtomicity(WriteAtomicity),
    /// [`fid::ASYNC_EVENT_CONFIG`].
    AsyncEventConfig(AsyncEventConfig),
    /// [`fid::AUTONOMOUS_POWER`].
    AutonomousPower(AutonomousPower),
    /// [`fid::KEEP_ALIVE_TIMER`].
    KeepAliveTimer(KeepAliveTimer),
    /// [`fid::HOST_IDENTIFIER`].
    HostIdentifier(HostIdentifier),
    /// [`fid::RESERVATION_NOTIFICATION_MASK`].
    ReservationNotificationMask(NotificationMask),
    /// [`fid::RESERVATION_PERSISTENCE`].
    ReservationPersistence(PersistThroughPowerLoss),
    /// [`fid::HOST_COLLECTION`].
    HostCollection(HostCollection),
    /// [`fid::HOST_MAP`].
    HostMap(HostMap),
}

macro_rules! feature_packing {
    ($($fid:ident $feature:ident $value:ident;)+) => {
        impl Feature {
            /// Parses a value that a host sets.
            ///
            /// # Errors
            /// Invalid Field for an unknown feature or an invalid value.
            pub fn unpack(feature: u8, cdw11: u32) -> Result<Feature, Status> {
                let value = match feature {
                    $(fid::$fid => Feature::$feature($value::from_bits(cdw11)),)+
                    _ => return Err(Status::INVALID_FIELD),
                };
                if value.is_legal() { Ok(value) } else { Err(Status::INVALID_FIELD) }
            }

            /// Feature identifier.
            pub const fn id(self) -> u8 {
                match self { $(Feature::$feature(_) => fid::$fid,)+ }
            }

            /// The value as in dword 11 of Set Features and dword 0 of a completion.
            pub const fn pack(self) -> u32 {
                match self { $(Feature::$feature(value) => value.into_bits(),)+ }
            }
        }
    };
}

feature_packing! {
    ARBITRATION Arbitration Arbitration;
    POWER_MANAGEMENT PowerManagement PowerManagement;
    TEMPERATURE_THRESHOLD TemperatureThreshold TemperatureThreshold;
    ERROR_RECOVERY ErrorRecovery ErrorRecovery;
    VOLATILE_WRITE_CACHE VolatileWriteCache VolatileWriteCache;
    NUMBER_OF_QUEUES NumberOfQueues NumberOfQueues;
    INTERRUPT_COALESCING InterruptCoalescing InterruptCoalescing;
    INTERRUPT_VECTOR_CONFIG InterruptVectorConfig InterruptVectorConfig;
    WRITE_ATOMICITY WriteAtomicity WriteAtomicity;
    ASYNC_EVENT_CONFIG AsyncEventConfig AsyncEventConfig;
    AUTONOMOUS_POWER AutonomousPower AutonomousPower;
    KEEP_ALIVE_TIMER KeepAliveTimer KeepAliveTimer;
    HOST_IDENTIFIER HostIdentifier HostIdentifier;
    RESERVATION_NOTIFICATION_MASK ReservationNotificationMask NotificationMask;
    RESERVATION_PERSISTENCE ReservationPersistence PersistThroughPowerLoss;
    HOST_COLLECTION HostCollection HostCollection;
    HOST_MAP HostMap HostMap;
}

impl Feature {
    const fn is_legal(self) -> bool {
        match self {
            // 5.27.1.5: 65536 queues are illegal, since the count is 0-based and ffffh is reserved.
            Feature::NumberOfQueues(wanted) => wanted.sqs() <= 0xffff && wanted.cqs() <= 0xffff,
            Feature::TemperatureThreshold(threshold) => threshold.thsel() < 2,
            Feature::HostMap(map) => map.moves() <= HostMap::MOVES_MAX,
            _ => true,
        }
    }
}

/// 5.27.1.1.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Arbitration {
    /// AB: 1 << AB commands per turn, 7 for no limit; see [`burst`](Self::burst).
    #[bits(3)]
    pub ab: u8,
    #[bits(5)]
    __: u8,
    /// LPW: weight of the low class, less one.
    pub lpw: u8,
    /// MPW: weight of the medium class, less one.
    pub mpw: u8,
    /// HPW: weight of the high class, less one.
    pub hpw: u8,
}

impl Arbitration {
    /// Sets weights, without a limit on bursts.
    ///
    /// # Panics
    /// If a weight is not of 1 to 256.
    pub fn weighted(high: u32, medium: u32, low: u32) -> Arbitration {
        let field = |weight: u32| {
            weight.checked_sub(1).and_then(|less| u8::try_from(less).ok()).expect("1 to 256")
        };
        let burst = Arbitration::new().with_burst(None);
        burst.with_hpw(field(high)).with_mpw(field(medium)).with_lpw(field(low))
    }

    /// Sets the maximum burst, rounded down to a power of two of 1 to 64; `None` for no limit.
    pub fn with_burst(self, burst: Option<u32>) -> Arbitration {
        self.with_ab(burst.map_or(7, |burst| burst.max(1).ilog2().min(6) as u8))
    }

    /// Maximum number of commands taken from one queue per turn; `None` for no limit.
    pub const fn burst(self) -> Option<u32> {
        if self.ab() == 7 { None } else { Some(1 << self.ab()) }
    }

    /// Weights of the high, the medium and the low class, each 1 to 256.
    pub const fn weights(self) -> [u32; 3] {
        [self.hpw() as u32 + 1, self.mpw() as u32 + 1, self.lpw() as u32 + 1]
    }
}

/// 5.27.1.2.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct PowerManagement {
    /// PS: the power state.
    #[bits(5)]
    pub ps: u8,
    /// WH: workload hint.
    #[bits(3)]
    pub wh: u8,
    #[bits(24)]
    __: u32,
}

/// 5.27.1.3.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct TemperatureThreshold {
    /// TMPTH: the threshold, in kelvins.
    pub tmpth: u16,
    /// TMPSEL: sensor; 0 is the composite temperature, 15 all sensors.
    #[bits(4)]
    pub tmpsel: u8,
    /// THSEL: 0 for an over-temperature threshold, 1 for an under-temperature one; others are reserved.
    #[bits(2)]
    pub thsel: u8,
    #[bits(10)]
    __: u16,
}

/// NVM command set 1.0, 4.1.3.2.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct ErrorRecovery {
    /// TLER: time limit of error recovery in units of 100 ms; 0 for none.
    pub tler: u16,
    /// DULBE: reading a deallocated or unwritten block is an error.
    pub dulbe: bool,
    #[bits(15)]
    __: u16,
}

/// 5.27.1.4.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct VolatileWriteCache {
    /// WCE: write cache enabled.
    pub wce: bool,
    #[bits(31)]
    __: u32,
}

/// 5.27.1.5.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct NumberOfQueues {
    /// NSQR or NSQA: I/O submission queues, less one.
    pub nsq: u16,
    /// NCQR or NCQA: I/O completion queues, less one.
    pub ncq: u16,
}

impl NumberOfQueues {
    /// A value for `sqs` and `cqs` queues, 1 to 65535 each.
    ///
    /// # Panics
    /// If either is out of range.
    pub const fn of(sqs: u32, cqs: u32) -> NumberOfQueues {
        assert!(sqs >= 1 && sqs <= 0xffff, "1 to 65535 submission queues");
        assert!(cqs >= 1 && cqs <= 0xffff, "1 to 65535 completion queues");
        NumberOfQueues::new().with_nsq((sqs - 1) as u16).with_ncq((cqs - 1) as u16)
    }

    /// Number of I/O submission queues.
    pub const fn sqs(self) -> u32 {
        self.nsq() as u32 + 1
    }

    /// Number of I/O completion queues.
    pub const fn cqs(self) -> u32 {
        self.ncq() as u32 + 1
    }
}

/// 5.27.1.6.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct InterruptCoalescing {
    /// THR: completions that share an interrupt, less one.
    pub thr: u8,
    /// TIME: maximum delay of a completion's interrupt, in units of 100 us; 0 for none.
    pub time: u8,
    __: u16,
}

/// 5.27.1.7.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct InterruptVectorConfig {
    /// IV: the vector.
    pub iv: u16,
    /// CD: coalescing disabled.
    pub cd: bool,
    #[bits(15)]
    __: u16,
}

/// NVM command set 1.0, 4.1.3.3.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct WriteAtomicity {
    /// DN: only atomicity across a power failure (AWUPF) is required, not AWUN.
    pub dn: bool,
    #[bits(31)]
    __: u32,
}

/// 5.27.1.8.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct AsyncEventConfig {
    /// Critical warnings of [`super::log::SmartHealth`] that send an event.
    pub smart: u8,
    /// A namespace's attributes have changed.
    pub namespace_attribute: bool,
    /// Firmware activation is starting.
    pub firmware_activation: bool,
    #[bits(22)]
    __: u32,
}

/// 5.27.1.9.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct AutonomousPower {
    /// APSTE: transitions by the table are enabled.
    pub apste: bool,
    #[bits(31)]
    __: u32,
}

/// 5.27.1.12.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct KeepAliveTimer {
    /// KATO: the timeout in milliseconds; 0 for none.
    #[bits(32)]
    pub kato: u32,
}

/// Host behavior support (5.27.1.18).
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct HostBehavior {
    /// ACRE: 1 if the host delays retries as given in the completion.
    pub acre: u8,
    /// ETDAS: 1 if the host supports telemetry data area 4.
    pub etdas: u8,
    /// LBAFEE: 1 if the host supports more than 16 formats, and protection information of 32 and 64 bits.
    pub lbafee: u8,
    /// Reserved; zeros.
    pub reserved: [u8; 509],
}

impl HostBehavior {
    /// No behavior enabled: the default.
    pub const NONE: HostBehavior =
        HostBehavior { acre: 0, etdas: 0, lbafee: 0, reserved: [0; 509] };

    /// The value without reserved bytes.
    pub const fn known(self) -> HostBehavior {
        HostBehavior { reserved: [0; 509], ..self }
    }
}

/// Idle transition of each power state (5.27.1.9).
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct ApstTable(pub [U64; 32]);

impl ApstTable {
    /// Maximum idle time of an entry, in milliseconds.
    pub const MS_MAX: u32 = (1 << 24) - 1;

    /// A table without transitions.
    pub fn stays() -> ApstTable {
        ApstTable([U64::ZERO; 32])
    }

    /// Adds a transition from one state to another after `ms` milliseconds of idleness.
    ///
    /// # Panics
    /// If a state or the time is out of range.
    pub fn go(&mut self, from: u8, to: u8, ms: u32) {
        assert!(to < 32 && ms <= Self::MS_MAX, "states 0 to 31, 24 bits of milliseconds");
        self.0[usize::from(from)] = (u64::from(to) << 3 | u64::from(ms) << 8).into();
    }

    /// Transition from this state: target state and idle time in milliseconds; `None` if there is none.
    pub fn from(&self, state: u8) -> Option<(u8, u32)> {
        let entry = self.0.get(usize::from(state))?.get();
        let (to, ms) = ((entry >> 3 & 0x1f) as u8, (entry >> 8) as u32 & Self::MS_MAX);
        (ms > 0).then_some((to, ms))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn feature_values_match_spec_layout() {
        let arbitration = Arbitration::from_bits(0x0703_0102);
        assert_eq!(Arbitration::weighted(8, 4, 2).with_burst(Some(4)), arbitration);
        assert_eq!((arbitration.burst(), arbitration.weights()), (Some(4), [8, 4, 2]));
        assert_eq!(arbitration.with_ab(7).burst(), None);
        assert_eq!(NumberOfQueues::of(8, 65535).into_bits(), 0xfffe_0007);
        assert_eq!(
            TemperatureThreshold::new().with_thsel(1).with_tmpth(343).into_bits(),
            0x10_0157
        );
        assert_eq!(InterruptCoalescing::new().with_thr(7).with_time(2).into_bits(), 0x0207);
        assert_eq!(InterruptVectorConfig::new().with_cd(true).with_iv(3).into_bits(), 0x1_0003);
        assert_eq!(ErrorRecovery::new().with_dulbe(true).into_bits(), 0x1_0000);
        assert_eq!(AsyncEventConfig::new().with_firmware_activation(true).into_bits(), 0x200);
        assert_eq!(PowerManagement::new().with_ps(4).with_wh(1).into_bits(), 0x24);
    }

    #[test]
    fn apst_table_layout() {
        let mut table = ApstTable::stays();
        table.go(0, 3, 100);
        table.go(3, 4, ApstTable::MS_MAX);
        assert_eq!((table.0[0].get(), table.0[3].get()), (0x6418, 0xffff_ff20));
        assert_eq!((table.from(0), table.from(3)), (Some((3, 100)), Some((4, ApstTable::MS_MAX))));
        assert_eq!((table.from(1), table.from(32)), (None, None));
        assert_eq!(table.as_bytes().len(), 256);
    }

    #[test]
    fn feature_round_trip_keeps_value_and_fid() {
        let mut known = 0;
        for feature in 0..=u8::MAX {
            match Feature::unpack(feature, 0x0001_0203) {
                Ok(value) => {
                    assert_eq!((value.id(), value.pack()), (feature, 0x0001_0203));
                    known += 1;
                }
                Err(status) => assert_eq!(status, Status::INVALID_FIELD),
            }
        }
        assert_eq!(known, 16);
    }

    #[test]
    fn invalid_feature_values_are_invalid_field() {
        let refused = Err(Status::INVALID_FIELD);
        assert_eq!(Feature::unpack(fid::NUMBER_OF_QUEUES, 0x0000_ffff), refused);
        assert_eq!(Feature::unpack(fid::NUMBER_OF_QUEUES, 0xffff_0000), refused);
        assert!(Feature::unpack(fid::NUMBER_OF_QUEUES, 0xfffe_fffe).is_ok());
        assert_eq!(Feature::unpack(fid::TEMPERATURE_THRESHOLD, 2 << 20), refused);
    }
}
