//! Reservations (NVMe base 2.0, 7.2 to 7.5 and 8.19): hosts that share a namespace register a key with
//! it, and one of them keeps the others out.

use bitfield_struct::bitfield;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::entry::Sqe;
use super::layout;
use super::status::Status;

/// RTYPE: whom a reservation keeps out, and of what (Figure "Command Behavior in the Presence of a
/// Reservation").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Nobody but the holder writes.
    WriteExclusive = 1,
    /// Nobody but the holder reads or writes.
    ExclusiveAccess = 2,
    /// Nobody but registrants writes.
    WriteExclusiveRegistrants = 3,
    /// Nobody but registrants reads or writes.
    ExclusiveAccessRegistrants = 4,
    /// Nobody but registrants writes, and each of them is a holder.
    WriteExclusiveAll = 5,
    /// Nobody but registrants reads or writes, and each of them is a holder.
    ExclusiveAccessAll = 6,
}

impl Kind {
    /// All that there are, by rising number.
    pub const ALL: [Kind; 6] = [
        Kind::WriteExclusive,
        Kind::ExclusiveAccess,
        Kind::WriteExclusiveRegistrants,
        Kind::ExclusiveAccessRegistrants,
        Kind::WriteExclusiveAll,
        Kind::ExclusiveAccessAll,
    ];

    /// The kind of this number.
    ///
    /// # Errors
    /// Invalid Field for one that is reserved.
    pub fn of(number: u8) -> Result<Kind, Status> {
        let found = Kind::ALL.into_iter().find(|kind| *kind as u8 == number);
        found.ok_or(Status::INVALID_FIELD)
    }

    /// Whether it keeps readers out too.
    pub const fn excludes_readers(self) -> bool {
        (self as u8).is_multiple_of(2)
    }

    /// Whether registrants may do what its holder may.
    pub const fn admits_registrants(self) -> bool {
        self as u8 > 2
    }

    /// Whether every registrant holds it.
    pub const fn is_all_registrants(self) -> bool {
        self as u8 > 4
    }
}

/// RREGA: what to do with a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Registering {
    /// NRKEY becomes the host's.
    Register = 0,
    /// The host's is given up.
    Unregister = 1,
    /// NRKEY takes the place of the host's.
    Replace = 2,
}

/// CPTPL: what is to become of keys and reservation when power goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Persistence {
    /// What was.
    #[default]
    Unchanged = 0,
    /// They go as well.
    Lost = 2,
    /// They stay.
    Kept = 3,
}

/// Reservation Register (7.3); the data are [`RegisterKeys`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Register {
    /// RREGA.
    pub action: Registering,
    /// IEKEY: the host's key need not be named.
    pub ignore_key: bool,
    /// CPTPL.
    pub persistence: Persistence,
}

/// RACQA: how to come by a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acquiring {
    /// If nobody holds one.
    Acquire = 0,
    /// Whoever registered PRKEY loses it, and the reservation with it.
    Preempt = 1,
    /// The same, and their commands are aborted.
    PreemptAndAbort = 2,
}

/// Reservation Acquire (7.2); the data are [`AcquireKeys`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acquire {
    /// RACQA.
    pub action: Acquiring,
    /// RTYPE.
    pub kind: Kind,
}

/// RRELA: what to give up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Releasing {
    /// The reservation.
    Release = 0,
    /// The reservation, and everybody's registration.
    Clear = 1,
}

/// Reservation Release (7.4); the data are the host's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Release {
    /// RRELA.
    pub action: Releasing,
    /// RTYPE as it stands in the command: to be that of the reservation.
    pub kind: u8,
}

/// Reservation Report (7.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// How much of the answer is wanted, from NUMD: whole dwords, up to 16 GiB.
    pub bytes: u64,
    /// EDS: with host identifiers of 16 bytes: [`StatusExtended`], not [`ReservationStatus`].
    pub extended: bool,
}

