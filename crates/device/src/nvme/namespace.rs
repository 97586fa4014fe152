//! Namespaces: location on the medium, formats, and what of them is persistent.

use std::cell::{Cell, RefCell};

use media::{Extent, Media, MediaError};
use wire::Nsid;
use wire::nvme::identify::LbaFormat;
use wire::nvme::pi::{self, Kind};
use wire::nvme::status::Status;
use zerocopy::FromZeros;

use super::NAMESPACES_MAX;
use super::access::Door;
use super::marks::{self, Marks};
use super::reservations::{self, Reservations};
use super::sanitize::{self, Sanitizing};

/// Block size offered in addition to the medium's own, log2 of bytes.
const LARGE_LOG2: u8 = 12;

/// Label of version 1, with a single namespace: signature, version, block size as log2.
const MARK_1: [u8; 5] = *b"DBNS\x01";

/// Label of version 2: signature, version, number of namespaces ever created, number of namespaces, and a
/// record of each; then uncorrectable blocks, sanitize state, and persistent reservations.
const MARK_2: [u8; 5] = *b"DBNS\x02";

/// Record of a namespace: identifier, block size as log2, bitmap of attached controllers, metadata and
/// private flag; serial number, first block, length.
const KEPT_BYTES: usize = 24;

const _: () = {
    let namespaces = MARK_2.len() + 5 + KEPT_BYTES * NAMESPACES_MAX as usize;
    let uncorrectable = 1 + marks::KEPT_BYTES * marks::WINDOWS_MAX;
    let reservations = 1 + (1 + reservations::KEPT_BYTES) * NAMESPACES_MAX as usize;
    let all = namespaces + uncorrectable + sanitize::KEPT_BYTES + reservations;
    assert!(all <= media::contents::LABEL_BYTES_MAX);
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Namespace {
    /// First block on the medium, and number of medium blocks (next field).
    pub start: u64,
    pub blocks: u64,
    /// Medium blocks per logical block, log2.
    pub shift: u8,
    /// Bitmap of attached controllers.
    pub attached: u8,
    /// True if at most one controller may attach it.
    pub private: bool,
    /// Serial number: namespaces ever created before it.
    pub serial: u32,
    /// Metadata of each block.
    pub metadata: Option<Metadata>,
}

/// Metadata of a namespace: eight bytes per block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Metadata {
    /// Protection type. `None`: metadata without protection information.
    pub kind: Option<Kind>,
    /// PIL; no effect, because the metadata consist of protection information only.
    pub first: bool,
    /// True if the metadata follow each block's data in host memory; false for a separate buffer.
    pub inline: bool,
}

/// Format of the blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Layout {
    /// Medium blocks per logical block, log2.
    pub shift: u8,
    pub metadata: Option<Metadata>,
}

impl Metadata {
    /// The DPS field of Identify Namespace.
    pub fn dps(self) -> u8 {
        self.kind.map_or(0, |kind| kind as u8) | u8::from(self.first) << 3
    }
}

/// Metadata byte of a label: zero for none, else bit 7, with DPS in the low bits.
const HAS_METADATA: u8 = 1 << 7;

/// In the same byte: the namespace is private.
const IS_PRIVATE: u8 = 1 << 6;

/// In the same byte: the metadata are inline.
const IS_INLINE: u8 = 1 << 5;

fn metadata_byte(metadata: Option<Metadata>) -> u8 {
    metadata.map_or(0, |metadata| {
        HAS_METADATA | metadata.dps() | if metadata.inline { IS_INLINE } else { 0 }
    })
}

fn metadata_of_byte(byte: u8) -> Option<Option<Metadata>> {
    match byte {
        0 => Some(None),
        _ if byte & !(0xf | IS_INLINE) == HAS_METADATA => {
            let kind = Kind::of(byte & 7).ok()?;
            let (first, inline) = (byte & 8 != 0, byte & IS_INLINE != 0);
            Some(Some(Metadata { kind, first, inline }))
        }
        _ => None,
    }
}

impl Namespace {
    /// Number of logical blocks.
    pub fn lbas(&self) -> u64 {
        self.blocks >> self.shift
    }

