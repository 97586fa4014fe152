//! Format NVM (NVMe base 2.0, 5.14, and NVM command set 1.0, 4.1.2).

use bus::DevicePort;
use media::Media;
use wire::Nsid;
use wire::nvme::admin::FormatNvm;
use wire::nvme::status::Status;

use super::Controller;
use super::access::Door;
use super::namespace::{Layout, Namespace, Place};
use super::reservations::Touch;
use super::self_test::Ended;

/// SES: no erase, and user data erase. Cryptographic erase is not supported (FNA).
const ERASES: [u8; 2] = [0, 1];

/// While this exists, I/O commands fail with Format In Progress.
struct Formatting<'a>(&'a Place);

impl Drop for Formatting<'_> {
    fn drop(&mut self) {
        self.0.open();
    }
}

impl<P: DevicePort, M: Media> Controller<P, M> {
    /// Formats namespaces. Afterwards every block reads as zeros, for either erase setting, and the new block
    /// size is durable. Concurrent commands may execute before or after; a reset in the middle leaves some
    /// blocks erased and the format unchanged.
    pub(super) async fn format_nvm(&self, nsid: Nsid, format: FormatNvm) -> Result<u32, Status> {
        let all: Vec<Nsid> = match nsid {
            Nsid::BROADCAST => self.active().collect(),
            one => vec![one],
        };
        for nsid in &all {
            let (place, _) = self.active_at(*nsid)?;
            if place.door.get() == Door::Reserved {
                self.pass(place, Touch::Writes)?;
            }
        }
        let dps = format.protection | u8::from(format.protection_first) << 3;
        let layout =
            self.shared.namespaces.layout_of(format.format, dps, format.metadata_inline)?;
        if !ERASES.contains(&format.erase) {
            return Err(Status::INVALID_FIELD);
        }
        self.end_self_test(Ended::ByFormat, |of| of == Nsid::BROADCAST || all.contains(&of));
        for nsid in all {
            let (place, namespace) = self.active_at(nsid)?;
            self.format_one(place, namespace, layout).await?;
        }
        Ok(0)
    }

    async fn format_one(
        &self,
        place: &Place,
        namespace: Namespace,
        layout: Layout,
    ) -> Result<(), Status> {
        if !place.door.get().is_settled() {
            return Err(place.door.get().refusal().unwrap_or(Status::INVALID_FIELD));
        }
        place.door.set(Door::Formatting);
        let formatting = Formatting(place);
        self.deallocate(namespace.start, namespace.blocks).await?;
        self.flush().await?;
        let Layout { shift, metadata } = layout;
        let formatted = Namespace { shift, metadata, ..namespace };
        if namespace != formatted {
            place.namespace.set(Some(formatted));
            self.shared.namespaces.keep(&*self.media).map_err(|error| {
                place.namespace.set(Some(namespace));
                self.failed(error)
            })?;
        }
        drop(formatting);
        Ok(())
    }
}
