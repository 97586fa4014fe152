//! Page endpoints against a host that forms commands itself: commands that flash rejects fail with a status,
//! invalid ones do no harm, and nothing outside host memory is accessed.
//!
//! `DOORBELL_MESSAGES=N` sets the number of random commands.

use std::rc::Rc;

use bus::link::LinkSpec;
use bus::sim::{SimBus, SimHost, SimSpec};
use bus::{Buffer, HostPort};
use device::pages::{Endpoints, Options};
use flash::chips::{self, Chips};
use ftl::Pages;
use media::contents::Keep;
use media::nand::{Nand, Profile, Spec};
use runtime::{Log, Rng, Rt, Span};
use wire::BusAddr;
use wire::pages::{
    ANSWERS, Answer, CONTROL, Command, Control, ITEM_BYTES, Item, NO_TRACE, Operation, PageAt,
    RING, RINGS, RowAt, STATUS, STRIDE, Source, Spare, State, Status, TAIL,
};

use crate::raw::bus_spec;

const ENTRIES: u32 = 16;
const UNIT: usize = 4096;

fn spec() -> SimSpec {
    let usual = bus_spec(&[("parse", Span::ns(100)), ("post completion", Span::ns(50))]);
    let link = LinkSpec { completion_bytes: 64, host_read: Span::ns(100), ..usual.link };
    SimSpec { link, interrupt: Span::ns(500), ..usual }
}

struct World {
    rt: Rt,
    host: SimHost,
    chips: Rc<Chips>,
    ring: Buffer,
    answers: Buffer,
    /// Space for a page and its spare bytes, for a list, and for the list's data.
    data: Buffer,
    tail: std::cell::Cell<u32>,
}

impl World {
    /// Runs a test on two endpoints over the test profile: two dies of two planes.
    fn run<T>(test: impl AsyncFnOnce(&World) -> T) -> T {
        let rt = Rt::simulated(None, Log::Off);
        let Profile { geometry, errors, timing, .. } = Profile::test();
        let nand = Spec { geometry, keep: Keep::Everything, block_bytes: 512, errors, seed: 7 };
        let options = chips::Options {
            timing: Some(timing),
            protected_buffer: false,
            nv_slots: None,
            held_up: false,
        };
        let chips = Rc::new(Chips::new(&rt, Nand::new(nand).unwrap(), options).unwrap());
        let bus = SimBus::new(&rt, spec());
        let options = Options { endpoints: 2, slots: 4, rows: 2, fetch_max: 4 };
        Endpoints::start(bus.device(), chips.clone(), options);
        let host = bus.host(0);
        let buffer = |bytes| host.arena().buffer(bytes).expect("memory");
        let (ring, answers, data) =
            (buffer(ENTRIES as usize * 64), buffer(ENTRIES as usize * 16), buffer(1 << 20));
        answers.zero();
        let tail = std::cell::Cell::new(0);
        let world = World { rt: rt.clone(), host, chips, ring, answers, data, tail };
        let result = rt.block_on(test(&world));
        rt.drop_tasks();
        result
    }

    /// Enables the first endpoint with `1 << log2` entries at `ring`.
    async fn enable(&self, ring: u64, log2: u32) -> State {
        for (register, at) in [(RING, ring), (ANSWERS, self.answers.at().0)] {
            self.host.write32(register, at as u32);
            self.host.write32(register + 4, (at >> 32) as u32);
        }
        self.host.write32(RINGS, log2);
        self.host.write32(TAIL, 0);
        self.tail.set(0);
        self.answers.zero();
        self.host.write32(CONTROL, Control::new().with_enable(true).into_bits());
        self.state().await
    }

    async fn ready(&self) {
        let state = self.enable(self.ring.at().0, ENTRIES.ilog2()).await;
        assert_eq!(state, State::new().with_ready(true));
    }

    async fn disable(&self) {
        self.host.write32(CONTROL, 0);
        for _ in 0..1000 {
            if self.state().await.into_bits() == 0 {
                return;
            }
            self.rt.sleep(Span::us(50)).await;
        }
        panic!("it does not stop");
    }

    async fn state(&self) -> State {
        State::from_bits(self.host.read32(STATUS).await)
    }

    fn store(&self, bytes: &[u8; 64]) -> u32 {
        let tail = self.tail.get();
        self.ring.copy_in((tail % ENTRIES) as usize * 64, bytes);
        self.tail.set(tail + 1);
        tail + 1
    }