    /// Location of these logical blocks: first block on the medium, and number of medium blocks.
    pub fn place(&self, lba: u64, blocks: u32) -> Result<(u64, u64), Status> {
        let all = self.lbas();
        if lba > all || u64::from(blocks) > all - lba {
            return Err(Status::LBA_OUT_OF_RANGE.with_dnr());
        }
        Ok((self.start + (lba << self.shift), u64::from(blocks) << self.shift))
    }

    /// As [`place`](Self::place), for no more blocks than a command can address.
    pub fn extent(&self, lba: u64, blocks: u32) -> Result<Extent, Status> {
        let (block, blocks) = self.place(lba, blocks)?;
        // At most 65,536 blocks, of at most eight medium blocks each.
        Ok(Extent { block, blocks: u32::try_from(blocks).map_err(|_| Status::INVALID_FIELD)? })
    }
}

/// Namespace slot of one identifier.
#[derive(Debug, Default)]
pub(super) struct Place {
    pub namespace: Cell<Option<Namespace>>,
    pub door: Cell<Door>,
    pub reservations: RefCell<Reservations>,
}

impl Place {
    /// The namespace, unless hidden.
    #[inline]
    pub fn allocated(&self) -> Option<Namespace> {
        self.namespace.get().filter(|_| self.door.get() != Door::Hidden)
    }

    /// Ends an operation in progress: restores the state.
    pub fn open(&self) {
        let reserved = self.reservations.borrow().is_held();
        self.door.set(if reserved { Door::Reserved } else { Door::Open });
    }

    /// Updates the state after a reservation has changed, unless an operation is in progress.
    pub fn settle(&self) {
        if self.door.get().is_settled() {
            self.open();
        }
    }

    #[inline]
    fn attached(&self, to: u8) -> Option<Namespace> {
        self.allocated().filter(|namespace| namespace.attached & to != 0)
    }
}

pub(super) struct Namespaces {
    places: [Place; NAMESPACES_MAX as usize],
    /// Number of namespaces ever created.
    made: Cell<u32>,
    /// Blocks marked by Write Uncorrectable.
    pub marks: Marks,
    /// State of the sanitize operation.
    pub sanitizing: Sanitizing,
    /// Medium blocks in total; block size of the medium, and of the largest format (next fields), log2 of
    /// bytes.
    blocks: u64,
    own_log2: u8,
    large_log2: u8,
    /// True if the medium stores metadata.
    beside: bool,
}

/// Namespaces of a medium without a valid label.
#[derive(Clone, Copy, Debug)]
pub(super) struct Initial {
    /// Their number; they have equal size and the medium's block size.
    pub namespaces: u16,
    /// Their protection, if the medium has metadata.
    pub protection: Option<Kind>,
    /// Each is attached to the controller of its number alone, or all to every controller.
    pub are_own: bool,
}

impl Initial {
    /// One namespace of all blocks, for every controller.
    const WHOLE: Initial = Initial { namespaces: 1, protection: None, are_own: false };
}

impl Namespaces {
    /// Reads the namespaces from the medium's label. Without a valid label, creates those of `initial`.
    pub fn of<M: Media>(media: &M, initial: Initial) -> Namespaces {
        let own_log2 = media.block_bytes().ilog2() as u8;
        let capabilities = media.capabilities();
        let labels = capabilities.labels;
        // A second format is offered only if it can be made persistent.
        let large = own_log2 < LARGE_LOG2 && labels.is_some();
        let all = Namespaces {
            places: Default::default(),
            made: Cell::new(0),
            marks: Marks::default(),
            sanitizing: Sanitizing::default(),
            blocks: media.blocks(),
            own_log2,
            large_log2: if large { LARGE_LOG2 } else { own_log2 },
            // As above, including for the initial format.
            beside: capabilities.metadata.is_some() && labels.is_some(),
        };
        if all.recall(&labels.map(|labels| labels.label()).unwrap_or_default()).is_none() {
            let kind = initial.protection.filter(|_| all.beside);
            let metadata = kind.map(|kind| Metadata { kind: Some(kind), ..Metadata::default() });
            all.divide(initial, metadata);
        }
        all.shut_doors();
        all
    }

