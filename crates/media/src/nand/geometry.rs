//! Layout of flash, and the programming order of the pages of a block.

use super::Error;

/// Bits per cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cell {
    /// 1 bit.
    Slc,
    /// 2 bits.
    Mlc,
    /// 3 bits.
    Tlc,
    /// 4 bits.
    Qlc,
}

impl Cell {
    /// Bits per cell, equal to the pages per word line: 1 to 4.
    pub fn bits(self) -> u32 {
        match self {
            Cell::Slc => 1,
            Cell::Mlc => 2,
            Cell::Tlc => 3,
            Cell::Qlc => 4,
        }
    }
}

/// Programming order of the pages of a block; they are numbered in that order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Word line by word line, lower page first, as charge-trap cells in 3D NAND allow.
    WordLine,
    /// Diagonal: a word line's next page comes after the lower pages of the following word lines, as planar
    /// cells need. ("Program Interference in MLC NAND Flash Memory: Characterization, Modeling, and
    /// Mitigation", Cai, Mutlu, Haratsch and Mai, ICCD 2013, calls it shadow programming.)
    Diagonal,
}

/// Layout of the chips.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Channels, each with its own bus: 1 to 64.
    pub channels: u32,
    /// Packages per channel: 1 to 64.
    pub packages: u32,
    /// Dies per package: 1 to 16.
    pub dies: u32,
    /// Planes per die: 1 to 16.
    pub planes: u32,
    /// Blocks per plane, including bad ones: 1 to 1,048,576.
    pub blocks: u32,
    /// Word lines per block: 1 to 4096.
    pub word_lines: u32,
    /// Bits per cell, equal to the pages per word line.
    pub cell: Cell,
    /// Programming order.
    pub order: Order,
    /// Pages per program operation: 1, or all of a word line if the order is by word line.
    pub group: u32,
    /// Data bytes per page: whole units, at most 64 KiB.
    pub page_bytes: u32,
    /// Spare bytes per page: for software and for the error-correcting code.
    pub spare_bytes: u32,
    /// Spare bytes available to software: at most 1024.
    pub free_bytes: u32,
    /// Bytes that are read and corrected separately: a power of two from 512 to 16,384.
    pub unit_bytes: u32,
}

/// Address of a page: number of its block over all dies, and its number in programming order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PageAt {
    /// Block number. Blocks are numbered plane by plane, and planes die by die.
    pub block: u32,
    /// Page number in the block.
    pub page: u32,
}

/// Position of a page in its block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cells {
    /// Word line number.
    pub word_line: u16,
    /// Page type: lower (0), middle (1), upper or top.
    pub kind: u8,
}

impl Geometry {
    /// Number of dies. Die `d` is on channel `d % channels`, so that consecutive dies are on different
    /// channels.
    pub fn all_dies(&self) -> u32 {
        self.channels * self.packages * self.dies
    }

    /// Number of blocks, including bad ones.
    pub fn all_blocks(&self) -> u32 {
        self.all_dies() * self.planes * self.blocks
    }

    /// Pages per block.
    pub fn pages(&self) -> u32 {
        self.word_lines * self.cell.bits()
    }

    /// Units per page.
    pub fn units(&self) -> u32 {
        self.page_bytes / self.unit_bytes
    }

    /// Number of pages before its own that a torn program may destroy: the lower pages of its word line that
    /// other operations have programmed. 0 if each operation writes a whole word line.
    pub fn reach(&self) -> u32 {
        let cells = self.cells();
        let reach = |(page, at): (usize, &Cells)| {
            let group = page - page % self.group as usize;
            let lower = cells[..group].iter().position(|other| other.word_line == at.word_line);
            lower.map_or(0, |lower| page - lower)
        };
        cells.iter().enumerate().map(reach).max().unwrap_or(0) as u32
    }

    /// Data bytes of all pages.
    pub fn bytes(&self) -> u64 {
        u64::from(self.all_blocks()) * u64::from(self.pages()) * u64::from(self.page_bytes)
    }

    /// Die of a block.
    pub fn die_of(&self, block: u32) -> u32 {
        block / (self.planes * self.blocks)
    }

    /// Plane of a block, in its die.
    pub fn plane_of(&self, block: u32) -> u32 {
        block / self.blocks % self.planes
    }

    /// Channel of a die.
    pub fn channel_of(&self, die: u32) -> u32 {
        die % self.channels
    }

    /// Block number from die, plane and index in the plane.
    pub fn block_at(&self, die: u32, plane: u32, block: u32) -> u32 {
        (die * self.planes + plane) * self.blocks + block
    }

