//! PRP1, PRP2, a length and list entries of any value: the walk returns pieces of the total length that
//! cross no page border, or an error; and it ends.
use wire::BusAddr;
use wire::nvme::prp::{Coalesce, PrpWalk, Segment, Step};

pub fn run(data: &[u8]) {
    let Some((head, mut entries)) = data.split_at_checked(22) else { return };
    let word = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("eight bytes"));
    let (prp1, prp2) = (BusAddr(word(0)), BusAddr(word(8)));
    let bytes = word(14) >> 16 & 0xff_ffff;
    let page_bytes = 4096 << (head[21] % 5);
    let Ok(mut walk) = PrpWalk::new(prp1, prp2, bytes, page_bytes) else { return };
    let (mut moved, mut joined, mut runs, mut lists) = (0, 0, Coalesce::default(), 0);
    let mut take = |segment: Segment| {
        assert!(segment.bytes > 0);
        assert!(segment.addr.page_offset(page_bytes) + segment.bytes <= page_bytes);
        moved += segment.bytes;
        joined += runs.push(segment).map_or(0, |run| run.bytes);
    };
    while let Some(step) = walk.step() {
        match step {
            Step::Segment(segment) => take(segment),
            Step::NeedList { entries: wanted, .. } => {
                assert!((1..=(page_bytes / 8) as u32).contains(&wanted));
                // All list entries, most of them aligned; then valid pages, so that the walk continues.
                let mut list = [0x7000_0000_u64; 64];
                let count = list.len().min(wanted as usize);
                for entry in &mut list[..count] {
                    let Some((word, later)) = entries.split_first_chunk() else { break };
                    entries = later;
                    let word = u64::from_le_bytes(*word);
                    *entry = if word & 7 == 0 { word } else { word / page_bytes * page_bytes };
                }
                lists += 1;
                assert!(lists <= 8 * (1 + bytes / 4096), "a walk that does not end");
                match walk.supply(&list[..count]) {
                    Ok(segments) => segments.for_each(&mut take),
                    Err(_) => {
                        assert_eq!(walk.step(), None, "an error ends the walk");
                        return;
                    }
                }
            }
        }
    }
    joined += runs.finish().map_or(0, |run| run.bytes);
    assert_eq!((moved, joined), (bytes, bytes));
}