    /// Creates namespaces of equal size.
    fn divide(&self, initial: Initial, metadata: Option<Metadata>) {
        let into = u64::from(initial.namespaces);
        let each = if into == 1 { self.blocks } else { (self.blocks / into) & !(self.align() - 1) };
        for (number, place) in (0..into).zip(&self.places) {
            let (start, serial) = (number * each, number as u32);
            let whole = Namespace {
                start,
                blocks: each,
                shift: 0,
                attached: if initial.are_own {
                    1_u8.checked_shl(serial).unwrap_or(0)
                } else {
                    u8::MAX
                },
                private: initial.are_own,
                serial,
                metadata,
            };
            place.namespace.set(Some(whole));
        }
        self.made.set(into as u32);
    }

    /// Alignment of namespaces in medium blocks, so that each can have any format.
    fn align(&self) -> u64 {
        1 << (self.large_log2 - self.own_log2)
    }

    /// Medium blocks per logical block of each format, log2.
    fn shifts(&self) -> impl Iterator<Item = u8> {
        let large = self.large_log2 - self.own_log2;
        [Some(0), Some(large).filter(|large| *large > 0)].into_iter().flatten()
    }

    /// Returns true if there are formats with metadata.
    pub fn offers_metadata(&self) -> bool {
        self.beside
    }

    /// All formats in the order of Identify: medium blocks per logical block as log2, and whether they have
    /// metadata.
    fn shapes(&self) -> impl Iterator<Item = (u8, bool)> {
        let beside = self.shifts().filter(|_| self.beside).map(|shift| (shift, true));
        self.shifts().map(|shift| (shift, false)).chain(beside)
    }

    /// All formats, in the order of Identify.
    pub fn formats(&self) -> Vec<LbaFormat> {
        let bytes = |beside| if beside { pi::BYTES as u16 } else { 0 };
        let format = |(shift, beside)| LbaFormat {
            ms: bytes(beside).into(),
            ds: self.own_log2 + shift,
            ..LbaFormat::new_zeroed()
        };
        self.shapes().map(format).collect()
    }

    /// FLBAS of a namespace: format index, and the bit for inline metadata.
    pub fn format_of(&self, ns: Namespace) -> u8 {
        let shape = (ns.shift, ns.metadata.is_some());
        let number = self.shapes().position(|one| one == shape).expect("one of them") as u8;
        number | u8::from(ns.metadata.is_some_and(|metadata| metadata.inline)) << 4
    }

    /// The layout for a format index, protection settings as in DPS, and inline metadata.
    pub fn layout_of(&self, format: u8, dps: u8, inline: bool) -> Result<Layout, Status> {
        let shape = self.shapes().nth(usize::from(format)).ok_or(Status::INVALID_FORMAT)?;
        let metadata = Metadata { kind: Kind::of(dps & 7)?, first: dps & 8 != 0, inline };
        match shape {
            (shift, true) => Ok(Layout { shift, metadata: Some(metadata) }),
            (shift, false) if metadata.kind.is_none() && !inline => {
                Ok(Layout { shift, metadata: None })
            }
            (_, false) => Err(Status::INVALID_FORMAT),
        }
    }

    /// The slot of a valid identifier.
    pub fn place(&self, nsid: Nsid) -> Option<&Place> {
        self.places.get((nsid.0 as usize).wrapping_sub(1))
    }

    fn numbered(&self) -> impl Iterator<Item = (Nsid, &Place)> {
        (1..).map(Nsid).zip(&self.places)
    }

