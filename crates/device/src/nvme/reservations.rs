//! Reservations of a namespace: registrants and holder (NVMe base 2.0, 8.19). Pure state: requests of hosts
//! change it, and return the notifications to send.

use wire::nvme::io::Command;
use wire::nvme::reservation::{
    Acquire, AcquireKeys, Acquiring, Kind, Notice, NotificationMask, Persistence, Register,
    RegisterKeys, Registering, Release, Releasing,
};
use wire::nvme::status::Status;

/// Maximum registrants of a namespace.
pub(super) const REGISTRANTS_MAX: usize = 16;

/// Registrant record in a label, bytes: format of the identifier, identifier, key.
const REGISTRANT_BYTES: usize = 25;
/// Header of a namespace's record, bytes: generation, type, holder, number of registrants.
const HEAD_BYTES: usize = 7;
/// Maximum record of a namespace in a label, bytes, without the namespace identifier.
pub(super) const KEPT_BYTES: usize = HEAD_BYTES + REGISTRANTS_MAX * REGISTRANT_BYTES;

/// In a label: no registrant holds a reservation.
const NO_HOLDER: u8 = 0xff;

/// Identity of a host (Host Identifier: 5.27.1.26).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Host {
    /// Host Identifier not set: the host of the controller with this number, until its next reset.
    Nameless(u16),
    /// 64-bit identifier.
    Short(u64),
    /// 128-bit identifier.
    Long([u8; 16]),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Registrant {
    pub host: Host,
    pub key: u64,
}

/// A reservation. If all registrants hold it, `holder` is one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Held {
    kind: Kind,
    holder: Host,
}

/// Access type of a command, for reservations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Touch {
    /// No access to blocks.
    Nothing,
    Reads,
    Writes,
}

impl Touch {
    pub fn of(command: &Command) -> Touch {
        match command {
            Command::Read(_)
            | Command::ReadPlaced(_)
            | Command::ReadMap(_)
            | Command::Compare(_)
            | Command::Verify(_) => Touch::Reads,
            Command::Flush
            | Command::Write(_)
            | Command::WriteUncorrectable(_)
            | Command::WriteZeroes(_)
            | Command::DatasetManagement(_)
            | Command::Copy(_) => Touch::Writes,
            Command::ReservationRegister(_)
            | Command::ReservationReport(_)
            | Command::ReservationAcquire(_)
            | Command::ReservationRelease(_) => Touch::Nothing,
        }
    }
}

/// Effects of a request on other hosts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Told {
    pub notices: Vec<(Host, Notice)>,
    /// Hosts with commands to abort.
    pub aborted: Vec<Host>,
}

/// Reservation state of one namespace.
#[derive(Clone, Debug, Default)]
pub(super) struct Reservations {
    registrants: Vec<Registrant>,
    held: Option<Held>,
    pub generation: u32,
    /// PTPL: persist through power loss.
    pub persists: bool,
    pub mask: NotificationMask,
}

const CONFLICT: Status = Status::RESERVATION_CONFLICT;

impl Reservations {
    /// Returns true if there is a reservation.
    pub fn is_held(&self) -> bool {
        self.held.is_some()
    }

    pub fn kind(&self) -> Option<Kind> {
        self.held.map(|held| held.kind)
    }

    pub fn registrants(&self) -> &[Registrant] {
        &self.registrants
    }

    fn place_of(&self, host: Host) -> Option<usize> {
        self.registrants.iter().position(|one| one.host == host)
    }

    pub fn is_holder(&self, host: Host) -> bool {
        self.held.is_some_and(|held| match held.kind.is_all_registrants() {
            true => self.place_of(host).is_some(),
            false => held.holder == host,
        })
    }

    /// Returns true if the host has this access.
    pub fn permit(&self, host: Host, touch: Touch) -> bool {
        let Some(Held { kind, .. }) = self.held else { return true };
        let excluded = match touch {
            Touch::Nothing => false,
            Touch::Reads => kind.excludes_readers(),
            Touch::Writes => true,
        };
        let admitted = || kind.admits_registrants() && self.place_of(host).is_some();
        !excluded || self.is_holder(host) || admitted()
    }

