//! Prefetching for commands that come soon, while those before them are copied.
//!
//! Live, a command begins before the next one is looked at, and its copy waits for memory much of its time.
//! All lines of a burst, asked for at once, would delay its first command. One line of each longer command
//! does not, and the translations of their addresses are then looked up side by side. A lone command's copy
//! comes at once: of long data, only that translation is worth asking for.

use media::{Extent, Media, Soon};

/// Distance from a command to the one whose [`Part::First`] is prefetched.
const FIRSTS: usize = 4;
/// As [`FIRSTS`], of [`Part::Head`].
const HEADS: usize = 2;
/// As [`FIRSTS`], of [`Part::Rest`].
const RESTS: usize = 1;

/// Commands whose moves are kept.
const KEPT: usize = 8;
const _: () = assert!(KEPT > FIRSTS && FIRSTS > HEADS && HEADS > RESTS);

/// Bytes of [`Part::First`].
const FIRST_BYTES: u32 = 64;
/// Bytes of [`Part::Head`].
const HEAD_BYTES: u32 = 512;
/// Bytes of [`Part::Rest`]; the processor's own prefetcher follows a copy from there.
const REST_BYTES: u32 = 2048;

/// Part of a command's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// The first line, for the translation of its address, of data that are longer than a head. Shorter data
    /// gain nothing.
    First,
    /// The first bytes.
    Head,
    /// Bytes after them, if they are read: a copy does not wait for lines that it overwrites.
    Rest,
}

/// The data of a read or a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moves {
    /// First block.
    pub block: u64,
    pub bytes: u32,
    pub to_write: bool,
}

impl Moves {
    /// `None`: there is no such part.
    #[inline]
    fn part(self, part: Part) -> Option<Soon> {
        let (from, most) = match part {
            Part::Head => (0, HEAD_BYTES),
            _ if self.bytes <= HEAD_BYTES => return None,
            Part::First => (0, FIRST_BYTES),
            Part::Rest if self.to_write => return None,
            Part::Rest => (HEAD_BYTES, REST_BYTES),
        };
        Some(Soon { from, bytes: (self.bytes - from).min(most), to_write: self.to_write })
    }

    /// The part that is prefetched of a command that has no other beside it.
    #[inline]
    fn lone_part(self) -> Part {
        if self.bytes > HEAD_BYTES { Part::First } else { Part::Head }
    }

    /// A hint to the medium, which has the first block.
    #[inline]
    pub fn prefetch(self, part: Part, media: &impl Media) {
        if let Some(soon) = self.part(part) {
            media.prefetch(Extent { block: self.block, blocks: 1 }, soon);
        }
    }
}

/// Data of the commands that come soon.
struct Coming<A> {
    /// Moves of an entry, at its number modulo the length.
    found: [Option<Moves>; KEPT],
    ask: A,
}

impl<A: FnMut(Moves, Part)> Coming<A> {
    /// Keeps the moves of entry `number`; `None` also after the last entry.
    #[inline(always)]
    fn keep(&mut self, number: usize, moves: Option<Moves>) {
        self.found[number % KEPT] = moves;
        if number > 0 {
            // The head of the first one comes at once.
            self.ask_for(number, Part::First);
        }
    }

    #[inline(always)]
    fn ask_for(&mut self, number: usize, part: Part) {
        if let Some(moves) = self.found[number % KEPT] {
            (self.ask)(moves, part);
        }
    }
}

/// Calls `begin` for each entry of a burst, in order. `find` is called once for each, before `begin` for
/// those before it, and `ask` with the parts that come soon; without `hints`, neither.
#[inline(always)]
pub(crate) fn each<I: Iterator + Clone>(
    entries: I,
    hints: bool,
    mut find: impl FnMut(I::Item) -> Option<Moves>,
    mut ask: impl FnMut(Moves, Part),
    mut begin: impl FnMut(I::Item),
) {
    let mut later = entries.clone();
    let is_lone = entries.clone().nth(1).is_none();
    if hints
        && is_lone
        && let Some(moves) = later.next().and_then(&mut find)
    {
        ask(moves, moves.lone_part());
    }
    if !hints || is_lone {
        return entries.for_each(begin);
    }
    let mut coming = Coming { found: [None; KEPT], ask };
    (0..FIRSTS).for_each(|number| coming.keep(number, later.next().and_then(&mut find)));
    (0..HEADS).for_each(|number| coming.ask_for(number, Part::Head));
    (0..RESTS).for_each(|number| coming.ask_for(number, Part::Rest));
    for (number, entry) in entries.enumerate() {
        coming.keep(number + FIRSTS, later.next().and_then(&mut find));
        coming.ask_for(number + HEADS, Part::Head);
        coming.ask_for(number + RESTS, Part::Rest);
        begin(entry);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parts that are asked for, before each entry and at the beginning. Entries of odd numbers move nothing.
    fn asked(entries: u64, hints: bool) -> Vec<Vec<(u64, Part)>> {
        let seen = std::cell::RefCell::new(Vec::new());
        let find =
            |block| (block % 2 == 0).then_some(Moves { block, bytes: 4096, to_write: false });
        let ask = |moves: Moves, part| seen.borrow_mut().push((moves.block, part));
        let mut all = Vec::new();
        each(0..entries, hints, find, ask, |entry| {
            assert_eq!(entry, all.len() as u64);
            all.push(seen.take());
        });
        assert!(seen.take().is_empty());
        all
    }

    #[test]
    fn first_lines_come_four_commands_before_heads_two_and_rests_one() {
        use Part::{First, Head, Rest};
        let few = vec![(2, First), (0, Head), (0, Rest), (2, Head)];
        assert_eq!(asked(4, true), [few, vec![(2, Rest)], vec![], vec![]]);
        assert_eq!(asked(1, true), [vec![(0, First)]]);
        assert_eq!(asked(3, false), [vec![], vec![], vec![]]);
        assert_eq!(asked(0, true), Vec::<Vec<_>>::new());

        let many = asked(20, true);
        let begin = vec![(2, First), (0, Head), (0, Rest), (4, First), (2, Head)];
        assert_eq!(many[0], begin);
        assert_eq!(many[1], [(2, Rest)]);
        assert_eq!(many[10], [(14, First), (12, Head)]);
        assert_eq!(many[16], [(18, Head)], "none is of the entry eight before");
        assert_eq!(many[17], [(18, Rest)]);
        let each = many.concat();
        for part in [First, Head, Rest] {
            let of: Vec<u64> =
                each.iter().filter(|(_, one)| *one == part).map(|(number, _)| *number).collect();
            let from = if part == First { 2 } else { 0 };
            assert_eq!(of, (from..20).step_by(2).collect::<Vec<_>>(), "{part:?}");
        }
    }

    #[test]
    fn parts_lie_inside_the_access() {
        use Part::{First, Head};
        for (bytes, first, head, rest, lone) in [
            (512, 0, 512, 0, Head),
            (1024, 64, 512, 512, First),
            (4096, 64, 512, 2048, First),
            (32, 0, 32, 0, Head),
        ] {
            for to_write in [false, true] {
                let part = |part| Moves { block: 9, bytes, to_write }.part(part);
                let soon = |from, bytes| (bytes > 0).then_some(Soon { from, bytes, to_write });
                assert_eq!(part(First), soon(0, first));
                assert_eq!(part(Head), soon(0, head));
                assert_eq!(Moves { block: 9, bytes, to_write }.lone_part(), lone);
                assert_eq!(part(Part::Rest), soon(HEAD_BYTES, if to_write { 0 } else { rest }));
            }
        }
    }
}
