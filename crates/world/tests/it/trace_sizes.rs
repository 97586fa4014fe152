//! Recordings of every format with requests of every size: an answer, or an error that names file and line.

use std::fmt::Write;

use plan::Plan;
use testing::{Folder, clean, only, plan};
use workload::pattern::OpKind;
use workload::trace::Mapping;
use world::interfaces::NVME;
use world::work::{Work, WorkError};
use world::{self, Options, RunResult};

const SECTOR: u64 = 512;

/// A request: microseconds, whether it writes, and its extent in bytes.
type Request = (u64, bool, u64, u64);

/// A format: its name, the lines before the first request, and a request's line.
struct Format {
    name: &'static str,
    header: &'static str,
    line: fn(Request) -> String,
}

fn kind(writes: bool) -> &'static str {
    if writes { "write" } else { "read" }
}

const FORMATS: [Format; 8] = [
    Format {
        name: "iolog-v2",
        header: "fio version 2 iolog\nf add\nf open\n",
        line: |(_, w, offset, bytes)| format!("f {} {offset} {bytes}", kind(w)),
    },
    Format {
        name: "iolog-v3",
        header: "fio version 3 iolog\n0 f add\n0 f open\n",
        line: |(us, w, offset, bytes)| format!("{us} f {} {offset} {bytes}", kind(w)),
    },
    Format {
        name: "recording",
        header: "doorbell recording 1\nrun x\ndepth 2\nlost 0\n",
        line: |(us, w, offset, bytes)| format!("io {us}000000 {} {offset} {bytes} 1", kind(w)),
    },
    Format {
        name: "blkparse",
        header: "8,0 0 1 0.000000000 1 P N [x]\n",
        line: |(us, w, offset, bytes)| {
            let (rwbs, sector, sectors) =
                (if w { "W" } else { "R" }, offset / SECTOR, bytes / SECTOR);
            format!("8,0 0 1 0.{us:06}000 1 Q {rwbs} {sector} + {sectors} [x]")
        },
    },
    Format {
        name: "msr",
        header: "Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime\n",
        line: |(us, w, offset, bytes)| format!("{us}0,h,0,{},{offset},{bytes},9", kind(w)),
    },
    Format {
        name: "vscsi",
        header: "version,time,op,size,lbn\n",
        line: |(us, w, offset, bytes)| {
            format!("1,{us},{},{bytes},{}", if w { "2a" } else { "28" }, offset / SECTOR)
        },
    },
    Format {
        name: "mqsim",
        header: "",
        line: |(us, w, offset, bytes)| {
            format!("{us}000 0 {} {} {}", offset / SECTOR, bytes / SECTOR, u8::from(!w))
        },
    },
    Format {
        name: "disksim",
        header: "",
        line: |(us, w, offset, bytes)| {
            let (sector, sectors) = (offset / SECTOR, bytes / SECTOR);
            format!("0.{us:06} 0 {sector} {sectors} {}", u8::from(!w))
        },
    },
];

impl Format {
    /// The line of the first request, from 1.
    fn first_line(&self) -> usize {
        self.header.lines().count() + 1
    }

    fn load(
        &self,
        folder: &Folder,
        mapping: Mapping,
        requests: &[Request],
    ) -> Result<Work, WorkError> {
        let mut text = self.header.to_owned();
        for request in requests {
            writeln!(text, "{}", (self.line)(*request)).expect("a string");
        }
        let path = folder.file(&format!("{}.trace", self.name), &text);
        Work::load(&path, mapping)
    }

    fn work(&self, folder: &Folder, mapping: Mapping, requests: &[Request]) -> Work {
        let work = self.load(folder, mapping, requests);
        work.unwrap_or_else(|error| panic!("{}: {error}", self.name))
    }
}

