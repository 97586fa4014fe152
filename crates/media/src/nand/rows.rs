//! Stored contents of a block: one row for each programmed page, data followed by spare bytes.
//!
//! Stamps are most of the data stored of a filled drive of terabytes, and the spare bytes next to each repeat
//! the same page number. So a full block of stamps is packed: columns with one value in all rows are stored
//! once, columns equal to another are stored as a reference, and the rest is stored row by row, so that a
//! page is still contiguous in memory.
//!
//! A random read of a large drive finds neither columns nor row in a CPU cache. So they stand in one piece of
//! memory, whose place a block knows: both are fetched at once, and not one after the other. Columns of zeros
//! at the beginning, which are most where every byte of blocks of zeros is stored, are a number.

use std::ops::Deref;
use std::sync::Arc;

use memmap2::MmapMut;

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

/// Memory of packed rows: of one block, or of many, of which it is freed with the last.
pub(super) enum Memory {
    Own(Box<[u8]>),
    Shared(MmapMut),
}

impl Deref for Memory {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match self {
            Memory::Own(bytes) => bytes,
            Memory::Shared(bytes) => bytes,
        }
    }
}

#[derive(Clone)]
pub(super) struct Packed {
    memory: Arc<Memory>,
    /// Offset in the memory at which they begin.
    begin: u32,
    form: Form,
}

/// In memory: entries of `columns` columns, two bytes each, then `rows` rows of `stride` bytes.
#[derive(Clone, Copy)]
pub(super) struct Form {
    /// Columns before these that are zero in all rows. In a state file they have entries too.
    zeros: u32,
    columns: u32,
    stride: u16,
    rows: u16,
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
        let mut bytes: Vec<u8> = columns.flat_map(u16::to_le_bytes).collect();
        for row in self.bytes.chunks_exact(self.width) {
            bytes.extend(kept.iter().map(|column| row[*column]));
        }
        Packed::from_bytes(&bytes, self.width, count).expect("just packed")
    }

    fn are_equal(&self, a: usize, b: usize) -> bool {
        self.bytes.chunks_exact(self.width).all(|row| row[a] == row[b])
    }
}

impl Form {
    /// That of these bytes of a state file, and the bytes in memory; `None` if they cannot be `rows` rows of
    /// `width`.
    pub(super) fn of(bytes: &[u8], width: usize, rows: usize) -> Option<(Form, &[u8])> {
        let (columns, packed) = bytes.split_at_checked(2 * width)?;
        let stride = packed.len().checked_div(rows)?;
        let good = |column: &[u8; 2]| match u16::from_le_bytes(*column) {
            column if column < ONE_VALUE => usize::from(column) < stride,
            column => column & 0x7f00 == 0,
        };
        let columns = columns.as_chunks().0;
        if packed.len() != stride * rows || !columns.iter().all(good) {
            return None;
        }
        let zeros = columns.iter().position(|column| *column != ONE_VALUE.to_le_bytes());
        let zeros = zeros.unwrap_or(columns.len());
        let form = Form {
            zeros: u32::try_from(zeros).ok()?,
            columns: u32::try_from(width - zeros).ok()?,
            stride: stride.try_into().ok()?,
            rows: rows.try_into().ok()?,
        };
        Some((form, &bytes[2 * zeros..]))
    }

    /// Number of bytes in memory.
    #[inline]
    fn bytes(&self) -> usize {
        2 * self.columns as usize + usize::from(self.stride) * usize::from(self.rows)
    }
}

impl Packed {
    /// Rows of this form that begin there.
    pub(super) fn new(memory: Arc<Memory>, begin: u32, form: Form) -> Packed {
        Packed { memory, begin, form }
    }

    /// Deserializes; `None` if the bytes cannot be `rows` rows of `width`.
    pub(super) fn from_bytes(bytes: &[u8], width: usize, rows: usize) -> Option<Packed> {
        let (form, bytes) = Form::of(bytes, width, rows)?;
        Some(Packed::new(Arc::new(Memory::Own(bytes.into())), 0, form))
    }

