//! The file behind flash cannot be written: every flush and write fails, no block is retired for it, and the
//! drive works as before once there is space again.

use std::rc::Rc;
use std::sync::Arc;

use flash::chips::{Chips, Options};
use flash::drive::Drive;
use ftl::Pages;
use media::contents::Keep;
use media::files::{Fault, Faults, Files};
use media::nand::{Geometry, Nand, Spec};
use media::{Extent, Labels, Media, MediaError};
use runtime::{Log, Rt};

const ENOSPC: i32 = 28;
const EIO: i32 = 5;

fn at(block: u64) -> Extent {
    Extent { block, blocks: 1 }
}

fn drive(rt: &Rt, nand: Nand) -> (Rc<Drive<Chips>>, Rc<Chips>) {
    let options = Options { timing: None, protected_buffer: false, nv_slots: None, held_up: false };
    let chips = Rc::new(Chips::new(rt, nand, options).unwrap());
    let shape = chips.shape();
    let units = ftl::Options::units_for(&shape, 150, 2, 3);
    let software = ftl::Options { block_bytes: 4096, units, ..ftl::Options::new(&shape) };
    (Drive::start(rt, chips.clone(), software, Keep::Everything, Vec::new()), chips)
}

fn bytes(drive: &Drive<Chips>, rt: &Rt, block: u64) -> u8 {
    rt.block_on(drive.read(at(block))).unwrap();
    let mut first = 0;
    drive
        .runs(at(block), &mut |offset, run| {
            if offset == 0 {
                first = run[0];
            }
        })
        .unwrap();
    first
}

/// First byte of each block, as another process reads it.
fn found(path: &std::path::Path, blocks: u64) -> Vec<u8> {
    let rt = Rt::simulated(None, Log::Off);
    let (mut nand, _) = Nand::load_from(path).unwrap();
    nand.replay(path, false).unwrap();
    let (drive, _) = drive(&rt, nand);
    (0..blocks).map(|block| bytes(&drive, &rt, block)).collect()
}

#[test]
fn full_host_disk_fails_flush_and_write_retires_no_block() {
    for code in [ENOSPC, EIO] {
        let folder =
            std::env::temp_dir().join(format!("doorbell-full-{}-{code}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let path = folder.join("drive.nand");
        let faults = Arc::new(Faults::new());
        let geometry = Geometry { blocks: 24, ..super::spec().geometry };
        let spec = Spec { keep: Keep::Everything, geometry, ..super::spec() };
        let mut nand = Nand::new(spec).unwrap();
        nand.use_files(Files::failing(faults.clone()));
        nand.keep_journal(&path, b"", u64::MAX).unwrap();
        let rt = Rt::simulated(None, Log::Off);
        let (drive, chips) = drive(&rt, nand);
        let write = |block, value| rt.block_on(drive.write(at(block), &[value; 4096]));
        for block in 0..8 {
            write(block, 1).unwrap();
        }
        rt.block_on(drive.flush()).unwrap();
        let expected = if code == ENOSPC { MediaError::Full } else { MediaError::WriteFault };
        faults.fail(0, u64::MAX, Fault::Short(code));
        write(0, 2).unwrap();
        assert_eq!(rt.block_on(drive.flush()), Err(expected));
        assert_eq!(rt.block_on(drive.flush()), Err(expected), "it is not forgotten");
        assert_eq!(write(1, 2), Err(expected));
        assert_eq!(rt.block_on(drive.deallocate(at(2))), Err(expected));
        assert_eq!(bytes(&drive, &rt, 0), 2, "what was taken can be read");
        assert_eq!(drive.set_label(b"new"), Err(expected));
        assert_eq!(found(&path, 8), [1; 8], "what was flushed is there");
        faults.heal();
        write(1, 3).unwrap();
        rt.block_on(drive.flush()).unwrap();
        assert_eq!(found(&path, 8), [2, 3, 1, 1, 1, 1, 1, 1]);
        assert_eq!(drive.mounted().unwrap().stats().counters.retired, 0);
        assert_eq!(chips.counts().failures, 0);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
