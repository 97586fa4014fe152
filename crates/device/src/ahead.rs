//! Prefetching for commands that come soon, while those before them are copied.
//!
//! Live, a command begins before the next one is looked at, and its copy waits for memory much of its time.
//! All lines of a burst, asked for at once, would delay its first command.

use std::iter::Take;

use media::Soon;

/// Distance from a command to the one whose [`Part::Head`] is prefetched.
const HEADS: usize = 2;
/// As [`HEADS`], of [`Part::Rest`].
const RESTS: usize = 1;

/// Bytes of [`Part::Head`].
const HEAD_BYTES: u32 = 512;
/// Bytes of [`Part::Rest`]; the processor's own prefetcher follows a copy from there.
const REST_BYTES: u32 = 1536;

/// Part of a command's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// The first bytes.
    Head,
    /// Bytes after them, if they are read: a copy does not wait for lines that it overwrites.
    Rest,
}

impl Part {
    /// The part of an access to `bytes` bytes. `None`: there is none.
    #[inline]
    pub fn of(self, bytes: u32, to_write: bool) -> Option<Soon> {
        match self {
            Part::Head => Some(Soon { from: 0, bytes: bytes.min(HEAD_BYTES), to_write }),
            Part::Rest if to_write || bytes <= HEAD_BYTES => None,
            Part::Rest => {
                let bytes = (bytes - HEAD_BYTES).min(REST_BYTES);
                Some(Soon { from: HEAD_BYTES, bytes, to_write })
            }
        }
    }
}

/// The entries of a burst, in order. Before each is returned, `ask` is called with those that come soon.
pub(crate) struct Ahead<I, F> {
    entries: I,
    heads: Take<I>,
    rests: Take<I>,
    ask: F,
}

impl<I: Iterator + Clone, F: FnMut(I::Item, Part)> Ahead<I, F> {
    /// Without `hints`, nothing is asked for.
    #[inline]
    pub fn new(entries: I, hints: bool, mut ask: F) -> Ahead<I, F> {
        let all = if hints { usize::MAX } else { 0 };
        let (mut heads, mut rests) = (entries.clone().take(all), entries.clone().take(all));
        heads.by_ref().take(HEADS).for_each(|entry| ask(entry, Part::Head));
        rests.by_ref().take(RESTS).for_each(|entry| ask(entry, Part::Rest));
        Ahead { entries, heads, rests, ask }
    }
}

impl<I: Iterator, F: FnMut(I::Item, Part)> Iterator for Ahead<I, F> {
    type Item = I::Item;

    #[inline]
    fn next(&mut self) -> Option<I::Item> {
        if let Some(entry) = self.heads.next() {
            (self.ask)(entry, Part::Head);
        }
        if let Some(entry) = self.rests.next() {
            (self.ask)(entry, Part::Rest);
        }
        self.entries.next()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parts that are asked for, before each entry and at the beginning.
    fn asked(entries: usize, hints: bool) -> Vec<Vec<(usize, Part)>> {
        let seen = std::cell::RefCell::new(Vec::new());
        let mut all = Vec::new();
        let ahead =
            Ahead::new(0..entries, hints, |entry, part| seen.borrow_mut().push((entry, part)));
        for entry in ahead {
            assert_eq!(entry, all.len());
            all.push(seen.take());
        }
        assert!(seen.take().is_empty());
        all
    }

    #[test]
    fn heads_come_two_commands_before_and_rests_one() {
        use Part::{Head, Rest};
        let first = vec![(0, Head), (1, Head), (0, Rest), (2, Head), (1, Rest)];
        assert_eq!(asked(4, true), [first, vec![(3, Head), (2, Rest)], vec![(3, Rest)], vec![]]);
        assert_eq!(asked(1, true), [vec![(0, Head), (0, Rest)]]);
        assert_eq!(asked(3, false), [vec![], vec![], vec![]]);
    }

    #[test]
    fn parts_lie_inside_the_access() {
        for (bytes, head, rest) in [(512, 512, 0), (1024, 512, 512), (4096, 512, 1536), (64, 64, 0)]
        {
            let found = [Part::Head, Part::Rest].map(|part| part.of(bytes, false));
            assert_eq!(found[0].map(|soon| (soon.from, soon.bytes)), Some((0, head)));
            assert_eq!(found[1].map_or(0, |soon| soon.bytes), rest);
            assert!(found[1].is_none_or(|soon| soon.from == HEAD_BYTES));
            let written = [Part::Head, Part::Rest].map(|part| part.of(bytes, true));
            assert_eq!(written, [Some(Soon { from: 0, bytes: head, to_write: true }), None]);
        }
    }
}
