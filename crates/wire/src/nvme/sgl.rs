//! Scatter gather lists, the alternative to PRPs (NVMe base 2.0, 4.1.2).
//!
//! ```text
//!   command        segment                     last segment
//!   ┌─────────┐    ┌──────┬──────┬─────────┐   ┌──────┬────────┬──────┐
//!   │ segment ┼───►│ data │ data │ segment ┼──►│ data │ bucket │ data │
//!   └─────────┘    └──────┴──────┴─────────┘   └──────┴────────┴──────┘
//! ```
//!
//! A descriptor names memory of any length at any byte, or, in transfers to the host, bytes to discard (a
//! bit bucket). Unlike PRPs, a list is not bounded by the length of its command: [`SglWalk`] limits the
//! number of descriptors.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::layout;
use super::prp::Segment;
use super::status::Status;
use crate::BusAddr;

/// Bytes of a descriptor.
pub const DESCRIPTOR_BYTES: u32 = 16;

/// Maximum number of descriptors per command, including those of segments: a list that leads to itself ends
/// here. 1 MiB in pieces of 256 bytes takes this number.
pub const DESCRIPTORS_MAX: u32 = 4096;

/// Alignment of segments, bytes.
const SEGMENT_ALIGN: u64 = 8;

/// Types of descriptors (figure "SGL Descriptor Type").
mod kind {
    pub const DATA: u8 = 0;
    pub const BIT_BUCKET: u8 = 1;
    pub const SEGMENT: u8 = 2;
    pub const LAST_SEGMENT: u8 = 3;
}

/// A descriptor as it is in memory.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
#[repr(C)]
pub struct Descriptor {
    /// Address of the data or of the next segment.
    pub address: U64,
    /// Length in bytes.
    pub length: U32,
    /// Reserved.
    pub reserved12: [u8; 3],
    /// Type in bits 7:4, sub type in bits 3:0: 0 for an address.
    pub identifier: u8,
}

layout!(Descriptor, 16, { address @ 0, length @ 8, reserved12 @ 12, identifier @ 15 });

impl Descriptor {
    const fn new(kind: u8, at: BusAddr, bytes: u32) -> Descriptor {
        let (address, length) = (U64::new(at.0), U32::new(bytes));
        Descriptor { address, length, reserved12: [0; 3], identifier: kind << 4 }
    }

    /// A data block of `bytes` bytes; may be empty.
    pub const fn data(at: BusAddr, bytes: u32) -> Descriptor {
        Descriptor::new(kind::DATA, at, bytes)
    }

    /// A bit bucket of `bytes` bytes.
    pub const fn bit_bucket(bytes: u32) -> Descriptor {
        Descriptor::new(kind::BIT_BUCKET, BusAddr(0), bytes)
    }

    /// A segment of `descriptors` descriptors, the last of which leads to another segment.
    pub const fn segment(at: BusAddr, descriptors: u32) -> Descriptor {
        Descriptor::new(kind::SEGMENT, at, descriptors * DESCRIPTOR_BYTES)
    }

    /// The last segment, of `descriptors` descriptors.
    pub const fn last_segment(at: BusAddr, descriptors: u32) -> Descriptor {
        Descriptor::new(kind::LAST_SEGMENT, at, descriptors * DESCRIPTOR_BYTES)
    }

    /// Encodes as the two words of a command's data pointer.
    pub const fn to_words(self) -> (u64, u64) {
        let high = (self.identifier as u64) << 56
            | (self.reserved12[2] as u64) << 48
            | (self.reserved12[1] as u64) << 40
            | (self.reserved12[0] as u64) << 32;
        (self.address.get(), high | self.length.get() as u64)
    }

    /// Decodes the two words of a command's data pointer.
    pub const fn from_words(low: u64, high: u64) -> Descriptor {
        let reserved12 = [(high >> 32) as u8, (high >> 40) as u8, (high >> 48) as u8];
        let (address, length) = (U64::new(low), U32::new(high as u32));
        Descriptor { address, length, reserved12, identifier: (high >> 56) as u8 }
    }

    /// Address and number of descriptors of the segment that this leads to.
    ///
    /// # Errors
    /// Invalid SGL Segment Descriptor if it is empty, has a partial descriptor, or is not qword aligned.
    fn leads_to(&self) -> Result<(BusAddr, u32), Status> {
        let (at, bytes) = (self.address.get(), self.length.get());
        let whole = bytes > 0 && bytes.is_multiple_of(DESCRIPTOR_BYTES);
        if !whole || !at.is_multiple_of(SEGMENT_ALIGN) || at.checked_add(bytes.into()).is_none() {
            return Err(Status::INVALID_SGL_SEGMENT_DESCRIPTOR);
        }
        Ok((BusAddr(at), bytes / DESCRIPTOR_BYTES))
    }
}

