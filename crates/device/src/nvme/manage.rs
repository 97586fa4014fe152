//! Namespace Management and Attachment (NVMe base 2.0, 5.23 and 5.22).

use bus::DevicePort;
use media::Media;
use wire::Nsid;
use wire::nvme::admin::Request;
use wire::nvme::identify::{IdentifyNamespace, csi};
use wire::nvme::status::Status;
use zerocopy::FromBytes;

use super::Controller;
use super::access::Door;
use super::namespace::{Namespace, Place};
use super::reservations::Touch;
use super::self_test::Ended;
use super::slot::{Cut, Slot};

/// Length of the data of either command, bytes.
const DATA_BYTES: u32 = 4096;

/// Hides a namespace from commands. On drop, sets the state given to `becomes`, or else the previous one.
struct Hidden<'a> {
    place: &'a Place,
    before: Option<Namespace>,
}

impl<'a> Hidden<'a> {
    fn hide(place: &'a Place) -> Hidden<'a> {
        place.door.set(Door::Hidden);
        Hidden { place, before: place.namespace.get() }
    }

    /// Ends hiding, with this new state.
    fn becomes(mut self, namespace: Option<Namespace>) {
        self.before = namespace;
    }
}

impl Drop for Hidden<'_> {
    fn drop(&mut self) {
        self.place.namespace.set(self.before);
        self.place.open();
    }
}

impl<P: DevicePort, M: Media> Controller<P, M> {
    /// Creates a namespace, which reads as zeros and is not attached. Returns its identifier.
    pub(super) async fn create_namespace(
        &self,
        number: u16,
        request: &Request,
        set: u8,
    ) -> Result<u32, Status> {
        if set != csi::NVM {
            return Err(Status::COMMAND_SET_NOT_SUPPORTED);
        }
        let data = self.brought(number, request).await?;
        let wanted = IdentifyNamespace::read_from_bytes(&data[..]).expect("its length");
        let (lbas, capacity) = (wanted.nsze.get(), wanted.ncap.get());
        let inline = wanted.flbas & 0x10 != 0;
        if wanted.flbas & 0xe0 != 0 || wanted.dps & 0xf0 != 0 {
            return Err(Status::INVALID_FORMAT);
        }
        let layout = self.shared.namespaces.layout_of(wanted.flbas & 0xf, wanted.dps, inline)?;
        // NMIC: with one controller, namespaces are not shared.
        let shared = wanted.nmic == 1 && !self.shared.members.is_alone();
        if lbas == 0 || capacity > lbas || (wanted.nmic != 0 && !shared) {
            return Err(Status::INVALID_FIELD);
        }
        if capacity < lbas {
            return Err(Status::THIN_PROVISIONING_NOT_SUPPORTED);
        }
        let (nsid, place) = self.shared.namespaces.free()?;
        let namespace = self.shared.namespaces.lay(lbas, layout, !shared).map_err(|blocks| {
            // The error log tells the bytes that are needed (5.23.1).
            let bytes = blocks.saturating_mul(self.block_bytes.into());
            self.slots[number].specific.set(bytes);
            Status::NAMESPACE_INSUFFICIENT_CAPACITY
        })?;
        let hidden = Hidden::hide(place);
        // From here on its identifier is taken, but the namespace is hidden.
        place.namespace.set(Some(namespace));
        self.deallocate(namespace.start, namespace.blocks).await?;
        self.flush().await?;
        hidden.becomes(Some(namespace));
        self.keep_or(|| place.namespace.set(None))?;
        Ok(nsid.0)
    }

    /// Deletes one namespace, or all. Outstanding commands complete first, as aborted.
    pub(super) async fn delete_namespace(&self, nsid: Nsid) -> Result<u32, Status> {
        let all: Vec<Nsid> = match nsid {
            Nsid::BROADCAST => self.shared.namespaces.allocated().collect(),
            one => vec![one],
        };
        for nsid in all {
            let (place, namespace) = self.shared.namespaces.allocated_at(nsid)?;
            self.must_be_open(place)?;
            let hidden = Hidden::hide(place);
            self.drain_namespace(nsid, u8::MAX).await;
            let reservations = place.reservations.take();
            hidden.becomes(None);
            self.keep_or(|| {
                place.namespace.set(Some(namespace));
                place.reservations.replace(reservations);
                place.open();
            })?;
        }
        Ok(0)
    }

