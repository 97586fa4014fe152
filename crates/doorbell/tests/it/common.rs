//! Helpers shared by the tests of the command.

use std::path::{Path, PathBuf};

pub use testing::server::Server;
pub use testing::*;

use bus::live::{self, LiveHost};
use plan::Plan;
use runtime::{Either, Log, Rt, STD_CLOCK, Span, race};
use world::interfaces::{Connected, NVME, Row};

/// The command, run in this folder.
pub fn doorbell(folder: &Folder, arguments: &[&str]) -> std::process::Command {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_doorbell"));
    command.current_dir(folder.at()).args(arguments).stdin(std::process::Stdio::null());
    command
}

/// Serves at `socket` in the folder by this front end, in memory or on an image.
pub fn serve(folder: &Folder, front_end: &str, sets: &[&str], image: Option<&Path>) -> Server {
    let file = image.map(|image| format!("medium.file={:?}", image.display().to_string()));
    let mut command = doorbell(folder, &["serve", "live", front_end, "socket"]);
    let command = command.args(sets).args(file.iter().flat_map(|set| ["--set", set]));
    Server::listening(folder, command)
}

/// A job of `ios` reads and writes of 512 B to 1 MiB at depth 128.
pub fn mixed(folder: &Folder, ios: u64) -> PathBuf {
    let text = format!(
        "[mixed]\nrw=randrw\nbssplit=512/20:4k/40:16k/20:128k/15:1m/5\niodepth=128\nsize=16m\n\
         io_size=1t\nnorandommap=1\nnumber_ios={ios}\nfsync=64\nverify=crc32c\n"
    );
    folder.file("mixed.fio", &text)
}

/// Asserts that the job `mixed` succeeded and verified more blocks than this.
#[track_caller]
pub fn assert_verified(output: &CommandOutput, more_than: u64) {
    assert_eq!((output.code, output.err.as_str()), (Some(0), ""), "{}", output.out);
    let verified = output.out.lines().find_map(|line| line.strip_suffix(" blocks verified"));
    let verified = verified.and_then(|line| line.strip_prefix("mixed: ")).expect("verified blocks");
    let verified = verified.parse::<u64>().expect("a number");
    assert!(verified > more_than, "only {verified} blocks verified");
}

/// Runs a job `mixed` by this interface against a device in another process, with `resets` resets.
pub fn across_two_processes(
    (folder, interface): (&Folder, &str),
    sets: &[&str],
    (job, resets): (&str, &str),
) -> CommandOutput {
    let sets: Vec<_> = sets.iter().flat_map(|set| ["--set", set]).collect();
    let job = folder.file("mixed.fio", job).display().to_string();
    let which = ["--interface", interface];
    let _server = serve(folder, "--shm", &[&which, &sets[..]].concat(), None);
    let run =
        ["run", &job, "--verbose", "--world", "live", "--socket", "socket", "--resets", resets];
    output_of(doorbell(folder, &run).args(which).args(&sets))
}

/// Runs a driver on this thread against the device at a socket, until `body` returns.
pub fn over_socket<T>(
    plan: &Plan,
    socket: &Path,
    body: impl AsyncFnOnce(Rt, Connected<LiveHost>) -> T,
) -> T {
    over_socket_by(NVME, plan, socket, body)
}

/// As [`over_socket`], by the driver of any interface.
pub fn over_socket_by<T>(
    row: &'static Row,
    plan: &Plan,
    socket: &Path,
    body: impl AsyncFnOnce(Rt, Connected<LiveHost>) -> T,
) -> T {
    let memory_bytes = usize::try_from(plan.host.memory_bytes).expect("it fits");
    let (shared, mut client) =
        live::connect(socket, memory_bytes, plan.host.memory_base).expect("the server accepts");
    let rt = Rt::live(&STD_CLOCK, None, Log::Off);
    let host = shared.host(&rt);
    let watched = host.clone();
    let watch = async {
        while !client.is_gone() {
            rt.sleep(Span::ms(1)).await;
        }
        watched.mark_gone();
        core::future::pending::<()>().await;
    };
    let run = async {
        let driver = row.connect(vec![host], plan).await.expect("the device is there");
        body(rt.clone(), driver).await
    };
    let result = match rt.block_on(race(run, watch)) {
        Either::First(result) => result,
        Either::Second(()) => unreachable!("the watch never ends"),
    };
    rt.drop_tasks();
    result
}
