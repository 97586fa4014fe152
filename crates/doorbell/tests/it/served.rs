//! Every plan at every front end: a client reads back every byte that it wrote, or the drive is rejected
//! with the key to change.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use crate::common::{CommandOutput, Folder, Server, doorbell, output_of, plan};
use fnvme::engine::{Drive, Service};
use plan::{Fastpath, KeepRule, Plan, built_in};
use runtime::Rng;

/// A server, and its log lines after it waits for a client.
struct Served {
    _server: Server,
    printed: Receiver<String>,
}

impl Served {
    fn start(folder: &Folder, plan: &str, front_end: &[&str]) -> Served {
        let mut command = doorbell(folder, &[&["serve", plan], fewer(plan), front_end].concat());
        let mut server = Server::begin(folder, &mut command);
        server.log_has_within("waiting for");
        let printed = server.read_by_a_thread();
        Served { _server: server, printed }
    }

    /// The next line, without the prefix of every line.
    fn prints(&self) -> String {
        let line = self.printed.recv_timeout(Duration::from_secs(60)).expect("a line before long");
        line.strip_prefix("doorbell: ./door: ").expect("program and address").to_owned()
    }
}

/// Fewer blocks of the same chips: in a test build, the map of half a terabyte takes as long to create as
/// a host waits for a controller.
fn fewer(plan: &str) -> &'static [&'static str] {
    match plan {
        "tlc" => &["--set", "medium.flash.blocks=32"],
        // They begin full, and are filled when their server starts.
        name if is_real_flash(name) => {
            &["--set", "medium.flash.blocks=32", "--set", "medium.flash.start=fresh"]
        }
        _ => &[],
    }
}

/// The plan is that of a drive that exists, with flash.
fn is_real_flash(name: &str) -> bool {
    let plan = Plan::open(name, &[]).expect("a built-in plan");
    plan.drive.is_some() && plan.medium.flash.is_some()
}

/// Front ends, as command-line arguments.
const FRONT_ENDS: [&[&str]; 4] = [
    &["--nbd", "./door"],
    &["--shm", "./door"],
    &["--vfio-user", "./door"],
    &["--vfio-user", "./door", "--shared"],
];

fn names() -> impl Iterator<Item = &'static str> {
    built_in().iter().map(|(name, _)| *name)
}

fn random(seed: u64, bytes: usize) -> Vec<u8> {
    let mut rng = Rng::for_part(seed, "bytes of a client");
    (0..bytes.div_ceil(8)).flat_map(|_| rng.next_u64().to_le_bytes()).take(bytes).collect()
}

/// Writes random bytes at three LBAs over NBD, and reads them back.
fn by_nbd(folder: &Folder, name: &str) {
    let mut stream = UnixStream::connect(folder.path("door")).expect("it listens");
    let mut greeting = [0; 18];
    stream.read_exact(&mut greeting).expect("a greeting");
    // Fixed newstyle without zeros, then the option of the export without a name.
    stream.write_all(&3_u32.to_be_bytes()).expect("flags");
    let option = [&b"IHAVEOPT"[..], &1_u32.to_be_bytes(), &0_u32.to_be_bytes()].concat();
    stream.write_all(&option).expect("an option");
    let mut export = [0; 10];
    stream.read_exact(&mut export).expect("the export");
    let size = u64::from_be_bytes(*export.first_chunk().expect("eight bytes"));
    let mut ask = |kind: u16, at: u64, bytes: u32, data: &[u8]| {
        let mut request = 0x2560_9513_u32.to_be_bytes().to_vec();
        request.extend([0, 0]);
        request.extend(kind.to_be_bytes());
        request.extend(7_u64.to_be_bytes());
        request.extend(at.to_be_bytes());
        request.extend(bytes.to_be_bytes());
        request.extend(data);
        stream.write_all(&request).expect("a request");
        let mut reply = [0; 16];
        stream.read_exact(&mut reply).expect("a reply");
        assert_eq!(reply[4..8], [0; 4], "{name}: an error");
        let mut found = vec![0; if kind == 0 { bytes as usize } else { 0 }];
        stream.read_exact(&mut found).expect("the bytes");
        found
    };
    const BYTES: u32 = 64 << 10;
    for (seed, at) in [0, size / 2 / 4096 * 4096, size - u64::from(BYTES)].into_iter().enumerate() {
        let bytes = random(seed as u64, BYTES as usize);
        ask(1, at, BYTES, &bytes);
        assert!(ask(0, at, BYTES, &[]) == bytes, "{name}: other bytes at {at}");
    }
    ask(3, 0, 0, &[]);
}

/// A host that verifies every byte of every block, with the host side of `live` for all served plans.
const VERIFIED: &str =
    "[a]\nrw=randrw\nbs=8k\nsize=1m\niodepth=4\nnumber_ios=40\nverify=crc32c\nverify_fatal=1\n";

