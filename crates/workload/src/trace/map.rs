//! Mapping of the devices or files of a trace onto one device.

use std::collections::BTreeMap;
use std::io::BufRead;

use super::{Reader, TraceError, TraceKind, TraceOp, TraceWrong};
use crate::limits::{TRACE_DEVICES_MAX, TRACE_EXTENT_BYTES};
use crate::pattern::{Durability, Op, OpKind, Target};
use runtime::Span;

/// Mapping of the extents of a trace onto the capacity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mapping {
    /// End to end in order of first appearance; an error if they do not fit.
    #[default]
    Concatenate,
    /// End to end, then modulo the capacity: distinct offsets may coincide; locality within a device is
    /// preserved.
    Modulo,
}

/// The part of one device that a trace touches, in whole MiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The trace's number for the device.
    pub device: u32,
    /// The lowest byte touched, rounded down to 1 MiB.
    pub from: u64,
    /// The end of the highest byte touched, rounded up to 1 MiB.
    pub to: u64,
}

impl Extent {
    /// Whole MiB, also where the end of the highest byte is the last of 64 bits.
    fn bytes(&self) -> u128 {
        u128::from(self.to - self.from).next_multiple_of(TRACE_EXTENT_BYTES.into())
    }

    fn widen(&mut self, op: &TraceOp) {
        let is_empty = self.from == self.to;
        let to = op.offset_bytes.saturating_add(u64::from(op.bytes));
        self.from = self.from.min(op.offset_bytes / TRACE_EXTENT_BYTES * TRACE_EXTENT_BYTES);
        // Near 2^64 the rounding itself must not wrap.
        let rounded = to.checked_next_multiple_of(TRACE_EXTENT_BYTES).unwrap_or(u64::MAX);
        self.to = if is_empty { rounded } else { self.to.max(rounded) };
    }
}

/// The read or write of a trace that takes the largest buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Longest {
    /// Length in whole blocks of the target, in bytes.
    pub bytes: u32,
    /// Its line, from 1.
    pub line: u64,
}

/// Result of the first pass over a trace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extents {
    /// The devices, in order of first appearance in a read, write or trim.
    pub devices: Vec<Extent>,
    /// Number of operations of each kind.
    pub counts: BTreeMap<TraceKind, u64>,
    /// Number of writes with a flush before them.
    pub preflushes: u64,
    /// Number of writes with FUA.
    pub fuas: u64,
    /// Bytes read and written.
    pub bytes: u64,
    /// From the first operation to the last.
    pub span: Span,
    /// `None` if nothing is read or written.
    pub longest: Option<Longest>,
    /// Requests, and parts of their meaning, that are not replayed, by kind.
    pub left_out: BTreeMap<String, u64>,
    /// The line whose operation takes the extents beyond the capacity.
    beyond: Option<u64>,
    /// Bytes of all extents, laid end to end.
    linear_bytes: u128,
    index: BTreeMap<u32, usize>,
}

/// First and last byte of an operation in whole blocks: widened, or of a trim narrowed, because blocks that
/// it covers partly must keep their data. `None` if it then covers no block.
fn in_blocks(kind: TraceKind, from: u128, bytes: u32, block: u32) -> Option<(u128, u128)> {
    let (end, block) = (from + u128::from(bytes), u128::from(block));
    let (from, to) = match kind {
        TraceKind::Trim => (from.next_multiple_of(block), end / block * block),
        _ => (from / block * block, end.next_multiple_of(block)),
    };
    (from < to).then_some((from, to))
}

impl Extents {
    /// Reads a whole trace that is to be mapped onto `target`.
    ///
    /// # Errors
    /// The trace's first mistake, or if it is empty, has too many devices, or an operation longer than the
    /// target.
    pub fn scan<R: BufRead>(reader: &mut Reader<R>, target: Target) -> Result<Extents, TraceError> {
        let mut extents = Extents::default();
        let file = reader.file().to_owned();
        let wrap = |line, wrong| TraceError { file: file.clone(), line, wrong };
        while let Some(op) = reader.next() {
            let line = reader.line();
            extents.see(&op?, line, target).map_err(|wrong| wrap(line, wrong))?;
        }
        if extents.counts.is_empty() {
            return Err(wrap(0, TraceWrong::Empty));
        }
        for (kind, count) in reader.left_out() {
            *extents.left_out.entry(kind.clone()).or_default() += count;
        }
        Ok(extents)
    }