    /// Waits for the answer numbered `count`.
    async fn answer(&self, count: u32) -> Answer {
        let place = (count % ENTRIES) as usize * 16;
        for _ in 0..100_000 {
            if self.answers.load_u32(place + 12) == count / ENTRIES + 1 {
                let mut bytes = [0; 16];
                self.answers.copy_out(place, &mut bytes);
                return Answer::parse(&bytes).expect("a status that there is");
            }
            self.rt.sleep(Span::us(1)).await;
        }
        panic!("answer {count} does not come");
    }

    /// Runs one command; returns its answer.
    async fn ask(&self, operation: Operation) -> Answer {
        let id = self.tail.get() as u16;
        let tail = self.store(&Command { id, trace: NO_TRACE, operation }.to_bytes());
        self.host.write32(TAIL, tail);
        let answer = self.answer(tail - 1).await;
        assert_eq!(answer.id, id);
        answer
    }

    fn at(&self, offset: usize) -> BusAddr {
        BusAddr(self.data.at().0 + offset as u64)
    }

    /// A list for a row: every unit is filled with `byte`, numbered from 100.
    fn list(&self, planes: u32, byte: u8) -> BusAddr {
        let count = self.chips.shape().row_units(planes);
        self.data.copy_in(1 << 16, &[byte; UNIT]);
        for unit in 0..count {
            let source = Source::Memory(self.at(1 << 16));
            let item = Item { source, logical: 100 + unit };
            self.data.copy_in((1 << 18) + unit as usize * ITEM_BYTES, &item.to_bytes());
        }
        self.at(1 << 18)
    }

    async fn program(&self, block: u32, page: u32, byte: u8) -> Answer {
        let row = RowAt { die: 0, block, planes: 1, page };
        let list = self.list(1, byte);
        self.ask(Operation::Program { row, sequence: 9, erases: 2, list }).await
    }

    async fn read(&self, block: u32, page: u32, units: u32) -> Answer {
        let page = PageAt { die: 0, plane: 0, block, page };
        let (data, spare) = (self.at(0), self.at(1 << 19));
        self.ask(Operation::Read { page, units, data, spare, collects: false, stay: false }).await
    }
}

#[test]
fn page_read_returns_spare_bytes_and_bad_requests_refused() {
    World::run(async |world| {
        world.ready().await;
        let group = world.chips.shape().group;
        assert_eq!(world.read(1, 0, 1).await.status, Status::Erased);
        assert_eq!(world.program(1, 0, 0xa5).await.status, Status::Done);
        assert_eq!(world.read(1, 0, 1).await.status, Status::Done);
        let (mut unit, mut spare) = (vec![0; UNIT], [0; 16]);
        world.data.copy_out(0, &mut unit);
        world.data.copy_out(1 << 19, &mut spare);
        assert!(unit.iter().all(|byte| *byte == 0xa5));
        let spare = Spare::parse(&spare);
        assert_eq!((spare.sequence, spare.erases, spare.logicals[0]), (9, 2, 100));
        // The same page twice, a skipped page, a die of the other endpoint, an absent block.
        assert_eq!(world.program(1, 0, 1).await.status, Status::Refused);
        assert_eq!(world.program(1, 2 * group, 1).await.status, Status::Refused);
        let other = RowAt { die: 1, block: 1, planes: 1, page: 0 };
        assert_eq!(world.ask(Operation::Erase(other)).await.status, Status::Refused);
        assert_eq!(world.read(1 << 20, 0, 1).await.status, Status::Refused);
        let row = RowAt { die: 0, block: 1, planes: 1, page: 0 };
        assert_eq!(world.ask(Operation::Erase(row)).await.status, Status::Done);
        assert_eq!(world.read(1, 0, 1).await.status, Status::Erased);
        assert_eq!(world.program(1, 0, 0x5a).await.status, Status::Done);
    });
}

#[test]
fn copy_within_endpoint_needs_readable_source() {
    World::run(async |world| {
        world.ready().await;
        assert_eq!(world.program(1, 0, 0x77).await.status, Status::Done);
        let copy = async |from: u32, to: u32| {
            let page = PageAt { die: 0, plane: 0, block: from, page: 0 };
            let list = world.list(1, 0);
            let item = Item { source: Source::Flash { page, unit: 0 }, logical: 7 };
            world.data.copy_in(1 << 18, &item.to_bytes());
            let row = RowAt { die: 0, block: to, planes: 1, page: 0 };
            world.ask(Operation::Program { row, sequence: 10, erases: 0, list }).await.status
        };
        assert_eq!(copy(1, 2).await, Status::Done);
        assert_eq!(copy(3, 4).await, Status::Refused, "nothing is there");
        assert_eq!(world.read(2, 0, 1).await.status, Status::Done);
        let mut unit = vec![0; UNIT];
        world.data.copy_out(0, &mut unit);
        assert!(unit.iter().all(|byte| *byte == 0x77));
    });
}