/// Command dword 10 of Register, Acquire and Release.
#[bitfield(u32)]
struct Dword10 {
    #[bits(3)]
    action: u8,
    iekey: bool,
    #[bits(4)]
    __: u8,
    rtype: u8,
    #[bits(14)]
    __: u16,
    #[bits(2)]
    cptpl: u8,
}

impl Register {
    pub(super) fn parse(sqe: &Sqe) -> Result<Register, Status> {
        let dword = Dword10::from_bits(sqe.cdw10.get());
        let action = match dword.action() {
            0 => Registering::Register,
            1 => Registering::Unregister,
            2 => Registering::Replace,
            _ => return Err(Status::INVALID_FIELD),
        };
        let persistence = match dword.cptpl() {
            0 => Persistence::Unchanged,
            2 => Persistence::Lost,
            3 => Persistence::Kept,
            _ => return Err(Status::INVALID_FIELD),
        };
        Ok(Register { action, ignore_key: dword.iekey(), persistence })
    }

    pub(super) fn store(&self, sqe: &mut Sqe) {
        let dword = Dword10::new()
            .with_action(self.action as u8)
            .with_iekey(self.ignore_key)
            .with_cptpl(self.persistence as u8);
        sqe.cdw10 = dword.into_bits().into();
    }
}

impl Acquire {
    /// IEKEY is an Invalid Field, as it is of Release (RESCAP, bit 7).
    pub(super) fn parse(sqe: &Sqe) -> Result<Acquire, Status> {
        let dword = Dword10::from_bits(sqe.cdw10.get());
        let action = match (dword.action(), dword.iekey()) {
            (0, false) => Acquiring::Acquire,
            (1, false) => Acquiring::Preempt,
            (2, false) => Acquiring::PreemptAndAbort,
            _ => return Err(Status::INVALID_FIELD),
        };
        Ok(Acquire { action, kind: Kind::of(dword.rtype())? })
    }

    pub(super) fn store(&self, sqe: &mut Sqe) {
        let dword = Dword10::new().with_action(self.action as u8).with_rtype(self.kind as u8);
        sqe.cdw10 = dword.into_bits().into();
    }
}

impl Release {
    pub(super) fn parse(sqe: &Sqe) -> Result<Release, Status> {
        let dword = Dword10::from_bits(sqe.cdw10.get());
        let action = match (dword.action(), dword.iekey()) {
            (0, false) => Releasing::Release,
            (1, false) => Releasing::Clear,
            _ => return Err(Status::INVALID_FIELD),
        };
        Ok(Release { action, kind: dword.rtype() })
    }

    pub(super) fn store(&self, sqe: &mut Sqe) {
        let dword = Dword10::new().with_action(self.action as u8).with_rtype(self.kind);
        sqe.cdw10 = dword.into_bits().into();
    }
}

impl Report {
    pub(super) fn parse(sqe: &Sqe) -> Report {
        let bytes = (u64::from(sqe.cdw10.get()) + 1) * 4;
        Report { bytes, extended: sqe.cdw11.get() & 1 != 0 }
    }

    /// # Panics
    /// If the bytes are no whole dwords that there can be.
    pub(super) fn store(&self, sqe: &mut Sqe) {
        assert!(self.bytes > 0 && self.bytes.is_multiple_of(4), "{} bytes", self.bytes);
        sqe.cdw10 = u32::try_from(self.bytes / 4 - 1).expect("at most 16 GiB").into();
        sqe.cdw11 = u32::from(self.extended).into();
    }
}

