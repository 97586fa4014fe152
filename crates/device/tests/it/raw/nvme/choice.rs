//! Sources of a script's choices: a seed, or a fuzzer's bytes.

use runtime::Rng;

pub trait Choice {
    /// A number below `n`, which is not zero.
    fn below(&mut self, n: u64) -> u64;

    /// A random number of 64 bits.
    fn word(&mut self) -> u64;

    /// True if the source is exhausted; later choices are zero.
    fn is_over(&self) -> bool;

    /// True in one case of `n`.
    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == n - 1
    }

    /// A random one of `items`.
    fn of<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len() as u64) as usize]
    }
}

impl Choice for Rng {
    fn below(&mut self, n: u64) -> u64 {
        Rng::below(self, n)
    }

    fn word(&mut self) -> u64 {
        self.next_u64()
    }

    fn is_over(&self) -> bool {
        false
    }
}

/// The bytes of a fuzzer: small choices take one, large ones eight.
pub struct Bytes<'a>(pub &'a [u8]);

impl Bytes<'_> {
    fn take(&mut self, count: usize) -> u64 {
        let (now, later) = self.0.split_at(count.min(self.0.len()));
        self.0 = later;
        now.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte))
    }
}

impl Choice for Bytes<'_> {
    fn below(&mut self, n: u64) -> u64 {
        let bytes = match n {
            0..=0x100 => 1,
            0x101..=0x1_0000 => 2,
            _ => 8,
        };
        self.take(bytes) % n
    }

    fn word(&mut self) -> u64 {
        self.take(8)
    }

    fn is_over(&self) -> bool {
        self.0.is_empty()
    }
}
