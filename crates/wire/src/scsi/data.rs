//! Data that a logical unit makes up itself: pages and lists of a few hundred bytes, big-endian.

/// The longest that there is.
pub const DATA_BYTES_MAX: usize = 256;

/// Some bytes, at most [`DATA_BYTES_MAX`]: what no longer fits is left out.
#[derive(Clone, Copy)]
pub struct Data {
    bytes: [u8; DATA_BYTES_MAX],
    length: usize,
}

impl Data {
    /// No bytes yet.
    pub const fn new() -> Data {
        Data { bytes: [0; DATA_BYTES_MAX], length: 0 }
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    /// Their number.
    pub const fn len(&self) -> usize {
        self.length
    }

    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// With these behind them.
    pub fn put(&mut self, more: &[u8]) -> &mut Data {
        let taken = more.len().min(DATA_BYTES_MAX - self.length);
        self.bytes[self.length..self.length + taken].copy_from_slice(&more[..taken]);
        self.length += taken;
        self
    }

    /// With so many zeros behind them.
    pub fn put_zeros(&mut self, count: usize) -> &mut Data {
        // What was never written is zero.
        self.length = (self.length + count).min(DATA_BYTES_MAX);
        self
    }

    /// With a 16-bit number behind them.
    pub fn put_u16(&mut self, value: u16) -> &mut Data {
        self.put(&value.to_be_bytes())
    }

    /// With a 32-bit number behind them.
    pub fn put_u32(&mut self, value: u32) -> &mut Data {
        self.put(&value.to_be_bytes())
    }

    /// With a 64-bit number behind them.
    pub fn put_u64(&mut self, value: u64) -> &mut Data {
        self.put(&value.to_be_bytes())
    }

    /// With the byte at this place set, if there is one.
    pub fn set(&mut self, at: usize, byte: u8) -> &mut Data {
        if at < self.length {
            self.bytes[at] = byte;
        }
        self
    }

    /// With the 16-bit number at this place set, if there is one.
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