/// A structure as it lies in memory.
macro_rules! structures {
    ($($(#[$doc:meta])+ $name:ident $bytes:literal {
        $($(#[$field_doc:meta])+ $field:ident: $type:ty = $offset:literal,)+
    })+) => {$(
        $(#[$doc])+
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
            Unaligned,
        )]
        #[repr(C)]
        pub struct $name { $($(#[$field_doc])+ pub $field: $type,)+ }

        layout!($name, $bytes, { $($field @ $offset),+ });

        impl Default for $name {
            fn default() -> Self {
                Self::new_zeroed()
            }
        }
    )+};
}

structures! {
    /// What Reservation Register names.
    RegisterKeys 16 {
        /// CRKEY: what the host has registered.
        current: U64 = 0,
        /// NRKEY: what it is to have registered.
        new: U64 = 8,
    }

    /// What Reservation Acquire names.
    AcquireKeys 16 {
        /// CRKEY: what the host has registered.
        current: U64 = 0,
        /// PRKEY: whose registration is to be preempted.
        preempt: U64 = 8,
    }

    /// How things stand, the head of what Reservation Report gives; [`RegisteredController`]s follow.
    ReservationStatus 24 {
        /// GEN: how often registrations were changed or reservations preempted.
        generation: U32 = 0,
        /// RTYPE: 0 for no reservation.
        rtype: u8 = 4,
        /// REGCTL: how many structures follow, or would.
        controllers: U16 = 5,
        /// Reserved.
        reserved7: [u8; 2] = 7,
        /// PTPLS: 1 if it all outlasts a loss of power.
        persists: u8 = 9,
        /// Reserved.
        reserved10: [u8; 14] = 10,
    }

    /// The same before host identifiers of 16 bytes; [`RegisteredControllerExtended`]s follow.
    StatusExtended 64 {
        /// As [`ReservationStatus`] has it.
        status: ReservationStatus = 0,
        /// Reserved.
        reserved24: [u8; 40] = 24,
    }

    /// A controller whose host has registered.
    RegisteredController 24 {
        /// CNTLID, or [`NO_CONTROLLER`].
        controller: U16 = 0,
        /// RCSTS: bit 0: the host holds the reservation.
        status: u8 = 2,
        /// Reserved.
        reserved3: [u8; 5] = 3,
        /// HOSTID.
        host: U64 = 8,
        /// RKEY.
        key: U64 = 16,
    }

    /// The same with a host identifier of 16 bytes.
    RegisteredControllerExtended 64 {
        /// CNTLID, or [`NO_CONTROLLER`].
        controller: U16 = 0,
        /// RCSTS: bit 0: the host holds the reservation.
        status: u8 = 2,
        /// Reserved.
        reserved3: [u8; 5] = 3,
        /// RKEY.
        key: U64 = 8,
        /// HOSTID.
        host: [u8; 16] = 16,
        /// Reserved.
        reserved32: [u8; 32] = 32,
    }

    /// The log page of one notification (5.16.1.24).
    Notification 64 {
        /// Number of the notification since the controller was enabled, from 1; 0 where there is none.
        count: U64 = 0,
        /// What has happened: a [`Notice`], or 0.
        kind: u8 = 8,
        /// How many wait behind this one, at most 255.
        more: u8 = 9,
        /// Reserved.
        reserved10: [u8; 2] = 10,
        /// Which namespace it was.
        nsid: U32 = 12,
        /// Reserved.
        reserved16: [u8; 48] = 16,
    }
}

/// CNTLID of a registrant that no controller is associated with.
pub const NO_CONTROLLER: u16 = 0xffff;

/// What a host is told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// Another host has taken its registration away.
    RegistrationPreempted = 1,
    /// There is no longer the reservation that there was.
    ReservationReleased = 2,
    /// Another host has taken its reservation away.
    ReservationPreempted = 3,
}

/// Which notices are not wanted (5.27.1.27).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct NotificationMask {
    __: bool,
    /// REGPRE.
    pub registration_preempted: bool,
    /// RESREL.
    pub reservation_released: bool,
    /// RESPRE.
    pub reservation_preempted: bool,
    #[bits(28)]
    __: u32,
}

impl NotificationMask {
    /// Whether such a notice is not wanted.
    pub const fn hides(self, notice: Notice) -> bool {
        match notice {
            Notice::RegistrationPreempted => self.registration_preempted(),
            Notice::ReservationReleased => self.reservation_released(),
            Notice::ReservationPreempted => self.reservation_preempted(),
        }
    }
}

/// Whether registrations outlast a loss of power (5.27.1.28).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct PersistThroughPowerLoss {
    /// PTPL: they do.
    pub ptpl: bool,
    #[bits(31)]
    __: u32,
}

/// How long the host's identifier is, which are the data (5.27.1.26).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct HostIdentifier {
    /// EXHID: 16 bytes, not eight.
    pub exhid: bool,
    #[bits(31)]
    __: u32,
}