    fn see(&mut self, op: &TraceOp, line: u64, target: Target) -> Result<(), TraceWrong> {
        *self.counts.entry(op.kind).or_default() += 1;
        self.span = self.span.max(op.at);
        if op.kind == TraceKind::Flush {
            return Ok(());
        }
        self.measure(op, line, target)?;
        let next = self.devices.len();
        let at = *self.index.entry(op.device).or_insert(next);
        if at == next {
            if next == TRACE_DEVICES_MAX {
                return Err(TraceWrong::TooManyDevices);
            }
            self.devices.push(Extent { device: op.device, from: u64::MAX, to: u64::MAX });
        }
        let extent = &mut self.devices[at];
        self.linear_bytes -= extent.bytes();
        extent.widen(op);
        self.linear_bytes += extent.bytes();
        if self.beyond.is_none() && self.linear_bytes > u128::from(target.capacity_bytes) {
            self.beyond = Some(line);
        }
        Ok(())
    }

    fn measure(&mut self, op: &TraceOp, line: u64, target: Target) -> Result<(), TraceWrong> {
        let (offset, block) = (op.offset_bytes, target.block_bytes);
        let Some((from, to)) = in_blocks(op.kind, offset.into(), op.bytes, block) else {
            *self.left_out.entry("trim of no whole block".to_owned()).or_default() += 1;
            return Ok(());
        };
        let bytes = to - from;
        let capacity = target.capacity_bytes / u64::from(block) * u64::from(block);
        let Some(bytes) = u32::try_from(bytes).ok().filter(|bytes| u64::from(*bytes) <= capacity)
        else {
            return Err(TraceWrong::TooLarge { offset, bytes: bytes as u64 });
        };
        if op.kind == TraceKind::Trim {
            return Ok(());
        }
        self.bytes = self.bytes.saturating_add(u64::from(op.bytes));
        self.preflushes += u64::from(op.durability.preflush);
        self.fuas += u64::from(op.durability.fua);
        if self.longest.is_none_or(|longest| longest.bytes < bytes) {
            self.longest = Some(Longest { bytes, line });
        }
        Ok(())
    }

    /// The line whose operation takes the extents beyond the capacity, or 0 if none does.
    pub fn beyond_line(&self) -> u64 {
        self.beyond.unwrap_or(0)
    }

    /// Number of operations of this kind.
    pub fn count(&self, kind: TraceKind) -> u64 {
        self.counts.get(&kind).copied().unwrap_or(0)
    }
}

/// Address map from the devices of a trace to the target.
#[derive(Clone, Debug)]
pub struct Map {
    mapping: Mapping,
    target: Target,
    /// By device: its extent and the beginning of that extent in the linear space.
    places: BTreeMap<u32, (Extent, u128)>,
    linear_bytes: u128,
}

impl Map {
    /// Lays the extents end to end.
    ///
    /// # Errors
    /// If they are to be concatenated and do not fit.
    pub fn new(extents: &Extents, mapping: Mapping, target: Target) -> Result<Map, TraceWrong> {
        let mut places = BTreeMap::new();
        let mut end = 0_u128;
        for extent in &extents.devices {
            places.insert(extent.device, (*extent, end));
            end += extent.bytes();
        }
        if mapping == Mapping::Concatenate && end > u128::from(target.capacity_bytes) {
            return Err(TraceWrong::BeyondCapacity {
                devices: places.len(),
                bytes: u64::try_from(end).unwrap_or(u64::MAX),
                capacity: target.capacity_bytes,
            });
        }
        Ok(Map { mapping, target, places, linear_bytes: end })
    }

