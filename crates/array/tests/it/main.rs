//! Arrays over RAM disks that fail, lose data at power cuts, and are slow.

mod failures;
mod journal;

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;

use array::{Array, Numbers, Options, StartError, Unfit};
use bus::link::LinkSpec;
use bus::sim::{NamedCost, SimBus, SimHost, SimSpec};
use bus::{Buffer, HostPort, OutOfMemory};
use host::{BlockDevice, Deallocated, Geometry, IoError, Kind};
use runtime::{Log, Rng, Rt, Span};
use wire::pcie::Generation;
use wire::{BusAddr, Lba};

const BLOCK: usize = 512;
const CHUNK: u64 = 4;
/// Number of the next [`Event`].
static NEXT_EVENT: AtomicU64 = AtomicU64::new(0);

/// A RAM disk with a volatile cache.
#[derive(Clone)]
struct Ram(Rc<State>);

type Block = (Vec<u8>, Option<Vec<u8>>);

struct State {
    host: SimHost,
    /// Durable and cached content of each block.
    blocks: RefCell<Vec<Block>>,
    /// RNG of latencies and power cuts.
    rng: RefCell<Rng>,
    gone: Cell<bool>,
    /// True if it has a volatile cache: otherwise each written block is durable.
    cached: Cell<bool>,
    /// If set, flushes and FUA have no effect.
    lies: Cell<bool>,
    /// An unreadable block.
    bad: Cell<Option<u64>>,
    /// A block of which one write fails, and how.
    refused: Cell<Option<(u64, Kind)>>,
    /// Commands in order; `None` unless a test reads them.
    events: RefCell<Option<Vec<Event>>>,
}

/// A command of a RAM disk that begins or ends; numbered in the order of all disks.
#[derive(Clone)]
struct Event {
    at: u64,
    ends: bool,
    /// First block, and content of each block; `None` for a flush.
    write: Option<(u64, Vec<Vec<u8>>)>,
}

impl Ram {
    fn new(host: &SimHost, blocks: u64, seed: u64) -> Ram {
        Ram(Rc::new(State {
            host: host.clone(),
            blocks: RefCell::new(vec![(vec![0; BLOCK], None); blocks as usize]),
            rng: RefCell::new(Rng::for_part(seed, "disk")),
            gone: Cell::new(false),
            cached: Cell::new(true),
            lies: Cell::new(false),
            bad: Cell::new(None),
            refused: Cell::new(None),
            events: RefCell::new(None),
        }))
    }

    /// Records an event of a write with these contents, or of a flush.
    fn event(&self, ends: bool, write: Option<(u64, &Buffer)>) {
        let Some(events) = &mut *self.0.events.borrow_mut() else { return };
        let contents = |from: &Buffer| {
            let mut bytes = vec![0; from.bytes()];
            from.copy_out(0, &mut bytes);
            bytes.chunks(BLOCK).map(<[u8]>::to_vec).collect()
        };
        let write = write.map(|(block, from)| (block, contents(from)));
        let at = NEXT_EVENT.fetch_add(1, Ordering::Relaxed);
        events.push(Event { at, ends, write });
    }

    async fn work(&self, lba: Lba) -> Result<(), IoError> {
        let span = Span::ns(1 + self.0.rng.borrow_mut().below(1_000));
        self.0.host.rt().sleep(span).await;
        if self.0.gone.get() { Err(IoError::of(Kind::Gone, Some(lba))) } else { Ok(()) }
    }

    /// Cuts the power: each block that is not flushed is kept or lost at random.
    fn cut_power(&self) {
        let mut rng = self.0.rng.borrow_mut();
        for (durable, newer) in self.0.blocks.borrow_mut().iter_mut() {
            if let Some(newer) = newer.take().filter(|_| rng.chance(1, 2)) {
                *durable = newer;
            }
        }
    }
}

impl BlockDevice for Ram {
    fn geometry(&self) -> Geometry {
        Geometry {
            blocks: self.0.blocks.borrow().len() as u64,
            block_bytes: BLOCK as u32,
            transfer_bytes_max: 8 * BLOCK as u32,
            buffer_align: 4,
            volatile_cache: self.0.cached.get(),
        }
    }

