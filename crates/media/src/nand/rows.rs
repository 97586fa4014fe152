//! Stored contents of a block: one row for each programmed page, data followed by spare bytes.
//!
//! Stamps are most of the data stored of a filled drive of terabytes, and the spare bytes next to each repeat
//! the same page number. So a full block of stamps is packed: columns with one value in all rows are stored
//! once, columns equal to another are stored as a reference, and the rest is stored row by row, so that a
//! page is still contiguous in memory.

#[derive(Clone)]
pub(super) struct Rows {
    pub(super) width: usize,
    pub(super) bytes: Vec<u8>,
}

/// Scratch memory for packing: per column a checksum that distinguishes most columns, and the bits that
/// change.
#[derive(Default)]
pub(super) struct Room {
    sums: Vec<u32>,
    differences: Vec<u8>,
}

pub(super) struct Packed {
    columns: Box<[u16]>,
    /// Number of columns at the beginning of a row that are zero in all rows.
    zeros: usize,
    stride: usize,
    bytes: Box<[u8]>,
}

/// Column entry: below this, the offset of its byte in a packed row; otherwise the low byte is its constant
/// value.
const ONE_VALUE: u16 = 0x8000;

/// Maximum width of a row that can be packed, in bytes.
pub(super) const WIDTH_MAX: usize = 4096;

const _: () = assert!(WIDTH_MAX < ONE_VALUE as usize);

impl Rows {
    pub(super) fn row(&self, row: usize) -> &[u8] {
        &self.bytes[row * self.width..][..self.width]
    }

    pub(super) fn pack(&self, room: &mut Room) -> Packed {
        let (first, count) = (self.row(0), self.bytes.len() / self.width);
        let Room { sums, differences } = room;
        sums.clear();
        sums.resize(self.width, 0);
        differences.clear();
        differences.resize(self.width, 0);
        let mut key = 1_u32;
        for row in self.bytes.chunks_exact(self.width) {
            key = key.wrapping_mul(0x9e37_79b1);
            // Two loops, each of which the compiler can vectorize.
            for (sum, byte) in sums.iter_mut().zip(row) {
                *sum = sum.wrapping_add(u32::from(*byte).wrapping_mul(key));
            }
            for ((difference, first), byte) in differences.iter_mut().zip(first).zip(row) {
                *difference |= byte ^ first;
            }
        }
        let mut kept: Vec<usize> = Vec::with_capacity(self.width);
        let columns = (0..self.width).map(|column| {
            if differences[column] == 0 {
                return ONE_VALUE | u16::from(first[column]);
            }
            let twin = kept
                .iter()
                .position(|other| sums[*other] == sums[column] && self.are_equal(*other, column));
            twin.unwrap_or_else(|| {
                kept.push(column);
                kept.len() - 1
            }) as u16
        });
        let columns: Box<[u16]> = columns.collect();
        let mut bytes = Vec::with_capacity(kept.len() * count);
        for row in self.bytes.chunks_exact(self.width) {
            bytes.extend(kept.iter().map(|column| row[*column]));
        }
        Packed { zeros: zeros_of(&columns), columns, stride: kept.len(), bytes: bytes.into() }
    }

    fn are_equal(&self, a: usize, b: usize) -> bool {
        self.bytes.chunks_exact(self.width).all(|row| row[a] == row[b])
    }
}

impl Packed {
    /// The same rows, each behind this number of zeros.
    pub(super) fn behind_zeros(self, zeros: usize) -> Packed {
        let columns = std::iter::repeat_n(ONE_VALUE, zeros).chain(self.columns);
        Packed { columns: columns.collect(), zeros: zeros + self.zeros, ..self }
    }

    /// Returns true if these bytes of every row are known to be zero, without reading a row.
    #[inline]
    pub(super) fn is_zero(&self, from: usize, bytes: usize) -> bool {
        from + bytes <= self.zeros
    }

    /// Fills `out` with a row's bytes from `from` on.
    #[inline]
    pub(super) fn copy(&self, row: usize, from: usize, out: &mut [u8]) {
        let place = &self.bytes[row * self.stride..][..self.stride];
        for (out, column) in out.iter_mut().zip(&self.columns[from..]) {
            *out = if *column < ONE_VALUE { place[usize::from(*column)] } else { *column as u8 };
        }
    }

