//! Choice of the tag that marks a buffer.

use core::cell::{Cell, RefCell};

use bus::{Arrival, Buffer};
use runtime::Rng;
use wire::dcx::notice;
use wire::dcx::tag::{Places, Tag, is_aligned};

/// Source of tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tags {
    /// Random tags of 1 to 32 bits. A read times out if its data ends with the tag; the retry uses another
    /// tag.
    Random {
        /// Bits of a tag.
        bits: u32,
        /// RNG seed.
        seed: u64,
    },
    /// Tags chosen by the device, which guarantees that no packet of an aligned buffer ends with them.
    /// Without that guarantee (an unaligned buffer that crosses a page, contents without an empty interval)
    /// the tag is random, with 32 bits.
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
    grain: u32,
    packet_bytes: Option<u32>,
}

impl Tagger {
    pub fn new(tags: Tags, queue: u16, grain: u32, arrival: Arrival) -> Tagger {
        let (Tags::Random { seed, .. } | Tags::Device { seed }) = tags;
        let seed = seed.wrapping_add(u64::from(queue));
        let packet_bytes = match arrival {
            Arrival::InOrder => None,
            Arrival::ByPacket(bytes) => Some(bytes),
        };
        let tagger = Tagger {
            tags,
            rng: RefCell::new(Rng::for_part(seed, "tags")),
            random: Cell::new(Tag::new(0, 1)),
            grain,
            packet_bytes,
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
        let value = self.rng.borrow_mut().next_u64() as u32;
        self.random.set(Tag::new(value, bits));
    }

    /// Chooses the tag for a buffer.
    pub fn choose(&self, buffer: &Buffer, notice: &Buffer) -> Marks {
        let (at, bytes) = (buffer.at(), buffer.bytes() as u32);
        let places = Places::new(at, bytes, self.packet_bytes);
        if matches!(self.tags, Tags::Device { .. })
            && is_aligned(at, bytes, self.packet_bytes, self.grain)
        {
            // Version first: if the tag changes between the two loads, the device rejects the older version.
            let version = notice.load_u32(notice::TAG_VERSION);
            let tag = Tag::new(notice.load_u32(notice::TAG), 32);
            if version != 0 {
                return Marks { tag, version, places };
            }
        }
        Marks { tag: self.random.get(), version: 0, places }
    }
}

impl Marks {
    /// Stores the tag in all its places; returns their number.
    pub fn mark(&self, buffer: &Buffer) -> u32 {
        let mut count = 0;
        for place in self.places {
            buffer.store_u32(place as usize, self.tag.word());
            count += 1;
        }
        count
    }
}