    /// The operation on the target in whole blocks: see [`Extents::scan`]. `None`: a trim of no whole block.
    ///
    /// # Errors
    /// If the operation is outside the extents of the first pass, or too large for the device.
    pub fn op(&self, op: &TraceOp, not_before: Option<Span>) -> Result<Option<Op>, TraceWrong> {
        let kind = match op.kind {
            TraceKind::Read => OpKind::Read,
            TraceKind::Write => OpKind::Write,
            TraceKind::Trim => OpKind::Trim,
            TraceKind::Flush => {
                let (kind, durability) = (OpKind::Flush, Durability::NONE);
                return Ok(Some(Op { kind, offset_bytes: 0, bytes: 0, durability, not_before }));
            }
        };
        let (offset, length) = (op.offset_bytes, u64::from(op.bytes));
        let known = self.places.get(&op.device).filter(|(extent, _)| {
            extent.from <= offset && offset.checked_add(length).is_some_and(|end| end <= extent.to)
        });
        let Some((extent, base)) = known else {
            return Err(TraceWrong::Changed { device: op.device, offset });
        };
        let block = u128::from(self.target.block_bytes);
        let capacity = u128::from(self.target.capacity_bytes) / block * block;
        let linear = base + u128::from(offset - extent.from);
        let blocks = in_blocks(op.kind, linear, op.bytes, self.target.block_bytes);
        let Some((from, to)) = blocks else { return Ok(None) };
        let bytes = to - from;
        let too_large = TraceWrong::TooLarge { offset, bytes: bytes as u64 };
        if bytes > capacity {
            return Err(too_large);
        }
        // An operation that would cross the end of the device after wrapping is moved back to end there.
        let from = match self.mapping {
            Mapping::Concatenate => from.min(capacity - bytes),
            Mapping::Modulo => (from % capacity).min(capacity - bytes),
        };
        let Ok(bytes) = u32::try_from(bytes) else { return Err(too_large) };
        let durability = op.durability;
        Ok(Some(Op { kind, offset_bytes: from as u64, bytes, durability, not_before }))
    }

