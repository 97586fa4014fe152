//! Each file call of an image and its label fails in turn: flushed data and labels survive a power cut, and
//! the image can always be opened again.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use crate::common::Scratch;
use media::contents::{Backing, Contents, Error, Keep, Spec};
use media::files::{Fault, Faults, Files};

const CAPACITY: u64 = 32 << 10;

fn open(path: &Path, faults: &Arc<Faults>, is_bounded: bool) -> Result<Contents, Error> {
    let backing = match is_bounded {
        true => Backing::Bounded { path: path.into(), resident_bytes: 1 << 20 },
        false => Backing::File(path.into()),
    };
    let (keep, block_bytes) = (Keep::Everything, 4096);
    let spec = Spec { capacity_bytes: CAPACITY, block_bytes, keep, backing };
    Contents::with_files(spec, &Files::failing(faults.clone()))
}

/// Blocks and label, each by the lowest write number that it may have.
#[derive(Default)]
struct Kept {
    blocks: [u8; 8],
    label: u8,
}

/// Writes, flushes and sets labels until a failure or the end; each number once.
fn work(contents: &mut Contents, kept: &mut Kept, numbers: std::ops::Range<u8>) {
    let mut written = [0; 8];
    for number in numbers {
        let block = usize::from(number % 8);
        if contents.write(block as u64 * 4096, &[number; 4096]).is_ok() {
            written[block] = number;
        }
        if number % 3 == 0 && contents.flush().is_ok() {
            for (kept, written) in kept.blocks.iter_mut().zip(written) {
                *kept = written.max(*kept);
            }
        }
        if number % 4 == 0 && contents.set_label(&[number]).is_ok() {
            kept.label = number;
        }
    }
}

fn check(contents: &mut Contents, kept: &Kept, case: &str) {
    for (block, least) in (0..).zip(kept.blocks) {
        let mut bytes = [0; 4096];
        contents.read_into(block * 4096, &mut bytes).unwrap();
        // A failed write may have left some of its bytes: new ones, never older than the flushed ones.
        let found = bytes.iter().min().copied().unwrap_or(0);
        assert!(found >= least, "{case}: block {block} holds {found}, expected at least {least}");
    }
    let label = contents.label().first().copied().unwrap_or(0);
    assert!(label >= kept.label, "{case}: label {label}, expected at least {}", kept.label);
}

fn fail_at(call: u64, count: u64, fault: Fault, is_bounded: bool) -> bool {
    let case = format!("call {call}, {count} calls, {fault:?}, bounded: {is_bounded}");
    let scratch = Scratch::new("contents-faults");
    let path = scratch.join("disk.img");
    // Label of an earlier image.
    std::fs::write(scratch.join("disk.img.label"), [255]).unwrap();
    let faults = Arc::new(Faults::new());
    faults.follow();
    faults.fail(call, count, fault);
    let mut kept = Kept::default();
    if let Ok(mut contents) = open(&path, &faults, is_bounded) {
        work(&mut contents, &mut kept, 1..25);
    }
    let fired = faults.fired() > 0;
    faults.heal();
    faults.power_cut().unwrap();
    let mut contents =
        open(&path, &faults, is_bounded).unwrap_or_else(|error| panic!("{case}: {error}"));
    assert_ne!(contents.label(), [255], "{case}: an earlier image's label");
    check(&mut contents, &kept, &case);
    work(&mut contents, &mut kept, 25..49);
    assert!(kept.label == 48 && kept.blocks.iter().all(|number| *number > 40), "{case}");
    drop(contents);
    faults.power_cut().unwrap();
    check(&mut open(&path, &faults, is_bounded).unwrap(), &kept, &case);
    fired
}

#[test]
fn flushed_data_and_label_survive_every_failing_file_call() {
    let cases = [
        (1, Fault::Error(28)),
        (u64::MAX, Fault::Error(28)),
        (1, Fault::Short(5)),
        (2, Fault::Error(12)),
    ];
    for (count, fault) in cases {
        for (is_bounded, least) in [(false, 40), (true, 25)] {
            let fails = |call: &u64| fail_at(*call, count, fault, is_bounded);
            let calls = (0..).take_while(fails).count();
            assert!(calls > least, "{fault:?}, bounded: {is_bounded}: {calls}");
        }
    }
}

#[test]
fn image_and_label_are_created_with_mode_0600() {
    let scratch = Scratch::new("contents-mode");
    let path = scratch.join("disk.img");
    let mut contents = open(&path, &Arc::new(Faults::new()), false).unwrap();
    contents.set_label(b"label").unwrap();
    for name in ["disk.img", "disk.img.label"] {
        let mode = std::fs::metadata(scratch.join(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
}