#[test]
fn marked_bad_block_is_listed_and_refused() {
    World::run(async |world| {
        world.ready().await;
        let page = PageAt { die: 0, plane: 0, block: 5, page: 0 };
        assert_eq!(world.ask(Operation::MarkBad(page)).await.status, Status::Done);
        let list = Operation::ListBad { die: 0, data: world.at(0) };
        assert_eq!(world.ask(list).await.status, Status::Done);
        let mut bits = [0; 1];
        world.data.copy_out(0, &mut bits);
        assert_eq!(bits[0] & 1 << 5, 1 << 5);
        assert_eq!(world.program(5, 0, 1).await.status, Status::Refused);
        let row = RowAt { die: 0, block: 5, planes: 1, page: 0 };
        assert_eq!(world.ask(Operation::Erase(row)).await.status, Status::Refused);
    });
}

#[test]
fn bad_data_address_fails_command_bad_ring_sets_broken() {
    World::run(async |world| {
        world.ready().await;
        assert_eq!(world.program(1, 0, 1).await.status, Status::Done);
        let page = PageAt { die: 0, plane: 0, block: 1, page: 0 };
        let (data, spare) = (BusAddr(u64::MAX - 3), world.at(0));
        let read = Operation::Read { page, units: 1, data, spare, collects: false, stay: false };
        assert_eq!(world.ask(read).await.status, Status::BadAddress);
        let row = RowAt { die: 0, block: 1, planes: 1, page: world.chips.shape().group };
        let program = Operation::Program { row, sequence: 1, erases: 0, list: BusAddr(64) };
        assert_eq!(world.ask(program).await.status, Status::BadAddress);
        world.disable().await;
        for (ring, log2) in [(64, 4), (3, 4), (world.ring.at().0, 11), (u64::MAX - 63, 4)] {
            world.enable(ring, log2).await;
            world.host.write32(TAIL, 1);
            world.rt.sleep(Span::ms(1)).await;
            assert!(world.state().await.broken(), "{ring:#x} {log2}");
            world.disable().await;
        }
        world.ready().await;
        world.host.write32(TAIL, ENTRIES + 1);
        world.rt.sleep(Span::ms(1)).await;
        assert!(world.state().await.broken(), "a count past the ring");
    });
}

/// Random bytes, most of them nearly valid. Every command is answered, and the chips never get an argument
/// that they would panic at.
#[test]
fn random_commands_are_all_answered() {
    let count = std::env::var("DOORBELL_MESSAGES").map_or(3000, |n| n.parse().expect("a number"));
    World::run(async |world| {
        world.ready().await;
        let mut rng = Rng::for_part(3, "storm");
        let (mut answered, mut all) = (0, 0);
        while all < count {
            let burst = 1 + rng.below(4) as u32;
            for _ in 0..burst {
                let mut bytes: [u8; 64] = std::array::from_fn(|_| rng.next_u64() as u8);
                if rng.chance(7, 8) {
                    bytes[0] = 1 + rng.below(5) as u8;
                    for at in [8, 12, 16, 20, 24] {
                        let word = rng.below([2, 6, 8, 4, 4][(at - 8) / 4]) as u32;
                        bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
                    }
                    for at in [40, 48] {
                        let place = world.at(rng.below(1 << 20) as usize & !3).0;
                        bytes[at..at + 8].copy_from_slice(&place.to_le_bytes());
                    }
                }
                world.store(&bytes);
            }
            let junk: Vec<u8> = (0..256).map(|_| rng.next_u64() as u8 & 3).collect();
            world.data.copy_in(rng.below(4000) as usize * 256, &junk);
            world.host.write32(TAIL, world.tail.get());
            for _ in 0..burst {
                world.answer(answered).await;
                (answered, all) = (answered + 1, all + 1);
            }
            if rng.chance(1, 64) {
                world.disable().await;
                world.ready().await;
                // Beyond the registers of every endpoint.
                world.host.write32(2 * STRIDE + TAIL, 7);
                answered = 0;
            }
        }
    });
}
