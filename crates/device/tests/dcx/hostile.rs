//! A hostile host, in both worlds: whatever it does, the front end neither panics nor hangs, writes
//! nothing that no enabled queue has named, and serves whoever disables and enables a queue properly.
//!
//! A failure prints what repeats it. `cargo test -p doorbell-device --test dcx -- --ignored hostile` runs
//! for longer, with the seed of `DOORBELL_SEED` and as many steps as `DOORBELL_OPS` says.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bus::HostPort;
use bus::link::{Credits, HeldUp};
use bus::live::Shared;
use runtime::{Dice, Log, Rt, STD_CLOCK, Span};
use wire::BusAddr;
use wire::dcx::command::{self, Access, Command, Entry, Request};
use wire::dcx::registers::{Control, Group};
use zerocopy::{FromBytes, IntoBytes};

use crate::raw::world::{DCX_FROM, Device, Setup, World, device};
use crate::raw::{LIVE_PATIENCE, Raw, Ring};

/// Steps between two proper turns of every queue, at most.
const LAP: u64 = 100;

/// A host that does what it likes.
struct Script<'a, H> {
    raw: &'a Raw<H>,
    dice: Dice,
    rings: Vec<Ring>,
    block: u32,
    /// Host memory that no queue is told of: it stays as it is.
    guarded: Range<u64>,
}

impl<'a, H: HostPort> Script<'a, H> {
    fn new(raw: &'a Raw<H>, dice: Dice, setup: &Setup) -> Script<'a, H> {
        let rings: Vec<_> =
            (0..setup.options.queues).map(|number| raw.ring(number, 16, Some(128))).collect();
        let base = raw.memory.base().0;
        let guarded = base..base + DCX_FROM;
        Script { raw, dice, rings, block: setup.options.block, guarded }
    }

    fn of<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.dice.below(items.len() as u64) as usize]
    }

    /// An address, mostly of some sense, and never a guarded one.
    fn address(&mut self) -> u64 {
        let (base, end) = (self.guarded.start, self.raw.memory.bytes() as u64);
        let inside = self.guarded.end + 4 * self.dice.below((end - DCX_FROM - (64 << 10)) / 4);
        let word = self.dice.next_u64();
        match self.dice.below(16) {
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
        let command = match self.dice.below(8) {
            0 => Command::Fence,
            1 | 2 => Command::Write { access, fua: tag_version == 1 },
            _ => Command::Read { access, tag_version },
        };
        let slot = self.dice.next_u64() as u16;
        let entry = Entry::new(&Request { number, slot, command });
        if self.dice.chance(7, 8) {
            return entry;
        }
        let mut bytes: [u8; command::BYTES] = entry.as_bytes().try_into().expect("an entry");
        let at = self.dice.below(60) as usize;
        bytes[at] = self.dice.next_u64() as u8;
        Entry::read_from_bytes(&bytes).expect("an entry's length")
    }

    /// One thing or another.
    async fn step(&mut self) {
        let which = self.dice.below(self.rings.len() as u64) as usize;
        let mut ring = self.rings[which];
        let (group, word) = (ring.group, self.dice.next_u64());
        match self.dice.below(128) {
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
                let place = self.dice.below(16);
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

    /// Every queue off and on again, as a driver does it; each serves then, and behind STATUS = 0 nothing
    /// has landed.
    async fn recover(&mut self, is_simulated: bool) {
        for number in 0..self.rings.len() {
            let ring = self.rings[number];
            self.raw.disable(&ring).await;
        }
        if is_simulated {
            let seen = self.raw.everything();
            self.raw.rt.sleep(Span::us(100)).await;
            assert!(seen == self.raw.everything(), "something landed after STATUS was 0");
        }
        let (base, bytes) = (self.guarded.start, DCX_FROM as usize);
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

/// One drawn by chance: few slots and many, over links of all sorts.
fn drawn(dice: &mut Dice) -> Setup {
    let mut setup = Setup::default();
    let options = &mut setup.options;
    options.queues = 1 + dice.below(4) as u16;
    options.slots = options.queues + dice.below(12) as u16;
    options.fetch_max = 1 + dice.below(16) as u32;
    options.anticipate = dice.chance(2, 3);
    options.sleep_after = 1 + dice.below(20) as u32;
    options.relaxed_ordering = dice.chance(1, 2);
    let credits = Credits { headers: 4, data: 64, return_after: Span::ns(300) };
    setup.credits = dice.chance(1, 3).then_some(credits);
    setup.held_up = dice.chance(1, 3).then_some(HeldUp { one_in: 5, span: Span::us(2) });
    setup.shuffle = dice.chance(1, 2).then(|| dice.next_u64());
    setup.grain = dice.chance(1, 2).then_some(128);
    setup.host_read = Span::ns(dice.below(2) * 250);
    setup.memory_bytes = 2 << 20;
    setup
}

/// What a run has seen, so that a test can say that it was not idle.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    transfers: u64,
    refused: u64,
    codes: usize,
    lives: u64,
    faults: u64,
    sleeps: u64,
}

/// Prints what repeats a failed run.
struct Repeat(u64, u64);

impl Drop for Repeat {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("repeat with DOORBELL_SEED={} DOORBELL_OPS={}", self.0, self.1);
        }
    }
}

fn run(seed: u64, steps: u64) -> Seen {
    let _repeat = Repeat(seed, steps);
    let mut dice = Dice::for_part(seed, "hostile host");
    drawn(&mut dice).run(async |w: World| {
        w.medium.span.set(Span::ns(dice.below(3) * 700));
        let mut script = Script::new(&w.raw, dice, &w.setup);
        for step in 0..steps {
            script.step().await;
            if step % LAP == 0 {
                script.recover(true).await;
            }
        }
        script.recover(true).await;
        seen(&w)
    })
}

fn seen(w: &World) -> Seen {
    Seen {
        transfers: w.witness.transfers.get(),
        refused: w.witness.refused.get(),
        codes: w.witness.reports.borrow().len(),
        lives: w.witness.lives.get(),
        faults: w.witness.faults.get(),
        sleeps: w.front.counts().sleeps,
    }
}

#[test]
fn a_hostile_host() {
    for seed in 1..4 {
        let seen = run(seed, 8_000);
        let busy = seen.transfers > 500 && seen.refused > 5 && seen.codes >= 5;
        assert!(busy && seen.lives > 50 && seen.faults > 5, "{seed}: {seen:?}");
    }
}

#[test]
fn hostile_hosts_of_many_devices() {
    let sleeps: u64 = (100..160).map(|seed| run(seed, 6 * LAP).sleeps).sum();
    assert!(sleeps > 0);
}

#[test]
fn a_hostile_host_repeats() {
    assert_eq!(run(42, 1500), run(42, 1500));
}

fn from_environment(key: &str, otherwise: u64) -> u64 {
    match std::env::var(key) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{key}={text}: expected a number")),
        Err(_) => otherwise,
    }
}