/// Bits of RESCAP, in Identify Namespace: what a namespace knows of reservations.
pub mod rescap {
    /// They can outlast a loss of power.
    pub const PERSIST: u8 = 1 << 0;
    /// All six kinds.
    pub const KINDS: u8 = 0x7e;
    /// IEKEY is as NVMe 1.3 has it.
    pub const IGNORE_KEY_1_3: u8 = 1 << 7;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_what_they_parse_to() {
        for persistence in [Persistence::Unchanged, Persistence::Lost, Persistence::Kept] {
            for action in [Registering::Register, Registering::Unregister, Registering::Replace] {
                let register = Register { action, ignore_key: true, persistence };
                let mut sqe = Sqe::default();
                register.store(&mut sqe);
                assert_eq!(Register::parse(&sqe), Ok(register));
            }
        }
        let mut sqe = Sqe::default();
        for kind in Kind::ALL {
            let acquire = Acquire { action: Acquiring::PreemptAndAbort, kind };
            acquire.store(&mut sqe);
            assert_eq!(Acquire::parse(&sqe), Ok(acquire));
        }
        let report = Report { bytes: 16 << 30, extended: true };
        report.store(&mut sqe);
        assert_eq!(Report::parse(&sqe), report);
    }

    #[test]
    fn bits_lie_where_the_specification_has_them() {
        let mut sqe = Sqe::default();
        let kept = Persistence::Kept;
        Register { action: Registering::Replace, ignore_key: true, persistence: kept }
            .store(&mut sqe);
        assert_eq!(sqe.cdw10.get(), 0xc000_000a);
        Acquire { action: Acquiring::Preempt, kind: Kind::ExclusiveAccessAll }.store(&mut sqe);
        assert_eq!(sqe.cdw10.get(), 0x0601);
        Release { action: Releasing::Clear, kind: 3 }.store(&mut sqe);
        assert_eq!(sqe.cdw10.get(), 0x0301);
        let mask = NotificationMask::new().with_reservation_preempted(true);
        assert_eq!(mask.into_bits(), 8);
        assert!(mask.hides(Notice::ReservationPreempted));
        assert!(!mask.hides(Notice::ReservationReleased));
    }

    #[test]
    fn reserved_values_and_ignored_keys_are_an_invalid_field() {
        let refused = Status::INVALID_FIELD;
        let with = |cdw10: u32| Sqe { cdw10: cdw10.into(), ..Sqe::default() };
        assert_eq!(Register::parse(&with(3)), Err(refused));
        assert_eq!(Register::parse(&with(1 << 30)), Err(refused));
        for cdw10 in [0x0103, 0x0108, 0x0000, 0x0700, 0xff00] {
            assert_eq!(Acquire::parse(&with(cdw10)), Err(refused), "{cdw10:#x}");
        }
        assert_eq!(Release::parse(&with(2)), Err(refused));
        assert_eq!(Release::parse(&with(8)), Err(refused));
    }

    #[test]
    fn what_each_kind_is() {
        let all = Kind::ALL.map(|kind| {
            (kind.excludes_readers(), kind.admits_registrants(), kind.is_all_registrants())
        });
        let (no, yes) = (false, true);
        let wanted = [(no, no, no), (yes, no, no), (no, yes, no), (yes, yes, no)];
        assert_eq!(all[..4], wanted);
        assert_eq!(all[4..], [(no, yes, yes), (yes, yes, yes)]);
        assert_eq!(Kind::of(0), Err(Status::INVALID_FIELD));
        assert_eq!(Kind::of(7), Err(Status::INVALID_FIELD));
    }
}