    fn buffer(&self, bytes: usize) -> Result<Buffer, OutOfMemory> {
        self.0.host.arena().buffer(bytes)
    }

    async fn read(&self, lba: Lba, into: Buffer) -> (Buffer, Result<(), IoError>) {
        let count = self.geometry().validate(lba, &into).expect("a read that is one");
        if let Err(error) = self.work(lba).await {
            return (into, Err(error));
        }
        if self.0.bad.get().is_some_and(|bad| (lba.0..lba.0 + u64::from(count)).contains(&bad)) {
            return (into, Err(IoError::of(Kind::MediaFailed, Some(lba))));
        }
        for (number, (durable, newer)) in
            self.0.blocks.borrow()[lba.0 as usize..][..count as usize].iter().enumerate()
        {
            into.copy_in(number * BLOCK, newer.as_ref().unwrap_or(durable));
        }
        (into, Ok(()))
    }

    async fn write(&self, lba: Lba, from: Buffer, fua: bool) -> (Buffer, Result<(), IoError>) {
        let count = self.geometry().validate(lba, &from).expect("a write that is one");
        self.event(false, Some((lba.0, &from)));
        if let Err(error) = self.work(lba).await {
            return (from, Err(error));
        }
        let range = lba.0..lba.0 + u64::from(count);
        if let Some((_, kind)) = self.0.refused.get().filter(|(block, _)| range.contains(block)) {
            self.0.refused.set(None);
            return (from, Err(IoError::of(kind, Some(lba))));
        }
        let bad = self.0.bad.get();
        self.0.bad.set(bad.filter(|bad| !(lba.0..lba.0 + u64::from(count)).contains(bad)));
        let durable = (fua || !self.0.cached.get()) && !self.0.lies.get();
        for number in 0..count as usize {
            // The power may fail between any two blocks.
            if number > 0 && self.0.rng.borrow_mut().chance(1, 4) {
                self.0.host.rt().sleep(Span::ns(100)).await;
            }
            let mut bytes = vec![0; BLOCK];
            from.copy_out(number * BLOCK, &mut bytes);
            let block = &mut self.0.blocks.borrow_mut()[lba.0 as usize + number];
            *block = if durable { (bytes, None) } else { (block.0.clone(), Some(bytes)) };
        }
        self.event(true, Some((lba.0, &from)));
        (from, Ok(()))
    }

    async fn flush(&self) -> Result<(), IoError> {
        self.event(false, None);
        self.work(Lba(0)).await?;
        if self.0.lies.get() {
            return Ok(());
        }
        for (durable, newer) in self.0.blocks.borrow_mut().iter_mut() {
            if let Some(newer) = newer.take() {
                *durable = newer;
            }
        }
        self.event(true, None);
        Ok(())
    }

    fn deallocated(&self) -> Deallocated {
        Deallocated::Zeros
    }

    async fn deallocate(&self, lba: Lba, blocks: u32) -> Result<(), IoError> {
        self.geometry().validate_range(lba, blocks.into()).expect("blocks that are there");
        self.work(lba).await?;
        for block in &mut self.0.blocks.borrow_mut()[lba.0 as usize..][..blocks as usize] {
            let zeros = vec![0; BLOCK];
            *block = match self.0.cached.get() {
                true => (block.0.clone(), Some(zeros)),
                false => (zeros, None),
            };
        }
        Ok(())
    }
}

type Tested = Array<SimHost, Ram>;

struct World {
    rt: Rt,
    host: SimHost,
    disks: Vec<Ram>,
    identity: u64,
}

impl World {
    fn new(members: u64, seed: u64) -> World {
        World::of(members, 40, seed)
    }

    fn of(members: u64, blocks: u64, seed: u64) -> World {
        let rt = Rt::simulated(None, Log::Off);
        rt.shuffle_ready_tasks(Rng::for_part(seed, "ready"));
        let bus = SimBus::new(&rt, spec());
        let host = bus.host(0);
        let disks =
            (0..members).map(|number| Ram::new(&host, blocks, 10 * seed + number)).collect();
        World { rt, host, disks, identity: seed + 1 }
    }

    fn array(&self, parity: bool) -> Tested {
        self.array_with(parity, 0)
    }

