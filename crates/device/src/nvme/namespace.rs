//! The namespaces: where each lies on the medium, which formats its blocks can have, and what outlasts the
//! controller of that.

use std::cell::{Cell, RefCell};

use media::{Extent, Media, MediaError};
use wire::Nsid;
use wire::nvme::identify::LbaFormat;
use wire::nvme::pi::{self, Kind};
use wire::nvme::status::Status;
use zerocopy::FromZeros;

use super::NAMESPACES_MAX;
use super::reservations::{self, Reservations};
use super::sanitize::{self, Sanitizing};
use super::uncorrectable::{self, Marks};

/// A block of this many bytes, as a power of two, is offered beside the medium's own.
const LARGE_LOG2: u8 = 12;

/// How the medium keeps the one namespace of old: a mark, a version, the length of a block as a power of two.
const MARK_1: [u8; 5] = *b"DBNS\x01";

/// How it keeps several: a mark, a version, how many were ever made, how many there are, and each; then which
/// blocks are marked as uncorrectable, how the last Sanitize stands, and reservations that are to last.
const MARK_2: [u8; 5] = *b"DBNS\x02";

/// Of each: number, block's length as a power of two, which controllers have it attached, metadata and
/// whether one controller alone may have it; its serial number, first block and length.
const KEPT_BYTES: usize = 24;

const _: () = {
    let namespaces = MARK_2.len() + 5 + KEPT_BYTES * NAMESPACES_MAX as usize;
    let marks = 1 + uncorrectable::KEPT_BYTES * uncorrectable::WINDOWS_MAX;
    let reservations = 1 + (1 + reservations::KEPT_BYTES) * NAMESPACES_MAX as usize;
    let all = namespaces + marks + sanitize::KEPT_BYTES + reservations;
    assert!(all <= media::contents::LABEL_BYTES_MAX);
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Namespace {
    /// Its first block of the medium, and how many it has.
    pub start: u64,
    pub blocks: u64,
    /// Blocks of the medium in one of its own, as a power of two.
    pub shift: u8,
    /// Which controllers have it attached, bit by bit.
    pub attached: u8,
    /// Whether one controller alone may have it.
    pub private: bool,
    /// Which of those that were ever made it is.
    pub serial: u32,
    /// What lies beside each block.
    pub metadata: Option<Metadata>,
}

/// Metadata of a namespace's blocks: eight bytes each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Metadata {
    /// They are protection information of this kind.
    pub kind: Option<Kind>,
    /// PIL, which means nothing where they are all that there is.
    pub first: bool,
    /// In host memory they follow each block's data, and have no buffer of their own.
    pub inline: bool,
}

/// How blocks are laid out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Layout {
    /// Blocks of the medium in one of the namespace's, as a power of two.
    pub shift: u8,
    pub metadata: Option<Metadata>,
}

impl Metadata {
    /// DPS.
    pub fn dps(self) -> u8 {
        self.kind.map_or(0, |kind| kind as u8) | u8::from(self.first) << 3
    }
}

/// How a label has it: zero for none, else bit 7, and DPS below.
const HAS_METADATA: u8 = 1 << 7;

/// Beside it, in the same byte: one controller alone may have the namespace.
const IS_PRIVATE: u8 = 1 << 6;

/// And the metadata follow each block's data.
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
    /// How many blocks it has.
    pub fn lbas(&self) -> u64 {
        self.blocks >> self.shift
    }

    /// Where these blocks lie: blocks of the medium, the first and how many.
    pub fn place(&self, lba: u64, blocks: u32) -> Result<(u64, u64), Status> {
        let all = self.lbas();
        if lba > all || u64::from(blocks) > all - lba {
            return Err(Status::LBA_OUT_OF_RANGE.with_dnr());
        }
        Ok((self.start + (lba << self.shift), u64::from(blocks) << self.shift))
    }

    /// As [`place`](Self::place), of no more blocks than a command can name.
    pub fn extent(&self, lba: u64, blocks: u32) -> Result<Extent, Status> {
        let (block, blocks) = self.place(lba, blocks)?;
        // At most 65,536 blocks of at most eight of the medium's.
        Ok(Extent { block, blocks: u32::try_from(blocks).map_err(|_| Status::INVALID_FIELD)? })
    }
}

/// What commands find at a namespace's number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Door {
    /// The namespace, if there is one.
    #[default]
    Open,
    Formatting,
    /// It is being made, or deleted.
    Hidden,
    Sanitizing,
    /// Everything was, and that has failed.
    FailedSanitize,
    /// Some host holds a reservation: who may do what is to be looked up.
    Reserved,
}

impl Door {
    /// What whoever comes to it is told; none: it is open, or there is nothing to be seen behind it.
    pub fn refusal(self) -> Option<Status> {
        match self {
            Door::Open | Door::Hidden | Door::Reserved => None,
            Door::Formatting => Some(Status::FORMAT_IN_PROGRESS),
            Door::Sanitizing => Some(Status::SANITIZE_IN_PROGRESS),
            Door::FailedSanitize => Some(Status::SANITIZE_FAILED),
        }
    }

