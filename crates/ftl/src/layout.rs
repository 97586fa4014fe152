//! Numbering of locations. A *superblock* is the set of blocks with one number in all planes of all dies. Its
//! superpages are written group by group, and within a group die by die, so that neighbouring numbers are on
//! dies that work in parallel.

use crate::pages::{Blocks, Page, Place, Row, Shape};

/// No unit, slot or superblock.
pub(crate) const NONE: u32 = u32::MAX;

/// Bytes per map entry. A map part fills one mapping unit.
pub(crate) const ENTRY_BYTES: u32 = 4;

/// Write pointer in a superblock: group of pages, and die.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct WritePointer {
    pub superblock: u32,
    pub group: u32,
    pub die: u32,
}

/// Mapping between unit numbers and locations.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    pub shape: Shape,
    /// Mapping units per plane in a superpage.
    pub plane_units: u32,
    /// Mapping units of a superpage over all planes.
    pub row_units: u32,
    /// Mapping units of a superblock over all planes and dies.
    pub super_units: u32,
    /// Groups per block.
    pub groups: u32,
}

impl Layout {
    pub fn new(shape: Shape) -> Layout {
        let plane_units = shape.group * shape.units;
        let row_units = plane_units * shape.planes;
        let groups = shape.rows();
        Layout {
            shape,
            plane_units,
            row_units,
            super_units: row_units * shape.dies * groups,
            groups,
        }
    }

    #[inline]
    pub fn superblock(&self, unit: u32) -> u32 {
        unit / self.super_units
    }

    #[inline]
    pub fn write_pointer(&self, unit: u32) -> WritePointer {
        let (superblock, in_super) = (unit / self.super_units, unit % self.super_units);
        let row = in_super / self.row_units;
        WritePointer { superblock, group: row / self.shape.dies, die: row % self.shape.dies }
    }

    /// Number of the first unit of a superpage, in plane 0.
    #[inline]
    pub fn first(&self, write_pointer: WritePointer) -> u32 {
        let row = (write_pointer.superblock * self.groups + write_pointer.group) * self.shape.dies
            + write_pointer.die;
        row * self.row_units
    }

    /// Superpages after one that close its word lines.
    pub fn closing_rows(&self) -> u32 {
        self.shape.reach * self.shape.dies
    }

    /// Number of blocks reserved for checkpoint roots: the lowest block numbers, on as many dies as possible.
    pub fn system_blocks(&self) -> u32 {
        (self.shape.dies * self.shape.planes).clamp(2, 4)
    }

    /// The reserved block with this index.
    pub fn system_block(&self, at: u32) -> Page {
        let (die, rest) = (at % self.shape.dies, at / self.shape.dies);
        Page { die, plane: rest % self.shape.planes, block: rest / self.shape.planes, page: 0 }
    }

    /// Planes in which this block of this die is reserved for roots.
    pub fn of_roots(&self, block: u32, die: u32) -> u32 {
        let all = (0..self.system_blocks()).map(|at| self.system_block(at));
        let here = all.filter(|one| (one.block, one.die) == (block, die));
        here.fold(0, |planes, one| planes | 1 << one.plane)
    }

    pub fn system_units(&self) -> u64 {
        u64::from(self.system_blocks()) * u64::from(self.plane_units * self.groups)
    }

    pub fn row(&self, write_pointer: WritePointer, planes: u32) -> Row {
        let blocks = Blocks { die: write_pointer.die, block: write_pointer.superblock, planes };
        Row { blocks, page: write_pointer.group * self.shape.group }
    }

    #[inline]
    pub fn place(&self, unit: u32) -> Place {
        let write_pointer = self.write_pointer(unit);
        let in_row = unit % self.row_units;
        let (plane, in_plane) = (in_row / self.plane_units, in_row % self.plane_units);
        let page = Page {
            die: write_pointer.die,
            plane,
            block: write_pointer.superblock,
            page: write_pointer.group * self.shape.group + in_plane / self.shape.units,
        };
        Place { page, unit: in_plane % self.shape.units }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn layout_unit_numbers_are_unique_and_contiguous_per_superpage() {
        let shape = Shape {
            dies: 3,
            planes: 2,
            blocks: 4,
            pages: 6,
            group: 3,
            units: 4,
            unit_bytes: 4096,
            reach: 0,
        };
        let layout = Layout::new(shape);
        let mut places = Vec::new();
        for unit in 0..shape.all_units() as u32 {
            let place = layout.place(unit);
            assert!(place.page.die < 3 && place.page.plane < 2 && place.page.block < 4);
            assert!(place.page.page < 6 && place.unit < 4);
            let write_pointer = layout.write_pointer(unit);
            assert_eq!(layout.first(write_pointer), unit - unit % layout.row_units);
            assert_eq!(layout.superblock(unit), place.page.block);
            places.push(place);
        }
        places.sort_unstable();
        places.dedup();
        assert_eq!(places.len() as u64, shape.all_units());
    }
}
