//! Bits that copies share until one of them changes: a copy of a drive that is only read needs none of
//! its own.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Deref;

/// Words of bits. Those that were never shared are changed as those of a vector are.
#[derive(Clone)]
pub(crate) enum Bits {
    Own(Vec<u64>),
    Shared(Arc<Vec<u64>>),
}

impl Bits {
    /// All zero.
    pub fn new(bits: usize) -> Bits {
        Bits::Own(alloc::vec![0; bits.div_ceil(64)])
    }

    /// From now on copies take no memory until they change.
    pub fn share(&mut self) {
        if let Bits::Own(words) = self {
            *self = Bits::Shared(Arc::new(core::mem::take(words)));
        }
    }

    /// The words, to be changed.
    #[inline]
    pub fn own(&mut self) -> &mut [u64] {
        if let Bits::Shared(_) = self {
            self.copy();
        }
        match self {
            Bits::Own(words) => words,
            Bits::Shared(_) => unreachable!("its own now"),
        }
    }

    #[cold]
    fn copy(&mut self) {
        if let Bits::Shared(words) = self {
            *self = Bits::Own(Arc::unwrap_or_clone(core::mem::take(words)));
        }
    }
}

impl Deref for Bits {
    type Target = [u64];

    #[inline]
    fn deref(&self) -> &[u64] {
        match self {
            Bits::Own(words) => words,
            Bits::Shared(words) => words,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_bits_are_copied_by_the_first_change() {
        let mut first = Bits::new(100);
        first.own()[1] = 5;
        first.share();
        let mut copy = first.clone();
        assert_eq!(first.as_ptr(), copy.as_ptr());
        copy.own()[1] |= 2;
        assert_eq!((first[1], copy[1]), (5, 7));
        drop(copy);
        let place = first.as_ptr();
        first.own()[0] = 1;
        assert_eq!(
            (first.as_ptr(), &first[..]),
            (place, &[1, 5][..]),
            "the last one copies nothing"
        );
    }
}
