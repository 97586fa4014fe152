//! Reservation commands (NVMe base 2.0, 7.2 to 7.5), the related features and log page, and the access check
//! of other commands.

use bus::DevicePort;
use media::Media;
use wire::Nsid;
use wire::nvme::admin::{Request, SetFeatures};
use wire::nvme::features::fid;
use wire::nvme::io::Command;
use wire::nvme::reservation::{
    AcquireKeys, NO_CONTROLLER, Notification, NotificationMask, PersistThroughPowerLoss,
    Persistence, RegisterKeys, RegisteredController, RegisteredControllerExtended, Report,
    ReservationStatus, StatusExtended,
};
use wire::nvme::status::Status;
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use super::Controller;
use super::access::Door;
use super::namespace::Place;
use super::reservations::{Host, Reservations, Told, Touch};
use super::slot::{Cut, Slot};

impl<P: DevicePort, M: Media> Controller<P, M> {
    /// Checks that this host has this access to a namespace that is not in the normal state.
    #[cold]
    pub(super) fn pass(&self, place: &Place, touch: Touch) -> Result<(), Status> {
        match place.door.get() {
            Door::Open => Ok(()),
            Door::Reserved
                if place.reservations.borrow().permit(self.shared.member.host.get(), touch) =>
            {
                Ok(())
            }
            Door::Reserved => Err(Status::RESERVATION_CONFLICT.with_dnr()),
            shut => Err(shut.refusal().unwrap_or(Status::INVALID_FIELD)),
        }
    }

    /// Checks that this host may write to all namespaces, for commands that affect all.
    pub(super) fn pass_all(&self) -> Result<(), Status> {
        let all: Vec<Nsid> = self.shared.namespaces.allocated().collect();
        let places = all.into_iter().filter_map(|nsid| self.shared.namespaces.place(nsid));
        let reserved = |place: &&Place| place.door.get() == Door::Reserved;
        places.filter(reserved).try_for_each(|place| self.pass(place, Touch::Writes))
    }

    pub(super) async fn reservation(
        &self,
        number: u16,
        request: &wire::nvme::io::Request,
    ) -> Result<(), Status> {
        let host = self.shared.member.host.get();
        let nsid = request.nsid;
        let told = match &request.command {
            Command::ReservationReport(report) => {
                return self.report(number, request, *report).await;
            }
            Command::ReservationRegister(how) => {
                if how.persistence == Persistence::Kept && !self.keeps_a_label() {
                    return Err(Status::INVALID_FIELD);
                }
                let keys: RegisterKeys = self.keys(number, request).await?;
                self.change(nsid, |state| state.register(host, *how, keys))?
            }
            Command::ReservationAcquire(how) => {
                let keys: AcquireKeys = self.keys(number, request).await?;
                self.change(nsid, |state| state.acquire(host, *how, keys))?
            }
            Command::ReservationRelease(how) => {
                let key: U64 = self.keys(number, request).await?;
                self.change(nsid, |state| state.release(host, *how, key.get()))?
            }
            _ => return Err(Status::INVALID_OPCODE),
        };
        self.tell_hosts(nsid, &told);
        if !told.aborted.is_empty() {
            let of = |host: Host| told.aborted.contains(&host);
            let inside = |slot: &Slot| slot.io_namespace.get() == Some(nsid);
            let why = Cut::With(Status::ABORTED_PREEMPT);
            let members = &self.shared.members;
            members
                .drain(&self.rt, why, |member, slot| of(member.host.get()) && inside(slot))
                .await;
        }
        Ok(())
    }

    /// Fetches the keys of a command.
    async fn keys<K: FromBytes + IntoBytes + KnownLayout + Immutable + FromZeros>(
        &self,
        number: u16,
        request: &wire::nvme::io::Request,
    ) -> Result<K, Status> {
        let mut keys = K::new_zeroed();
        self.receive(number, &request.data, keys.as_mut_bytes()).await?;
        Ok(keys)
    }

    /// Changes the reservations of a namespace, and stores them if they persist. If that fails, the change is
    /// undone.
    fn change(
        &self,
        nsid: Nsid,
        change: impl FnOnce(&mut Reservations) -> Result<Told, Status>,
    ) -> Result<Told, Status> {
        // The namespace may have been deleted while the keys were fetched.
        let (place, _) = self.active_at(nsid)?;
        let before = place.reservations.borrow().clone();
        let told = change(&mut place.reservations.borrow_mut())?;
        let lasts = before.persists || place.reservations.borrow().persists;
        if lasts && let Err(error) = self.shared.namespaces.keep(&*self.media) {
            place.reservations.replace(before);
            return Err(self.failed(error));
        }
        place.settle();
        Ok(told)
    }