    /// Serializes for a state file.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = ONE_VALUE.to_le_bytes().repeat(self.form.zeros as usize);
        bytes.extend(self.bytes());
        bytes
    }

    /// The same rows, each behind this number of zeros.
    pub(super) fn behind_zeros(mut self, zeros: usize) -> Packed {
        self.form.zeros += zeros as u32;
        self
    }

    #[inline]
    fn bytes(&self) -> &[u8] {
        &self.memory[self.begin as usize..][..self.form.bytes()]
    }

    /// Returns true if these bytes of every row are known to be zero, without reading a row.
    #[inline]
    pub(super) fn is_zero(&self, from: usize, bytes: usize) -> bool {
        from + bytes <= self.form.zeros as usize
    }

    /// The columns after those of zeros, and a packed row.
    #[inline]
    fn parts(&self, row: usize) -> (&[[u8; 2]], &[u8]) {
        let (columns, rows) = self.bytes().split_at(2 * self.form.columns as usize);
        let stride = usize::from(self.form.stride);
        (columns.as_chunks().0, &rows[row * stride..][..stride])
    }

    /// Fetches what [`Packed::copy`] needs of a row into the CPU caches, without data that are stamps.
    #[inline]
    pub(super) fn prefetch(&self, row: usize, from: usize) {
        let (columns, row) = self.parts(row);
        let columns = &columns[from.saturating_sub(self.form.zeros as usize)..];
        runtime::prefetch(columns.as_flattened());
        runtime::prefetch(row);
    }

    /// Fills `out` with a row's bytes from `from` on.
    #[inline]
    pub(super) fn copy(&self, row: usize, from: usize, out: &mut [u8]) {
        let zeros = (self.form.zeros as usize).saturating_sub(from).min(out.len());
        let (blank, out) = out.split_at_mut(zeros);
        blank.fill(0);
        self.copy_columns(row, (from + zeros).saturating_sub(self.form.zeros as usize), out);
    }

    /// As [`Packed::copy`], from this one of the columns after those of zeros.
    #[inline]
    fn copy_columns(&self, row: usize, from: usize, out: &mut [u8]) {
        let (columns, row) = self.parts(row);
        for (out, column) in out.iter_mut().zip(&columns[from..]) {
            let column = u16::from_le_bytes(*column);
            *out = if column < ONE_VALUE { row[usize::from(column)] } else { column as u8 };
        }
    }

    /// Unpacks `rows` rows of `width` bytes.
    pub(super) fn unpack(&self, width: usize, rows: usize) -> Rows {
        // Fresh memory is zero already, and takes none where only zeros stand.
        let mut bytes = vec![0; width * rows];
        for (row, out) in bytes.chunks_exact_mut(width).enumerate() {
            self.copy_columns(row, 0, &mut out[self.form.zeros as usize..]);
        }
        Rows { width, bytes }
    }

    pub(super) fn allocated_bytes(&self) -> u64 {
        (self.bytes().len() + size_of::<Packed>()) as u64
    }
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
        assert_eq!(packed.form.stride, 4, "the low bytes: {:?}", packed.parts(0).0);
        assert_eq!(packed.unpack(20, 100).bytes, rows.bytes);
        let mut middle = [0; 6];
        packed.copy(5, 7, &mut middle);
        assert_eq!(middle, rows.row(5)[7..13]);
    }

    #[test]
    fn leading_zeros_of_packed_rows_are_known() {
        let bytes = (0..8_u8).flat_map(|row| [0, 0, 0, row, 0, 7]).collect();
        let packed = Rows { width: 6, bytes }.pack(&mut Room::default());
        let again = Packed::from_bytes(&packed.to_bytes(), 6, 8).expect("just packed");
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