/// Direction of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// To host memory: bit buckets consume data.
    ToHost,
    /// From host memory: bit buckets are ignored.
    FromHost,
}

/// A part of a command's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stretch {
    /// In host memory.
    Memory(Segment),
    /// Bytes to discard, never 0.
    Discarded(u64),
}

/// Position of the next descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Within {
    Command,
    /// In a segment whose last descriptor leads to another.
    Segment,
    LastSegment,
}

/// Walks a command's scatter gather list, without memory of its own and without I/O.
///
/// ```
/// use wire::BusAddr;
/// use wire::nvme::sgl::{Descriptor, Flow, SglWalk};
/// # let pieces = [Descriptor::data(BusAddr(0x7001), 100), Descriptor::data(BusAddr(0x9000), 412)];
/// # let read_host_memory = |_: BusAddr, list: &mut [Descriptor]| list.copy_from_slice(&pieces);
/// # let mut stretches = 0;
///
/// let first = Descriptor::last_segment(BusAddr(0x5008), 2);
/// let mut walk = SglWalk::new(512, Flow::ToHost);
/// walk.supply(&[first], &mut |stretch| stretches += 1)?;
/// let mut buffer = [Descriptor::default(); 64];
/// while let Some((at, descriptors)) = walk.wants() {
///     let list = &mut buffer[..64.min(descriptors as usize)];
///     read_host_memory(at, list);
///     walk.supply(list, &mut |stretch| stretches += 1)?;
/// }
/// walk.finish()?;
/// # assert_eq!(stretches, 2);
/// # Ok::<(), wire::nvme::status::Status>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct SglWalk {
    flow: Flow,
    /// Bytes of the command not yet described.
    left: u64,
    within: Within,
    /// Address of the next descriptor; the number left in the segment follows.
    at: BusAddr,
    descriptors: u32,
    /// Number of descriptors left before the walk fails.
    patience: u32,
}

impl SglWalk {
    /// Begins the walk of a command that moves `bytes` bytes, before its first descriptor.
    pub const fn new(bytes: u64, flow: Flow) -> SglWalk {
        let (at, patience) = (BusAddr(0), DESCRIPTORS_MAX);
        SglWalk { flow, left: bytes, within: Within::Command, at, descriptors: 1, patience }
    }

    /// Address and number of the next descriptors; `None` if all data are described or the list has ended.
    pub fn wants(&self) -> Option<(BusAddr, u32)> {
        (self.left > 0 && self.descriptors > 0).then_some((self.at, self.descriptors))
    }

    /// Takes the descriptor of the command, then those of [`wants`](Self::wants), or the first few of them.
    /// Descriptors beyond the command's length are ignored.
    ///
    /// # Errors
    /// NVMe base 2.0, 3.3.3.2.1.1: SGL Descriptor Type Invalid for an unknown type or sub type; Invalid SGL
    /// Segment Descriptor for an invalid segment, one behind the last, or a missing one; Invalid Number of
    /// SGL Descriptors for a segment that others follow, or too many descriptors. The walk has then ended.
    ///
    /// # Panics
    /// If these are more descriptors than needed.
    pub fn supply(
        &mut self,
        list: &[Descriptor],
        take: &mut impl FnMut(Stretch),
    ) -> Result<(), Status> {
        assert!(list.len() <= self.descriptors as usize, "more descriptors than were asked for");
        for descriptor in list {
            if self.left == 0 {
                return Ok(());
            }
            self.patience =
                self.patience.checked_sub(1).ok_or(Status::INVALID_SGL_DESCRIPTOR_COUNT)?;
            self.descriptors -= 1;
            self.at = BusAddr(self.at.0.wrapping_add(DESCRIPTOR_BYTES.into()));
            self.one(descriptor, take)?;
        }
        Ok(())
    }

