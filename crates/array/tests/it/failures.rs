//! Members that fail for a moment: before a power cut, during a start, or while they are rebuilt.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;

use host::{BlockDevice, Kind};
use runtime::{Rng, Rt, Span};
use wire::Lba;

use super::journal::{Allowed, validate, write_on};
use super::{BLOCK, CHUNK, Event, Known, Ram, StartError, Tested, Unfit, World};

const BLOCKS: u64 = 112;
const JOURNAL: u32 = 4;
const SEEDS: u64 = 200;

/// Starts the array, and validates its content, then that without each member.
async fn validate_all(world: &World, allowed: &Allowed) -> Result<Tested, String> {
    let array = world.array_with(true, JOURNAL);
    array.start(None).await.map_err(|unfit| format!("{unfit:?}"))?;
    validate(&array, allowed).await?;
    for member in (0..4).filter(|_| array.out().is_none()) {
        let without = world.array_with(true, JOURNAL);
        without.take_out(member);
        validate(&without, allowed).await.map_err(|what| format!("without {member}: {what}"))?;
    }
    Ok(array)
}

fn cut_power(world: &World) {
    world.rt.drop_tasks();
    world.disks.iter().for_each(Ram::cut_power);
}

/// Starts an array, and four writers on it.
async fn begin_writers(world: &World, seed: u64) -> Allowed {
    let array = world.array_with(true, JOURNAL);
    array.start(None).await.expect("an array");
    let blocks = array.geometry().blocks;
    let allowed: Allowed = Rc::new(RefCell::new(vec![vec![0]; blocks as usize]));
    for writer in 0..4 {
        let rng = Rng::for_part(seed, &format!("writer {writer}"));
        let part = (writer * blocks / 4, (writer + 1) * blocks / 4);
        world.rt.spawn(write_on(array.clone(), allowed.clone(), rng, part));
    }
    allowed
}

/// Returns true if a member has written a block below this one.
fn has_written_below(world: &World, end: u64) -> bool {
    let is_below =
        |event: &Event| event.ends && event.write.as_ref().is_some_and(|(block, _)| *block < end);
    world.disks.iter().any(|disk| disk.0.events.borrow().iter().flatten().any(is_below))
}

/// A drive loses its power a little before the others, and all are back.
#[test]
fn member_lost_just_before_a_cut_returns_without_loss_of_writes() {
    for (cached, seed) in
        [true, false].into_iter().flat_map(|cached| (0..SEEDS).map(move |seed| (cached, seed)))
    {
        let world = World::of(4, BLOCKS, seed);
        world.disks.iter().for_each(|disk| disk.0.cached.set(cached));
        let mut rng = Rng::for_part(seed, "cuts");
        let lost = &world.disks[rng.below(4) as usize].0;
        let done = world.rt.block_on(async {
            let allowed = begin_writers(&world, seed).await;
            world.rt.sleep(Span::ns(rng.below(20_000))).await;
            lost.gone.set(true);
            world.rt.sleep(Span::ns(rng.below(8_000))).await;
            cut_power(&world);
            lost.gone.set(false);
            validate_all(&world, &allowed).await.map(drop)
        });
        done.unwrap_or_else(|what| panic!("seed {seed}, cache {cached}: {what}"));
    }
}

/// The second start has the member that the first one had not.
#[test]
fn start_without_a_member_cut_short_leaves_parity_consistent() {
    let mut again = 0;
    for seed in 0..SEEDS {
        let world = World::of(4, BLOCKS, seed);
        let mut rng = Rng::for_part(seed, "cuts");
        let lost = &world.disks[rng.below(4) as usize].0;
        let done = world.rt.block_on(async {
            let allowed = begin_writers(&world, seed).await;
            world.rt.sleep(Span::ns(rng.below(20_000))).await;
            cut_power(&world);
            lost.gone.set(true);
            let array = world.array_with(true, JOURNAL);
            let stripes = array.layout().stripes() * CHUNK;
            world.disks.iter().for_each(|disk| *disk.0.events.borrow_mut() = Some(Vec::new()));
            let ended = Rc::new(Cell::new(false));
            let has_ended = ended.clone();
            world.rt.spawn(async move {
                has_ended.set(array.start(None).await.is_ok());
            });
            while !ended.get() && !has_written_below(&world, stripes) {
                world.rt.sleep(Span::ns(50)).await;
            }
            again += u32::from(!ended.get());
            world.rt.sleep(Span::ns(rng.below(500))).await;
            cut_power(&world);
            lost.gone.set(false);
            validate_all(&world, &allowed).await.map(drop)
        });
        done.unwrap_or_else(|what| panic!("seed {seed}: {what}"));
    }
    assert!(again > 0, "no start was cut after a write in place: the test is too kind");
}