    /// Attaches a namespace to controllers, or detaches it. Outstanding commands of these controllers in it
    /// complete first, as aborted.
    pub(super) async fn attach_namespace(
        &self,
        number: u16,
        request: &Request,
        attach: bool,
    ) -> Result<u32, Status> {
        let (place, namespace) = self.shared.namespaces.allocated_at(request.nsid)?;
        let data = self.brought(number, request).await?;
        let named = self.named_controllers(&data[..])?;
        self.must_be_open(place)?;
        let there = self.shared.members.all().iter().fold(0, |bits, member| bits | member.bit());
        let attached =
            if attach { namespace.attached | named } else { namespace.attached & !named };
        if attach && namespace.attached & named != 0 {
            return Err(Status::NAMESPACE_ALREADY_ATTACHED);
        }
        if !attach && namespace.attached & named != named {
            return Err(Status::NAMESPACE_NOT_ATTACHED);
        }
        if namespace.private && (attached & there).count_ones() > 1 {
            return Err(Status::NAMESPACE_IS_PRIVATE);
        }
        let hidden = Hidden::hide(place);
        self.drain_namespace(request.nsid, named).await;
        hidden.becomes(Some(Namespace { attached, ..namespace }));
        self.keep_or(|| place.namespace.set(Some(namespace)))?;
        Ok(0)
    }

    /// Checks that no operation is in progress on the namespace, and that no reservation excludes this host.
    fn must_be_open(&self, place: &Place) -> Result<(), Status> {
        self.pass(place, Touch::Writes)
    }

    /// Stores the namespaces in the label, or calls `undo`.
    fn keep_or(&self, undo: impl FnOnce()) -> Result<(), Status> {
        self.shared.namespaces.keep(&*self.media).map_err(|error| {
            undo();
            self.failed(error)
        })
    }

    /// Fetches the data of a command.
    async fn brought(
        &self,
        number: u16,
        request: &Request,
    ) -> Result<Box<[u8; DATA_BYTES as usize]>, Status> {
        let mut data = Box::new([0; DATA_BYTES as usize]);
        self.receive(number, &request.data, &mut data[..]).await?;
        Ok(data)
    }

    /// Parses a controller list (NVMe base 2.0, 4.4.1): existing controllers in ascending order.
    fn named_controllers(&self, list: &[u8]) -> Result<u8, Status> {
        let mut numbers = list.chunks_exact(2).map(|two| u16::from_le_bytes([two[0], two[1]]));
        let count = usize::from(numbers.next().expect("a list has a count"));
        let listed: Vec<u16> = numbers.take(count).collect();
        let all = self.shared.members.all();
        let there = |id: &u16| all.iter().any(|member| member.id == *id);
        let rises = listed.windows(2).all(|two| two[0] < two[1]);
        if listed.is_empty() || listed.len() < count || !rises || !listed.iter().all(there) {
            return Err(Status::CONTROLLER_LIST_INVALID);
        }
        Ok(listed.iter().fold(0, |bits, id| bits | 1 << (id - 1)))
    }

    /// Cancels the outstanding commands of these controllers in a namespace, and waits for their completion.
    async fn drain_namespace(&self, nsid: Nsid, of: u8) {
        self.end_self_test(Ended::ByRemoval, |of| of == Nsid::BROADCAST || of == nsid);
        let inside = |slot: &Slot| slot.io_namespace.get() == Some(nsid);
        let why = Cut::With(Status::ABORT_REQUESTED);
        let members = &self.shared.members;
        members.drain(&self.rt, why, |member, slot| member.bit() & of != 0 && inside(slot)).await;
    }
}
