//! Choice of the tag that marks a buffer.

use core::cell::{Cell, RefCell};

use bus::{Arrival, Buffer};
use runtime::Rng;
use wire::dcx::notice;
use wire::dcx::registers::Grain;
use wire::dcx::tag::{BITS_MAX, Places, Tag, WORD_BITS, has_wide_places, is_aligned};

use super::QueueOptions;

/// Source of tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tags {
    /// Random tags of 1 to 64 bits. A read times out if its data ends with the tag; the retry uses another
    /// tag. Tags of more than 32 bits need buffers whose packets end at multiples of eight; another buffer is
    /// marked with the last 32 bits.
    Random {
        /// Bits of a tag.
        bits: u32,
        /// RNG seed.
        seed: u64,
    },
    /// Tags chosen by the device, which guarantees that no packet of an aligned buffer ends with them.
    /// Without that guarantee (an unaligned buffer that crosses a page, contents in which the device found no
    /// absent tag) the tag is random, with 32 bits.
    Device {
        /// RNG seed for random tags.
        seed: u64,
    },
}

/// Marks of a buffer: the tag, and the places that were not yet seen to change.
#[derive(Clone, Copy, Debug)]
pub(super) struct Marks {
    pub tag: Tag,
    /// Version of the device's tag; zero for a random tag.
    pub version: u32,
    pub places: Places,
}

pub(super) struct Tagger {
    tags: Tags,
    rng: RefCell<Rng>,
    random: Cell<Tag>,
    grain: Grain,
    packet_bytes: Option<u32>,
    marks_last: bool,
}

impl Tagger {
    pub fn new(options: &QueueOptions, queue: u16, grain: Grain, arrival: Arrival) -> Tagger {
        let tags = options.tags;
        let (Tags::Random { seed, .. } | Tags::Device { seed }) = tags;
        let seed = seed.wrapping_add(u64::from(queue));
        // Smaller packets than either needs are whole in both.
        let of_device = Some(grain.packet_log2()).filter(|log2| *log2 > 0).map(|log2| 1 << log2);
        let of_link = match arrival {
            Arrival::InOrder => None,
            Arrival::ByPacket(bytes) => Some(bytes),
        };
        let packet_bytes = of_device.into_iter().chain(of_link).min();
        let tagger = Tagger {
            tags,
            rng: RefCell::new(Rng::for_part(seed, "tags")),
            random: Cell::new(Tag::new(0, 1)),
            grain,
            packet_bytes,
            marks_last: options.marks_last,
        };
        tagger.draw();
        tagger
    }

    /// Size of a packet, each of which has a tag; `None`: one tag per buffer.
    pub fn packet_bytes(&self) -> Option<u32> {
        self.packet_bytes
    }

    /// Draws another random tag.
    pub fn draw(&self) {
        let bits = match self.tags {
            Tags::Random { bits, .. } => bits,
            Tags::Device { .. } => 32,
        };
        let value = self.rng.borrow_mut().next_u64();
        self.random.set(Tag::new(value, bits));
    }

    /// Chooses the tag for a buffer.
    pub fn choose(&self, buffer: &Buffer, notice: &Buffer) -> Marks {
        let (at, bytes) = (buffer.at(), buffer.bytes() as u32);
        let marked = self.packet_bytes.filter(|_| !self.marks_last);
        let places = Places::new(at, bytes, marked);
        let has_wide = has_wide_places(at, bytes);
        let bits = WORD_BITS + u32::from(self.grain.more_bits());
        if matches!(self.tags, Tags::Device { .. })
            && is_aligned(at, bytes, self.packet_bytes, self.grain.bytes().into())
            && (bits <= WORD_BITS || has_wide)
            && bits <= BITS_MAX
        {
            // Version first: if the tag changes between the loads, the device rejects the older version.
            let version = notice.load_u32(notice::TAG_VERSION);
            let end = notice.load_u64(notice::TAG);
            if version != 0 {
                return Marks { tag: Tag::new(end >> (BITS_MAX - bits), bits), version, places };
            }
        }
        let tag = self.random.get();
        let tag = if has_wide { tag } else { tag.narrow() };
        Marks { tag, version: 0, places }
    }
}

impl Marks {
    /// Stores the tag in all its places; returns their number.
    pub fn mark(&self, buffer: &Buffer) -> u32 {
        let mut count = 0;
        for place in self.places {
            match self.tag.is_wide() {
                false => buffer.store_u32(place as usize, self.tag.word()),
                true => buffer.store_u64(place as usize - 4, self.tag.doubleword()),
            }
            count += 1;
        }
        count
    }
}
