//! A vfio-user client whose messages are the fuzzer's bytes, against a server and its controller in this
//! process: no input makes either panic, or leaves a command without an answer.
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::LazyLock;

use plan::Plan;
use serve::front_ends::vfio_user;
use world::interfaces::NVME;

#[path = "../../crates/doorbell/tests/it/vfio_user/raw.rs"]
#[allow(dead_code, reason = "only a part of the client is used")]
mod raw;

use raw::{Raw, eventfd, file, send_with};
use wire::vfio_user::Header;
use zerocopy::IntoBytes;

/// Path of the server's socket; it starts at the first input.
static SOCKET: LazyLock<PathBuf> = LazyLock::new(|| {
    let socket = std::env::temp_dir().join(format!("doorbell-fuzz-{}", std::process::id()));
    let sets = [("medium.block", "512 B"), ("medium.capacity", "1 MiB")];
    let plan = Plan::open("live", &sets).expect("a plan of ours");
    let listens = socket.clone();
    std::thread::spawn(move || {
        let control = serve::Control::new().expect("two descriptors");
        vfio_user::ROW.serve(
            NVME,
            &plan,
            &[listens],
            serve::Hosts::Apart { device_threads: 1 },
            &control,
            &|_, _| (),
        )
    });
    while UnixStream::connect(&socket).is_err() {
        std::thread::yield_now();
    }
    socket
});

/// Takes a byte; zero at the end of input.
fn byte(data: &mut &[u8]) -> u8 {
    let Some((first, rest)) = data.split_first() else { return 0 };
    *data = rest;
    *first
}

pub fn run(data: &[u8]) {
    let mut data = data;
    let mut raw = Raw::connect(&SOCKET);
    if greet(&raw.socket).is_err() {
        return;
    }
    let (memory, counter) = (file(1 << 16), eventfd(0));
    while !data.is_empty() {
        // Command, flags and descriptors, length of the payload.
        let (command, how, bytes) = (byte(&mut data), byte(&mut data), byte(&mut data));
        let (payload, rest) = data.split_at(usize::from(bytes).min(data.len()));
        data = rest;
        let mut header = Header::command(command.into(), (command % 20).into(), payload.len());
        header.flags = u32::from(how & 0x10).into();
        let message = [header.as_bytes(), payload].concat();
        let fds = match how & 3 {
            1 => vec![memory.as_fd()],
            2 => vec![counter.as_fd()],
            _ => vec![],
        };
        if send_with(&raw.socket, &message, &fds).is_err() {
            break;
        }
    }
    // After any input the server answers to the end, or closes the connection.
    let _ = raw.socket.shutdown(std::net::Shutdown::Write);
    while raw.receive().is_some() {}
}

/// Sends a version message without capabilities.
fn greet(socket: &UnixStream) -> std::io::Result<()> {
    let header = Header::command(0, 1, 4);
    send_with(socket, &[header.as_bytes(), &[0, 0, 1, 0]].concat(), &[])
}
