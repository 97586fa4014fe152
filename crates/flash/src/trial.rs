//! Trial mounts: whether flash software can mount flash, found out on a copy that is thrown away.

use std::rc::Rc;

use ftl::{Ftl, MountError, Options, space};
use media::nand::Nand;
use runtime::{Log, Rt};

use crate::chips::{self, Chips};

/// Why flash can't be mounted.
#[derive(Debug)]
pub enum Failure {
    /// The flash software says why.
    Mount(MountError),
    /// Pages cannot be read from their file, or the chips cannot be powered on.
    Chips(String),
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Failure::Mount(error) => error.fmt(f),
            Failure::Chips(error) => error.fmt(f),
        }
    }
}

/// Mounts a copy with these options. `held_up`: capacitors complete operations in progress.
///
/// # Errors
/// The flash cannot be mounted.
pub fn mount(nand: &Nand, options: &Options, held_up: bool) -> Result<(), Failure> {
    let rt = Rt::simulated(None, Log::Off);
    let without_time =
        chips::Options { timing: None, protected_buffer: false, nv_slots: None, held_up };
    let chips = Chips::new(&rt, nand.fork(), without_time);
    let chips = Rc::new(chips.map_err(|error| Failure::Chips(error.to_string()))?);
    let mounted = rt.block_on(Ftl::mount(&rt, chips.clone(), options)).map(drop);
    rt.drop_tasks();
    mounted.map_err(|error| match chips.trouble().filter(|_| error == MountError::File) {
        Some(trouble) => Failure::Chips(trouble),
        None => Failure::Mount(error),
    })
}

/// As [`mount`], without the options of the drive: with each map that flash software may have, and as many
/// units as there are.
///
/// # Errors
/// As [`mount`].
pub fn mount_any(nand: &Nand) -> Result<(), Failure> {
    let shape = chips::shape(nand.geometry(), false);
    let units = shape.all_units().min(u64::from(ftl::LOST - 1)) as u32;
    let block_bytes = nand.spec().block_bytes;
    let whole = Options { units, block_bytes, ..Options::new(&shape) };
    let cached = Options { map_cache: Some(space::least_map_cache(&shape)), ..whole.clone() };
    let try_one = |options| match mount(nand, options, false) {
        // Everything else is good, and a drive has fewer units.
        Err(Failure::Mount(MountError::Space { most: 1.. })) => Ok(()),
        tried => tried,
    };
    try_one(&whole).or_else(|failure| try_one(&cached).map_err(|_| failure))
}

#[cfg(test)]
mod tests {
    use ftl::META;
    use media::contents::Keep;
    use media::nand::{Data, Errors, PageAt, Profile, Sense, Spec};
    use runtime::Rng;

    use super::*;

    const UNIT: usize = 4096;

    fn new() -> Nand {
        let Profile { mut geometry, .. } = Profile::test();
        geometry.blocks = 12;
        let errors = Errors { codeword_bytes: 1024, corrects: 40, ..Errors::none() };
        let spec = Spec { geometry, keep: Keep::Everything, block_bytes: 4096, errors, seed: 7 };
        Nand::new(spec).expect("flash")
    }

    fn options(cached: bool) -> Options {
        let shape = chips::shape(new().geometry(), false);
        let map_cache = cached.then(|| space::least_map_cache(&shape));
        // Enough for superblocks of map parts, and for overwrites.
        let all = shape.all_units() as u32;
        Options { units: all / 8, block_bytes: 4096, map_cache, reserve: 4, ..Options::new(&shape) }
    }

    /// A drive that was written, trimmed and overwritten, with a checkpoint before the last writes.
    fn used(options: &Options) -> Nand {
        let rt = Rt::simulated(None, Log::Off);
        let none = chips::Options {
            timing: None,
            protected_buffer: false,
            nv_slots: None,
            held_up: false,
        };
        let chips = Rc::new(Chips::new(&rt, new(), none).expect("chips"));
        let ftl = rt.block_on(Ftl::mount(&rt, chips.clone(), options)).expect("a new drive");
        rt.block_on(async {
            let units = u64::from(options.units);
            for write in 0..3 * units {
                let block = write * 7 % units;
                ftl.write(block, &[write as u8 | 1; UNIT]).await.expect("a write");
                if write % 16 == 5 {
                    ftl.trim(block, 1).await.expect("a trim");
                }
                if write == 3 * units - units / 4 {
                    ftl.flush().await.expect("a flush");
                    ftl.checkpoint().await.expect("a checkpoint");
                }
            }
            ftl.flush().await.expect("a flush");
        });
        rt.drop_tasks();
        drop(ftl);
        Rc::try_unwrap(chips).ok().expect("its tasks are gone").cut().into_nand()
    }