/// First blocks of the journal's superblocks and records on each member.
fn journal_blocks(array: &Tested) -> impl Iterator<Item = u64> {
    let begin = array.layout().stripes() * CHUNK;
    (0..2 + u64::from(JOURNAL) + 1).map(move |number| begin + 8 * number)
}

#[test]
fn member_with_an_unreadable_journal_block_is_out_and_no_write_is_lost() {
    for (seed, member) in (0..6).flat_map(|seed| (0..4).map(move |member| (seed, member))) {
        let world = World::of(4, BLOCKS, seed);
        let done = world.rt.block_on(async {
            let allowed = begin_writers(&world, seed).await;
            cut_power(&world);
            let array = world.array_with(true, JOURNAL);
            // A record: of superblocks the other counts.
            let record = journal_blocks(&array).nth(2 + (seed % 3) as usize).expect("a record");
            world.disks[member].0.bad.set(Some(record));
            array.start(None).await.map_err(|why| format!("{why:?}"))?;
            assert_eq!(array.out(), Some(member as u32), "seed {seed}");
            validate_all(&world, &allowed).await.map(drop)?;
            // With another member missing nothing can replace it.
            world.disks[(member + 1) % 4].0.gone.set(true);
            let array = world.array_with(true, JOURNAL);
            assert!(array.start(None).await.is_err(), "two members out");
            Ok::<(), String>(())
        });
        done.unwrap_or_else(|what| panic!("seed {seed}, member {member}: {what}"));
    }
}

#[test]
fn member_of_another_array_is_refused_and_nothing_is_written() {
    let mut world = World::of(4, BLOCKS, 1);
    let own = world.identity;
    let started = |world: &World| world.rt.block_on(world.array_with(true, JOURNAL).start(None));
    started(&world).expect("a new array");
    let of_this = world.disks.clone();
    world.disks = (0..4).map(|number| Ram::new(&world.host, BLOCKS, 100 + number)).collect();
    world.identity = 77;
    for _ in 0..3 {
        // Newer superblocks than those of the first.
        started(&world).expect("another new array");
    }
    let others = std::mem::replace(&mut world.disks, of_this);
    let contents = |world: &World| -> Vec<_> {
        world.disks.iter().map(|disk| disk.0.blocks.borrow().clone()).collect()
    };
    for (member, other) in others.iter().enumerate() {
        let right = std::mem::replace(&mut world.disks[member], other.clone());
        let before = contents(&world);
        let expected = StartError::OtherArray { member: member as u32, found: 77, expected: own };
        assert_eq!(started(&world), Err(expected));
        assert!(contents(&world) == before, "member {member}: nothing is written");
        // Known to be missing, it is not read.
        let without = world.array_with(true, JOURNAL);
        assert_eq!(world.rt.block_on(without.start(Some(member as u32))), Ok(0));
        // The array says that it is out: it is a device to be rebuilt.
        assert_eq!(started(&world), Ok(0));
        world.disks[member] = right;
        let array = world.array_with(true, JOURNAL);
        world.rt.block_on(async {
            array.start(None).await.expect("the array without it");
            assert_eq!(array.out(), Some(member as u32));
            array.rebuild().await.expect("rebuilt");
        });
    }
}