    fn array_with(&self, parity: bool, journal: u32) -> Tested {
        let disks = self.disks.iter().map(|disk| vec![disk.clone()]).collect();
        let chunk_bytes = CHUNK as u32 * BLOCK as u32;
        let traces = Numbers::default();
        let options =
            Options { chunk_bytes, parity, writes: 4, journal, identity: self.identity, traces };
        Array::new(vec![self.host.clone()], disks, options).expect("an array").remove(0)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.rt.drop_tasks();
    }
}

/// Expected content of the blocks: the byte that fills each.
struct Known {
    array: Tested,
    blocks: Vec<u8>,
    rng: Rng,
}

impl Known {
    fn new(array: &Tested, seed: u64) -> Known {
        let blocks = vec![0; array.geometry().blocks as usize];
        Known { array: array.clone(), blocks, rng: Rng::for_part(seed, "work") }
    }

    fn range(&mut self) -> (u64, u64) {
        let all = self.blocks.len() as u64;
        let most = u64::from(self.array.geometry().transfer_bytes_max) / BLOCK as u64;
        let blocks = 1 + self.rng.below(most);
        (self.rng.below(all - blocks), blocks)
    }

    async fn write(&mut self) {
        let (lba, blocks) = self.range();
        let byte = self.rng.below(256) as u8;
        if self.rng.chance(1, 8) {
            let done = self.array.deallocate(Lba(lba), blocks as u32).await;
            done.expect("blocks given back");
            self.blocks[lba as usize..][..blocks as usize].fill(0);
            return;
        }
        let from = self.array.buffer(blocks as usize * BLOCK).expect("a buffer");
        for number in 0..blocks {
            let byte = byte.wrapping_add(number as u8);
            from.copy_in(number as usize * BLOCK, &[byte; BLOCK]);
            self.blocks[(lba + number) as usize] = byte;
        }
        let fua = self.rng.chance(1, 4);
        self.array.write(Lba(lba), from, fua).await.1.expect("blocks written");
    }

    async fn read(&mut self) {
        let (lba, blocks) = self.range();
        self.look(lba, blocks).await;
    }

    async fn look(&self, lba: u64, blocks: u64) {
        let into = self.array.buffer(blocks as usize * BLOCK).expect("a buffer");
        let (into, done) = self.array.read(Lba(lba), into).await;
        done.expect("blocks read");
        for number in 0..blocks {
            let mut bytes = [0; BLOCK];
            into.copy_out(number as usize * BLOCK, &mut bytes);
            let expected = self.blocks[(lba + number) as usize];
            assert_eq!(bytes, [expected; BLOCK], "block {}", lba + number);
        }
    }

    async fn look_at_all(&self) {
        for lba in 0..self.blocks.len() as u64 {
            self.look(lba, 1).await;
        }
    }

    async fn work(&mut self, operations: u32) {
        for _ in 0..operations {
            self.write().await;
            self.read().await;
        }
    }
}

#[test]
fn write_read_roundtrip_on_all_layouts() {
    for (members, parity) in [(1, false), (4, false), (3, true), (5, true)] {
        for seed in 0..4 {
            let world = World::new(members, seed);
            let array = world.array(parity);
            world.rt.block_on(async {
                let mut known = Known::new(&array, seed);
                known.work(100).await;
                known.look_at_all().await;
                assert_eq!(array.resync().await, Ok(0), "all parities are right");
            });
        }
    }
}

#[test]
fn lost_member_replaced_and_rebuilt_under_load() {
    for seed in 0..20 {
        let world = World::new(4, seed);
        let array = world.array(true);
        let lost = (seed % 4) as u32;
        world.rt.block_on(async {
            let mut known = Known::new(&array, seed);
            known.work(20).await;
            world.disks[lost as usize].0.gone.set(true);
            known.work(30).await;
            known.look_at_all().await;
            assert_eq!(array.out(), Some(lost));
            let new = Ram::new(&world.host, 40, 1_000 + seed);
            // Its old content must not be used.
            new.0.blocks.borrow_mut().iter_mut().for_each(|block| block.0.fill(0xee));
            array.replace(vec![new.clone()]).expect("a fitting disk");
            // Rebuilt with I/O in progress.
            let ended = Rc::new(Cell::new(false));
            let (rebuilding, told) = (array.clone(), ended.clone());
            world.rt.spawn(async move {
                rebuilding.rebuild().await.expect("it is rebuilt");
                told.set(true);
            });
            while !ended.get() {
                known.work(1).await;
            }
            assert_eq!((array.out(), array.resync().await), (None, Ok(0)));
            // Then another member may fail.
            array.take_out((lost + 1) % 4);
            known.look_at_all().await;
        });
    }
}

