//! Named chips: layout, timing and errors, with the source of each number.

use runtime::Span;

use super::{Cell, Error, Errors, Geometry, Order};

/// Timing and concurrency of chips.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timing {
    /// From the array into the page register, for lower, middle, upper and top pages. A read of several page
    /// types takes the longest of these.
    pub read: [Span; 4],
    /// The same for one unit of a page, of chips that can sense a part of it. `None`: as `read`.
    pub read_unit: Option<[Span; 4]>,
    /// From the page register into the array, likewise; an operation that programs a whole word line takes
    /// the sum over its pages.
    pub program: [Span; 4],
    /// Erase of one block, or of one in each of several planes at once.
    pub erase: Span,
    /// Command and address cycles before each array operation.
    pub command: Span,
    /// Channel throughput in bytes per second.
    pub bytes_per_s: u64,
    /// Decoding, after the last byte of a read and of each retry; decoders do not queue.
    pub decode: Span,
    /// Multi-plane operations: planes of a die work together on equal block and page numbers.
    pub multi_plane: bool,
    /// Planes of a die read at the same time on any block and page numbers.
    pub independent_planes: bool,
    /// Cache operations: the array works while the previous page register is transferred.
    pub cache: bool,
    /// Program and erase suspension for reads; `None`: reads wait.
    pub suspend: Option<Suspend>,
}

/// Timing and limits of suspension.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suspend {
    /// Time until a program is suspended.
    pub program: Span,
    /// Time until an erase is suspended.
    pub erase: Span,
    /// Time to resume.
    pub resume: Span,
    /// Maximum number of suspensions per operation; later reads wait for its end.
    pub most: u32,
}

impl Timing {
    /// # Errors
    /// [`Error::BadSpec`] if the rate is zero or a time exceeds an hour.
    pub fn check(&self) -> Result<(), Error> {
        if self.bytes_per_s == 0 {
            return Err(Error::BadSpec { key: "bytes_per_s", found: 0, expected: "at least 1" });
        }
        let of_suspend = self.suspend.iter().flat_map(|s| [s.program, s.erase, s.resume]);
        let single = [self.erase, self.command, self.decode];
        let of_unit = self.read_unit.into_iter().flatten();
        for span in
            self.read.into_iter().chain(of_unit).chain(self.program).chain(single).chain(of_suspend)
        {
            if span > Span::s(3600) {
                let expected = "at most 3600 s, in ps";
                return Err(Error::BadSpec { key: "a time", found: span.0, expected });
            }
        }
        Ok(())
    }
}

/// A named chip, and a drive made of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    /// Name of the chip.
    pub name: &'static str,
    /// Source of its numbers.
    pub source: &'static str,
    /// Layout. Channels, packages and blocks are those of a small drive: a plan sets its own.
    pub geometry: Geometry,
    /// Timing of the chip.
    pub timing: Timing,
    /// Error model.
    pub errors: Errors,
}

impl Profile {
    /// All named chips.
    pub fn all() -> Vec<Profile> {
        vec![Profile::tlc(), Profile::qlc(), Profile::mlc(), Profile::slc(), Profile::test()]
    }

    /// The chip of this name.
    pub fn named(name: &str) -> Option<Profile> {
        Profile::all().into_iter().find(|profile| profile.name == name)
    }

    /// 3D TLC: 39 us for each of 2, 3 and 2 sensings, 700 us for each page of a word line that is programmed
    /// in one operation, 5 ms for an erase, 20 us to decode, 72 bit errors corrected in 1 KiB, 1500 cycles
    /// ("Reducing Solid-State Drive Read Latency by Optimizing Read-Retry", Park, Kim, Chun, Orosa, Kim and
    /// Mutlu, ASPLOS 2021). Early charge loss that slows down with time: "Improving 3D NAND Flash Memory
    /// Lifetime by Tolerating Early Retention Loss and Process Variation", Luo, Ghose, Cai, Haratsch and
    /// Mutlu, SIGMETRICS 2018. Assumed: 1152 pages of 16 KiB and 2 KiB, four planes of 480 blocks, 1200 MT/s,
    /// all error and failure rates, all suspension times.
    pub fn tlc() -> Profile {
        let us = Span::us;
        Profile {
            name: "tlc",
            source: "Park et al., ASPLOS 2021; Luo et al., SIGMETRICS 2018; the rest assumed",
            geometry: Geometry {
                channels: 8,
                packages: 1,
                dies: 2,
                planes: 4,
                blocks: 480,
                word_lines: 384,
                cell: Cell::Tlc,
                order: Order::WordLine,
                group: 3,
                page_bytes: 16_384,
                spare_bytes: 2048,
                free_bytes: 64,
                unit_bytes: 4096,
            },
            timing: Timing {
                read: [us(78), us(117), us(78), Span::ZERO],
                read_unit: None,
                program: [us(700), us(700), us(700), Span::ZERO],
                erase: Span::ms(5),
                command: Span::ns(500),
                bytes_per_s: 1_200_000_000,
                decode: us(20),
                multi_plane: true,
                independent_planes: false,
                cache: true,
                suspend: Some(suspend(20, 60, 20)),
            },
            errors: Errors {
                rated_cycles: 1500,
                fresh: 200_000_000,
                worn: 1_500_000_000,
                aged: 6_000_000_000,
                disturbed: 3_000_000_000,
                by_kind: [80, 120, 100, 100],
                codeword_bytes: 1024,
                corrects: 72,
                retries: 20,
                retry_keeps: 80,
                factory_bad: 5_000,
                program_fails: [10, 2_000],
                erase_fails: [100, 200_000],
            },
        }
    }