/// Superblocks of older programs have no identity: the first start gives them one.
#[test]
fn array_without_identity_gets_one_at_a_start() {
    let mut world = World::of(4, BLOCKS, 1);
    let start = |world: &World| world.rt.block_on(world.array_with(true, JOURNAL).start(None));
    for identity in [0, 5, 6] {
        world.identity = identity;
        start(&world).expect("an array");
    }
    let right = world.disks.clone();
    world.disks = (0..4).map(|number| Ram::new(&world.host, BLOCKS, 9 + number)).collect();
    start(&world).expect("another array, of identity 6");
    world.disks.iter_mut().zip(right).skip(1).for_each(|(disk, right)| *disk = right);
    let expected = StartError::OtherArray { member: 0, found: 6, expected: 5 };
    assert_eq!(start(&world), Err(expected));
}

#[test]
fn start_that_failed_can_be_tried_again() {
    let world = World::of(4, BLOCKS, 1);
    let array = world.array_with(true, JOURNAL);
    let superblock = journal_blocks(&array).nth(1).expect("the second superblock");
    world.disks[2].0.refused.set(Some((superblock, Kind::OutOfMemory)));
    world.rt.block_on(async {
        assert!(matches!(array.start(None).await, Err(StartError::Unfit(_))));
        array.start(None).await.expect("an array");
        let mut known = Known::new(&array, 1);
        known.work(100).await;
        known.look_at_all().await;
    });
}

#[test]
fn replaced_member_must_fit_and_its_old_records_are_gone_for_good() {
    let world = World::of(4, BLOCKS, 1);
    let array = world.array_with(true, JOURNAL);
    world.rt.block_on(async {
        array.start(None).await.expect("an array");
        array.take_out(1);
        let unfit = array.replace(vec![Ram::new(&world.host, BLOCKS - CHUNK, 3)]);
        let (what, expected) = ("blocks of a member", "as many as the array uses");
        assert_eq!(unfit, Err(Unfit { what, found: BLOCKS - CHUNK, expected }));
        let unfit = array.replace(Vec::new());
        assert_eq!(unfit.map_err(|unfit| unfit.what), Err("disks of a member"));
        let new = replace(&world, &array, 7);
        let blocks: Vec<_> = journal_blocks(&array).collect();
        rebuild_with(&world.rt, &array, async {
            for block in blocks {
                let durable = new.0.blocks.borrow()[block as usize].0.clone();
                assert!(durable == [0; BLOCK], "block {block} has no record after a cut");
            }
        })
        .await;
    });
}

/// Rebuilds a member, with this done once some stripes are rebuilt; returns true if it is rebuilt.
async fn rebuild_with(rt: &Rt, array: &Tested, then: impl Future<Output = ()>) -> bool {
    let (rebuilding, ended) = (array.clone(), Rc::new(Cell::new(None)));
    let has_ended = ended.clone();
    rt.spawn(async move { has_ended.set(Some(rebuilding.rebuild().await.is_ok())) });
    rt.sleep(Span::us(8)).await;
    assert_eq!(ended.get(), None, "still rebuilt");
    then.await;
    loop {
        if let Some(good) = ended.get() {
            return good;
        }
        rt.sleep(Span::us(1)).await;
    }
}

/// A new disk in the place of a member, with content that must not be used.
fn replace(world: &World, array: &Tested, seed: u64) -> Ram {
    let new = Ram::new(&world.host, BLOCKS, seed);
    new.0.blocks.borrow_mut().iter_mut().for_each(|block| block.0.fill(0xee));
    array.replace(vec![new.clone()]).expect("a fitting disk");
    new
}

#[test]
fn write_that_fails_on_a_rebuilt_stripe_is_not_lost() {
    for (seed, journal) in (0..20).flat_map(|seed| [(seed, 0), (seed, JOURNAL)]) {
        let world = World::of(4, BLOCKS, seed);
        let array = world.array_with(true, journal);
        world.rt.block_on(async {
            array.start(None).await.expect("an array");
            let mut known = Known::new(&array, seed);
            known.work(20).await;
            // Block 0 of the array is the first of member 0.
            array.take_out(0);
            let new = replace(&world, &array, 1_000 + seed);
            let good = rebuild_with(&world.rt, &array, async {
                new.0.refused.set(Some((0, Kind::MediaFailed)));
                write_byte(&array, 0, 0x77).await;
                known.blocks[0] = 0x77;
            })
            .await;
            assert_eq!(new.0.refused.get(), None, "a write has failed");
            assert_eq!((good, array.out()), (false, Some(0)), "seed {seed}, journal {journal}");
            known.look_at_all().await;
            assert_eq!(array.rebuild().await, Ok(()), "seed {seed}, journal {journal}");
            known.look_at_all().await;
        });
    }
}

