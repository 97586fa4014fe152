//! Data created by a logical unit itself: pages and lists of a few hundred bytes, big-endian.

/// Maximum length, bytes.
pub const DATA_BYTES_MAX: usize = 256;

/// A byte buffer of at most [`DATA_BYTES_MAX`] bytes: bytes that do not fit are dropped.
#[derive(Clone, Copy)]
pub struct Data {
    bytes: [u8; DATA_BYTES_MAX],
    length: usize,
}

impl Data {
    /// An empty buffer.
    pub const fn new() -> Data {
        Data { bytes: [0; DATA_BYTES_MAX], length: 0 }
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    /// Length in bytes.
    pub const fn len(&self) -> usize {
        self.length
    }

    /// True if it is empty.
    pub const fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Appends bytes.
    pub fn put(&mut self, more: &[u8]) -> &mut Data {
        let taken = more.len().min(DATA_BYTES_MAX - self.length);
        self.bytes[self.length..self.length + taken].copy_from_slice(&more[..taken]);
        self.length += taken;
        self
    }

    /// Appends `count` zeros.
    pub fn put_zeros(&mut self, count: usize) -> &mut Data {
        // Bytes beyond the length are zero.
        self.length = (self.length + count).min(DATA_BYTES_MAX);
        self
    }

    /// Appends a 16-bit number.
    pub fn put_u16(&mut self, value: u16) -> &mut Data {
        self.put(&value.to_be_bytes())
    }

    /// Appends a 32-bit number.
    pub fn put_u32(&mut self, value: u32) -> &mut Data {
        self.put(&value.to_be_bytes())
    }

    /// Appends a 64-bit number.
    pub fn put_u64(&mut self, value: u64) -> &mut Data {
        self.put(&value.to_be_bytes())
    }

    /// Sets the byte at offset `at`, if it is inside.
    pub fn set(&mut self, at: usize, byte: u8) -> &mut Data {
        if at < self.length {
            self.bytes[at] = byte;
        }
        self
    }

    /// Sets the 16-bit number at offset `at`, if it is inside.
    pub fn set_u16(&mut self, at: usize, value: u16) -> &mut Data {
        let [high, low] = value.to_be_bytes();
        self.set(at, high).set(at + 1, low)
    }
}

impl Default for Data {
    fn default() -> Data {
        Data::new()
    }
}
