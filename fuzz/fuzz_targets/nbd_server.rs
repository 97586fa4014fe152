//! An NBD client whose bytes are the fuzzer's, against a server in this process: every connection ends,
//! and the next client is greeted.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::LazyLock;

use plan::Plan;
use serve::front_ends::nbd;
use world::interfaces::NVME;

/// Path of the server's socket; it starts at the first input.
static SOCKET: LazyLock<PathBuf> = LazyLock::new(|| {
    let socket = std::env::temp_dir().join(format!("doorbell-fuzz-nbd-{}", std::process::id()));
    let sets = [("medium.block", "512 B"), ("medium.capacity", "1 MiB")];
    let plan = Plan::open("live", &sets).expect("a plan of ours");
    let listens = socket.clone();
    std::thread::spawn(move || {
        let control = serve::Control::new().expect("two descriptors");
        let hosts = serve::Hosts::Apart { device_threads: 1 };
        nbd::ROW.serve(NVME, &plan, &[listens], hosts, &control, &|_, _| ()).expect("a server")
    });
    while UnixStream::connect(&socket).is_err() {
        std::thread::yield_now();
    }
    socket
});

pub fn run(data: &[u8]) {
    let mut socket = UnixStream::connect(&*SOCKET).expect("a server that listens");
    let mut greeting = [0; 18];
    socket.read_exact(&mut greeting).expect("a greeting");
    assert_eq!(&greeting[..8], b"NBDMAGIC");
    // The server may have closed by then.
    let mut reader = socket.try_clone().expect("a second descriptor");
    let drain = std::thread::spawn(move || {
        let mut replies = [0; 64 << 10];
        while reader.read(&mut replies).is_ok_and(|bytes| bytes > 0) {}
    });
    let _ = socket.write_all(data);
    let _ = socket.shutdown(Shutdown::Write);
    drain.join().expect("the end of a connection");
}
