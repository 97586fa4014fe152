//! Reservations (NVMe base 2.0, 7.2 to 7.5 and 8.19): hosts that share a namespace register a key with it,
//! and a holder restricts the access of others.

use bitfield_struct::bitfield;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::entry::Sqe;
use super::layout;
use super::status::Status;

/// RTYPE: restrictions of a reservation (figure "Command Behavior in the Presence of a Reservation").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only the holder may write.
    WriteExclusive = 1,
    /// Only the holder may read or write.
    ExclusiveAccess = 2,
    /// Only registrants may write.
    WriteExclusiveRegistrants = 3,
    /// Only registrants may read or write.
    ExclusiveAccessRegistrants = 4,
    /// Only registrants may write, and each of them is a holder.
    WriteExclusiveAll = 5,
    /// Only registrants may read or write, and each of them is a holder.
    ExclusiveAccessAll = 6,
}

impl Kind {
    /// All types, in ascending order.
    pub const ALL: [Kind; 6] = [
        Kind::WriteExclusive,
        Kind::ExclusiveAccess,
        Kind::WriteExclusiveRegistrants,
        Kind::ExclusiveAccessRegistrants,
        Kind::WriteExclusiveAll,
        Kind::ExclusiveAccessAll,
    ];

    /// The type with this number.
    ///
    /// # Errors
    /// Invalid Field for a reserved number.
    pub fn of(number: u8) -> Result<Kind, Status> {
        let found = Kind::ALL.into_iter().find(|kind| *kind as u8 == number);
        found.ok_or(Status::INVALID_FIELD)
    }

    /// True if it restricts reads too.
    pub const fn excludes_readers(self) -> bool {
        (self as u8).is_multiple_of(2)
    }

    /// True if registrants have the holder's access.
    pub const fn admits_registrants(self) -> bool {
        self as u8 > 2
    }

    /// True if every registrant is a holder.
    pub const fn is_all_registrants(self) -> bool {
        self as u8 > 4
    }
}

/// RREGA: registration action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Registering {
    /// Registers NRKEY for the host.
    Register = 0,
    /// Removes the host's registration.
    Unregister = 1,
    /// Replaces the host's key by NRKEY.
    Replace = 2,
}

/// CPTPL: change of persistence through power loss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Persistence {
    /// No change.
    #[default]
    Unchanged = 0,
    /// Registrations and reservation are released at power on.
    Lost = 2,
    /// Registrations and reservation persist.
    Kept = 3,
}

/// Reservation Register (7.3); the data are [`RegisterKeys`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Register {
    /// RREGA.
    pub action: Registering,
    /// IEKEY: the host's current key is not checked.
    pub ignore_key: bool,
    /// CPTPL.
    pub persistence: Persistence,
}

/// RACQA: acquire action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acquiring {
    /// Acquires the reservation, if there is none.
    Acquire = 0,
    /// Removes the registrations with PRKEY, and the reservation of such a holder.
    Preempt = 1,
    /// Same as preempt, and aborts commands of the preempted hosts.
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

/// RRELA: release action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Releasing {
    /// Releases the reservation.
    Release = 0,
    /// Releases the reservation and removes all registrations.
    Clear = 1,
}

/// Reservation Release (7.4); the data are the host's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Release {
    /// RRELA.
    pub action: Releasing,
    /// RTYPE as in the command: must match that of the reservation.
    pub kind: u8,
}

/// Reservation Report (7.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// Length of the transfer in bytes, from NUMD: whole dwords, up to 16 GiB.
    pub bytes: u64,
    /// EDS: host identifiers have 16 bytes: [`StatusExtended`] instead of [`ReservationStatus`].
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
    /// IEKEY is an Invalid Field, as for Release (RESCAP, bit 7).
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
    /// If `bytes` is not a valid number of whole dwords.
    pub(super) fn store(&self, sqe: &mut Sqe) {
        assert!(self.bytes > 0 && self.bytes.is_multiple_of(4), "{} bytes", self.bytes);
        sqe.cdw10 = u32::try_from(self.bytes / 4 - 1).expect("at most 16 GiB").into();
        sqe.cdw11 = u32::from(self.extended).into();
    }
}