    /// Whether nothing is going on behind it.
    pub fn is_settled(self) -> bool {
        matches!(self, Door::Open | Door::Reserved)
    }
}

/// What there is at a number.
#[derive(Debug, Default)]
pub(super) struct Place {
    pub namespace: Cell<Option<Namespace>>,
    pub door: Cell<Door>,
    pub reservations: RefCell<Reservations>,
}

impl Place {
    /// What is there, whole.
    pub fn allocated(&self) -> Option<Namespace> {
        self.namespace.get().filter(|_| self.door.get() != Door::Hidden)
    }

    /// What was going on behind the door is over.
    pub fn open(&self) {
        let reserved = self.reservations.borrow().is_held();
        self.door.set(if reserved { Door::Reserved } else { Door::Open });
    }

    /// A reservation has come or gone: so it stands, unless something is going on.
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

/// All namespaces, by their numbers.
pub(super) struct Namespaces {
    places: [Place; NAMESPACES_MAX as usize],
    /// How many were ever made.
    made: Cell<u32>,
    /// Blocks that the host has made unreadable.
    pub marks: Marks,
    /// What became of all of them.
    pub sanitizing: Sanitizing,
    /// Blocks of the medium in all; one block of it, and one of the largest format, as powers of two.
    blocks: u64,
    own_log2: u8,
    large_log2: u8,
    /// Whether the medium keeps metadata.
    beside: bool,
}

impl Namespaces {
    /// As the medium has them; if it says nothing, or nothing of sense, so many of one length in its own
    /// blocks, protected like this if it can be.
    pub fn of<M: Media>(media: &M, otherwise: u16, protection: Option<Kind>) -> Namespaces {
        let own_log2 = media.block_bytes().ilog2() as u8;
        let labels = media.labels();
        // Another format must outlast the controller.
        let large = own_log2 < LARGE_LOG2 && labels.is_some();
        let all = Namespaces {
            places: Default::default(),
            made: Cell::new(0),
            marks: Marks::default(),
            sanitizing: Sanitizing::default(),
            blocks: media.blocks(),
            own_log2,
            large_log2: if large { LARGE_LOG2 } else { own_log2 },
            // Another format must outlast the controller, this one as well.
            beside: media.metadata().is_some() && labels.is_some(),
        };
        if all.recall(&labels.map(|labels| labels.label()).unwrap_or_default()).is_none() {
            let kind = protection.filter(|_| all.beside);
            let metadata = kind.map(|kind| Metadata { kind: Some(kind), ..Metadata::default() });
            all.divide(otherwise.into(), metadata);
        }
        all.shut_doors();
        all
    }

    /// So many namespaces of one length.
    fn divide(&self, into: u64, metadata: Option<Metadata>) {
        let each = if into == 1 { self.blocks } else { (self.blocks / into) & !(self.align() - 1) };
        for (number, place) in (0..into).zip(&self.places) {
            let (start, serial) = (number * each, number as u32);
            let whole = Namespace {
                start,
                blocks: each,
                shift: 0,
                attached: u8::MAX,
                private: false,
                serial,
                metadata,
            };
            place.namespace.set(Some(whole));
        }
        self.made.set(into as u32);
    }

    /// Namespaces begin at multiples of so many blocks of the medium, so that each can have every format.
    fn align(&self) -> u64 {
        1 << (self.large_log2 - self.own_log2)
    }

    /// Blocks of the medium in a block of each format.
    fn shifts(&self) -> impl Iterator<Item = u8> {
        let large = self.large_log2 - self.own_log2;
        [Some(0), Some(large).filter(|large| *large > 0)].into_iter().flatten()
    }

    /// Whether there are formats with metadata.
    pub fn offers_metadata(&self) -> bool {
        self.beside
    }

    /// Of each format, in the order in which Identify numbers them: blocks of the medium, as a power of two,
    /// and whether there are metadata.
    fn shapes(&self) -> impl Iterator<Item = (u8, bool)> {
        let beside = self.shifts().filter(|_| self.beside).map(|shift| (shift, true));
        self.shifts().map(|shift| (shift, false)).chain(beside)
    }

    /// The formats, in that order.
    pub fn formats(&self) -> Vec<LbaFormat> {
        let bytes = |beside| if beside { pi::BYTES as u16 } else { 0 };
        let format = |(shift, beside)| LbaFormat {
            ms: bytes(beside).into(),
            ds: self.own_log2 + shift,
            ..LbaFormat::new_zeroed()
        };
        self.shapes().map(format).collect()
    }

    /// FLBAS of a namespace: the number of its format, and whether metadata follow each block's data.
    pub fn format_of(&self, ns: Namespace) -> u8 {
        let shape = (ns.shift, ns.metadata.is_some());
        let number = self.shapes().position(|one| one == shape).expect("one of them") as u8;
        number | u8::from(ns.metadata.is_some_and(|metadata| metadata.inline)) << 4
    }