    /// All registrants except this host.
    fn others(&self, host: Host) -> impl Iterator<Item = Host> + '_ {
        self.registrants.iter().map(|one| one.host).filter(move |other| *other != host)
    }

    /// Adds a notification for all registrants except this host.
    fn tell_others(&self, host: Host, notice: Notice, told: &mut Told) {
        told.notices.extend(self.others(host).map(|other| (other, notice)));
    }

    /// Index of this host among the registrants, if the key matches.
    fn authorize(&self, host: Host, key: u64) -> Result<usize, Status> {
        self.place_of(host).filter(|place| self.registrants[*place].key == key).ok_or(CONFLICT)
    }

    /// Reservation Register (7.3). The caller has checked that the state can persist if requested.
    pub fn register(
        &mut self,
        host: Host,
        how: Register,
        keys: RegisterKeys,
    ) -> Result<Told, Status> {
        let (current, new) = (keys.current.get(), keys.new.get());
        let mut told = Told::default();
        let known = match self.place_of(host) {
            Some(_) if how.ignore_key => self.place_of(host),
            Some(place) => Some(place).filter(|place| self.registrants[*place].key == current),
            None => None,
        };
        // A PRKEY of zero means all registrants, so it is not a valid key.
        if how.action != Registering::Unregister && new == 0 {
            return Err(Status::INVALID_FIELD);
        }
        match (how.action, self.place_of(host)) {
            (Registering::Register, Some(place)) if self.registrants[place].key == new => {}
            (Registering::Register, Some(_)) => return Err(CONFLICT),
            (Registering::Register, None) => self.add(host, new)?,
            (Registering::Unregister, _) => {
                self.remove(known.ok_or(CONFLICT)?, &mut told);
            }
            (Registering::Replace, None) if how.ignore_key => self.add(host, new)?,
            (Registering::Replace, _) => self.registrants[known.ok_or(CONFLICT)?].key = new,
        }
        match how.persistence {
            Persistence::Unchanged => {}
            Persistence::Lost => self.persists = false,
            Persistence::Kept => self.persists = true,
        }
        self.generation = self.generation.wrapping_add(1);
        Ok(told)
    }

    fn add(&mut self, host: Host, key: u64) -> Result<(), Status> {
        if self.registrants.len() == REGISTRANTS_MAX {
            return Err(Status::INTERNAL_ERROR);
        }
        self.registrants.push(Registrant { host, key });
        Ok(())
    }

    /// Removes a registration. A reservation ends with its last holder; the registrants that had access
    /// through it are notified.
    fn remove(&mut self, place: usize, told: &mut Told) {
        let gone = self.registrants.remove(place).host;
        let Some(held) = self.held else { return };
        match (held.kind.is_all_registrants(), self.registrants.first()) {
            (true, Some(first)) => self.held = Some(Held { holder: first.host, ..held }),
            (true, None) => self.held = None,
            (false, _) if held.holder != gone => {}
            (false, _) => {
                self.held = None;
                if held.kind.admits_registrants() {
                    self.tell_others(gone, Notice::ReservationReleased, told);
                }
            }
        }
    }

    /// A host without identifier is gone: removes its registration.
    pub fn forget(&mut self, host: Host) -> Option<Told> {
        let mut told = Told::default();
        self.remove(self.place_of(host)?, &mut told);
        self.generation = self.generation.wrapping_add(1);
        Some(told)
    }

    /// Reservation Acquire (7.2).
    pub fn acquire(&mut self, host: Host, how: Acquire, keys: AcquireKeys) -> Result<Told, Status> {
        self.authorize(host, keys.current.get())?;
        if how.action != Acquiring::Acquire {
            return self.preempt(host, how, keys.preempt.get());
        }
        match self.held {
            None => self.held = Some(Held { kind: how.kind, holder: host }),
            Some(held) if self.is_holder(host) && held.kind == how.kind => {}
            Some(_) => return Err(CONFLICT),
        }
        Ok(Told::default())
    }

    /// Preempt (8.19.7): removes the registrants with this key; takes over the reservation if they held it.
    fn preempt(&mut self, host: Host, how: Acquire, key: u64) -> Result<Told, Status> {
        let mut told = Told::default();
        let before = self.held;
        let takes_over = match before {
            None => false,
            Some(held) if held.kind.is_all_registrants() => key == 0,
            Some(_) if key == 0 => return Err(Status::INVALID_FIELD),
            Some(held) => self.registrants.contains(&Registrant { host: held.holder, key }),
        };
        let of_all = takes_over && key == 0;
        let injected = |one: &Registrant| match takes_over {
            true => one.host != host && (of_all || one.key == key),
            false => one.key == key,
        };
        let gone: Vec<Host> =
            self.registrants.iter().filter(|one| injected(one)).map(|one| one.host).collect();
        if gone.is_empty() && !takes_over {
            return Err(CONFLICT);
        }
        if takes_over {
            self.held = Some(Held { kind: how.kind, holder: host });
        }
        for other in gone {
            let place = self.place_of(other).expect("one of the registrants");
            self.remove(place, &mut told);
            if other != host {
                told.notices.push((other, Notice::RegistrationPreempted));
                if how.action == Acquiring::PreemptAndAbort {
                    told.aborted.push(other);
                }
            }
        }
        if takes_over && before.is_some_and(|held| held.kind != how.kind) {
            self.tell_others(host, Notice::ReservationReleased, &mut told);
        }
        self.generation = self.generation.wrapping_add(1);
        Ok(told)
    }

    /// Reservation Release (7.4).
    pub fn release(&mut self, host: Host, how: Release, key: u64) -> Result<Told, Status> {
        self.authorize(host, key)?;
        let mut told = Told::default();
        if how.action == Releasing::Clear {
            self.tell_others(host, Notice::ReservationPreempted, &mut told);
            self.registrants.clear();
            self.held = None;
            self.generation = self.generation.wrapping_add(1);
            return Ok(told);
        }
        let Some(Held { kind, .. }) = self.held else { return Ok(told) };
        if how.kind != kind as u8 {
            return Err(Status::INVALID_FIELD);
        }
        if self.is_holder(host) {
            self.held = None;
            if kind.admits_registrants() {
                self.tell_others(host, Notice::ReservationReleased, &mut told);
            }
        }
        Ok(told)
    }

    /// Writes the state to a label. Hosts without identifier are omitted.
    pub fn store(&self, label: &mut Vec<u8>) {
        let named = |one: &&Registrant| !matches!(one.host, Host::Nameless(_));
        let kept: Vec<&Registrant> = self.registrants.iter().filter(named).collect();
        let held = self.held.and_then(|held| {
            let all = held.kind.is_all_registrants();
            let place = kept.iter().position(|one| all || one.host == held.holder)?;
            Some((held.kind as u8, place as u8))
        });
        let (kind, holder) = held.unwrap_or((0, NO_HOLDER));
        label.extend(self.generation.to_le_bytes());
        label.extend([kind, holder, kept.len() as u8]);
        for one in kept {
            let (long, host) = match one.host {
                Host::Short(host) => (0, u128::from(host).to_le_bytes()),
                Host::Long(host) => (1, host),
                Host::Nameless(_) => unreachable!("left out above"),
            };
            label.push(long);
            label.extend(host);
            label.extend(one.key.to_le_bytes());
        }
    }

    /// Reads the state from a label, if valid. Returns the rest of the label.
    pub fn recall(label: &[u8]) -> Option<(Reservations, &[u8])> {
        let (generation, rest) = label.split_first_chunk()?;
        let (&[kind, holder, count], rest) = rest.split_first_chunk()?;
        if usize::from(count) > REGISTRANTS_MAX {
            return None;
        }
        let (kept, rest) = rest.split_at_checked(usize::from(count) * REGISTRANT_BYTES)?;
        let mut registrants: Vec<Registrant> = Vec::new();
        for bytes in kept.chunks_exact(REGISTRANT_BYTES) {
            let id: [u8; 16] = bytes[1..17].try_into().ok()?;
            let host = match bytes[0] {
                0 => Host::Short(u64::try_from(u128::from_le_bytes(id)).ok()?),
                1 => Host::Long(id),
                _ => return None,
            };
            let key = u64::from_le_bytes(bytes[17..].try_into().ok()?);
            if key == 0 || registrants.iter().any(|one| one.host == host) {
                return None;
            }
            registrants.push(Registrant { host, key });
        }
        let held = match (kind, holder) {
            (0, NO_HOLDER) => None,
            (kind, holder) => {
                let holder = registrants.get(usize::from(holder))?.host;
                Some(Held { kind: Kind::of(kind).ok()?, holder })
            }
        };
        let generation = u32::from_le_bytes(*generation);
        let mask = NotificationMask::new();
        Some((Reservations { registrants, held, generation, persists: true, mask }, rest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Labels are untrusted.
        #[test]
        fn recall_survives_any_label(label in prop::collection::vec(any::<u8>(), 0..500)) {
            if let Some((recalled, rest)) = Reservations::recall(&label) {
                let mut again = Vec::new();
                recalled.store(&mut again);
                prop_assert_eq!(&again[..4], &label[..4]);
                prop_assert_eq!(again.len() + rest.len(), label.len());
            }
        }
    }
}
