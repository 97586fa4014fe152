//! Features: what a host may set and get, and how each packs into dword 11 (NVMe base 2.0, 5.27.1).
//! The same packing is the completion's dword 0 of Get Features.

use bitfield_struct::bitfield;
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::collect::HostCollection;
use super::reservation::{HostIdentifier, NotificationMask, PersistThroughPowerLoss};
use super::status::Status;

/// Feature identifiers.
pub mod fid {
    /// How many commands are taken from one queue before the next has its turn.
    pub const ARBITRATION: u8 = 0x01;
    /// Which power state to be in.
    pub const POWER_MANAGEMENT: u8 = 0x02;
    /// When to warn of heat or cold.
    pub const TEMPERATURE_THRESHOLD: u8 = 0x04;
    /// How long to try before giving up.
    pub const ERROR_RECOVERY: u8 = 0x05;
    /// Whether writes may wait in a cache.
    pub const VOLATILE_WRITE_CACHE: u8 = 0x06;
    /// How many I/O queues the host wants, and gets.
    pub const NUMBER_OF_QUEUES: u8 = 0x07;
    /// How many completions may share an interrupt, and how long they may wait for it.
    pub const INTERRUPT_COALESCING: u8 = 0x08;
    /// Which vectors don't coalesce.
    pub const INTERRUPT_VECTOR_CONFIG: u8 = 0x09;
    /// Whether writes need to be atomic except across a power failure.
    pub const WRITE_ATOMICITY: u8 = 0x0a;
    /// Which events are told.
    pub const ASYNC_EVENT_CONFIG: u8 = 0x0b;
    /// To which power states the controller goes by itself; the data are an [`super::ApstTable`].
    pub const AUTONOMOUS_POWER: u8 = 0x0c;
    /// How long the host may be silent before the controller takes it for gone.
    pub const KEEP_ALIVE_TIMER: u8 = 0x0f;
    /// What the host makes use of; the data are a [`super::HostBehavior`].
    pub const HOST_BEHAVIOR: u8 = 0x16;
    /// Who the host is; the data are eight or sixteen bytes.
    pub const HOST_IDENTIFIER: u8 = 0x81;
    /// Which notices about reservations are not wanted.
    pub const RESERVATION_NOTIFICATION_MASK: u8 = 0x82;
    /// Whether registrations outlast a loss of power.
    pub const RESERVATION_PERSISTENCE: u8 = 0x83;
    /// Of our own: who says what the collector of flash goes over.
    pub const HOST_COLLECTION: u8 = 0xc0;
}

/// A feature's value that makes sense.
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
}

macro_rules! feature_packing {
    ($($fid:ident $feature:ident $value:ident;)+) => {
        impl Feature {
            /// Makes sense of a value a host wants to set.
            ///
            /// # Errors
            /// Invalid Field for a feature not known here, or a value that the feature forbids.
            pub fn unpack(feature: u8, cdw11: u32) -> Result<Feature, Status> {
                let value = match feature {
                    $(fid::$fid => Feature::$feature($value::from_bits(cdw11)),)+
                    _ => return Err(Status::INVALID_FIELD),
                };
                if value.is_legal() { Ok(value) } else { Err(Status::INVALID_FIELD) }
            }

            /// Which feature this is a value of.
            pub const fn id(self) -> u8 {
                match self { $(Feature::$feature(_) => fid::$fid,)+ }
            }

            /// The value as dword 11 of Set Features and dword 0 of a completion have it.
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
}

impl Feature {
    const fn is_legal(self) -> bool {
        match self {
            // 5.27.1.5: 65536 queues are one more than there are numbers for, and illegal.
            Feature::NumberOfQueues(wanted) => wanted.sqs() <= 0xffff && wanted.cqs() <= 0xffff,
            Feature::TemperatureThreshold(threshold) => threshold.thsel() < 2,
            _ => true,
        }
    }
}

/// 5.27.1.1.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Arbitration {
    /// AB: 1 << AB commands at once, 7 for no limit; see [`burst`](Self::burst).
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
    /// By these weights, without a limit on bursts.
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

    /// With so many commands at once at most, rounded down to a power of two of 1 to 64; `None`: no limit.
    pub fn with_burst(self, burst: Option<u32>) -> Arbitration {
        self.with_ab(burst.map_or(7, |burst| burst.max(1).ilog2().min(6) as u8))
    }

    /// The most commands taken from one queue at a time; `None` for no limit.
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
    /// WH: what work to expect.
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
    /// TMPSEL: which sensor; 0 the composite temperature, 15 all of them.
    #[bits(4)]
    pub tmpsel: u8,
    /// THSEL: 0 the threshold not to exceed, 1 not to fall below; others are reserved.
    #[bits(2)]
    pub thsel: u8,
    #[bits(10)]
    __: u16,
}

/// NVM command set 1.0, 4.1.3.2.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct ErrorRecovery {
    /// TLER: how long to try, in units of 100 ms; 0 for as long as it takes.
    pub tler: u16,
    /// DULBE: reading what was never written is an error.
    pub dulbe: bool,
    #[bits(15)]
    __: u16,
}