    /// # Errors
    /// [`Error::BadSpec`] with the first invalid field.
    pub fn check(&self) -> Result<(), Error> {
        let in_range = |key, found: u32, low: u32, high: u32, expected| {
            let good = (low..=high).contains(&found);
            if good { Ok(()) } else { Err(Error::BadSpec { key, found: found.into(), expected }) }
        };
        in_range("channels", self.channels, 1, 64, "1 to 64")?;
        in_range("packages", self.packages, 1, 64, "1 to 64")?;
        in_range("dies", self.dies, 1, 16, "1 to 16")?;
        in_range("planes", self.planes, 1, 16, "1 to 16")?;
        in_range("blocks", self.blocks, 1, 1 << 20, "1 to 1048576")?;
        in_range("word_lines", self.word_lines, 1, 4096, "1 to 4096")?;
        let group = self.group;
        let whole = group == self.cell.bits() && self.order == Order::WordLine;
        if group != 1 && !whole {
            let expected = "1, or the bits of a cell in the order of word lines";
            return Err(Error::BadSpec { key: "group", found: group.into(), expected });
        }
        in_range("spare_bytes", self.spare_bytes, 0, 1 << 16, "at most 64 KiB")?;
        let free = self.spare_bytes.min(1024);
        in_range("free_bytes", self.free_bytes, 0, free, "at most spare_bytes and 1024")?;
        let unit = self.unit_bytes;
        if !unit.is_power_of_two() || !(512..=16_384).contains(&unit) {
            let expected = "a power of two from 512 to 16384";
            return Err(Error::BadSpec { key: "unit_bytes", found: unit.into(), expected });
        }
        let page = self.page_bytes;
        if page == 0 || !page.is_multiple_of(unit) || page > 1 << 16 {
            let expected = "whole units, at most 64 KiB";
            return Err(Error::BadSpec { key: "page_bytes", found: page.into(), expected });
        }
        let all = u64::from(self.all_dies()) * u64::from(self.planes) * u64::from(self.blocks);
        if all > 1 << 26 {
            let expected = "at most 67108864 blocks on all dies";
            return Err(Error::BadSpec { key: "blocks", found: all, expected });
        }
        Ok(())
    }

    /// Position of each page of a block, in programming order.
    pub(super) fn cells(&self) -> Vec<Cells> {
        let (lines, bits) = (self.word_lines, self.cell.bits());
        let cells =
            |word_line: u32, kind: u32| Cells { word_line: word_line as u16, kind: kind as u8 };
        match self.order {
            Order::WordLine => {
                (0..lines * bits).map(|page| cells(page / bits, page % bits)).collect()
            }
            Order::Diagonal => (0..lines + bits - 1)
                .flat_map(|diagonal| (0..bits).map(move |kind| (diagonal, kind)))
                .filter(|(diagonal, kind)| diagonal >= kind && diagonal - kind < lines)
                .map(|(diagonal, kind)| cells(diagonal - kind, kind))
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Profile;
    use super::*;

    fn order(cell: Cell, order: Order, word_lines: u32) -> Vec<(u16, u8)> {
        let geometry = Geometry { cell, order, word_lines, group: 1, ..Profile::test().geometry };
        geometry.cells().iter().map(|at| (at.word_line, at.kind)).collect()
    }

    #[test]
    fn page_numbers_follow_programming_order() {
        assert_eq!(order(Cell::Slc, Order::Diagonal, 3), [(0, 0), (1, 0), (2, 0)]);
        assert_eq!(
            order(Cell::Tlc, Order::WordLine, 2),
            [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
        );
        // Lower 0, lower 1, upper 0, lower 2, upper 1, and so on, as data sheets of planar MLC list them.
        assert_eq!(
            order(Cell::Mlc, Order::Diagonal, 4),
            [(0, 0), (1, 0), (0, 1), (2, 0), (1, 1), (3, 0), (2, 1), (3, 1)]
        );
        let reach = |cell, order, word_lines, group| {
            let geometry = Geometry { cell, order, word_lines, group, ..Profile::test().geometry };
            geometry.reach()
        };
        assert_eq!(
            reach(Cell::Mlc, Order::Diagonal, 4, 1),
            3,
            "upper 1 is page 4, lower 1 is page 1"
        );
        assert_eq!(reach(Cell::Tlc, Order::WordLine, 4, 1), 2);
        assert_eq!(reach(Cell::Tlc, Order::WordLine, 4, 3), 0);
        assert_eq!(reach(Cell::Slc, Order::Diagonal, 4, 1), 0);
        let qlc = order(Cell::Qlc, Order::Diagonal, 5);
        assert_eq!(qlc.len(), 20);
        for line in 0..5 {
            let kinds: Vec<u8> = qlc.iter().filter(|at| at.0 == line).map(|at| at.1).collect();
            assert_eq!(kinds, [0, 1, 2, 3], "word line {line}");
        }
    }

    #[test]
    fn block_numbers_are_unique_and_dies_rotate_over_channels() {
        let geometry = Geometry {
            channels: 2,
            packages: 3,
            dies: 2,
            planes: 2,
            blocks: 5,
            ..Profile::test().geometry
        };
        assert_eq!((geometry.all_dies(), geometry.all_blocks()), (12, 120));
        let mut next = 0;
        for die in 0..12 {
            assert_eq!(geometry.channel_of(die), die % 2);
            for plane in 0..2 {
                for block in 0..5 {
                    assert_eq!(geometry.block_at(die, plane, block), next);
                    assert_eq!((geometry.die_of(next), geometry.plane_of(next)), (die, plane));
                    next += 1;
                }
            }
        }
    }

    #[test]
    fn invalid_geometry_error_names_field() {
        let good = Profile::test().geometry;
        good.check().unwrap();
        let said = |geometry: Geometry| geometry.check().unwrap_err().to_string();
        assert_eq!(
            said(Geometry { dies: 17, ..good.clone() }),
            "flash: dies is 17, expected 1 to 16"
        );
        assert_eq!(
            said(Geometry { page_bytes: 6000, ..good.clone() }),
            "flash: page_bytes is 6000, expected whole units, at most 64 KiB"
        );
        assert_eq!(
            said(Geometry { unit_bytes: 3000, ..good.clone() }),
            "flash: unit_bytes is 3000, expected a power of two from 512 to 16384"
        );
        assert_eq!(
            said(Geometry { free_bytes: good.spare_bytes + 1, ..good }),
            "flash: free_bytes is 129, expected at most spare_bytes and 1024"
        );
    }
}
