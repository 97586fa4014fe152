//! Our driver on our device, in two processes, under verified load.

use std::process::Stdio;
use std::time::Duration;

use bus::live::LiveHost;
use bus::vfio_user::Sharing;
use plan::Plan;
use runtime::{Log, Rt, STD_CLOCK};
use wire::pci::FunctionKind;
use world::interfaces::{Connected, NVME};

use crate::common::{CommandOutput, Folder, assert_verified, doorbell, mixed, output_of};
use crate::vfio_user::env_or;
use crate::vfio_user::serving::{SETS, serve};

fn run(folder: &Folder, job: &str, more: &[&str]) -> std::process::Command {
    run_on(folder, "socket", job, more)
}

/// A job on the device at this socket.
pub fn run_on(folder: &Folder, socket: &str, job: &str, more: &[&str]) -> std::process::Command {
    let mut command =
        doorbell(folder, &["run", job, "--verbose", "--world", "live", "--vfio-user", socket]);
    command.args(SETS).args(more);
    command
}

fn assert_clean(output: &CommandOutput) {
    assert_verified(output, 100);
}

/// Runs a driver on this thread against the device at a socket, until `body` returns.
pub fn driven<T>(
    plan: &Plan,
    socket: &std::path::Path,
    sharing: Sharing,
    body: impl AsyncFnOnce(Rt, Connected<LiveHost>) -> T,
) -> T {
    let bytes = usize::try_from(plan.host.memory_bytes).expect("it fits");
    let connection =
        bus::vfio_user::connect(socket, FunctionKind::NVME, bytes, plan.host.memory_base, sharing);
    let connection = connection.unwrap_or_else(|error| panic!("{error}"));
    let rt = Rt::live(&STD_CLOCK, None, Log::Off);
    let host = connection.host(&rt);
    let result = rt.block_on(async {
        let driver = NVME.connect(vec![host], plan).await.expect("the device is there");
        body(rt.clone(), driver).await
    });
    rt.drop_tasks();
    result
}

#[test]
fn verified_io_polled_with_interrupts_and_under_resets() {
    let folder = Folder::new("vfu-work");
    let job = mixed(&folder, env_or("DOORBELL_IOS", 1_000)).display().to_string();
    let image = folder.path("image");
    let interrupts = ["--set", "host.completion=interrupt"];
    let queues = ["--set", "host.queues=4"];
    for (image, more) in [
        (None, &[][..]),
        (None, &interrupts[..]),
        (Some(image.as_path()), &["--resets", "5"][..]),
        (None, &queues[..]),
    ] {
        let mut server = serve(&folder, image);
        assert_clean(&output_of(&mut run(&folder, &job, more)));
        server.expect_event("client connected");
        server.expect_event("client disconnected");
        server.expect_event("waiting for a client");
        // The next driver finds the device like any host.
        assert_clean(&output_of(&mut run(&folder, &job, &[])));
        assert!(server.lives());
    }
}

#[test]
fn verified_io_with_unshared_driver_memory() {
    use host::BlockDevice;
    let folder = Folder::new("vfu-unshared");
    let server = serve(&folder, None);
    let sets = [("medium.block", "512 B"), ("host.memory", "64 MiB")];
    let plan = crate::common::plan("live", &sets);
    driven(&plan, &server.socket, Sharing::Messages, async |_, driver| {
        let disk = driver.disk(0);
        for (round, bytes) in [512, 4096, 8192, 65536, 131072].into_iter().enumerate() {
            let pattern: Vec<u8> = (0..bytes).map(|n| (n * 3 + round) as u8).collect();
            let buffer = disk.buffer(bytes).expect("memory");
            buffer.copy_in(0, &pattern);
            let (buffer, done) = disk.write(wire::Lba(100), buffer, false).await;
            done.expect("written");
            buffer.zero();
            let (buffer, done) = disk.read(wire::Lba(100), buffer).await;
            done.expect("read");
            let mut back = vec![0; bytes];
            buffer.copy_out(0, &mut back);
            assert!(back == pattern, "{bytes} bytes");
        }
        driver.stop().await.expect("an orderly end");
    });
}

#[test]
fn driver_exits_with_error_when_server_is_killed() {
    let folder = Folder::new("vfu-killed");
    let job = mixed(&folder, 1_000_000_000).display().to_string();
    let mut server = serve(&folder, None);
    let mut command = run(&folder, &job, &[]);
    let running = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    server.expect_event("client connected");
    std::thread::sleep(Duration::from_millis(500));
    server.kill();
    let output = running.wait_with_output().expect("the host ends");
    assert_eq!(output.status.code(), Some(1));
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(err.contains("gone"), "{err}");
    assert!(!err.contains("verify"), "nothing was wrong with the data: {err}");
}