#[test]
fn member_replaced_during_its_rebuild_is_rebuilt_whole() {
    for (seed, journal) in (0..20).flat_map(|seed| [(seed, 0), (seed, JOURNAL)]) {
        let world = World::of(4, BLOCKS, seed);
        let array = world.array_with(true, journal);
        world.rt.block_on(async {
            array.start(None).await.expect("an array");
            let mut known = Known::new(&array, seed);
            known.work(20).await;
            array.take_out(1);
            let new = replace(&world, &array, 1_000 + seed);
            let good = rebuild_with(&world.rt, &array, async { new.0.gone.set(true) }).await;
            assert!(!good, "its rebuild fails");
            replace(&world, &array, 2_000 + seed);
            assert_eq!(array.rebuild().await, Ok(()), "seed {seed}, journal {journal}");
            known.look_at_all().await;
            assert_eq!(array.resync().await, Ok(0), "seed {seed}, journal {journal}");
        });
    }
}

/// Places were freed while a member was out, by a record that one member has alone. Then the array is whole,
/// a place is used again, and that member is lost together with the power.
#[test]
fn places_freed_before_a_rebuild_are_free_without_any_member() {
    let mut reused = 0;
    for seed in 0..10 {
        let world = World::of(3, BLOCKS, seed);
        let array = world.array_with(true, JOURNAL);
        let journal = array.layout().stripes() * CHUNK;
        world.rt.block_on(async {
            array.start(None).await.expect("an array");
            // Stripe 0: blocks 0 to 3 on member 0, 4 to 7 on member 1, the parity on member 2.
            array.take_out(2);
            for (lba, byte) in [(0, 1), (0, 2), (4, 3), (4, 4)] {
                write_byte(&array, lba, byte).await;
            }
            array.replace(vec![world.disks[2].clone()]).expect("a fitting disk");
            assert_eq!(array.rebuild().await, Ok(()));
            world.disks.iter().for_each(|disk| *disk.0.events.borrow_mut() = Some(Vec::new()));
            let writing = array.clone();
            world.rt.spawn(async move { write_byte(&writing, 1, 5).await });
            let has_part = |event: &Event| {
                event.ends && event.write.as_ref().is_some_and(|(block, _)| *block >= journal)
            };
            while !world.disks[0].0.events.borrow().iter().flatten().any(has_part) {
                world.rt.sleep(Span::ns(20)).await;
            }
            let blocks = world.disks[0].0.events.take().expect("recorded");
            let (place, _) = blocks.iter().find_map(|event| event.write.clone()).expect("a part");
            cut_power(&world);
            let durable = world.disks[0].0.blocks.borrow()[place as usize].0.clone();
            reused += u32::from(durable == [5; BLOCK]);
            world.disks[1].0.gone.set(true);
            let array = world.array_with(true, JOURNAL);
            array.start(None).await.expect("two of three members");
            assert_eq!(array.out(), Some(1));
            for (lba, byte) in [(0, 2), (4, 4)] {
                let into = array.buffer(BLOCK).expect("a buffer");
                let (into, done) = array.read(Lba(lba), into).await;
                done.expect("read");
                let mut bytes = [0; BLOCK];
                into.copy_out(0, &mut bytes);
                assert_eq!(bytes[0], byte, "seed {seed}: block {lba}");
            }
        });
    }
    assert!(reused > 0, "no place was used again: the test is too kind");
}

async fn write_byte(array: &Tested, lba: u64, byte: u8) {
    let from = array.buffer(BLOCK).expect("a buffer");
    from.copy_in(0, &[byte; BLOCK]);
    array.write(Lba(lba), from, false).await.1.expect("written");
}
