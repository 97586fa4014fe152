//! Write Uncorrectable (NVM command set 1.0, 3.2.7), and the durability of the marks that it sets.

use bus::DevicePort;
use media::{Extent, Media};
use wire::nvme::io::Access;
use wire::nvme::status::Status;

use super::namespace::Namespace;
use super::{Controller, UNCORRECTABLE_BYTES_MAX};

impl<P: DevicePort, M: Media> Controller<P, M> {
    /// Write Uncorrectable: makes blocks unreadable until they are written. Durable immediately.
    pub(super) async fn write_uncorrectable(
        &self,
        number: u16,
        ns: Namespace,
        access: &Access,
    ) -> Result<(), Status> {
        if !self.keeps_a_label() {
            return Err(Status::INVALID_OPCODE.with_dnr());
        }
        let extent = ns.extent(access.lba.0, access.blocks)?;
        let bytes = u64::from(extent.blocks) * u64::from(self.block_bytes);
        if bytes > u64::from(UNCORRECTABLE_BYTES_MAX) {
            return Err(Status::INVALID_FIELD.with_dnr());
        }
        self.claim(number, extent).await;
        let marks = &self.shared.namespaces.marks;
        let before = marks.windows();
        marks.mark(extent)?;
        self.shared.namespaces.keep(&*self.media).map_err(|error| {
            marks.as_before(before);
            self.failed(error)
        })
    }

    /// Checks that none of these blocks is marked.
    #[inline]
    pub(super) fn must_be_readable(&self, at: Extent) -> Result<(), Status> {
        if self.shared.namespaces.marks.hold(at) {
            Err(Status::UNRECOVERED_READ_ERROR)
        } else {
            Ok(())
        }
    }

    /// Makes all earlier writes durable.
    pub(super) async fn flush(&self) -> Result<(), Status> {
        let written = self.shared.namespaces.marks.written();
        self.media.flush().await.map_err(|error| self.failed(error))?;
        if let Some(written) = written {
            self.shared.namespaces.marks.settle(written);
            self.shared.namespaces.keep(&*self.media).map_err(|error| self.failed(error))?;
        }
        Ok(())
    }
}