#[test]
#[ignore = "as long as DOORBELL_OPS says"]
fn a_hostile_host_for_long() {
    let (seed, steps) =
        (from_environment("DOORBELL_SEED", 1), from_environment("DOORBELL_OPS", 200_000));
    eprintln!("{:?}", run(seed, steps));
}

/// Live: one thread is the device, one runs the script, and a third writes over rings and registers
/// while both run.
fn run_live(seed: u64, laps: u64) -> u64 {
    let _repeat = Repeat(seed, laps);
    let setup = Setup { memory_bytes: 2 << 20, ..Setup::default() };
    let window = setup.spec().register_bytes;
    let base = setup.spec().memory_base;
    let shared = Shared::between_threads(setup.memory_bytes, base, window).expect("memory");
    let (stop, stand, transfers) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let rt = Rt::live(&STD_CLOCK, None, Log::Off);
            let Device { medium, witness, .. } = device(shared.device(&rt), &setup);
            medium.span.set(Span::ZERO);
            rt.block_on(async {
                while !stop.load(Ordering::Acquire) {
                    rt.sleep(Span::ms(1)).await;
                    transfers.store(witness.transfers.get(), Ordering::Release);
                }
            });
            rt.drop_tasks();
        });
        scope.spawn(|| scribble(&shared, &setup, seed, &stop, &stand));
        let rt = Rt::live(&STD_CLOCK, None, Log::Off);
        let mut raw = Raw::new(shared.host(&rt), setup.options.block, DCX_FROM);
        raw.patience = LIVE_PATIENCE;
        let mut script = Script::new(&raw, Dice::for_part(seed, "live"), &setup);
        let over = Over(&stop);
        rt.block_on(async {
            for _ in 0..laps {
                // Odd: the scribbler is to stand still; the next: it does.
                stand.store(1, Ordering::Release);
                while stand.load(Ordering::Acquire) != 2 {
                    std::thread::yield_now();
                }
                script.recover(false).await;
                stand.store(0, Ordering::Release);
                for _ in 0..LAP {
                    script.step().await;
                }
            }
        });
        drop(over);
    });
    transfers.load(Ordering::Acquire)
}

/// Stops the other threads, however its own ends.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Writes over what lies in the rings' part of host memory, and over registers, as fast as it can.
fn scribble(shared: &Shared, setup: &Setup, seed: u64, stop: &AtomicBool, stand: &AtomicU64) {
    let mut dice = Dice::for_part(seed, "scribbler");
    let rt = Rt::live(&STD_CLOCK, None, Log::Off);
    let host = shared.host(&rt);
    let memory = host.arena().memory().clone();
    let from = memory.base().0 + DCX_FROM;
    while !stop.load(Ordering::Acquire) {
        if stand.load(Ordering::Acquire) > 0 {
            stand.store(2, Ordering::Release);
            std::thread::yield_now();
            continue;
        }
        match dice.below(1 << 12) {
            0 => {
                let queue = dice.below(u64::from(setup.options.queues)) as u32;
                let group = Group::of(setup.options.block, queue);
                let register = group.commands + 4 * dice.below(8) as u32;
                host.write32(register, dice.next_u64() as u32 & 0xfff);
            }
            1..64 => {
                let queue = dice.below(u64::from(setup.options.queues)) as u32;
                let group = Group::of(setup.options.block, queue);
                host.write32(group.doorbell, dice.below(64) as u32);
            }
            _ => {
                let at = BusAddr(from + 4 * dice.below(4096));
                memory.store_u32(at, dice.below(32) as u32).expect("inside");
            }
        }
    }
}

/// How much happens in a lap is the scheduler's affair, so it goes on until enough has.
#[test]
fn a_hostile_host_and_a_scribbler_live() {
    let mut transfers = 0;
    for seed in 1..200 {
        transfers += run_live(seed, 8);
        if transfers > 2000 {
            return;
        }
    }
    panic!("the device has hardly moved: {transfers} transfers");
}

#[test]
#[ignore = "as long as DOORBELL_OPS says, in laps"]
fn a_hostile_host_and_a_scribbler_live_for_long() {
    let (seed, laps) =
        (from_environment("DOORBELL_SEED", 1), from_environment("DOORBELL_OPS", 1000));
    eprintln!("{} transfers", run_live(seed, laps));
}
