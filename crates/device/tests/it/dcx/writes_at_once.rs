//! Writes that a medium with tags takes at once: no tag that may be in use is ever among its contents.

use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Waker};

use device::dcx::{Choice, TagSource, TagSpec, Tagged};
use media::contents::{Backing, Contents, Keep, Spec};
use media::{Banked, Extent, Media, Pace};
use runtime::{Log, Rt, STD_CLOCK};

const BLOCK: u32 = 512;
const GRAIN: usize = 64;
const COMPARED: TagSource = TagSource::Compared { values: 8, seed: 3 };

fn tagged(source: TagSource) -> (Rt, Tagged<Banked>) {
    let rt = Rt::live(&STD_CLOCK, None, Log::Off);
    let spec = Spec {
        capacity_bytes: 64 * u64::from(BLOCK),
        block_bytes: BLOCK,
        keep: Keep::Everything,
        backing: Backing::Memory,
    };
    let medium = Banked::new(&rt, Contents::new(spec).expect("contents"), Pace::Immediate);
    let bits = if source == TagSource::Intervals { 32 } else { 64 };
    let spec = TagSpec { grain: GRAIN as u32, bits, source };
    let tagged = Tagged::choosing(&rt, Rc::new(medium), spec).expect("an empty medium");
    (rt, tagged)
}

/// A block of which one granule ends with the tag.
fn with_tag(choice: Choice, granule: usize) -> Vec<u8> {
    let mut data = vec![7; BLOCK as usize];
    data[(granule + 1) * GRAIN - 8..][..8].copy_from_slice(&choice.tag.to_le_bytes());
    data
}

fn at(block: u64) -> Extent {
    Extent { block, blocks: 1 }
}

/// Writes a block at once. Returns whether it was written.
fn write(tagged: &Tagged<Banked>, block: u64, data: &[u8]) -> bool {
    let mut filled = 0;
    let mut fill = |offset: u32, run: &mut [u8]| {
        run.copy_from_slice(&data[offset as usize..][..run.len()]);
        filled += run.len();
    };
    let done = tagged.write_at_once(at(block), &mut fill).expect("inside");
    assert_eq!(filled, if done { data.len() } else { 0 });
    done
}

fn read(tagged: &Tagged<Banked>, block: u64) -> Vec<u8> {
    let mut data = vec![0; BLOCK as usize];
    let mut put =
        |offset: u32, run: &[u8]| data[offset as usize..][..run.len()].copy_from_slice(run);
    tagged.runs(at(block), &mut put).expect("inside");
    data
}

#[test]
fn write_with_newest_tag_replaces_it_until_no_value_is_left() {
    let (_rt, tagged) = tagged(COMPARED);
    let mut seen = Vec::new();
    while tagged.newest().version != 0 {
        let newest = tagged.newest();
        assert!(!seen.contains(&newest.tag), "{:#x} is among the contents", newest.tag);
        seen.push(newest.tag);
        let data = with_tag(newest, seen.len() % 8);
        assert!(write(&tagged, seen.len() as u64, &data));
        assert_eq!(read(&tagged, seen.len() as u64), data);
        assert!(tagged.begin_read(newest.version).is_none(), "a read could meet it");
    }
    assert_eq!(seen.len(), 8, "all values were chosen");
    assert!(write(&tagged, 0, &[9; BLOCK as usize]));
}

#[test]
fn write_with_value_in_reserve_takes_it_out() {
    let (_rt, tagged) = tagged(COMPARED);
    let same = {
        // The same values, in the same order.
        let (_rt, other) = self::tagged(COMPARED);
        let mut all = Vec::new();
        for _ in 0..8 {
            all.push(other.newest());
            write(&other, 0, &with_tag(other.newest(), 0));
        }
        all
    };
    assert!(write(&tagged, 5, &with_tag(same[1], 3)));
    assert_eq!(tagged.newest(), same[0]);
    assert!(write(&tagged, 6, &with_tag(same[0], 7)));
    assert_eq!(tagged.newest().tag, same[2].tag);
}

#[test]
fn nothing_is_written_at_once_while_a_read_holds_its_tag() {
    let (_rt, tagged) = tagged(COMPARED);
    let newest = tagged.newest();
    let reader = tagged.begin_read(newest.version).expect("it is the newest");
    for data in [with_tag(newest, 2), vec![1; BLOCK as usize]] {
        assert!(!write(&tagged, 5, &data));
        assert_eq!(read(&tagged, 5), [0; BLOCK as usize]);
    }
    drop(reader);
    assert!(write(&tagged, 5, &with_tag(newest, 2)));
}

#[test]
fn nothing_is_written_at_once_while_another_write_waits() {
    let (_rt, tagged) = tagged(COMPARED);
    let newest = tagged.newest();
    let reader = tagged.begin_read(newest.version).expect("it is the newest");
    let data = with_tag(newest, 2);
    {
        let mut waiting = pin!(tagged.write(at(5), &data));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(waiting.as_mut().poll(&mut cx).is_pending(), "its tag has a reader");
        drop(reader);
        assert!(!write(&tagged, 5, &[1; BLOCK as usize]), "it would be overtaken");
        assert!(waiting.as_mut().poll(&mut cx).is_ready());
    }
    assert_eq!(read(&tagged, 5), data);
    assert!(write(&tagged, 5, &[1; BLOCK as usize]));
}

#[test]
fn intervals_take_no_write_at_once() {
    let (_rt, tagged) = tagged(TagSource::Intervals);
    assert!(!write(&tagged, 5, &[1; BLOCK as usize]), "the ends that it replaces are counted");
}