    /// 96-layer QLC: senses of 47.9, 76.2, 134.6 and 228.1 us, 1860 us for each page and 6.34 ms for an
    /// erase, as measured ("PACA: A Page Type Aware Read Cache Scheme in QLC Flash-based SSDs", Chen et al.,
    /// ICCD 2022). Assumed: the layout, 800 MT/s, 1000 cycles, decoding, all error and failure rates, all
    /// suspension times.
    pub fn qlc() -> Profile {
        let (us, ns) = (Span::us, Span::ns);
        let tlc = Profile::tlc();
        Profile {
            name: "qlc",
            source: "Chen et al., ICCD 2022; the rest assumed",
            geometry: Geometry { word_lines: 384, cell: Cell::Qlc, group: 4, ..tlc.geometry },
            timing: Timing {
                read: [ns(47_900), ns(76_200), ns(134_600), ns(228_100)],
                read_unit: None,
                program: [us(1860); 4],
                erase: us(6340),
                bytes_per_s: 800_000_000,
                ..tlc.timing
            },
            errors: Errors {
                rated_cycles: 1000,
                fresh: 400_000_000,
                worn: 2_000_000_000,
                aged: 9_000_000_000,
                disturbed: 6_000_000_000,
                by_kind: [60, 80, 110, 150],
                ..tlc.errors
            },
        }
    }

    /// Planar 20 nm MLC, from the data sheet of Micron's MT29F128G08CBECB: pages of 16,384 and 1,872 bytes,
    /// 512 per block, two planes of 1,048 blocks, 3 ms for an erase, 166 MT/s, 3,000 cycles. By page type 48
    /// and 64 us to read, 850 and 2,300 us to program, as measured on that family and used by the flash
    /// emulator FEMU (data sheet: 115 us at most, 1,600 us typical). Reads disturb by 3.7e-9 each near the
    /// rated cycles ("Read Disturb Errors in MLC NAND Flash Memory: Characterization, Mitigation, and
    /// Recovery", Cai, Luo, Ghose, Haratsch, Mai and Mutlu, DSN 2015). Assumed: 40 bit errors corrected in 1
    /// KiB, decoding, the other error and failure rates, all suspension times.
    pub fn mlc() -> Profile {
        let us = Span::us;
        Profile {
            name: "mlc",
            source: "Micron MT29F128G08CBECB; FEMU; Cai et al., DSN 2015; the rest assumed",
            geometry: Geometry {
                channels: 4,
                packages: 1,
                dies: 2,
                planes: 2,
                blocks: 1048,
                word_lines: 256,
                cell: Cell::Mlc,
                order: Order::Diagonal,
                group: 1,
                page_bytes: 16_384,
                spare_bytes: 1872,
                free_bytes: 64,
                unit_bytes: 4096,
            },
            timing: Timing {
                read: [us(48), us(64), Span::ZERO, Span::ZERO],
                read_unit: None,
                program: [us(850), us(2300), Span::ZERO, Span::ZERO],
                erase: Span::ms(3),
                command: Span::ns(500),
                bytes_per_s: 166_000_000,
                decode: us(10),
                multi_plane: true,
                independent_planes: false,
                cache: true,
                suspend: None,
            },
            errors: Errors {
                rated_cycles: 3000,
                fresh: 50_000_000,
                worn: 500_000_000,
                aged: 1_500_000_000,
                disturbed: 3_700_000_000,
                by_kind: [80, 120, 100, 100],
                corrects: 40,
                retries: 8,
                retry_keeps: 75,
                factory_bad: 10_000,
                ..Profile::tlc().errors
            },
        }
    }

