//! Journals: power cuts, lost members, the order in which places are reused, arrays of older layouts.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use host::BlockDevice;
use runtime::{Rng, Span};
use wire::Lba;

use super::{BLOCK, CHUNK, Event, Ram, StartError, Tested, Unfit, World};

/// Allowed contents of each block: several while a write is in flight.
pub type Allowed = Rc<RefCell<Vec<Vec<u8>>>>;

/// Writes to its own blocks, in stripes shared with other writers.
pub async fn write_on(array: Tested, allowed: Allowed, mut rng: Rng, (begin, end): (u64, u64)) {
    loop {
        let blocks = 1 + rng.below((end - begin).min(20));
        let lba = begin + rng.below(end - begin - blocks + 1);
        let byte = if rng.chance(1, 8) { 0 } else { 1 + rng.below(255) as u8 };
        let range = lba as usize..(lba + blocks) as usize;
        allowed.borrow_mut()[range.clone()].iter_mut().for_each(|block| block.push(byte));
        let done = match byte {
            0 => array.deallocate(Lba(lba), blocks as u32).await,
            _ => {
                let from = array.buffer(blocks as usize * BLOCK).expect("a buffer");
                from.copy_in(0, &vec![byte; blocks as usize * BLOCK]);
                array.write(Lba(lba), from, false).await.1
            }
        };
        done.expect("members enough");
        allowed.borrow_mut()[range].iter_mut().for_each(|block| *block = vec![byte]);
    }
}

/// Reads all blocks and checks them; from now on only the content read is allowed.
pub async fn validate(array: &Tested, allowed: &Allowed) -> Result<(), String> {
    for lba in 0..array.geometry().blocks {
        let into = array.buffer(BLOCK).expect("a buffer");
        let (into, done) = array.read(Lba(lba), into).await;
        done.map_err(|error| error.to_string())?;
        let mut bytes = [0; BLOCK];
        into.copy_out(0, &mut bytes);
        let known = &mut allowed.borrow_mut()[lba as usize];
        if !known.iter().any(|byte| bytes == [*byte; BLOCK]) {
            return Err(format!("block {lba}: {} and not one of {known:?}", bytes[0]));
        }
        *known = vec![bytes[0]];
    }
    Ok(())
}

/// Power-loss campaign on an array with a journal; `DOORBELL_CUTS=N` sets the number of arrays. A member may
/// be missing from some life on: lost during a write, or at the cut; in every other life it is back, with its
/// old content.
async fn lives(world: &World, seed: u64) -> Result<u64, String> {
    let (mut rng, mut again) = (Rng::for_part(seed, "lives"), 0);
    let lost = rng.below(4) as usize;
    let from = rng.below(8);
    let blocks = world.array_with(true, JOURNAL).geometry().blocks;
    let allowed: Allowed = Rc::new(RefCell::new(vec![vec![0]; blocks as usize]));
    for life in 0..8 {
        let disk = &world.disks[lost].0;
        disk.gone.set(life >= from && (life - from) % 2 == 0);
        let array = world.array_with(true, JOURNAL);
        again += array.start(None).await.map_err(|unfit| format!("{unfit:?}"))?;
        let expected = (life >= from).then_some(lost as u32);
        if expected.is_none() && array.out().is_some() || life > from && array.out() != expected {
            return Err(format!("life {life} of {from}: {:?} is out", array.out()));
        }
        validate(&array, &allowed)
            .await
            .map_err(|what| format!("life {life} of {from}: {what}"))?;
        for member in (0..4).filter(|_| array.out().is_none()) {
            let without = world.array_with(true, JOURNAL);
            without.take_out(member);
            let validated = validate(&without, &allowed).await;
            validated.map_err(|what| format!("life {life} without {member}: {what}"))?;
        }
        let mut at = 0;
        for writer in 0..4 {
            let rng = Rng::for_part(seed ^ life << 32, &format!("writer {writer}"));
            let part = (at, at + blocks / 4);
            at = part.1;
            world.rt.spawn(write_on(array.clone(), allowed.clone(), rng, part));
        }
        world.rt.sleep(Span::ns(rng.below(40_000))).await;
        if life + 1 == from && rng.chance(1, 2) {
            disk.gone.set(true);
            world.rt.sleep(Span::ns(rng.below(20_000))).await;
        }
        world.rt.drop_tasks();
        world.disks.iter().for_each(Ram::cut_power);
    }
    Ok(again)
}