    /// Namespaces attached to this controller, in ascending order.
    pub fn active(&self, to: u8) -> impl Iterator<Item = Nsid> + '_ {
        let attached = move |(_, place): &(Nsid, &Place)| place.attached(to).is_some();
        self.numbered().filter(attached).map(|(nsid, _)| nsid)
    }

    /// Identifiers of all allocated namespaces.
    pub fn allocated(&self) -> impl Iterator<Item = Nsid> + '_ {
        self.numbered().filter(|(_, place)| place.allocated().is_some()).map(|(nsid, _)| nsid)
    }

    /// A namespace attached to this controller (NVMe base 2.0, 3.2.1: an invalid identifier and an inactive
    /// one have different status codes).
    #[inline]
    pub fn active_at(&self, nsid: Nsid, to: u8) -> Result<(&Place, Namespace), Status> {
        let place = self.place(nsid).ok_or(Status::INVALID_NAMESPACE_OR_FORMAT)?;
        Ok((place, place.attached(to).ok_or(Status::INVALID_FIELD)?))
    }

    /// An allocated namespace, attached or not.
    pub fn allocated_at(&self, nsid: Nsid) -> Result<(&Place, Namespace), Status> {
        let place = self.place(nsid).ok_or(Status::INVALID_NAMESPACE_OR_FORMAT)?;
        Ok((place, place.allocated().ok_or(Status::INVALID_FIELD)?))
    }

    /// A free identifier.
    pub fn free(&self) -> Result<(Nsid, &Place), Status> {
        let free = self.numbered().find(|(_, place)| place.namespace.get().is_none());
        free.ok_or(Status::NAMESPACE_ID_UNAVAILABLE)
    }

    /// Runs of blocks without a namespace: first block, and length. Each begins where a namespace may.
    fn gaps(&self) -> impl Iterator<Item = (u64, u64)> {
        let taken = self.places.iter().filter_map(|place| place.namespace.get());
        let mut taken: Vec<_> = taken.map(|one| (one.start, one.start + one.blocks)).collect();
        taken.sort_unstable();
        taken.push((self.blocks, self.blocks));
        let (align, mut start) = (self.align(), 0_u64);
        taken.into_iter().filter_map(move |(begin, end)| {
            let gap = begin.checked_sub(start).map(|blocks| (start, blocks));
            start = end.next_multiple_of(align);
            gap
        })
    }

    /// Allocates space for a new namespace of `lbas` logical blocks: a namespace is one run of blocks. Does
    /// not create it.
    ///
    /// # Errors
    /// The medium blocks that are missing in one run: as many as asked for.
    pub fn lay(&self, lbas: u64, layout: Layout, private: bool) -> Result<Namespace, u64> {
        let Layout { shift, metadata } = layout;
        let blocks = lbas.checked_mul(1 << shift).ok_or(u64::MAX)?;
        let (start, _) = self.gaps().find(|(_, gap)| *gap >= blocks).ok_or(blocks)?;
        let serial = self.made.get();
        self.made.set(serial.wrapping_add(1));
        Ok(Namespace { start, blocks, shift, attached: 0, private, serial, metadata })
    }

    /// Checks that no namespace is being formatted, created or deleted.
    pub fn must_be_settled(&self) -> Result<(), Status> {
        match self.places.iter().map(|place| place.door.get()).find(|door| !door.is_settled()) {
            None | Some(Door::FailedSanitize) => Ok(()),
            Some(door) => Err(door.refusal().unwrap_or(Status::COMMAND_SEQUENCE_ERROR)),
        }
    }

    /// Sets all access states according to the sanitize state.
    pub fn shut_doors(&self) {
        match self.sanitizing.door() {
            Door::Open => self.places.iter().for_each(Place::open),
            shut => self.places.iter().for_each(|place| place.door.set(shut)),
        }
    }

    /// Medium blocks that a new namespace can have: those of the longest run without one.
    pub fn unallocated(&self) -> u64 {
        self.gaps().map(|(_, blocks)| blocks).max().unwrap_or(0)
    }

    /// Stores all namespaces in the medium's label, except those being created or deleted.
    pub fn keep<M: Media>(&self, media: &M) -> Result<(), MediaError> {
        let mut label = MARK_2.to_vec();
        label.extend(self.made.get().to_le_bytes());
        label.push(self.allocated().count() as u8);
        for (nsid, place) in self.numbered() {
            let Some(namespace) = place.allocated() else { continue };
            let Namespace { start, blocks, shift, attached, private, serial, metadata } = namespace;
            let beside = metadata_byte(metadata) | if private { IS_PRIVATE } else { 0 };
            label.extend([nsid.0 as u8, self.own_log2 + shift, attached, beside]);
            label.extend(serial.to_le_bytes());
            label.extend(start.to_le_bytes());
            label.extend(blocks.to_le_bytes());
        }
        self.marks.store(&mut label);
        self.sanitizing.store(&mut label);
        self.store_reservations(&mut label);
        media.capabilities().labels.ok_or(MediaError::WriteFault)?.set_label(&label)
    }

    /// Reads a label, if it is valid. Media are untrusted.
    fn recall(&self, label: &[u8]) -> Option<()> {
        if let Some(log2) = label.strip_prefix(&MARK_1).and_then(|rest| rest.first()) {
            let shift = self.shift_of_log2(*log2)?;
            self.divide(Initial::WHOLE, None);
            let namespace = self.places[0].namespace.get().expect("just made");
            self.places[0].namespace.set(Some(Namespace { shift, ..namespace }));
            return Some(());
        }
        let rest = label.strip_prefix(&MARK_2)?;
        let (made, rest) = rest.split_first_chunk()?;
        let (count, rest) = rest.split_first()?;
        let mut kept: Vec<(usize, Namespace)> = Vec::new();
        for bytes in rest.get(..usize::from(*count) * KEPT_BYTES)?.chunks_exact(KEPT_BYTES) {
            let (number, namespace) = self.recall_one(bytes)?;
            let end = namespace.start + namespace.blocks;
            let apart = |other: &Namespace| {
                end <= other.start || other.start + other.blocks <= namespace.start
            };
            if !kept.iter().all(|(taken, other)| *taken != number && apart(other)) {
                return None;
            }
            kept.push((number, namespace));
        }
        let rest = self.marks.recall(&rest[usize::from(*count) * KEPT_BYTES..], self.blocks)?;
        let rest = self.sanitizing.recall(rest)?;
        let reservations = recall_reservations(rest)?;
        kept.into_iter().for_each(|(at, one)| self.places[at].namespace.set(Some(one)));
        for (at, one) in reservations {
            if self.places[at].namespace.get().is_some() {
                self.places[at].reservations.replace(one);
            }
        }
        self.made.set(u32::from_le_bytes(*made));
        Some(())
    }

    /// Stores the number of namespaces with persistent reservations, and each of them.
    fn store_reservations(&self, label: &mut Vec<u8>) {
        let lasts = |place: &Place| place.reservations.borrow().persists;
        let all =
            || self.numbered().filter(|(_, place)| place.allocated().is_some() && lasts(place));
        label.push(all().count() as u8);
        for (nsid, place) in all() {
            label.push(nsid.0 as u8);
            place.reservations.borrow().store(label);
        }
    }

    fn shift_of_log2(&self, log2: u8) -> Option<u8> {
        let shift = log2.checked_sub(self.own_log2)?;
        self.shifts().find(|one| *one == shift)
    }

    fn recall_one(&self, bytes: &[u8]) -> Option<(usize, Namespace)> {
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight"));
        let (start, blocks) = (word(8), word(16));
        let number = usize::from(bytes[0]).checked_sub(1)?;
        let inside = start.checked_add(blocks).is_some_and(|end| end <= self.blocks);
        let sense = inside && blocks > 0 && start.is_multiple_of(self.align());
        let namespace = Namespace {
            start,
            blocks,
            shift: self.shift_of_log2(bytes[1])?,
            attached: bytes[2],
            private: bytes[3] & IS_PRIVATE != 0,
            serial: u32::from_le_bytes(bytes[4..8].try_into().expect("four")),
            metadata: metadata_of_byte(bytes[3] & !IS_PRIVATE)?,
        };
        let sense = sense && (self.beside || namespace.metadata.is_none());
        (sense && number < self.places.len()).then_some((number, namespace))
    }
}

/// Parses the persistent reservations, with their namespace indices. Older labels have none.
fn recall_reservations(label: &[u8]) -> Option<Vec<(usize, Reservations)>> {
    let mut all = Vec::new();
    let Some((count, mut rest)) = label.split_first() else { return Some(all) };
    for _ in 0..*count {
        let (number, record) = rest.split_first()?;
        let at = usize::from(*number).checked_sub(1)?;
        let (one, behind) = Reservations::recall(record)?;
        if at >= NAMESPACES_MAX as usize {
            return None;
        }
        all.push((at, one));
        rest = behind;
    }
    rest.is_empty().then_some(all)
}