    /// Summary of the trace and its mapping, in one line.
    pub fn summary(&self, file: &str, format: &str, backwards: u64, extents: &Extents) -> String {
        let count = |kind| extents.count(kind);
        let folded = match self.mapping {
            Mapping::Concatenate => "laid end to end".to_owned(),
            Mapping::Modulo => format!(
                "laid end to end modulo the capacity of {} bytes",
                self.target.capacity_bytes
            ),
        };
        let trims = match count(TraceKind::Trim) {
            0 => String::new(),
            trims => format!(", {trims} trims"),
        };
        let asking = |count, what| match count {
            0 => String::new(),
            count => format!(", {count} {what}"),
        };
        let preflushes = asking(extents.preflushes, "of them with a flush before");
        let fuas = asking(extents.fuas, "of them with FUA");
        let mut line = format!(
            "{file}: {format}: {} reads, {} writes{preflushes}{fuas}, {} flushes{} in {}; {} bytes moved; \
             {} devices with extents of {} bytes {folded}",
            count(TraceKind::Read),
            count(TraceKind::Write),
            count(TraceKind::Flush),
            trims,
            extents.span,
            extents.bytes,
            self.places.len(),
            self.linear_bytes,
        );
        if backwards > 0 {
            line += &format!("; {backwards} times ran backwards and count as no time");
        }
        if !extents.left_out.is_empty() {
            let each = extents.left_out.iter().map(|(kind, count)| format!("{count} {kind}"));
            line += &format!("; left out: {}", each.collect::<Vec<_>>().join(", "));
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;

    fn write(device: u32, offset_bytes: u64, bytes: u32) -> TraceOp {
        let (kind, durability) = (TraceKind::Write, Durability::NONE);
        TraceOp { at: Span::ZERO, kind, offset_bytes, bytes, durability, device }
    }

    fn scan(ops: &[TraceOp]) -> Extents {
        let mut extents = Extents::default();
        for (line, op) in (1..).zip(ops) {
            extents.see(op, line, target(1 << 40)).unwrap();
        }
        extents
    }

    fn target(capacity_bytes: u64) -> Target {
        Target { capacity_bytes, block_bytes: 4096 }
    }

    #[test]
    fn concatenated_devices_in_order_of_first_appearance() {
        let ops =
            [write(9, 5 * MIB + 4096, 4096), write(2, 512, 512), write(9, 7 * MIB - 512, 1024)];
        let extents = scan(&ops);
        let extent = |device, from, to| Extent { device, from: from * MIB, to: to * MIB };
        assert_eq!(extents.devices, [extent(9, 5, 8), extent(2, 0, 1)]);
        let map = Map::new(&extents, Mapping::Concatenate, target(4 * MIB)).unwrap();
        let place = |op| map.op(op, None).unwrap().map(|op| (op.offset_bytes, op.bytes));
        assert_eq!(place(&ops[0]), Some((4096, 4096)));
        // Half a block is widened to a whole one; a block's border in the middle makes two.
        assert_eq!(place(&ops[1]), Some((3 * MIB, 4096)));
        assert_eq!(place(&ops[2]), Some((2 * MIB - 4096, 8192)));
        let said = Map::new(&extents, Mapping::Concatenate, target(3 * MIB)).unwrap_err();
        assert!(said.to_string().starts_with("the extents of 2 devices take 4194304 bytes"));
    }

    #[test]
    fn modulo_mapping_wraps_within_capacity() {
        let ops = [write(0, 0, 4096), write(0, 10 * MIB, 4096), write(0, 10 * MIB - 4096, 8192)];
        let map = Map::new(&scan(&ops), Mapping::Modulo, target(2 * MIB)).unwrap();
        let place = |op| map.op(op, None).unwrap().unwrap().offset_bytes;
        assert_eq!(ops.each_ref().map(place), [0, 0, 2 * MIB - 8192]);
    }

    #[test]
    fn trims_narrowed_to_whole_blocks_flushes_without_offset() {
        let trim = TraceOp { kind: TraceKind::Trim, ..write(0, 512, 4 * 4096) };
        let nothing = TraceOp { bytes: 4096, ..trim };
        let flush = TraceOp { kind: TraceKind::Flush, ..write(7, 0, 0) };
        let extents = scan(&[trim, flush]);
        let map = Map::new(&extents, Mapping::Concatenate, target(MIB)).unwrap();
        let op = map.op(&trim, None).unwrap().unwrap();
        assert_eq!((op.kind, op.offset_bytes, op.bytes), (OpKind::Trim, 4096, 3 * 4096));
        assert_eq!(map.op(&nothing, None).unwrap(), None, "no block is named whole");
        assert_eq!(map.op(&flush, None).unwrap().unwrap().kind, OpKind::Flush);
        let partly = scan(&[nothing, TraceOp { bytes: 512, ..trim }, trim]);
        assert_eq!(partly.left_out["trim of no whole block"], 2);
        assert_eq!(
            map.summary("t", "f", 2, &extents),
            "t: f: 0 reads, 0 writes, 1 flushes, 1 trims in 0ps; 0 bytes moved; 1 devices with \
             extents of 1048576 bytes laid end to end; 2 times ran backwards and count as no time"
        );
    }

    #[test]
    fn operation_outside_first_pass_extents_fails() {
        let map = Map::new(&scan(&[write(0, 0, 512)]), Mapping::Modulo, target(MIB)).unwrap();
        assert!(matches!(
            map.op(&write(0, MIB, 512), None),
            Err(TraceWrong::Changed { device: 0, offset: MIB })
        ));
        assert!(map.op(&write(1, 0, 512), None).is_err());
        let longer = Extents::default().see(&write(0, 0, 8192), 1, target(4096));
        assert!(matches!(longer, Err(TraceWrong::TooLarge { offset: 0, bytes: 8192 })));
        let small = Map::new(&scan(&[write(0, 0, 8192)]), Mapping::Modulo, target(4096)).unwrap();
        assert!(matches!(small.op(&write(0, 0, 8192), None), Err(TraceWrong::TooLarge { .. })));
    }

    #[test]
    fn longest_operation_and_first_beyond_capacity_have_their_lines() {
        let target = target(2 * MIB);
        let mut extents = Extents::default();
        // Two odd bytes across a block's border take two blocks.
        for (line, op) in (1..).zip([write(0, 0, 512), write(0, 4095, 2), write(0, 0, 4096)]) {
            extents.see(&op, line, target).unwrap();
        }
        assert_eq!(extents.longest, Some(Longest { bytes: 8192, line: 2 }));
        assert_eq!(extents.beyond_line(), 0);
        extents.see(&write(1, 9 * MIB, 512), 4, target).unwrap();
        extents.see(&write(1, u64::MAX - 511, 511), 5, target).unwrap();
        extents.see(&write(2, 0, 512), 6, target).unwrap();
        assert_eq!(extents.beyond_line(), 5);
        let map = Map::new(&extents, Mapping::Modulo, target).unwrap();
        let last = map.op(&write(2, 0, 512), None).unwrap().unwrap();
        assert_eq!((last.offset_bytes, last.bytes), (0, 4096), "whole MiB before it");
    }

    proptest! {
        #[test]
        fn mapped_operations_are_whole_blocks_within_capacity(
            ops in prop::collection::vec(
                (0_u32..4, 0..u64::MAX / 2, 1_u32..1 << 20).prop_map(|(d, o, b)| write(d, o, b)),
                1..20,
            ),
            capacity in 2 * MIB..1 << 40,
        ) {
            let map = Map::new(&scan(&ops), Mapping::Modulo, target(capacity)).unwrap();
            for op in &ops {
                let op = map.op(op, None).unwrap().unwrap();
                prop_assert!(op.bytes.is_multiple_of(4096) && op.offset_bytes.is_multiple_of(4096));
                prop_assert!(op.offset_bytes + u64::from(op.bytes) <= capacity);
            }
        }
    }
}