/// Sizes from a sector to 64 MiB, at odd sectors, with equal and decreasing times.
fn requests() -> Vec<Request> {
    let sizes = [512, 4096, 4608, 128 << 10, (128 << 10) + 512, 1 << 20, 4 << 20, (64 << 20) - 512];
    let request = |(at, bytes): (usize, u64)| {
        let at = at as u64;
        ([5, 9, 9, 7][at as usize % 4] + at, at % 2 == 1, SECTOR * (2 * at + 1), bytes)
    };
    sizes.into_iter().enumerate().map(request).collect()
}

fn live(plan: &Plan, work: &Work) -> RunResult {
    let result = world::live_in_threads(NVME, plan, work, Options::default());
    result.unwrap_or_else(|error| panic!("{error}"))
}

fn simulated(plan: &Plan, work: &Work) -> RunResult {
    let result = world::simulate(NVME, plan, work, Options::default());
    result.unwrap_or_else(|error| panic!("{error}"))
}

/// Asserts that each request was done, on whole blocks of 4 KiB.
fn assert_done(run_result: RunResult, requests: &[Request], name: &str) {
    let run_result = clean(run_result);
    let stats = &only(&run_result).stats;
    for writes in [false, true] {
        let these = requests.iter().filter(|request| request.1 == writes);
        let bytes = |&(_, _, offset, bytes): &Request| {
            (offset + bytes).next_multiple_of(4096) - offset / 4096 * 4096
        };
        let seen = stats.of(if writes { OpKind::Write } else { OpKind::Read });
        let want = (these.clone().count() as u64, these.map(bytes).sum());
        assert_eq!((seen.total.count(), seen.bytes), want, "{name}, writes: {writes}");
    }
}

#[test]
fn every_size_in_every_format_is_replayed_in_both_worlds() {
    let (folder, requests) = (Folder::new("trace-sizes"), requests());
    let plan = plan("live", &[("medium.block", "\"4 KiB\"")]);
    // An unoptimised build takes its time with the largest: in all formats with `DOORBELL_HEAVY=1`.
    let heavy = std::env::var_os("DOORBELL_HEAVY").is_some();
    let most = |with_largest: bool| requests.len() - usize::from(!with_largest && !heavy);
    for format in &FORMATS {
        let these = &requests[..most(["recording", "msr"].contains(&format.name))];
        let work = format.work(&folder, Mapping::Concatenate, these);
        assert_done(simulated(&plan, &work), these, format.name);
        let these = &requests[..most(format.name == "recording")];
        let work = format.work(&folder, Mapping::Concatenate, these);
        assert_done(live(&plan, &work), these, format.name);
    }
}

/// A recording alone in a run has a default depth: at most what memory has room for.
#[test]
fn default_depth_of_recording_fits_host_memory() {
    let folder = Folder::new("trace-depth");
    let plan = plan("gen4", &[]);
    let format = &FORMATS[1];
    let requests = [(1, false, 0, 4096), (2, false, 0, 8 << 20), (2, true, 0, 4096)];
    let work = format.work(&folder, Mapping::Concatenate, &requests);
    let result = simulated(&plan, &work);
    let line = format.first_line() + 1;
    let note =
        result.notes.iter().find(|note| note.contains(&format!(".trace:{line}: the longest")));
    let note = note.unwrap_or_else(|| panic!("{:?}", result.notes));
    assert!(note.contains("8388608 bytes: host.memory has room for 15 at once, not 64"), "{note}");
    assert_eq!(result.jobs[0].0.iodepth, 15);
    assert_done(result, &requests, "in 256 MiB");

    let named = folder.path("iolog-v3.trace");
    let job = format!("[j]\nread_iolog={}\niodepth=64\n", named.display());
    let work = Work::parse(&folder.path("j.fio"), &job, Mapping::Concatenate).expect("a job");
    let result = world::simulate(NVME, &plan, &work, Options::default()).map(drop);
    let error = result.unwrap_err().to_string();
    for word in ["j.fio:1: j: ", "iodepth=64 buffers of 8388608 bytes", &format!("trace:{line}, ")]
    {
        assert!(error.contains(word), "{word}: {error}");
    }
}

