//! Preconditioned blocks: filled without writes, with spare bytes computed from a few numbers.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use ftl::{Header, Row, Shape, Steps};
use media::nand::{Laid, Nand};

use super::write::spare_bytes;
use super::{HEADER_BYTES, page_at, planes_of};

/// Contents of one block.
struct Block {
    erases: u32,
    group: u32,
    /// Units per page.
    units: u32,
    steps: Steps,
    /// Per superpage: sequence number, and the place in the walk of its first mapped unit.
    rows: Vec<(u64, u32)>,
    /// Bitmap of the mapped units, in page order.
    chosen: Vec<u64>,
}

/// Blocks that are not yet complete, by block number.
#[derive(Default)]
pub(super) struct Filling(BTreeMap<u32, Block>);

impl Block {
    fn holds(&self, unit: u32) -> bool {
        self.chosen[(unit / 64) as usize] >> (unit % 64) & 1 != 0
    }

    /// Number of mapped units among these.
    fn held(&self, units: Range<u32>) -> u32 {
        let mut count = 0;
        let mut unit = units.start;
        while unit < units.end {
            let here = (64 - unit % 64).min(units.end - unit);
            let word = self.chosen[(unit / 64) as usize] >> (unit % 64) << (64 - here);
            (count, unit) = (count + word.count_ones(), unit + here);
        }
        count
    }
}

impl Laid for Block {
    fn spare(&self, page: u32, out: &mut [u8]) {
        let row = page / self.group;
        let (sequence, next) = self.rows[row as usize];
        let first = page * self.units;
        let mut next = self.steps.after(next, self.held(row * self.group * self.units..first));
        let logicals = (first..first + self.units).map(|unit| {
            if !self.holds(unit) {
                return u32::MAX;
            }
            let after = self.steps.after(next, 1);
            self.steps.unit(std::mem::replace(&mut next, after))
        });
        let spare = spare_bytes(Header { sequence, erases: self.erases }, logicals);
        let known = (HEADER_BYTES + 4 * self.units) as usize;
        let known = known.min(out.len());
        out[..known].copy_from_slice(&spare[..known]);
        out[known..].fill(0);
    }

    fn allocated_bytes(&self) -> u64 {
        (self.rows.capacity() * 16 + self.chosen.capacity() * 8 + size_of::<Block>()) as u64
    }
}

impl Filling {
    /// Adds a superpage. A complete block is stored in the flash.
    pub(super) fn lay(
        &mut self,
        nand: &mut Nand,
        (shape, row, header): (Shape, Row, Header),
        chosen: &[u64],
        first: u32,
        steps: Steps,
    ) {
        let mut next = first;
        let (rows, of_row) = (shape.rows() as usize, shape.group * shape.units);
        for (place, plane) in (0..).zip(planes_of(row.blocks.planes)) {
            let (die, block) = (row.blocks.die, row.blocks.block);
            let at = page_at(shape, ftl::Page { die, plane, block, page: 0 }).block;
            let filling = self.0.entry(at).or_insert_with(|| Block {
                erases: header.erases,
                group: shape.group,
                units: shape.units,
                steps: steps.clone(),
                rows: Vec::with_capacity(rows),
                chosen: vec![0; (rows as u32 * of_row).div_ceil(64) as usize],
            });
            let begin = filling.rows.len() as u32 * of_row;
            filling.rows.push((header.sequence, next));
            let mut count = 0;
            for unit in 0..of_row {
                let from = place * of_row + unit;
                let bit = chosen[(from / 64) as usize] >> (from % 64) & 1;
                filling.chosen[((begin + unit) / 64) as usize] |= bit << ((begin + unit) % 64);
                count += bit as u32;
            }
            next = steps.after(next, count);
            if filling.rows.len() == rows {
                let full = self.0.remove(&at).expect("just filled");
                nand.lay(at, Arc::new(full)).expect("an erased block of the right chips");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapped_units_of_any_range_are_counted() {
        let chosen = vec![0x8000_0000_0000_0001, u64::MAX, 0xaaaa_aaaa_aaaa_aaaa];
        let steps = Steps { step: 1, of: 1, order: None };
        let block = Block { erases: 0, group: 1, units: 1, steps, rows: Vec::new(), chosen };
        for start in 0..=192 {
            for end in start..=192 {
                let one_by_one = (start..end).filter(|unit| block.holds(*unit)).count();
                assert_eq!(block.held(start..end) as usize, one_by_one, "{start}..{end}");
            }
        }
    }
}
