//! Scatter and gather at segment boundaries, shared by all buses.

use crate::{Carry, DmaError, Flags, Payload, Posting, Segment};
use wire::BusAddr;
use wire::pcie::Pieces;

/// Fills `to` from the segments, in order; `get` reads one piece.
pub(crate) fn gather(
    from: &[Segment],
    mut to: &mut [u8],
    carry: Carry,
    mut get: impl FnMut(BusAddr, &mut [u8]) -> Result<(), DmaError>,
) -> Result<(), DmaError> {
    let mut offset = 0;
    for segment in from {
        let bytes = (segment.bytes as usize).min(to.len());
        let (part, rest) = to.split_at_mut(bytes);
        match carry {
            Carry::All => get(segment.at, part)?,
            Carry::Heads { bytes: head, of } => {
                let (head, of) = (head as usize, of as usize);
                // A boundary may cut a head; begin with the head that contains the segment's first byte.
                let mut begin = offset / of * of;
                while begin < offset + bytes {
                    let low = begin.max(offset) - offset;
                    let high = (begin + head).clamp(offset, offset + bytes) - offset;
                    if low < high {
                        get(BusAddr(segment.at.0 + low as u64), &mut part[low..high])?;
                    }
                    begin += of;
                }
            }
        }
        offset += bytes;
        to = rest;
    }
    Ok(())
}

/// Fills `to` with the bytes from `offset` in the segments on; `get` reads one piece.
#[cfg(feature = "std")]
#[inline]
pub(crate) fn gather_from(
    from: &[Segment],
    offset: u32,
    mut to: &mut [u8],
    mut get: impl FnMut(BusAddr, &mut [u8]) -> Result<(), DmaError>,
) -> Result<(), DmaError> {
    let mut skipped = offset;
    for segment in from {
        if skipped >= segment.bytes {
            skipped -= segment.bytes;
            continue;
        }
        let bytes = ((segment.bytes - skipped) as usize).min(to.len());
        let (part, rest) = to.split_at_mut(bytes);
        get(BusAddr(segment.at.0 + u64::from(skipped)), part)?;
        (to, skipped) = (rest, 0);
        if to.is_empty() {
            break;
        }
    }
    Ok(())
}

/// Calls `put` with the runs of a payload, cut at segment boundaries: address, bytes, offset in the
/// payload.
#[inline]
pub(crate) fn scatter<P: Payload + ?Sized>(
    to: &[Segment],
    what: &P,
    mut put: impl FnMut(BusAddr, &[u8], u32) -> Result<(), DmaError>,
) -> Result<(), DmaError> {
    let (mut segment, mut before) = (0, 0);
    let mut result = Ok(());
    what.runs(&mut |offset, mut run| {
        let mut offset = offset;
        while !run.is_empty() && segment < to.len() && result.is_ok() {
            let here = to[segment];
            if offset >= before + here.bytes {
                before += here.bytes;
                segment += 1;
                continue;
            }
            let into = offset - before;
            let length = run.len().min((here.bytes - into) as usize);
            result = put(BusAddr(here.at.0 + u64::from(into)), &run[..length], offset);
            run = &run[length..];
            offset += length as u32;
        }
    })?;
    result
}

/// Destination of [`scatter_flagged`].
pub(crate) trait Sink {
    fn put(&mut self, at: BusAddr, run: &[u8]) -> Result<(), DmaError>;
    /// Stores a flag, after the bytes that it announces.
    fn flag(&mut self, at: BusAddr, word: u32) -> Result<(), DmaError>;
    /// As [`flag`](Self::flag), of eight bytes.
    fn wide_flag(&mut self, at: BusAddr, word: u64) -> Result<(), DmaError>;
}

/// [`scatter`], with flag words passed separately; flags that no run covers are zero.
pub(crate) fn scatter_flagged<P: Payload + ?Sized>(
    to: &[Segment],
    what: &P,
    how: Posting,
    sink: &mut impl Sink,
) -> Result<(), DmaError> {
    let length = if how.wide { 8 } else { 4 };
    if let ([to], Flags::Last) = (to, how.flags)
        && to.bytes >= length
    {
        return scatter_ended(*to, what, length, sink);
    }
    let mut places = places(to, how.flags, length);
    let mut next = places.next();
    let mut word = [0; 8];
    let flag = |sink: &mut _, at, word: &mut [u8; 8]| {
        let flag = u64::from_le_bytes(core::mem::take(word));
        if how.wide { Sink::wide_flag(sink, at, flag) } else { Sink::flag(sink, at, flag as u32) }
    };
    scatter(to, what, |at, mut run, offset| {
        let (mut at, mut offset) = (at, offset);
        while let Some((place, flag_at)) = next {
            let end = offset + run.len() as u32;
            let before = place.saturating_sub(offset).min(end - offset) as usize;
            if before > 0 {
                sink.put(at, &run[..before])?;
            }
            let inside = offset.max(place)..end.min(place + length);
            for byte in inside.clone() {
                word[(byte - place) as usize] = run[(byte - offset) as usize];
            }
            if end < place + length {
                return Ok(());
            }
            flag(sink, flag_at, &mut word)?;
            let done = (place + length).saturating_sub(offset);
            (at, offset) = (BusAddr(at.0 + u64::from(done)), offset + done);
            run = &run[done as usize..];
            next = places.next();
        }
        if run.is_empty() { Ok(()) } else { sink.put(at, run) }
    })?;
    while let Some((_, flag_at)) = next {
        flag(sink, flag_at, &mut word)?;
        next = places.next();
    }
    Ok(())
}