/// Four writers, a power cut after this time, and what is there then, by the array and without each member.
/// Each writer has this many blocks.
async fn cut_after(world: &World, journal: u32, each: u64, ns: u64) -> Result<(), String> {
    let array = world.array_with(true, journal);
    array.start(None).await.map_err(|unfit| format!("{unfit:?}"))?;
    let blocks = array.geometry().blocks;
    let allowed: Allowed = Rc::new(RefCell::new(vec![vec![0]; blocks as usize]));
    for writer in 0..4 {
        let rng = Rng::for_part(writer, "writer");
        let part = (writer * each, (writer + 1) * each);
        world.rt.spawn(write_on(array.clone(), allowed.clone(), rng, part));
    }
    world.rt.sleep(Span::ns(ns)).await;
    world.rt.drop_tasks();
    world.disks.iter().for_each(Ram::cut_power);
    let array = world.array_with(true, journal);
    array.start(None).await.map_err(|unfit| format!("{unfit:?}"))?;
    validate(&array, &allowed).await?;
    for member in 0..4 {
        let without = world.array_with(true, journal);
        without.take_out(member);
        validate(&without, &allowed).await.map_err(|what| format!("without {member}: {what}"))?;
    }
    Ok(())
}

#[test]
fn grouped_writes_survive_a_cut_at_every_moment() {
    // About six syncs of up to four changes, with few entries, whose places are reused soon; then with more
    // over few blocks, so that an entry which is carried out again after its place was freed meets newer
    // content.
    for (journal, blocks, each, moments) in
        [(JOURNAL, 112, 25, (0..16_000).step_by(40)), (16, 256, 1, (0..90_000).step_by(300))]
    {
        for ns in moments {
            let world = World::of(4, blocks, 5);
            let done = world.rt.block_on(cut_after(&world, journal, each, ns));
            done.unwrap_or_else(|what| panic!("{journal} entries, cut after {ns} ns: {what}"));
        }
    }
}

/// Blocks of a record of the journal.
const RECORD: usize = 4096 / BLOCK;

/// Counts the overwritten blocks of journal places on a member, and validates the order before each: the
/// data that were there are written in place, then flushed, then two members have a record that says so, and
/// then that is flushed.
fn validate_overwrites(member: usize, events: &[Vec<Event>], journal: u64) -> Result<u32, String> {
    let own = &events[member];
    let (mut places, mut overwrites) = (BTreeMap::new(), 0);
    let flush_after = |events: &[Event], at: u64| {
        let begun = events.iter().find(|one| one.at > at && !one.ends && one.write.is_none())?;
        let ended = |one: &&Event| one.at > begun.at && one.ends && one.write.is_none();
        events.iter().find(ended).map(|ended| ended.at)
    };
    let record_after = |events: &[Event], at: u64| {
        let is_record = |one: &&Event| {
            one.write.as_ref().is_some_and(|(lba, of)| *lba >= journal && of.len() == RECORD)
        };
        let begun = events.iter().find(|one| one.at > at && !one.ends && is_record(one))?;
        let ended = events.iter().find(|one| one.at > begun.at && one.ends && is_record(one))?;
        flush_after(events, ended.at)
    };
    for event in own.iter().filter(|event| !event.ends) {
        let Some((lba, contents)) = &event.write else { continue };
        if *lba < journal || contents.len() == RECORD {
            continue;
        }
        for (block, content) in (*lba..).zip(contents) {
            let Some((since, old)) = places.insert(block, (event.at, content)) else { continue };
            overwrites += 1;
            let in_place = |one: &&Event| {
                let to = one.write.as_ref().filter(|(lba, _)| *lba < journal);
                one.at > since && one.ends && to.is_some_and(|(_, of)| of.contains(old))
            };
            let what =
                |what: &str| format!("member {member}, block {block}, event {}: {what}", event.at);
            let home = own.iter().find(in_place).ok_or_else(|| what("never written in place"))?;
            let flushed = flush_after(own, home.at).ok_or_else(|| what("no flush"))?;
            let mut recorded: Vec<u64> =
                events.iter().filter_map(|events| record_after(events, flushed)).collect();
            recorded.sort_unstable();
            match recorded.get(1) {
                Some(durable) if *durable < event.at => (),
                _ => return Err(what("overwritten before its tail was durable")),
            }
        }
    }
    Ok(overwrites)
}