    /// Sends notifications to the controllers of the affected hosts that have the namespace attached.
    fn tell_hosts(&self, nsid: Nsid, told: &Told) {
        let Ok((place, namespace)) = self.shared.namespaces.allocated_at(nsid) else { return };
        let mask = place.reservations.borrow().mask;
        for (host, notice) in told.notices.iter().filter(|(_, notice)| !mask.hides(*notice)) {
            for member in self.shared.members.all() {
                if member.host.get() == *host && namespace.attached & member.bit() != 0 {
                    member.notify(&self.rt, *notice, nsid);
                }
            }
        }
    }

    async fn report(
        &self,
        number: u16,
        request: &wire::nvme::io::Request,
        ask: Report,
    ) -> Result<(), Status> {
        match (self.shared.member.host.get(), ask.extended) {
            (Host::Short(_), true) | (Host::Long(_), false) => {
                return Err(Status::HOST_ID_INCONSISTENT_FORMAT);
            }
            _ => {}
        }
        if ask.bytes > u64::from(self.options.transfer_bytes_max) {
            return Err(Status::INVALID_FIELD);
        }
        let mut page = {
            let (place, _) = self.active_at(request.nsid)?;
            self.report_page(&place.reservations.borrow(), ask.extended)
        };
        page.resize(ask.bytes as usize, 0);
        self.answer(number, request.data, &page).await
    }

    /// The Reservation Status structure: one entry per controller of a registrant, and one per registrant
    /// without a controller.
    fn report_page(&self, state: &Reservations, extended: bool) -> Vec<u8> {
        let (mut entries, mut controllers) = (Vec::new(), 0_u16);
        for one in state.registrants() {
            let members = self.shared.members.all().into_iter();
            let behind = members.filter(|member| member.host.get() == one.host);
            let mut ids: Vec<u16> = behind.map(|member| member.id).collect();
            if ids.is_empty() {
                ids.push(NO_CONTROLLER);
            }
            for id in ids {
                controllers += 1;
                let status = u8::from(state.is_holder(one.host));
                entries.extend(entry(id, status, one.host, one.key, extended));
            }
        }
        let mut head = ReservationStatus::new_zeroed();
        head.generation = state.generation.into();
        head.rtype = state.kind().map_or(0, |kind| kind as u8);
        head.controllers = controllers.into();
        head.persists = state.persists.into();
        let mut page = if extended {
            StatusExtended { status: head, ..Default::default() }.as_bytes().to_vec()
        } else {
            head.as_bytes().to_vec()
        };
        page.extend(entries);
        page
    }

    /// Sets a feature of reservations.
    pub(super) async fn set_reservation_feature(
        &self,
        number: u16,
        request: &Request,
        set: SetFeatures,
    ) -> Result<u32, Status> {
        if set.fid == fid::HOST_IDENTIFIER {
            return self.set_host(number, request, set.cdw11 & 1 != 0).await;
        }
        let mask = NotificationMask::from_bits(set.cdw11);
        let persists = PersistThroughPowerLoss::from_bits(set.cdw11).ptpl();
        let is_mask = set.fid == fid::RESERVATION_NOTIFICATION_MASK;
        if !is_mask && persists && !self.keeps_a_label() {
            return Err(Status::INVALID_FIELD);
        }
        let all: Vec<Nsid> = match request.nsid {
            Nsid::BROADCAST => self.active().collect(),
            one => vec![one],
        };
        for nsid in all {
            self.active_at(nsid)?;
            self.change(nsid, |state| {
                if is_mask {
                    state.mask = mask;
                } else {
                    state.persists = persists;
                }
                Ok(Told::default())
            })?;
        }
        Ok(0)
    }