    /// Unpacks `rows` rows of `width` bytes.
    pub(super) fn unpack(&self, width: usize, rows: usize) -> Rows {
        let mut bytes = vec![0; width * rows];
        for (row, out) in bytes.chunks_exact_mut(width).enumerate() {
            self.copy(row, 0, out);
        }
        Rows { width, bytes }
    }

    pub(super) fn allocated_bytes(&self) -> u64 {
        (self.bytes.len() + size_of_val(&*self.columns) + size_of::<Packed>()) as u64
    }

    /// Serializes for a state file.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let columns = self.columns.iter().flat_map(|column| column.to_le_bytes());
        columns.chain(self.bytes.iter().copied()).collect()
    }

    /// Deserializes; `None` if the bytes cannot be `rows` rows of `width`.
    pub(super) fn from_bytes(bytes: &[u8], width: usize, rows: usize) -> Option<Packed> {
        let (columns, bytes) = bytes.split_at_checked(2 * width)?;
        let columns: Box<[u16]> =
            columns.chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]])).collect();
        let stride = bytes.len().checked_div(rows)?;
        let good = |column: &u16| match *column {
            column if column < ONE_VALUE => usize::from(column) < stride,
            column => column & 0x7f00 == 0,
        };
        let fits = bytes.len() == stride * rows && columns.iter().all(good);
        fits.then(|| Packed { zeros: zeros_of(&columns), columns, stride, bytes: bytes.into() })
    }
}

/// Number of leading columns that are zero in all rows.
fn zeros_of(columns: &[u16]) -> usize {
    columns.iter().position(|column| *column != ONE_VALUE).unwrap_or(columns.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn packing_stores_equal_and_constant_columns_once() {
        let mut rows = Rows { width: 20, bytes: Vec::new() };
        for row in 0..100_u64 {
            rows.bytes.extend((row * 0x0101_0307).to_le_bytes());
            rows.bytes.extend([7, 7, 7, 7]);
            rows.bytes.extend((row * 0x0101_0307).to_le_bytes());
        }
        let packed = rows.pack(&mut Room::default());
        assert_eq!(packed.stride, 4, "the low bytes: {:?}", packed.columns);
        assert_eq!(packed.unpack(20, 100).bytes, rows.bytes);
        let mut middle = [0; 6];
        packed.copy(5, 7, &mut middle);
        assert_eq!(middle, rows.row(5)[7..13]);
    }

    #[test]
    fn leading_zeros_of_packed_rows_are_known() {
        let bytes = (0..8_u8).flat_map(|row| [0, 0, 0, row, 0, 7]).collect();
        let packed = Rows { width: 6, bytes }.pack(&mut Room::default());
        let bytes = packed.to_bytes();
        let again = Packed::from_bytes(&bytes, 6, 8).expect("just packed");
        for (packed, zeros) in [(packed, 3), (again, 3)].map(|(p, n)| (p.behind_zeros(2), n + 2)) {
            assert!(packed.is_zero(0, zeros) && packed.is_zero(zeros - 1, 1));
            assert!(!packed.is_zero(0, zeros + 1) && !packed.is_zero(zeros, 1));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
        #[test]
        fn packed_rows_unpack_to_same_bytes(
            width in 1_usize..40,
            bytes in proptest::collection::vec(0_u8..3, 1..2000),
        ) {
            prop_assume!(bytes.len() >= width);
            let rows = bytes.len() / width;
            let bytes = bytes[..rows * width].to_vec();
            let packed = Rows { width, bytes: bytes.clone() }.pack(&mut Room::default());
            prop_assert_eq!(packed.unpack(width, rows).bytes, &bytes[..]);
            let again = Packed::from_bytes(&packed.to_bytes(), width, rows).unwrap();
            prop_assert_eq!(again.unpack(width, rows).bytes, &bytes[..]);
        }

        #[test]
        fn packed_from_arbitrary_bytes_never_panics(
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
            width in 1_usize..20,
            rows in 1_usize..20,
        ) {
            if let Some(packed) = Packed::from_bytes(&bytes, width, rows) {
                packed.unpack(width, rows);
            }
        }
    }
}