    /// The same flash, each page changed by `change`: its number, bytes and spare bytes. If it returns false,
    /// the block ends before this page.
    fn copied(
        nand: &mut Nand,
        mut change: impl FnMut(PageAt, &mut [u8], &mut [u8]) -> bool,
    ) -> Nand {
        let mut copy = new();
        let (blocks, pages) = (nand.geometry().all_blocks(), nand.geometry().pages());
        for block in 0..blocks {
            for page in 0..pages {
                let (at, mut bytes, mut spare) =
                    (PageAt { block, page }, vec![0; 2 * UNIT], vec![0; 64]);
                if let Sense::Erased = nand.sense(at, 0b11, 0).expect("a page") {
                    break;
                }
                (0..2).for_each(|unit| {
                    nand.kept(at, unit, &mut bytes[unit as usize * UNIT..][..UNIT]);
                });
                nand.spare(at, 0, &mut spare);
                if !change(at, &mut bytes, &mut spare) {
                    break;
                }
                copy.program(at, Data::Bytes(&bytes), &spare).expect("a page");
            }
        }
        copy
    }

    #[test]
    fn used_drive_can_be_mounted_by_its_options_and_without_them() {
        for cached in [false, true] {
            let options = options(cached);
            let mut nand = used(&options);
            for nand in [&nand.fork(), &copied(&mut nand, |_, _, _| true)] {
                mount(nand, &options, false).expect("by its options");
                mount_any(nand).expect("by any");
            }
        }
    }

    /// Two entries of a map part name one place: no power cut leaves that.
    #[test]
    fn map_that_names_a_place_twice_is_found() {
        let options = options(false);
        let mut parts = 0;
        let copy = copied(&mut used(&options), |_, bytes, spare| {
            for unit in 0..2 {
                if spare[12 + 4 * unit..][..4] == META.to_le_bytes() {
                    parts += 1;
                    let part = &mut bytes[unit * UNIT..][..UNIT];
                    // Mapped, and not written since the checkpoint.
                    let known: Vec<_> = part.as_chunks::<4>().0.to_vec();
                    let one = known.iter().find(|entry| **entry != [0; 4]).expect("an entry");
                    part.as_chunks_mut::<4>().0[..options.units as usize].fill(*one);
                }
            }
            true
        });
        assert!(parts > 0, "the map is on flash");
        for failure in [mount(&copy, &options, false), mount_any(&copy)] {
            let failure = failure.expect_err("it is damaged");
            assert_eq!(failure.to_string(), "the map on flash can't be read");
        }
    }

    /// Power cuts leave none of this, and damaged files may have right checksums.
    #[test]
    fn mount_of_garbled_flash_never_panics() {
        let rounds = std::env::var("DOORBELL_GARBLED").map_or(40, |n| n.parse().expect("a number"));
        let mut mounted = 0;
        for cached in [false, true] {
            let options = options(cached);
            let mut nand = used(&options);
            for seed in 0..rounds {
                let mut rng = Rng::for_part(seed, "garbled");
                let often = 2 + rng.below(60);
                let garbled = copied(&mut nand, |_, bytes, spare| {
                    if rng.chance(1, often) {
                        let edges =
                            [0, 1, META.into(), u64::from(u32::MAX), u64::MAX, rng.next_u64()];
                        let word = edges[rng.below(edges.len() as u64) as usize].to_le_bytes();
                        let at = rng.below(5) as usize;
                        spare[4 * at..4 * at + 8].copy_from_slice(&word);
                        let at = rng.below(2 * UNIT as u64 / 8) as usize;
                        bytes[8 * at..][..8].copy_from_slice(&word);
                    }
                    !rng.chance(1, 40 * often)
                });
                mounted += u64::from(mount(&garbled, &options, false).is_ok());
                let _ = mount_any(&garbled);
            }
        }
        assert!(
            mounted > rounds / 20,
            "{mounted} of {rounds} are mounted, so that little is tried"
        );
    }
}
