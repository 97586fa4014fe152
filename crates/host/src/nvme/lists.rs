//! Data pointers: a scatter gather list of one descriptor, or PRPs. Each slot has memory for a PRP list, or
//! for the range of a Dataset Management or a Copy.

use bus::{Arena, Buffer, OutOfMemory};
use wire::BusAddr;
use wire::nvme::entry::DataPointer;
use wire::nvme::prp;
use wire::nvme::ranges::CopyRange;
use wire::nvme::sgl::Descriptor;
use zerocopy::{Immutable, IntoBytes};

use super::{PAGE_BYTES, Sgl};

/// Memory for one PRP list per slot, so that no transfer has to allocate.
pub(super) struct PrpLists {
    memory: Buffer,
    bytes_each: usize,
    sgl: Sgl,
}

impl PrpLists {
    /// Allocates lists for `depth` slots and transfers of up to `transfer_bytes_max` bytes.
    pub fn new(
        arena: &Arena,
        depth: u16,
        transfer_bytes_max: u32,
        sgl: Sgl,
    ) -> Result<PrpLists, OutOfMemory> {
        let bytes_each = list_bytes(transfer_bytes_max);
        Ok(PrpLists { memory: arena.buffer(usize::from(depth) * bytes_each)?, bytes_each, sgl })
    }

    /// Describes a validated buffer, which is no longer than the longest transfer. A long buffer uses the
    /// slot's list if PRPs describe it.
    #[inline]
    pub fn describe(&self, slot: u16, buffer: &Buffer) -> DataPointer {
        let short = prp::without_list(buffer.at(), buffer.bytes() as u64, PAGE_BYTES);
        match short {
            Some(pages) if self.sgl != Sgl::Always => pages,
            _ => self.describe_long(slot, buffer),
        }
    }

    /// Describes a buffer that needs a list, or an SGL.
    fn describe_long(&self, slot: u16, buffer: &Buffer) -> DataPointer {
        if self.sgl != Sgl::Never {
            return DataPointer::Sgl(Descriptor::data(buffer.at(), buffer.bytes() as u32));
        }
        let base = self.memory.at().0;
        let first = base + (usize::from(slot) * self.bytes_each) as u64;
        let lists = (0..self.bytes_each.div_ceil(PAGE_BYTES as usize) as u64)
            .map(|page| BusAddr(first + page * PAGE_BYTES));
        let pages = prp::contiguous(buffer.at(), PAGE_BYTES);
        prp::build(pages, buffer.bytes() as u64, PAGE_BYTES, lists, |at, entry| {
            self.memory.copy_in((at.0 - base) as usize, &entry.to_le_bytes());
        })
        .expect("the buffer was judged, and the list has room for the longest transfer")
    }

    /// Stores one range in the slot's memory and describes it.
    pub fn range(&self, slot: u16, range: &(impl IntoBytes + Immutable)) -> DataPointer {
        let offset = usize::from(slot) * self.bytes_each;
        self.memory.copy_in(offset, range.as_bytes());
        DataPointer::Prp { prp1: BusAddr(self.memory.at().0 + offset as u64), prp2: BusAddr(0) }
    }

    /// Memory of the lists, for quarantine.
    pub fn memory(&self) -> &Buffer {
        &self.memory
    }
}

/// Bytes of one slot's PRP list: a power of two, so that a list of less than a page stays within one page, or
/// whole pages. Sized for the longest transfer with an unaligned start. A range of Dataset Management or Copy
/// fits too.
pub(super) fn list_bytes(transfer_bytes_max: u32) -> usize {
    let entries = prp::list_entries(PAGE_BYTES - 4, u64::from(transfer_bytes_max), PAGE_BYTES);
    let bytes = (entries * prp::ENTRY_BYTES).next_power_of_two();
    let bytes = bytes.max(size_of::<CopyRange>() as u64);
    if bytes <= PAGE_BYTES {
        bytes as usize
    } else {
        (prp::list_pages(entries, 0, PAGE_BYTES) * PAGE_BYTES) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prp_list_fits_longest_unaligned_transfer() {
        assert_eq!(list_bytes(4096), 32);
        assert_eq!(list_bytes(128 << 10), 256);
        assert_eq!(list_bytes(1 << 20), 2048);
        assert_eq!(list_bytes(2 << 20), 4096);
        // One page more than one list page can address: two chained lists.
        assert_eq!(list_bytes((2 << 20) + 4096), 8192);
    }
}