/// 5.27.1.4.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct VolatileWriteCache {
    /// WCE: it is in use.
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
    /// Of this many queues, 1 to 65535 of each kind.
    ///
    /// # Panics
    /// If there are none or more of either.
    pub const fn of(sqs: u32, cqs: u32) -> NumberOfQueues {
        assert!(sqs >= 1 && sqs <= 0xffff, "1 to 65535 submission queues");
        assert!(cqs >= 1 && cqs <= 0xffff, "1 to 65535 completion queues");
        NumberOfQueues::new().with_nsq((sqs - 1) as u16).with_ncq((cqs - 1) as u16)
    }

    /// I/O submission queues.
    pub const fn sqs(self) -> u32 {
        self.nsq() as u32 + 1
    }

    /// I/O completion queues.
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
    /// TIME: the longest that a completion waits for one, in units of 100 us; 0 for not at all.
    pub time: u8,
    __: u16,
}

/// 5.27.1.7.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct InterruptVectorConfig {
    /// IV: the vector.
    pub iv: u16,
    /// CD: it doesn't coalesce.
    pub cd: bool,
    #[bits(15)]
    __: u16,
}

/// NVM command set 1.0, 4.1.3.3.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct WriteAtomicity {
    /// DN: only what a power failure tears matters (AWUPF), not what a reader sees (AWUN).
    pub dn: bool,
    #[bits(31)]
    __: u32,
}

/// 5.27.1.8.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct AsyncEventConfig {
    /// For which critical warnings of [`super::log::SmartHealth`] to send an event.
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
    /// APSTE: the controller follows its table.
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

/// What the host makes use of (5.27.1.18).
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct HostBehavior {
    /// ACRE: 1 if it waits before it retries a command, as the completion tells it.
    pub acre: u8,
    /// ETDAS: 1 if it reads telemetry of data area 4.
    pub etdas: u8,
    /// LBAFEE: 1 if it knows of more than 16 formats, and of protection information of 32 and 64 bits.
    pub lbafee: u8,
    /// Zeros.
    pub reserved: [u8; 509],
}

impl HostBehavior {
    /// Of a host that has not said anything.
    pub const NONE: HostBehavior =
        HostBehavior { acre: 0, etdas: 0, lbafee: 0, reserved: [0; 509] };

    /// The same without what is reserved.
    pub const fn known(self) -> HostBehavior {
        HostBehavior { reserved: [0; 509], ..self }
    }
}

/// For each power state, where the controller goes from it when it has nothing to do (5.27.1.9).
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct ApstTable(pub [U64; 32]);

impl ApstTable {
    /// The longest time that an entry holds, in milliseconds.
    pub const MS_MAX: u32 = (1 << 24) - 1;

    /// One that stays in every state.
    pub fn stays() -> ApstTable {
        ApstTable([U64::ZERO; 32])
    }

    /// From this state to that one, after so many milliseconds of idleness.
    ///
    /// # Panics
    /// If there is no such state, or no such time.
    pub fn go(&mut self, from: u8, to: u8, ms: u32) {
        assert!(to < 32 && ms <= Self::MS_MAX, "states 0 to 31, 24 bits of milliseconds");
        self.0[usize::from(from)] = (u64::from(to) << 3 | u64::from(ms) << 8).into();
    }

    /// Where the controller goes from this state, and after how many milliseconds; none: nowhere.
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
    fn values_pack_as_the_specification_lays_them_out() {
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
    fn a_table_of_transitions_bit_by_bit() {
        let mut table = ApstTable::stays();
        table.go(0, 3, 100);
        table.go(3, 4, ApstTable::MS_MAX);
        assert_eq!((table.0[0].get(), table.0[3].get()), (0x6418, 0xffff_ff20));
        assert_eq!((table.from(0), table.from(3)), (Some((3, 100)), Some((4, ApstTable::MS_MAX))));
        assert_eq!((table.from(1), table.from(32)), (None, None));
        assert_eq!(table.as_bytes().len(), 256);
    }

    #[test]
    fn every_known_feature_keeps_its_value_and_its_id() {
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
    fn values_that_a_feature_forbids_are_an_invalid_field() {
        let refused = Err(Status::INVALID_FIELD);
        assert_eq!(Feature::unpack(fid::NUMBER_OF_QUEUES, 0x0000_ffff), refused);
        assert_eq!(Feature::unpack(fid::NUMBER_OF_QUEUES, 0xffff_0000), refused);
        assert!(Feature::unpack(fid::NUMBER_OF_QUEUES, 0xfffe_fffe).is_ok());
        assert_eq!(Feature::unpack(fid::TEMPERATURE_THRESHOLD, 2 << 20), refused);
    }
}