#[test]
fn request_that_cannot_be_replayed_is_an_error_with_its_line() {
    let (folder, good) = (Folder::new("trace-errors"), (1, false, 0, 512));
    let plan = plan("live", &[("medium.capacity", "\"32 MiB\"")]);
    let far = 1 << 54;
    for (bad, mapping, why) in [
        ((2, true, 0, 0), Mapping::Concatenate, "expected a whole number from 1"),
        ((2, true, 0, 64 << 20), Mapping::Concatenate, "more than one operation may have"),
        ((2, true, 0, 64 << 20), Mapping::Modulo, "more than one operation may have"),
        ((2, true, far, 512), Mapping::Concatenate, "expected at most the capacity of 33554432"),
        (
            (2, true, u64::MAX / SECTOR * SECTOR, 4096),
            Mapping::Concatenate,
            "expected a whole number",
        ),
    ] {
        for format in &FORMATS {
            let work = format.load(&folder, mapping, &[good, bad, good]);
            let line = format.first_line() + 1;
            let place = format!("{}.trace:{line}: ", format.name);
            for world in [world::simulate, world::live_in_threads] {
                let error = match &work {
                    Err(error) => error.to_string(),
                    Ok(work) => {
                        let result = world(NVME, &plan, work, Options::default()).map(drop);
                        result.unwrap_err().to_string()
                    }
                };
                assert!(error.contains(&place) && error.contains(why), "{error}: {place}{why}");
            }
        }
    }
    // Anywhere, modulo the capacity.
    let work = FORMATS[4].work(&folder, Mapping::Modulo, &[good, (2, true, far, 512)]);
    clean(simulated(&plan, &work));
}

/// Longest write of a trace of blkparse with these requests behind 64 writes of 4 KiB.
fn longest_write_ns(plan: &Plan, folder: &Folder, requests: &str) -> (u64, u64, String) {
    let mut text = String::new();
    for at in 0..64 {
        writeln!(text, "8,0 0 1 0.000000{at:03} 1 Q W {} + 8 [x]", 8 * at).expect("a string");
    }
    folder.file("t.trace", &(text + requests));
    let job = "[j]\nread_iolog=t.trace\niodepth=64\nverify=crc32c\n";
    let work = Work::parse(&folder.path("j.fio"), job, Mapping::Concatenate).expect("a job");
    let run_result = clean(simulated(plan, &work));
    let stats = &only(&run_result).stats;
    let note = run_result.notes.join("\n");
    (stats.write.total.max_ns(), stats.flush.total.max_ns(), note)
}

#[test]
fn replayed_preflush_and_fua_write_take_flush_and_fua_time() {
    let (plan, folder) = (plan("small-flash", &[]), Folder::new("trace-fua"));
    let of = |rwbs: &str| {
        let line = format!("8,0 0 1 0.500000000 1 Q {rwbs} 1024 + 8 [jbd2]\n");
        longest_write_ns(&plan, &folder, &line)
    };
    let flush = longest_write_ns(&plan, &folder, "8,0 0 1 0.500000000 1 Q FWS [jbd2]\n").1;
    let (plain, _, note) = of("WS");
    assert!(note.contains("0 reads, 65 writes, 0 flushes"), "{note}");
    let (preflushed, _, note) = of("FWS");
    assert!(note.contains("65 writes, 1 of them with a flush before, 0 flushes"), "{note}");
    let (fua, ..) = of("WFS");
    let (both, flushes, note) = of("FWFS");
    assert!(
        note.contains("1 of them with a flush before, 1 of them with FUA, 0 flushes"),
        "{note}"
    );
    assert_eq!(flushes, 0, "it is part of the write");
    assert!(flush > 100_000 && plain < flush, "flush {flush} ns, write {plain} ns");
    assert!(preflushed >= flush && fua > 100_000, "preflush {preflushed} ns, FUA {fua} ns");
    assert!(both >= flush + fua / 2, "both {both} ns, flush {flush} ns, FUA {fua} ns");
}
