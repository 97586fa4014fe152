//! Which tag a buffer is marked with.

use core::cell::{Cell, RefCell};

use bus::{Arrival, Buffer};
use runtime::Rng;
use wire::dcx::notice;
use wire::dcx::tag::{Places, Tag, is_aligned};

/// Where tags come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tags {
    /// Chosen at random, this many bits long: 1 to 32. Data that end with the tag make the read time
    /// out; the next has another tag.
    Random {
        /// Bits of a tag.
        bits: u32,
        /// The seed of the choice.
        seed: u64,
    },
    /// Chosen by the device, which promises that no packet of an aligned buffer ends with it. Where it
    /// promises nothing (an unaligned buffer that crosses a page, contents without an empty interval)
    /// the tag is random, of 32 bits.
    Device {
        /// The seed of the choice where the device makes none.
        seed: u64,
    },
}

/// A buffer's marks: what it is marked with, and where the first tag stands that was not seen to vanish.
#[derive(Clone, Copy, Debug)]
pub(super) struct Marks {
    pub tag: Tag,
    /// The version of the device's tag; zero: the tag is ours.
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

    /// The size of the packets that have a tag each; none: one tag for all.
    pub fn packet_bytes(&self) -> Option<u32> {
        self.packet_bytes
    }

    /// Another random tag.
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
            // The version first: a tag that comes between the two is refused with the older version.
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
    /// Stores the tag in all its places; says how many.
    pub fn mark(&self, buffer: &Buffer) -> u32 {
        let mut count = 0;
        for place in self.places {
            buffer.store_u32(place as usize, self.tag.word());
            count += 1;
        }
        count
    }
}