#[test]
fn unreadable_block_reconstructed_and_rewritable() {
    let world = World::new(4, 1);
    let array = world.array(true);
    world.rt.block_on(async {
        let mut known = Known::new(&array, 1);
        known.work(40).await;
        for member in &world.disks {
            for block in [0, 7, 39] {
                member.0.bad.set(Some(block));
                known.look_at_all().await;
                known.work(20).await;
                member.0.bad.set(None);
            }
        }
        assert_eq!((array.out(), array.resync().await), (None, Ok(0)));
        assert!(array.counters().recovered > 0);
    });
}

#[test]
fn dropped_write_leaves_parity_consistent() {
    for polls in 1..12 {
        let world = World::new(4, polls.into());
        let array = world.array(true);
        world.rt.block_on(async {
            let mut known = Known::new(&array, polls.into());
            for _ in 0..8 {
                poll_times(known.write(), polls).await;
                // Other writes to the same stripes.
                known.write().await;
            }
            // Dropped writes may still be in flight in the array's tasks.
            world.rt.sleep(Span::ms(1)).await;
            assert_eq!(array.resync().await, Ok(0), "after {polls} polls");
        });
    }
}

#[test]
fn flushed_data_survives_power_cut_and_resync_fixes_parity() {
    let mut wrong = 0;
    for seed in 0..20 {
        let world = World::new(4, seed);
        let array = world.array(true);
        let mut known = Known::new(&array, seed);
        world.rt.block_on(async {
            known.work(30).await;
            array.flush().await.expect("flushed");
            // Later writes to the upper half, whose content is not checked.
            let half = known.blocks.len() as u64 / 2;
            for _ in 0..20 {
                let lba = half + known.rng.below(half - 1);
                let from = array.buffer(BLOCK).expect("a buffer");
                from.copy_in(0, &[known.rng.below(256) as u8; BLOCK]);
                let writes = array.write(Lba(lba), from, false);
                poll_times(writes, 1 + known.rng.below(8) as u32).await;
            }
            world.rt.sleep(Span::ns(known.rng.below(1_500))).await;
        });
        world.rt.drop_tasks();
        world.disks.iter().for_each(Ram::cut_power);
        let array = world.array(true);
        known.array = array.clone();
        let half = known.blocks.len() as u64 / 2;
        world.rt.block_on(async {
            for lba in 0..half {
                known.look(lba, 1).await;
            }
            wrong += array.resync().await.expect("all are there");
            assert_eq!(array.resync().await, Ok(0));
            // The content is readable without any one of the members.
            for lba in half..2 * half {
                let into = array.buffer(BLOCK).expect("a buffer");
                let (into, done) = array.read(Lba(lba), into).await;
                done.expect("blocks read");
                let mut byte = [0];
                into.copy_out(0, &mut byte);
                known.blocks[lba as usize] = byte[0];
            }
            for member in 0..4 {
                known.array = world.array(true);
                known.array.take_out(member);
                known.look_at_all().await;
            }
        });
    }
    assert!(wrong > 0, "no cut came between data and parity: the test is too kind");
}