/// [`scatter_flagged`] with one segment, whose last `length` bytes are the only flag.
fn scatter_ended<P: Payload + ?Sized>(
    to: Segment,
    what: &P,
    length: u32,
    sink: &mut impl Sink,
) -> Result<(), DmaError> {
    let place = to.bytes - length;
    let mut word = [0; 8];
    scatter(&[to], what, |at, run, offset| {
        let before = run.len().min(place.saturating_sub(offset) as usize);
        let (body, end) = run.split_at(before);
        if !end.is_empty() {
            let from = (offset + before as u32 - place) as usize;
            word[from..from + end.len()].copy_from_slice(end);
        }
        if body.is_empty() { Ok(()) } else { sink.put(at, body) }
    })?;
    let at = BusAddr(to.at.0.wrapping_add(u64::from(place)));
    match length {
        8 => sink.wide_flag(at, u64::from_le_bytes(word)),
        _ => sink.flag(at, u64::from_le_bytes(word) as u32),
    }
}

/// The flags of a transfer, each of `length` bytes: offset in the payload, and bus address.
fn places(to: &[Segment], flags: Flags, length: u32) -> impl Iterator<Item = (u32, BusAddr)> {
    let whole: u32 = to.iter().map(|segment| segment.bytes).sum();
    let mut before = 0;
    to.iter().flat_map(move |segment| {
        let (at, begin) = (segment.at.0, before);
        before += segment.bytes;
        let last = before == whole && flags == Flags::Last;
        let last = (last && segment.bytes >= length).then_some(u64::from(segment.bytes));
        let packets = match flags {
            Flags::EachPacket(payload) => Some(Pieces::new(at, u64::from(segment.bytes), payload)),
            Flags::None | Flags::Last => None,
        };
        let ends = packets.into_iter().flatten().map(|piece| piece.offset + u64::from(piece.bytes));
        // A malicious host names addresses that wrap: the data that lead there are refused before the flag.
        let long = u64::from(length);
        let word =
            move |end: u64| (begin + end as u32 - length, BusAddr(at.wrapping_add(end - long)));
        ends.chain(last).filter(move |end| *end >= long).map(word)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use alloc::vec::Vec;

    const SEGMENTS: [Segment; 3] = [
        Segment { at: BusAddr(0), bytes: 6 },
        Segment { at: BusAddr(20), bytes: 1 },
        Segment { at: BusAddr(40), bytes: 9 },
    ];

    #[test]
    fn gather_from_offset_returns_rest_of_scattered_data() {
        let data: Vec<u8> = (1..=16).collect();
        let mut memory = [0; 64];
        scatter(&SEGMENTS, &data[..], |at, run, _| {
            memory[at.0 as usize..][..run.len()].copy_from_slice(run);
            Ok(())
        })
        .unwrap();
        for (offset, bytes) in [(0, 16), (0, 6), (3, 3), (5, 3), (6, 1), (6, 10), (7, 4), (15, 1)] {
            let mut seen = vec![0; bytes];
            gather_from(&SEGMENTS, offset as u32, &mut seen, |at, part| {
                part.copy_from_slice(&memory[at.0 as usize..][..part.len()]);
                Ok(())
            })
            .unwrap();
            assert_eq!(seen, data[offset..offset + bytes], "{bytes} from {offset}");
        }
    }

    /// Memory that refuses all addresses.
    struct Nowhere;

    impl Sink for Nowhere {
        fn put(&mut self, at: BusAddr, run: &[u8]) -> Result<(), DmaError> {
            Err(crate::OutOfRange { at, bytes: run.len() }.into())
        }

        fn flag(&mut self, at: BusAddr, _: u32) -> Result<(), DmaError> {
            Err(crate::OutOfRange { at, bytes: 4 }.into())
        }

        fn wide_flag(&mut self, at: BusAddr, _: u64) -> Result<(), DmaError> {
            Err(crate::OutOfRange { at, bytes: 8 }.into())
        }
    }

    #[test]
    fn segment_at_end_of_address_space_is_refused() {
        for at in [u64::MAX, u64::MAX - 3, u64::MAX - 15, u64::MAX - 127] {
            for (flags, wide) in
                [(Flags::None, false), (Flags::Last, true), (Flags::EachPacket(128), false)]
            {
                let to = [Segment { at: BusAddr(at), bytes: 256 }];
                let how = Posting { relaxed: false, flags, wide };
                let result = scatter_flagged(&to, &[7; 256][..], how, &mut Nowhere);
                assert!(result.is_err(), "{how:?} at {at:#x}");
            }
        }
    }

    #[test]
    fn gather_returns_scattered_data() {
        let data: Vec<u8> = (1..=16).collect();
        let mut memory = [0; 64];
        scatter(&SEGMENTS, &data[..], |at, run, offset| {
            assert_eq!(run[0], offset as u8 + 1);
            memory[at.0 as usize..][..run.len()].copy_from_slice(run);
            Ok(())
        })
        .unwrap();
        let mut back = vec![0; 16];
        gather(&SEGMENTS, &mut back, Carry::All, |at, part| {
            part.copy_from_slice(&memory[at.0 as usize..][..part.len()]);
            Ok(())
        })
        .unwrap();
        assert_eq!(back, data);
    }

    #[test]
    fn gather_of_heads_across_segment_boundaries() {
        let mut seen = Vec::new();
        let mut to = [0; 16];
        gather(&SEGMENTS, &mut to, Carry::Heads { bytes: 3, of: 5 }, |at, part| {
            seen.push((at.0, part.len()));
            Ok(())
        })
        .unwrap();
        // Heads 0..3, 5..8, 10..13, 15..16, cut at 6 and 7.
        assert_eq!(seen, [(0, 3), (5, 1), (20, 1), (40, 1), (43, 3), (48, 1)]);
    }

    #[derive(Default)]
    struct Seen(Vec<(u64, Vec<u8>)>, Vec<(u64, u32)>, Vec<(u64, u64)>);

    impl Sink for Seen {
        fn put(&mut self, at: BusAddr, run: &[u8]) -> Result<(), DmaError> {
            self.0.push((at.0, run.to_vec()));
            Ok(())
        }
        fn flag(&mut self, at: BusAddr, word: u32) -> Result<(), DmaError> {
            self.1.push((at.0, word));
            Ok(())
        }
        fn wide_flag(&mut self, at: BusAddr, word: u64) -> Result<(), DmaError> {
            self.2.push((at.0, word));
            Ok(())
        }
    }

    /// Hands out only the runs that it is made of.
    struct Runs(Vec<(u32, Vec<u8>)>);

    impl Payload for Runs {
        fn runs(&self, put: &mut dyn FnMut(u32, &[u8])) -> Result<(), crate::Unreadable> {
            self.0.iter().for_each(|(offset, run)| put(*offset, run));
            Ok(())
        }
    }

    fn each(wide: bool) -> Posting {
        Posting { flags: Flags::EachPacket(128), wide, ..Posting::STRICT }
    }

    #[test]
    fn scatter_passes_last_doubleword_of_each_packet_as_wide_flag() {
        let to = [Segment { at: BusAddr(0x1000), bytes: 296 }];
        // The runs cut the second flag, and leave the third out.
        let what = Runs(vec![(0, vec![1; 252]), (252, vec![2; 4])]);
        let mut seen = Seen::default();
        scatter_flagged(&to, &what, each(true), &mut seen).unwrap();
        let cut = u64::from_le_bytes([1, 1, 1, 1, 2, 2, 2, 2]);
        assert_eq!(seen.2, [(0x1078, u64::from_le_bytes([1; 8])), (0x10f8, cut), (0x1120, 0)]);
        let puts: Vec<_> = seen.0.iter().map(|(at, run)| (at - 0x1000, run.len())).collect();
        assert_eq!((puts, seen.1), (vec![(0, 120), (128, 120)], vec![]));
    }

    #[test]
    fn scatter_passes_last_word_of_each_packet_as_flag() {
        let to = [Segment { at: BusAddr(0x1000), bytes: 300 }];
        let data: Vec<u8> = (0..300).map(|i| i as u8).collect();
        let mut seen = Seen::default();
        scatter_flagged(&to, &data[..], each(false), &mut seen).unwrap();
        let flags: Vec<_> = seen.1.iter().map(|(at, _)| at - 0x1000).collect();
        assert_eq!(flags, [124, 252, 296]);
        assert_eq!(seen.1[0].1.to_le_bytes(), [124, 125, 126, 127]);
        let lengths: Vec<_> = seen.0.iter().map(|(at, run)| (at - 0x1000, run.len())).collect();
        assert_eq!(lengths, [(0, 124), (128, 124), (256, 40)]);
    }

    #[test]
    fn uncovered_flag_is_zero_and_split_flag_is_whole() {
        let to = [Segment { at: BusAddr(0x1000), bytes: 384 }];
        let what = Runs(vec![(0, vec![1; 8]), (250, vec![2; 4]), (254, vec![3; 60])]);
        let mut seen = Seen::default();
        scatter_flagged(&to, &what, each(false), &mut seen).unwrap();
        let cut = u32::from_le_bytes([2, 2, 3, 3]);
        assert_eq!(seen.1, [(0x107c, 0), (0x10fc, cut), (0x117c, 0)]);
        let puts: Vec<_> = seen.0.iter().map(|(at, run)| (at - 0x1000, run.len())).collect();
        assert_eq!(puts, [(0, 8), (250, 2), (256, 58)]);
        let mut seen = Seen::default();
        scatter_flagged(&to, &what, Posting { flags: Flags::Last, ..Posting::STRICT }, &mut seen)
            .unwrap();
        assert_eq!(seen.1, [(0x117c, 0)]);
    }
}