/// Defines structures as they are in memory.
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
    /// Data of Reservation Register.
    RegisterKeys 16 {
        /// CRKEY: current key of the host.
        current: U64 = 0,
        /// NRKEY: new key of the host.
        new: U64 = 8,
    }

    /// Data of Reservation Acquire.
    AcquireKeys 16 {
        /// CRKEY: current key of the host.
        current: U64 = 0,
        /// PRKEY: key of the registration to preempt.
        preempt: U64 = 8,
    }

    /// Reservation status, the header of a Reservation Report; [`RegisteredController`]s follow.
    ReservationStatus 24 {
        /// GEN: number of changes of registrations and preemptions.
        generation: U32 = 0,
        /// RTYPE: 0 for no reservation.
        rtype: u8 = 4,
        /// REGCTL: number of registered controllers, also if the transfer is shorter.
        controllers: U16 = 5,
        /// Reserved.
        reserved7: [u8; 2] = 7,
        /// PTPLS: 1 if the state persists through power loss.
        persists: u8 = 9,
        /// Reserved.
        reserved10: [u8; 14] = 10,
    }

    /// Reservation status with host identifiers of 16 bytes; [`RegisteredControllerExtended`]s follow.
    StatusExtended 64 {
        /// Same as [`ReservationStatus`].
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

    /// A registered controller with a host identifier of 16 bytes.
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

    /// Log page of one notification (5.16.1.24).
    Notification 64 {
        /// Number of the notification since the controller was enabled, from 1; 0 for an empty page.
        count: U64 = 0,
        /// Type of the notification: a [`Notice`], or 0.
        kind: u8 = 8,
        /// Number of notifications queued behind this one, at most 255.
        more: u8 = 9,
        /// Reserved.
        reserved10: [u8; 2] = 10,
        /// Namespace of the notification.
        nsid: U32 = 12,
        /// Reserved.
        reserved16: [u8; 48] = 16,
    }
}

/// CNTLID of a registrant without an associated controller.
pub const NO_CONTROLLER: u16 = 0xffff;

/// Type of a notification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// Registration preempted by another host.
    RegistrationPreempted = 1,
    /// Reservation released.
    ReservationReleased = 2,
    /// Reservation preempted by another host.
    ReservationPreempted = 3,
}

/// Masked notifications (5.27.1.27).
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
    /// True if this type is masked.
    pub const fn hides(self, notice: Notice) -> bool {
        match notice {
            Notice::RegistrationPreempted => self.registration_preempted(),
            Notice::ReservationReleased => self.reservation_released(),
            Notice::ReservationPreempted => self.reservation_preempted(),
        }
    }
}

/// Persistence of registrations through power loss (5.27.1.28).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct PersistThroughPowerLoss {
    /// PTPL: registrations and reservation persist.
    pub ptpl: bool,
    #[bits(31)]
    __: u32,
}

/// Length of the host identifier, which is in the data (5.27.1.26).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct HostIdentifier {
    /// EXHID: 16 bytes instead of 8.
    pub exhid: bool,
    #[bits(31)]
    __: u32,
}

/// Bits of RESCAP, in Identify Namespace: reservation capabilities.
pub mod rescap {
    /// Persist Through Power Loss is supported.
    pub const PERSIST: u8 = 1 << 0;
    /// All six types.
    pub const KINDS: u8 = 0x7e;
    /// IEKEY is defined as in NVMe 1.3.
    pub const IGNORE_KEY_1_3: u8 = 1 << 7;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reservation_command_round_trip() {
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
    fn reservation_fields_match_spec_layout() {
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
    fn reserved_values_and_iekey_are_invalid_field() {
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
    fn reservation_types_restrict_readers_and_registrants() {
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