fn by_run(folder: &Folder, name: &str, flag: &str) {
    folder.file("verified.fio", VERIFIED);
    let run =
        ["run", "verified.fio", "--verbose", "--world", "live", "--plan", "live", flag, "./door"];
    let CommandOutput { code, out, err } = output_of(&mut doorbell(folder, &run));
    assert_eq!((code, err.as_str()), (Some(0), ""), "{name}, {flag}");
    assert!(out.contains("blocks verified"), "{name}, {flag}: {out}");
}

#[test]
fn every_builtin_plan_returns_written_data() {
    let folder = Folder::new("served");
    for name in names() {
        for front_end in FRONT_ENDS {
            let _server = Served::start(&folder, name, front_end);
            match front_end[0] {
                "--nbd" => by_nbd(&folder, name),
                "--shm" => by_run(&folder, name, "--socket"),
                flag => by_run(&folder, name, flag),
            }
        }
    }
}

#[test]
fn every_front_end_prints_the_same_events() {
    let folder = Folder::new("events");
    for front_end in FRONT_ENDS {
        let server = Served::start(&folder, "live", front_end);
        for _ in 0..2 {
            match front_end[0] {
                "--nbd" => by_nbd(&folder, "live"),
                "--shm" => by_run(&folder, "live", "--socket"),
                flag => by_run(&folder, "live", flag),
            }
            for expected in ["client connected", "client disconnected"] {
                assert_eq!(server.prints(), expected, "{front_end:?}");
            }
            // A front end for many clients waits for the next while it serves the first.
            if front_end[0] != "--nbd" {
                assert_eq!(server.prints(), "waiting for a client", "{front_end:?}");
            }
        }
    }
}

/// DC Express reads everything that a medium of blocks holds before it chooses tags: unwritten terabytes
/// take no time.
#[test]
fn dc_express_start_time_is_independent_of_capacity() {
    let folder = Folder::new("served-dcx");
    let _server = Served::start(&folder, "gen4", &["--nbd", "./door", "--interface", "dcx"]);
    by_nbd(&folder, "gen4 by dcx");
}

#[test]
fn stamp_medium_is_rejected_by_every_front_end() {
    let folder = Folder::new("unserved");
    for name in names() {
        let words = format!(
            "doorbell: plans/{name}.toml: medium.keep: found \"stamps\", the first 8 bytes of each block, \
             expected \"everything\" for a drive that is served, whose clients read back every byte they \
             wrote: --set medium.keep=everything\n"
        );
        for front_end in FRONT_ENDS {
            let serve = ["serve", name, "--set", "medium.keep=stamps"];
            let CommandOutput { code, out, err } =
                output_of(&mut doorbell(&folder, &[&serve, front_end].concat()));
            assert_eq!((code, out.as_str(), err.as_str()), (Some(1), "", words.as_str()));
            assert!(!folder.path("door").exists(), "{name}, {front_end:?}: a socket was made");
        }
        // The same keys, and then those of the error.
        let both = ["--set", "medium.keep=stamps", "--set", "medium.keep=everything"];
        let _server = Served::start(&folder, name, &[&both[..], FRONT_ENDS[0]].concat());
        by_nbd(&folder, name);
        std::fs::remove_file(folder.path("door")).expect("it is left by a server that was killed");
    }
}

/// The engine of libfnvme and of the fio engine.
#[test]
fn in_process_engine_keeps_data_or_fails_to_start() {
    let here = Drive::Here { own_thread: false };
    for name in names().filter(|name| plan(name, &[]).section::<Fastpath>().is_some()) {
        let depth = ("host.queue_depth", "64");
        let service = Service::start(&plan(name, &[depth]), &here, 0).expect("it starts");
        let bytes = random(1, 16 << 10);
        service.ordinary(8, bytes.clone(), true).expect("a write");
        let found = service.ordinary(8, vec![0; bytes.len()], false).expect("a read");
        assert!(found == bytes, "{name}: other bytes");
        let stamps = plan(name, &[depth, ("medium.keep", "stamps")]);
        let refused = Service::start(&stamps, &here, 0).err().expect("stamps").to_string();
        assert!(refused.ends_with("--set medium.keep=everything"), "{refused}");
    }
}

/// Runs of built-in jobs keep using little memory; data in a file are complete.
#[test]
fn keep_auto_is_stamps_for_jobs_and_everything_for_files() {
    use media::contents::Keep::{Everything, Stamps};
    let keep = |plan: &Plan| {
        let of_flash = plan.medium.flash.as_ref().map(|flash| flash.spec.keep);
        assert!(of_flash.is_none_or(|keep| keep == plan.medium.contents.keep), "both say the same");
        plan.medium.contents.keep
    };
    for name in ["gen4", "tlc", "vortex", "vortex-disks", "flash-bridge", "flash-closer"] {
        let auto = plan(name, &[]);
        assert_eq!((auto.medium.keep, keep(&auto)), (KeepRule::Auto, Stamps), "{name}");
        assert_eq!(keep(&auto.for_clients().expect("auto")), Everything, "{name}");
    }
    assert_eq!(keep(&plan("gen4", &[("medium.file", "a.img")])), Everything);
    assert_eq!(keep(&plan("tlc", &[("medium.flash.state", "a.state")])), Everything);
}