    /// SLC, from the data sheet of Micron's MT29F4G08ABADA: 64 pages per block, two planes of 2,048 blocks,
    /// 25 us to read, 200 us to program, 700 us to erase, 20 ns per byte, 100,000 cycles, at most 80 of 4,096
    /// blocks bad. Its pages have 2,048 and 64 bytes; here they are twice as large, so that a unit of 4 KiB
    /// fits. Assumed: that, 8 bit errors corrected in 512 bytes, all error and failure rates.
    pub fn slc() -> Profile {
        let us = Span::us;
        Profile {
            name: "slc",
            source: "Micron MT29F4G08ABADA; the rest assumed",
            geometry: Geometry {
                channels: 4,
                packages: 1,
                dies: 1,
                planes: 2,
                blocks: 2048,
                word_lines: 64,
                cell: Cell::Slc,
                order: Order::WordLine,
                group: 1,
                page_bytes: 4096,
                spare_bytes: 128,
                free_bytes: 32,
                unit_bytes: 4096,
            },
            timing: Timing {
                read: [us(25); 4],
                read_unit: None,
                program: [us(200); 4],
                erase: us(700),
                command: Span::ns(500),
                bytes_per_s: 50_000_000,
                decode: us(5),
                multi_plane: true,
                independent_planes: false,
                cache: true,
                suspend: None,
            },
            errors: Errors {
                rated_cycles: 100_000,
                fresh: 1_000_000,
                worn: 20_000_000,
                aged: 50_000_000,
                disturbed: 100_000_000,
                by_kind: [100; 4],
                codeword_bytes: 512,
                corrects: 8,
                retries: 0,
                retry_keeps: 100,
                factory_bad: 10_000,
                program_fails: [10, 1_000],
                erase_fails: [10, 10_000],
            },
        }
    }

    /// Fictitious chip for tests that compute a schedule by hand or are exhaustive: two dies of two planes,
    /// eight blocks each, four word lines of TLC, round times, and no errors except those of power cuts.
    pub fn test() -> Profile {
        let us = Span::us;
        Profile {
            name: "test",
            source: "made up",
            geometry: Geometry {
                channels: 1,
                packages: 1,
                dies: 2,
                planes: 2,
                blocks: 8,
                word_lines: 4,
                cell: Cell::Tlc,
                order: Order::WordLine,
                group: 3,
                page_bytes: 8192,
                spare_bytes: 128,
                free_bytes: 64,
                unit_bytes: 4096,
            },
            timing: Timing {
                read: [us(50), us(60), us(70), us(80)],
                read_unit: None,
                program: [us(200), us(300), us(500), us(800)],
                erase: us(3000),
                command: us(1),
                bytes_per_s: 1_000_000_000,
                decode: Span::ZERO,
                multi_plane: true,
                independent_planes: false,
                cache: true,
                suspend: None,
            },
            errors: Errors { codeword_bytes: 1024, corrects: 40, ..Errors::none() },
        }
    }
}

fn suspend(program: u64, erase: u64, resume: u64) -> Suspend {
    let us = Span::us;
    Suspend { program: us(program), erase: us(erase), resume: us(resume), most: 8 }
}

#[cfg(test)]
mod tests {
    use super::super::{Nand, Spec, Wear, YEAR_S};
    use super::*;
    use crate::contents::Keep;

    #[test]
    fn every_nand_profile_passes_validation() {
        for profile in Profile::all() {
            profile.timing.check().unwrap();
            let bits = profile.geometry.cell.bits() as usize;
            assert!(profile.timing.read[..bits].iter().all(|span| *span > Span::ZERO));
            assert!(profile.timing.program[..bits].iter().all(|span| *span > Span::ZERO));
            let spec = Spec {
                geometry: profile.geometry.clone(),
                keep: Keep::Stamps,
                block_bytes: 4096,
                errors: profile.errors.clone(),
                seed: 1,
            };
            Nand::new(spec).unwrap();
            assert_eq!(Profile::named(profile.name), Some(profile));
        }
    }

    /// The only target of the assumed rates: JESD218 requires a client drive at its end of life to retain
    /// data for a year without power, with retries if needed; new chips read without a retry.
    #[test]
    fn every_nand_profile_retains_data_one_year_at_end_of_life() {
        for Profile { name, errors, geometry, .. } in Profile::all() {
            let worst = |wear: Wear, step| {
                let bits = geometry.cell.bits() as u8;
                (0..bits).map(|kind| errors.mean(errors.rate(wear, kind, step))).max().unwrap()
            };
            let new = Wear { cycles: 0, reads: 1000, age_s: 0 };
            assert!(worst(new, 0) * 4 < errors.corrects, "{name}, new");
            let old = Wear { cycles: errors.rated_cycles, reads: 10_000, age_s: YEAR_S };
            assert!(worst(old, errors.retries) * 2 < errors.corrects, "{name}, old");
        }
    }
}