#[test]
fn journal_places_are_reused_after_their_data_and_tail_are_durable() {
    let mut overwrites = 0;
    for seed in 0..8 {
        let world = World::of(4, 112, seed);
        let journal = [JOURNAL, 3, 2, 1][seed as usize % 4];
        let array = world.array_with(true, journal);
        let stripes = array.layout().stripes() * CHUNK;
        world.rt.block_on(async {
            array.start(None).await.expect("an array");
            world.disks.iter().for_each(|disk| *disk.0.events.borrow_mut() = Some(Vec::new()));
            for writer in 0..4 {
                let (array, mut rng) = (array.clone(), Rng::for_part(seed, &format!("{writer}")));
                world.rt.spawn(async move {
                    loop {
                        let blocks = 1 + rng.below(6);
                        let from = array.buffer(blocks as usize * BLOCK).expect("a buffer");
                        for number in 0..from.bytes() / 8 {
                            from.copy_in(8 * number, &rng.next_u64().to_le_bytes());
                        }
                        let lba = rng.below(array.geometry().blocks - blocks);
                        array.write(Lba(lba), from, false).await.1.expect("written");
                    }
                });
            }
            world.rt.sleep(Span::ms(1)).await;
        });
        let events: Vec<Vec<Event>> =
            world.disks.iter().map(|disk| disk.0.events.take().expect("recorded")).collect();
        for member in 0..4 {
            let validated = validate_overwrites(member, &events, stripes);
            overwrites += validated.unwrap_or_else(|what| panic!("seed {seed}: {what}"));
        }
    }
    assert!(overwrites > 500, "the test is too kind: {overwrites} blocks");
}

/// Few entries, so that places are freed all the time.
const JOURNAL: u32 = 4;

#[test]
fn journal_keeps_acknowledged_writes_across_cut_and_member_loss() {
    let seeds = std::env::var("DOORBELL_CUTS").map_or(10, |cuts| cuts.parse().expect("a number"));
    let (mut again, mut found) = (0, 0);
    for seed in 0..seeds {
        let world = World::of(4, 112, seed);
        let done = world.rt.block_on(lives(&world, seed));
        again += done.unwrap_or_else(|what| panic!("seed {seed}: {what}"));
        // Members that ignore flush and FUA: the journal does not help, and the test detects that.
        let world = World::of(4, 112, seed);
        world.disks.iter().for_each(|disk| disk.0.lies.set(true));
        found += u32::from(world.rt.block_on(lives(&world, seed)).is_err());
    }
    assert!(again > seeds, "the test is too kind: {again}");
    assert!(found > 0, "members that lie were not found");
}

/// Checksum of a superblock, as the older layouts had it.
fn sum(words: &[u64]) -> u64 {
    words.iter().fold(8 * words.len() as u64, |sum, word| {
        (sum ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
    })
}

/// On any member, and in each place of a superblock: a start would lose what the older journal holds.
#[test]
fn array_with_a_journal_of_an_older_layout_is_refused_and_unchanged() {
    let entries = u64::from(JOURNAL);
    let first = 2 + entries * (1 + CHUNK);
    let second = (3 + entries).next_multiple_of(CHUNK) + entries * CHUNK;
    for (version, magic, kept, count) in [(1, b"dbarray1", first, 2), (2, b"dbarray2", second, 3)] {
        for (member, turn) in (0..4).flat_map(|member| (0..count).map(move |turn| (member, turn))) {
            let world = World::of(4, 112, 1);
            let block = (112 - kept) / CHUNK * CHUNK + turn;
            let mut words = [0; 16];
            words[..6].copy_from_slice(&[u64::from_le_bytes(*magic), 1, turn, 1, member, 4]);
            words[15] = sum(&words[..15]);
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            let disks = || world.disks.iter().map(|disk| disk.0.blocks.borrow().clone());
            world.disks[member as usize].0.blocks.borrow_mut()[block as usize].0[..128]
                .copy_from_slice(&bytes);
            let before: Vec<_> = disks().collect();
            let refused = world.rt.block_on(world.array_with(true, JOURNAL).start(None));
            let unfit = refused.err();
            let what = "the version of an array's journal";
            let expected = Unfit { what, found: version, expected: "3" };
            assert_eq!(
                unfit,
                Some(StartError::Unfit(expected)),
                "member {member}, superblock {turn}"
            );
            assert!(disks().eq(before), "nothing is written");
        }
    }
}