    /// The reverse: what a format, settings of protection information as DPS has them, and where metadata are
    /// to lie make of the medium's blocks.
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

    /// What lies behind a number that there is.
    pub fn place(&self, nsid: Nsid) -> Option<&Place> {
        self.places.get((nsid.0 as usize).wrapping_sub(1))
    }

    fn numbered(&self) -> impl Iterator<Item = (Nsid, &Place)> {
        (1..).map(Nsid).zip(&self.places)
    }

    /// Those that this controller has attached, by rising number.
    pub fn active(&self, to: u8) -> impl Iterator<Item = Nsid> + '_ {
        let attached = move |(_, place): &(Nsid, &Place)| place.attached(to).is_some();
        self.numbered().filter(attached).map(|(nsid, _)| nsid)
    }

    /// Those that there are.
    pub fn allocated(&self) -> impl Iterator<Item = Nsid> + '_ {
        self.numbered().filter(|(_, place)| place.allocated().is_some()).map(|(nsid, _)| nsid)
    }

    /// One that commands to this controller may be about (NVMe base 2.0, 3.2.1: of a number that there can't
    /// be the status is another than of one where no namespace is attached).
    #[inline]
    pub fn active_at(&self, nsid: Nsid, to: u8) -> Result<(&Place, Namespace), Status> {
        let place = self.place(nsid).ok_or(Status::INVALID_NAMESPACE_OR_FORMAT)?;
        Ok((place, place.attached(to).ok_or(Status::INVALID_FIELD)?))
    }

    /// One that there is, attached or not.
    pub fn allocated_at(&self, nsid: Nsid) -> Result<(&Place, Namespace), Status> {
        let place = self.place(nsid).ok_or(Status::INVALID_NAMESPACE_OR_FORMAT)?;
        Ok((place, place.allocated().ok_or(Status::INVALID_FIELD)?))
    }

    /// A number that is free.
    pub fn free(&self) -> Result<(Nsid, &Place), Status> {
        let free = self.numbered().find(|(_, place)| place.namespace.get().is_none());
        free.ok_or(Status::NAMESPACE_ID_UNAVAILABLE)
    }

    /// A new namespace of so many blocks of its own, where there is room; it is not there yet.
    pub fn lay(&self, lbas: u64, layout: Layout, private: bool) -> Result<Namespace, Status> {
        let Layout { shift, metadata } = layout;
        let full = Status::NAMESPACE_INSUFFICIENT_CAPACITY;
        let blocks = lbas.checked_mul(1 << shift).ok_or(full)?;
        let mut taken: Vec<(u64, u64)> = self
            .places
            .iter()
            .filter_map(|place| place.namespace.get())
            .map(|other| (other.start, other.start + other.blocks))
            .collect();
        taken.sort_unstable();
        taken.push((self.blocks, self.blocks));
        let mut start: u64 = 0;
        for (begin, end) in taken {
            if begin.checked_sub(start).is_some_and(|gap| gap >= blocks) {
                let serial = self.made.get();
                self.made.set(serial.wrapping_add(1));
                let attached = 0;
                return Ok(Namespace { start, blocks, shift, attached, private, serial, metadata });
            }
            start = end.next_multiple_of(self.align());
        }
        Err(full)
    }

    /// That none of them is being formatted, made or deleted.
    pub fn must_be_settled(&self) -> Result<(), Status> {
        match self.places.iter().map(|place| place.door.get()).find(|door| !door.is_settled()) {
            None | Some(Door::FailedSanitize) => Ok(()),
            Some(door) => Err(door.refusal().unwrap_or(Status::COMMAND_SEQUENCE_ERROR)),
        }
    }

    /// All doors are as sanitizing wants them.
    pub fn shut_doors(&self) {
        match self.sanitizing.door() {
            Door::Open => self.places.iter().for_each(Place::open),
            shut => self.places.iter().for_each(|place| place.door.set(shut)),
        }
    }

    /// Blocks of the medium that no namespace has.
    pub fn unallocated(&self) -> u64 {
        let taken = self.places.iter().filter_map(|place| place.namespace.get());
        self.blocks - taken.map(|namespace| namespace.blocks).sum::<u64>()
    }

    /// Keeps on the medium what there is, but for those that are being made or deleted.
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
        media.labels().ok_or(MediaError::WriteFault)?.set_label(&label)
    }

    /// The reverse, if the label makes sense. What lies on a medium may come from anywhere.
    fn recall(&self, label: &[u8]) -> Option<()> {
        if let Some(log2) = label.strip_prefix(&MARK_1).and_then(|rest| rest.first()) {
            let shift = self.shift_of_log2(*log2)?;
            self.divide(1, None);
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

    /// How many namespaces have reservations that are to last, and each with its number.
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

/// The reverse of what stores them, each with its place. A label from before there were any has nothing here.
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
