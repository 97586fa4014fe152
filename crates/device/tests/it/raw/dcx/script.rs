//! A malicious host as an interpreter of choices, made by a seed or by a fuzzer's bytes.

use std::ops::Range;

use bus::HostPort;
use bus::link::{Credits, HeldUp};
use runtime::Span;
use wire::BusAddr;
use wire::dcx::command::{self, Access, Command, Entry, Request};
use wire::dcx::registers::{Control, Group};
use zerocopy::{FromBytes, IntoBytes};

use super::world::{DCX_FROM, Setup};
use super::{Raw, Ring};
use crate::raw::nvme::choice::Choice;

/// A malicious host, driven by choices.
pub struct Script<'a, H, C> {
    raw: &'a Raw<H>,
    choice: C,
    rings: Vec<Ring>,
    block: u32,
    /// Host memory that no queue names: it must stay zero.
    with_pi: Range<u64>,
}

impl<'a, H: HostPort, C: Choice> Script<'a, H, C> {
    pub fn new(raw: &'a Raw<H>, choice: C, setup: &Setup) -> Script<'a, H, C> {
        let rings: Vec<_> =
            (0..setup.options.queues).map(|number| raw.ring(number, 16, Some(128))).collect();
        let base = raw.memory.base().0;
        let with_pi = base..base + DCX_FROM;
        Script { raw, choice, rings, block: setup.options.block, with_pi }
    }

    fn of<T: Copy>(&mut self, items: &[T]) -> T {
        self.choice.of(items)
    }

    /// True if the source of choices is exhausted.
    #[allow(dead_code, reason = "a seed never ends; a fuzzer's bytes do")]
    pub fn is_over(&self) -> bool {
        self.choice.is_over()
    }

    /// An address, mostly valid, and never a guarded one.
    fn address(&mut self) -> u64 {
        let (base, end) = (self.with_pi.start, self.raw.memory.bytes() as u64);
        let inside = self.with_pi.end + 4 * self.choice.below((end - DCX_FROM - (64 << 10)) / 4);
        let word = self.choice.word();
        match self.choice.below(16) {
            0 => base + end - 4 * (word % 256),
            1 => base + end + word % 8192,
            2 => u64::MAX - word % 8192,
            3 => word % 4096,
            4 => inside + 1 + word % 3,
            _ => inside,
        }
    }

    fn entry(&mut self, number: u32) -> Entry {
        let at = self.address();
        let lba = self.of(&[0, 1, 7, 4000, 4095, 4096, u64::MAX]);
        let bytes = self.of(&[0, 4, 510, 512, 512, 1024, 4096, 8192, 65_536, 66_048, u32::MAX]);
        let access = Access { lba: wire::Lba(lba), bytes, at: BusAddr(at) };
        let tag_version = self.of(&[0, 0, 0, 1, 2, u32::MAX]);
        let command = match self.choice.below(8) {
            0 => Command::Fence,
            1 | 2 => Command::Write { access, fua: tag_version == 1 },
            _ => Command::Read { access, tag_version, wide: false },
        };
        let slot = self.choice.word() as u16;
        let entry = Entry::new(&Request { number, slot, command });
        if !self.choice.one_in(8) {
            return entry;
        }
        let mut bytes: [u8; command::BYTES] = entry.as_bytes().try_into().expect("an entry");
        let at = self.choice.below(60) as usize;
        bytes[at] = self.choice.word() as u8;
        Entry::read_from_bytes(&bytes).expect("an entry's length")
    }

    /// Executes one random host action.
    pub async fn step(&mut self) {
        let which = self.choice.below(self.rings.len() as u64) as usize;
        let mut ring = self.rings[which];
        let (group, word) = (ring.group, self.choice.word());
        match self.choice.below(128) {
            0 => self.raw.host.write32(group.control, word as u32 & 7),
            1 => self.raw.host.write32(group.control, 0),
            2 => self.raw.host.write32(group.control, 3),
            3 | 4 => {
                let register = self.of(&[group.commands, group.reports, group.notice]);
                let at = self.address() & !63;
                self.raw.set64(register, if word.is_multiple_of(4) { word } else { at });
            }
            5 => self.raw.host.write32(group.shape, word as u32 & 0xf0f),
            6..10 => self.raw.host.write32(group.doorbell, word as u32 & 0xff),
            10..14 => {
                // Noise in the ring, at any place, with any number.
                let place = self.choice.below(16);
                let number = ring.next.wrapping_add(word as u32 % 5);
                let entry = self.entry(number);
                let at = BusAddr(ring.commands.0 + 64 * place);
                self.raw.memory.write(at, entry.as_bytes()).expect("the ring");
            }
            14..18 => self.raw.rt.sleep(Span::ns(word % 20_000)).await,
            _ => {
                let entry = self.entry(ring.next);
                self.raw.store(&mut ring, &entry);
            }
        }
        self.rings[which] = ring;
        if word.is_multiple_of(4) {
            self.raw.rt.sleep(Span::ns(word % 997)).await;
        }
    }

    /// Restarts every queue as a driver does and checks that each serves a fence; simulated, checks that host
    /// memory does not change after STATUS is 0.
    pub async fn recover(&mut self, is_simulated: bool) {
        for number in 0..self.rings.len() {
            let ring = self.rings[number];
            self.raw.disable(&ring).await;
        }
        if is_simulated {
            let seen = self.raw.everything();
            self.raw.rt.sleep(Span::us(100)).await;
            assert!(seen == self.raw.everything(), "something landed after STATUS was 0");
        }
        let (base, bytes) = (self.with_pi.start, DCX_FROM as usize);
        let zero = self.raw.bytes(BusAddr(base), bytes).iter().all(|byte| *byte == 0);
        assert!(zero, "guarded memory was written");
        for number in 0..self.rings.len() {
            let mut ring = self.rings[number];
            self.raw.enable(&mut ring, Control::new()).await;
            self.raw.fence(&mut ring).await;
            assert_eq!(ring.group.commands, Group::of(self.block, number as u32).commands);
            self.rings[number] = ring;
        }
    }
}

/// A random setup: few slots and many, all kinds of links.
pub fn drawn(choice: &mut impl Choice) -> Setup {
    let mut setup = Setup::default();
    let options = &mut setup.options;
    options.queues = 1 + choice.below(4) as u16;
    options.slots = options.queues + choice.below(12) as u16;
    options.fetch_max = 1 + choice.below(16) as u32;
    options.anticipate = !choice.one_in(3);
    options.sleep_after = 1 + choice.below(20) as u32;
    options.relaxed_ordering = choice.one_in(2);
    let credits = Credits { headers: 4, data: 64, return_after: Span::ns(300) };
    setup.credits = choice.one_in(3).then_some(credits);
    setup.held_up = choice.one_in(3).then_some(HeldUp { one_in: 5, span: Span::us(2) });
    setup.shuffle = choice.one_in(2).then(|| choice.word());
    setup.grain = choice.one_in(2).then_some(128);
    setup.host_read = Span::ns(choice.below(2) * 250);
    setup.memory_bytes = 2 << 20;
    setup
}