    fn one(
        &mut self,
        descriptor: &Descriptor,
        take: &mut impl FnMut(Stretch),
    ) -> Result<(), Status> {
        const DATA: u8 = kind::DATA << 4;
        const BIT_BUCKET: u8 = kind::BIT_BUCKET << 4;
        const SEGMENT: u8 = kind::SEGMENT << 4;
        const LAST_SEGMENT: u8 = kind::LAST_SEGMENT << 4;
        let bytes = u64::from(descriptor.length.get()).min(self.left);
        match descriptor.identifier {
            DATA if bytes > 0 => {
                let addr = BusAddr(descriptor.address.get());
                take(Stretch::Memory(Segment { addr, bytes }));
                self.left -= bytes;
            }
            BIT_BUCKET if bytes > 0 && self.flow == Flow::ToHost => {
                take(Stretch::Discarded(bytes));
                self.left -= bytes;
            }
            DATA | BIT_BUCKET => {}
            SEGMENT => return self.follow(descriptor, Within::Segment),
            LAST_SEGMENT => return self.follow(descriptor, Within::LastSegment),
            _ => return Err(Status::SGL_DESCRIPTOR_TYPE_INVALID),
        }
        let unfinished = self.within == Within::Segment && self.descriptors == 0 && self.left > 0;
        if unfinished { Err(Status::INVALID_SGL_SEGMENT_DESCRIPTOR) } else { Ok(()) }
    }

    fn follow(&mut self, descriptor: &Descriptor, into: Within) -> Result<(), Status> {
        if self.within == Within::LastSegment {
            return Err(Status::INVALID_SGL_SEGMENT_DESCRIPTOR);
        }
        if self.descriptors > 0 {
            return Err(Status::INVALID_SGL_DESCRIPTOR_COUNT);
        }
        (self.at, self.descriptors) = descriptor.leads_to()?;
        self.within = into;
        Ok(())
    }