#[test]
fn reads_fail_with_two_members_out() {
    let world = World::new(4, 9);
    let array = world.array(true);
    world.rt.block_on(async {
        let mut known = Known::new(&array, 9);
        known.work(10).await;
        world.disks[0].0.gone.set(true);
        world.disks[2].0.gone.set(true);
        let mut errors = 0;
        for lba in 0..known.blocks.len() as u64 {
            let into = array.buffer(BLOCK).expect("a buffer");
            let (into, done) = array.read(Lba(lba), into).await;
            let mut bytes = [0; BLOCK];
            into.copy_out(0, &mut bytes);
            match done {
                Ok(()) => assert_eq!(bytes, [known.blocks[lba as usize]; BLOCK]),
                Err(error) => {
                    assert_eq!(error.lba, Some(Lba(lba)));
                    errors += 1;
                }
            }
        }
        assert!(errors >= known.blocks.len() / 3, "{errors} of {}", known.blocks.len());
        let from = array.buffer(BLOCK).expect("a buffer");
        assert!(array.write(Lba(0), from, false).await.1.is_err());
        assert!(array.flush().await.is_err());
    });
}

/// Without parity a member's error is the array's error.
#[test]
fn striped_array_reports_member_error_with_array_lba() {
    let world = World::new(3, 2);
    let array = world.array(false);
    world.rt.block_on(async {
        world.disks[1].0.bad.set(Some(5));
        // Member 1 has the second chunk of each stripe.
        let lba = Lba(CHUNK * 3 + CHUNK + 1);
        let into = array.buffer(BLOCK).expect("a buffer");
        let (_, done) = array.read(lba, into).await;
        assert_eq!(done, Err(IoError::of(Kind::MediaFailed, Some(lba))));
        assert_eq!(array.resync().await, Ok(0), "there is nothing to look at");
    });
}

#[test]
fn unfit_members_or_chunk_rejected() {
    let world = World::new(3, 3);
    let try_with = |members: usize, chunk_bytes, parity| {
        let disks = world.disks[..members].iter().map(|disk| vec![disk.clone()]).collect();
        let options = Options {
            chunk_bytes,
            parity,
            writes: 1,
            journal: 0,
            identity: 1,
            traces: Numbers::default(),
        };
        Array::new(vec![world.host.clone()], disks, options).err().map(|unfit| unfit.what)
    };
    assert_eq!(try_with(0, 512, false), Some("members"));
    assert_eq!(try_with(2, 512, true), Some("members"));
    assert_eq!(try_with(3, 100, true), Some("bytes of a chunk"));
    assert_eq!(try_with(3, 9 * 512, true), Some("bytes of a chunk"));
    assert_eq!(try_with(3, 512, true), None);
}

#[test]
fn full_stripe_write_reads_nothing() {
    let world = World::new(5, 4);
    let array = world.array(true);
    world.rt.block_on(async {
        let stripe = array.layout().stripe_blocks();
        let from = array.buffer(stripe as usize * BLOCK).expect("a buffer");
        array.write(Lba(stripe), from, false).await.1.expect("written");
        let counters = array.counters();
        assert_eq!((counters.whole, counters.modified), (1, 0));
        let from = array.buffer(BLOCK).expect("a buffer");
        array.write(Lba(stripe), from, false).await.1.expect("written");
        assert_eq!(array.counters().modified, 1);
    });
}

/// A bus that is used only for its memory and costs.
fn spec() -> SimSpec {
    SimSpec {
        link: LinkSpec {
            generation: Generation::Gen3,
            lanes: 4,
            mps: 256,
            mrrs: 512,
            rcb: 64,
            completion_bytes: 64,
            ecrc: false,
            latency: Span::ns(150),
            host_read: Span::ns(100),
            device_read: Span::ns(50),
            tlps_per_dllp: 4,
            credits: None,
            held_up: None,
            coherent: false,
        },
        memory_base: BusAddr(0x1_0000_0000),
        memory_bytes: 16 << 20,
        register_bytes: 0x2000,
        relaxed_ordering: false,
        cores: 1,
        poll: Span::ns(20),
        interrupt: Span::ns(500),
        host_costs: vec![NamedCost { name: "parity", span: Span::ns(30) }],
        device_costs: vec![],
        device_processors: 0,
        device_copy: None,
        masks: None,
        seed: 1,
        ports: None,
    }
}

/// Polls a future at most `times` times, then drops it.
async fn poll_times<F: Future>(future: F, times: u32) -> Option<F::Output> {
    let mut future = Box::pin(future);
    let mut left = times;
    poll_fn(|cx| {
        let Some(less) = left.checked_sub(1) else { return Poll::Ready(None) };
        left = less;
        match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}
