//! The fuzz targets that need the whole program, without libFuzzer: their seeds, and random mutations of
//! them. `tools/fuzz --long` runs them instrumented.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::sync::Once;

use runtime::Rng;

#[path = "../../../fuzz/fuzz_targets/nbd_server.rs"]
mod nbd_server;
#[path = "../../../fuzz/fuzz_targets/plan.rs"]
mod plan;
#[path = "../../../fuzz/fuzz_targets/vfio_user.rs"]
mod vfio_user;

/// As in libFuzzer: a panic of any thread ends the process, server threads included.
fn end_at_any_panic() {
    static HOOKED: Once = Once::new();
    HOOKED.call_once(|| {
        std::panic::set_hook(Box::new(|panic| {
            // Not by a macro: the test harness would capture its output.
            let _ = writeln!(std::io::stderr(), "{panic}");
            std::process::abort();
        }));
    });
}

/// Runs each file of a folder as it is, then `times` mutations of it: bytes flipped, cut out or
/// duplicated.
fn each_and_changed(folder: &str, times: u64, run: fn(&[u8])) {
    end_at_any_panic();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(folder);
    let mut files: Vec<_> = fs::read_dir(&folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .map(|entry| entry.expect("a file").path())
        .collect();
    files.sort();
    assert!(!files.is_empty(), "{}", folder.display());
    for file in files {
        let seed = fs::read(&file).expect("a seed");
        run(&seed);
        let mut rng = Rng::for_part(seed.len() as u64, "changes");
        for _ in 0..times {
            let mut input = seed.clone();
            for _ in 0..=rng.below(4) {
                let at = rng.below(input.len() as u64 + 1) as usize;
                let end = (at + rng.below(16) as usize).min(input.len());
                match rng.below(4) {
                    0 => drop(input.drain(at..end)),
                    1 => {
                        let again = input[at..end].to_vec();
                        input.splice(at..at, again);
                    }
                    _ => input[at..end].iter_mut().for_each(|byte| *byte ^= rng.next_u64() as u8),
                }
            }
            run(&input);
        }
    }
}

#[test]
fn plans() {
    each_and_changed("plans", 50, plan::run);
}

#[test]
fn clients_of_nbd() {
    each_and_changed("fuzz/seeds/nbd_server", 400, nbd_server::run);
}

#[test]
fn clients_of_vfio_user() {
    each_and_changed("fuzz/seeds/vfio_user", 1000, vfio_user::run);
}