    /// Checks that all data are described. A list may be longer than the command's data.
    ///
    /// # Errors
    /// Data SGL Length Invalid if it is shorter.
    pub fn finish(&self) -> Result<(), Status> {
        if self.left == 0 { Ok(()) } else { Err(Status::DATA_SGL_LENGTH_INVALID) }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::vec;
    use std::vec::Vec;

    const COUNT: Status = Status::INVALID_SGL_DESCRIPTOR_COUNT;
    const SEGMENT: Status = Status::INVALID_SGL_SEGMENT_DESCRIPTOR;
    const TYPE: Status = Status::SGL_DESCRIPTOR_TYPE_INVALID;

    fn data(at: u64, bytes: u32) -> Descriptor {
        Descriptor::data(BusAddr(at), bytes)
    }

    fn here(at: u64, bytes: u64) -> Stretch {
        Stretch::Memory(Segment { addr: BusAddr(at), bytes })
    }

    /// Walks a list whose segments are at 1000h, 2000h and so on, N descriptors at a time.
    fn walk_by(
        first: Descriptor,
        segments: &[&[Descriptor]],
        bytes: u64,
        flow: Flow,
        most: usize,
    ) -> Result<Vec<Stretch>, Status> {
        let (mut walk, mut taken) = (SglWalk::new(bytes, flow), Vec::new());
        walk.supply(&[first], &mut |stretch| taken.push(stretch))?;
        while let Some((at, descriptors)) = walk.wants() {
            let (segment, offset) = (at.0 as usize / 0x1000 - 1, at.0 as usize % 0x1000 / 16);
            let list = &segments[segment][offset..][..descriptors as usize];
            let list = &list[..most.min(list.len())];
            walk.supply(list, &mut |stretch| taken.push(stretch))?;
        }
        walk.finish().map(|()| taken)
    }

    fn walk(
        first: Descriptor,
        segments: &[&[Descriptor]],
        bytes: u64,
    ) -> Result<Vec<Stretch>, Status> {
        let whole = walk_by(first, segments, bytes, Flow::ToHost, usize::MAX);
        assert_eq!(whole, walk_by(first, segments, bytes, Flow::ToHost, 1));
        whole
    }

    #[test]
    fn sgl_descriptor_matches_golden_bytes() {
        let golden = [8, 7, 6, 5, 4, 3, 2, 1, 0x30, 0, 0, 0, 0, 0, 0, 0x30];
        let descriptor = Descriptor::last_segment(BusAddr(0x0102_0304_0506_0708), 3);
        assert_eq!(descriptor.as_bytes(), golden);
        let words = (0x0102_0304_0506_0708, 0x3000_0000_0000_0030);
        assert_eq!(descriptor.to_words(), words);
        let odd = (1, 0xfe12_3456_789a_bcde);
        assert_eq!(Descriptor::from_words(odd.0, odd.1).to_words(), odd);
        assert_eq!(Descriptor::bit_bucket(5).to_words(), (0, 0x1000_0000_0000_0005));
        assert_eq!(Descriptor::segment(BusAddr(8), 1).to_words(), (8, 0x2000_0000_0000_0010));
        assert_eq!(data(3, 9).to_words(), (3, 9));
    }

    #[test]
    fn sgl_single_data_block_needs_no_segment() {
        assert_eq!(walk(data(0x1003, 512), &[], 512), Ok(vec![here(0x1003, 512)]));
        assert_eq!(walk(data(0x1003, 600), &[], 512), Ok(vec![here(0x1003, 512)]), "too long");
        assert_eq!(walk(data(0x1003, 511), &[], 512), Err(Status::DATA_SGL_LENGTH_INVALID));
        assert_eq!(walk(Descriptor::bit_bucket(512), &[], 512), Ok(vec![Stretch::Discarded(512)]));
    }

    #[test]
    fn sgl_segments_are_chained() {
        let first = Descriptor::segment(BusAddr(0x1000), 3);
        let second = Descriptor::last_segment(BusAddr(0x2000), 4);
        let segments: [&[_]; 2] = [
            &[data(0x7001, 3), data(0, 0), second],
            &[data(0x9000, 5), Descriptor::bit_bucket(2), data(0x8000, 100), data(1, 1)],
        ];
        let expected = [here(0x7001, 3), here(0x9000, 5), Stretch::Discarded(2), here(0x8000, 6)];
        assert_eq!(walk(first, &segments, 16), Ok(expected.to_vec()));
        let source = walk_by(first, &segments, 16, Flow::FromHost, usize::MAX);
        assert_eq!(source, Ok(vec![here(0x7001, 3), here(0x9000, 5), here(0x8000, 8)]));
        // Descriptors beyond the length of a shorter command are ignored.
        assert_eq!(walk(first, &segments[..1], 3), Ok(vec![here(0x7001, 3)]));
        let short = walk(first, &segments, 200);
        assert_eq!(short, Err(Status::DATA_SGL_LENGTH_INVALID));
    }

    #[test]
    fn sgl_rejects_invalid_segments() {
        let list: &[Descriptor] = &[data(0, 4); 4];
        for (bytes, at) in [(0, 0x1000), (15, 0x1000), (17, 0x1000), (32, 0x1004), (32, !7)] {
            for kind in [kind::SEGMENT, kind::LAST_SEGMENT] {
                let first = Descriptor::new(kind, BusAddr(at), bytes);
                assert_eq!(walk(first, &[list], 16), Err(SEGMENT), "{bytes} at {at:#x}");
            }
        }
        let qword = Descriptor::last_segment(BusAddr(0x1000), 4);
        assert!(walk(qword, &[list], 16).is_ok());
        // A segment that is not the last ends with data.
        assert_eq!(walk(Descriptor::segment(BusAddr(0x1000), 4), &[list], 17), Err(SEGMENT));
    }

    #[test]
    fn sgl_segment_descriptor_position() {
        let next = Descriptor::last_segment(BusAddr(0x2000), 1);
        let middle: [&[_]; 2] = [&[data(0, 4), next, data(0, 4)], &[data(0, 4)]];
        assert_eq!(walk(Descriptor::segment(BusAddr(0x1000), 3), &middle, 16), Err(COUNT));
        let last = Descriptor::last_segment(BusAddr(0x1000), 2);
        assert_eq!(walk(last, &middle, 16), Err(SEGMENT), "behind the last");
    }

    #[test]
    fn sgl_loop_ends_at_descriptor_limit() {
        let again = Descriptor::segment(BusAddr(0x1000), 1);
        assert_eq!(walk(again, &[&[again]], 512), Err(COUNT));
        let grows: &[_] = &[data(0, 1), Descriptor::segment(BusAddr(0x1000), 2)];
        assert_eq!(walk(Descriptor::segment(BusAddr(0x1000), 2), &[grows], 1 << 20), Err(COUNT));
        let many = vec![data(0, 1); DESCRIPTORS_MAX as usize];
        let (mut one_less, list) =
            (SglWalk::new(u64::from(DESCRIPTORS_MAX) - 1, Flow::ToHost), &many[..]);
        let first = Descriptor::last_segment(BusAddr(0x1000), DESCRIPTORS_MAX);
        one_less.supply(&[first], &mut |_| {}).unwrap();
        assert_eq!(one_less.supply(list, &mut |_| {}), Ok(()), "as many as there may be");
    }

    #[test]
    fn sgl_rejects_unknown_descriptor_types() {
        for identifier in 0..=u8::MAX {
            let strange = Descriptor { identifier, ..data(0x1000, 16) };
            let known = [0, 0x10, 0x20, 0x30].contains(&identifier);
            let alone = walk(strange, &[&[data(0, 512)]], 16);
            assert_eq!(alone.is_ok(), known, "{identifier:#x}: {alone:?}");
            assert!(known || alone == Err(TYPE));
        }
    }
}
