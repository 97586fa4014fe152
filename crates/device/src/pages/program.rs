//! Programs: the item list, data into the downstream buffer, and the chips.

use bus::{Carry, DevicePort, Segment};
use ftl::{Failed, Header, META, Page, Pages, Place, Row, Tag, Unit};
use media::contents::{Keep, STAMP_BYTES};
use wire::BusAddr;
use wire::pages::{ITEM_BYTES, Item, RowAt, Source, Status};

use super::io::{Ended, blocks_of, failed, of_dma, page_of};
use super::{End, Endpoints, Slot};
use crate::scratch_guard::Scratch;

/// A row of the downstream buffer. On drop, the row and the contents of its slots are released.
struct Down<'a, P: DevicePort> {
    all: &'a Endpoints<P>,
    end: &'a End,
    number: u32,
    used: u32,
}

impl<P: DevicePort> Down<'_, P> {
    fn first(&self) -> u32 {
        self.number * self.all.row_units
    }
}

impl<P: DevicePort> Drop for Down<'_, P> {
    fn drop(&mut self) {
        let first = self.first();
        (first..first + self.used).for_each(|slot| self.all.chips.release(slot));
        self.end.rows.give(&self.all.rt, self.number);
    }
}

impl<P: DevicePort> Endpoints<P> {
    pub(super) async fn program(
        &self,
        end: &End,
        slot: &Slot,
        at: RowAt,
        header: Header,
        list: BusAddr,
    ) -> Ended {
        let number = end.rows.take(&self.rt).await;
        let mut down = Down { all: self, end, number, used: 0 };
        let mut units = Scratch::from(&slot.units);
        units.clear();
        if let Err(ended) = self.fill(slot, at, list, &mut down, &mut units).await {
            return ended;
        }
        let row = Row { blocks: blocks_of(at), page: at.page };
        // No await from here to the chips, so the checks still hold there.
        if !self.may_program(end, row) || !units.iter().all(|unit| self.may_copy(end, unit)) {
            return Status::Refused.into();
        }
        match self.chips.program(row, header, &units).await {
            Ok(()) => failed(0),
            Err(Failed { planes }) => failed(planes),
        }
    }

    /// Fetches the data of a superpage into the downstream buffer.
    async fn fill(
        &self,
        slot: &Slot,
        at: RowAt,
        list: BusAddr,
        down: &mut Down<'_, P>,
        units: &mut Vec<Unit>,
    ) -> Result<(), Ended> {
        let count = self.shape.row_units(at.planes) as usize;
        let unit_bytes = self.shape.unit_bytes as usize;
        let (mut bytes, mut from) = (Scratch::from(&slot.bytes), Scratch::from(&slot.segments));
        from.clear();
        bytes.resize(count * unit_bytes.max(ITEM_BYTES), 0);
        let items = &mut bytes[..count * ITEM_BYTES];
        let place = Segment { at: list, bytes: items.len() as u32 };
        self.port_of(down.end).read(&[place], items, Carry::All).await.map_err(of_dma)?;
        for item in items.chunks_exact(ITEM_BYTES) {
            let item = Item::parse(item.try_into().expect("16 bytes"), &self.shape);
            let Item { source, logical } = item.ok_or(Ended::from(Status::Refused))?;
            let from = match source {
                Source::Nothing => ftl::Source::Nothing,
                Source::Memory(at) => {
                    // Keep its address; the data are fetched later, in slot order.
                    let slot = down.first() + down.used;
                    down.used += 1;
                    from.push(Segment { at, bytes: unit_bytes as u32 });
                    ftl::Source::Slot(slot)
                }
                Source::Flash { page, unit } => {
                    ftl::Source::Flash(Place { page: page_of(page), unit })
                }
            };
            units.push(Unit { logical, from });
        }
        let wanted = &mut bytes[..from.len() * unit_bytes];
        if !from.is_empty() {
            let carry = self.carry(units);
            self.port_of(down.end).read(&from, wanted, carry).await.map_err(of_dma)?;
            self.stage(units, wanted);
        }
        Ok(())
    }

    /// Bytes worth transferring: if only stamps are kept, these, unless the superpage contains metadata of
    /// the flash software.
    fn carry(&self, units: &[Unit]) -> Carry {
        let (keep, of) = self.chips.with_nand(|nand| (nand.spec().keep, nand.spec().block_bytes));
        let meta = units.iter().any(|unit| unit.logical & META != 0 && !is_nothing(unit));
        match keep {
            Keep::Stamps if !meta => Carry::Heads { bytes: STAMP_BYTES as u32, of },
            _ => Carry::All,
        }
    }

    fn stage(&self, units: &[Unit], bytes: &[u8]) {
        let mut bytes = bytes.chunks_exact(self.shape.unit_bytes as usize);
        for unit in units {
            if let ftl::Source::Slot(slot) = unit.from {
                let tag = Tag { logical: unit.logical, order: 1 };
                self.chips.stage(slot, tag, 0, bytes.next().expect("one for each slot"));
            }
        }
    }

    /// Returns true if flash accepts this superpage: it is the next of its blocks, and none is bad or being
    /// erased.
    fn may_program(&self, end: &End, row: Row) -> bool {
        let geometry = |page: Page| {
            self.chips.with_nand(|nand| {
                nand.next_page(nand.geometry().block_at(page.die, page.plane, page.block))
            })
        };
        let next = |page: Page| geometry(page) == Some(row.page);
        !self.is_busy(end, row.blocks) && self.planes(row.blocks).all(next)
    }

    /// Returns true if the source of a copy belongs to this endpoint and is readable.
    fn may_copy(&self, end: &End, unit: &Unit) -> bool {
        match unit.from {
            ftl::Source::Flash(place) => {
                self.owns(end, place.page.die) && self.chips.lend(place, &mut |_, _| {})
            }
            _ => true,
        }
    }
}

fn is_nothing(unit: &Unit) -> bool {
    unit.from == ftl::Source::Nothing
}
