//! Members that fail for a moment: before a power cut, during a start, or while they are rebuilt.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;

use host::BlockDevice;
use runtime::{Rng, Rt, Span};
use wire::Lba;

use super::journal::{Allowed, validate, write_on};
use super::{BLOCK, CHUNK, Event, Known, Ram, Tested, World};

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
    array.replace(vec![new.clone()]);
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
                new.0.refused.set(Some(0));
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
            array.replace(vec![world.disks[2].clone()]);
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