    /// Sets the Host Identifier. It can be set once until the next reset.
    async fn set_host(&self, number: u16, request: &Request, long: bool) -> Result<u32, Status> {
        let host = if long {
            let id: [u8; 16] = self.identifier(number, request).await?;
            if id == [0; 16] {
                return Err(Status::INVALID_FIELD);
            }
            Host::Long(id)
        } else {
            match u64::from_le_bytes(self.identifier(number, request).await?) {
                0 => Host::Nameless(self.shared.member.id),
                id => Host::Short(id),
            }
        };
        let others = self.shared.members.all().into_iter().map(|member| member.host.get());
        let differs = |other: Host| {
            matches!(
                (other, host),
                (Host::Short(_), Host::Long(_)) | (Host::Long(_), Host::Short(_))
            )
        };
        match self.shared.member.host.get() {
            now if now == host => return Ok(0),
            Host::Nameless(_) => {}
            _ => return Err(Status::COMMAND_SEQUENCE_ERROR),
        }
        if others.into_iter().any(differs) {
            return Err(Status::HOST_ID_INCONSISTENT_FORMAT);
        }
        self.forget_nameless_host();
        self.shared.member.host.set(host);
        Ok(0)
    }

    async fn identifier<const N: usize>(
        &self,
        number: u16,
        request: &Request,
    ) -> Result<[u8; N], Status> {
        let mut id = [0; N];
        self.receive(number, &request.data, &mut id).await?;
        Ok(id)
    }

    /// A host without identifier is considered gone after a reset, and when it sets its identifier: removes
    /// its registrations.
    pub(super) fn forget_nameless_host(&self) {
        let host = Host::Nameless(self.shared.member.id);
        let all: Vec<Nsid> = self.shared.namespaces.allocated().collect();
        for nsid in all {
            let Ok((place, _)) = self.shared.namespaces.allocated_at(nsid) else { continue };
            let told = place.reservations.borrow_mut().forget(host);
            if let Some(told) = told {
                // Its state was never persistent.
                place.settle();
                self.tell_hosts(nsid, &told);
            }
        }
    }

    /// Gets a feature of reservations, as it is or by default.
    pub(super) async fn get_reservation_feature(
        &self,
        number: u16,
        request: &Request,
        (feature, current, cdw11): (u8, bool, u32),
    ) -> Result<u32, Status> {
        if feature == fid::HOST_IDENTIFIER {
            let host = Some(self.shared.member.host.get()).filter(|_| current);
            let host = match (host, cdw11 & 1 != 0) {
                (Some(Host::Short(id)), false) => id.to_le_bytes().to_vec(),
                (Some(Host::Long(id)), true) => id.to_vec(),
                (Some(Host::Short(_) | Host::Long(_)), _) => {
                    return Err(Status::HOST_ID_INCONSISTENT_FORMAT);
                }
                (Some(Host::Nameless(_)) | None, long) => vec![0; if long { 16 } else { 8 }],
            };
            self.answer(number, request.data, &host).await?;
            return Ok(0);
        }
        if request.nsid == Nsid::BROADCAST {
            return Err(Status::INVALID_FIELD);
        }
        let (place, _) = self.active_at(request.nsid)?;
        let state = place.reservations.borrow();
        Ok(match feature {
            _ if !current => 0,
            fid::RESERVATION_NOTIFICATION_MASK => state.mask.into_bits(),
            _ => state.persists.into(),
        })
    }

    /// The Reservation Notification log page.
    pub(super) fn notification_page(&self) -> Notification {
        self.shared.member.notification()
    }

    /// The log page was read: if there are more, reports another event.
    pub(super) fn notification_is_read(&self) {
        if self.shared.member.drop_notification() {
            self.event(wire::nvme::event::AsyncEvent::RESERVATION);
        }
    }

    /// Task that reports events of other controllers to the host.
    pub(super) async fn tell_of_others(self: std::rc::Rc<Self>) {
        loop {
            let version = self.shared.member.posted.version();
            for event in self.shared.member.take_events() {
                self.event(event);
            }
            self.shared.member.posted.changed(&self.rt, version).await;
        }
    }
}

fn entry(controller: u16, status: u8, host: Host, key: u64, extended: bool) -> Vec<u8> {
    let (controller, key) = (controller.into(), key.into());
    if extended {
        let host = match host {
            Host::Nameless(_) => [0; 16],
            Host::Short(id) => u128::from(id).to_le_bytes(),
            Host::Long(id) => id,
        };
        let entry =
            RegisteredControllerExtended { controller, status, key, host, ..Default::default() };
        return entry.as_bytes().to_vec();
    }
    let host = match host {
        Host::Nameless(_) => 0,
        Host::Short(id) => id,
        Host::Long(id) => u128::from_le_bytes(id) as u64,
    };
    let entry =
        RegisteredController { controller, status, key, host: host.into(), ..Default::default() };
    entry.as_bytes().to_vec()
}
