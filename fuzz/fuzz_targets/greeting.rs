//! The greeting of shared memory: a device and a host, each against a peer whose first message is the
//! fuzzer's bytes, and comes without a descriptor: an error that names the socket, and the server serves on.

use std::io::Write;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::LazyLock;

use bus::live::Server;
use wire::BusAddr;

use super::scratch;

/// One server for the life of this process.
static SERVER: LazyLock<Server> =
    LazyLock::new(|| Server::bind(&scratch::path("greeting.sock")).expect("a socket"));
static LISTENER: LazyLock<UnixListener> =
    LazyLock::new(|| UnixListener::bind(scratch::path("device.sock")).expect("a socket"));

pub fn run(data: &[u8]) {
    let Some((how, message)) = data.split_first() else { return };
    if how & 1 == 0 {
        LazyLock::force(&SERVER);
        let path = scratch::path("greeting.sock");
        let client = UnixStream::connect(&path).expect("a server");
        (&client).write_all(message).expect("room in the socket");
        // Time-outs of silent peers are tested elsewhere.
        client.shutdown(std::net::Shutdown::Write).expect("a socket");
        if let Err(error) = SERVER.accept(0x2000) {
            assert!(error.to_string().contains("greeting.sock"), "{error}");
        }
    } else {
        LazyLock::force(&LISTENER);
        let path = scratch::path("device.sock");
        let message = message.to_vec();
        let peer = std::thread::spawn(move || {
            let (mut socket, _) = LISTENER.accept().expect("a host");
            let _ = socket.write_all(&message);
            let _ = socket.shutdown(std::net::Shutdown::Write);
        });
        if let Err(error) = bus::live::connect(&path, 1 << 20, BusAddr(1 << 32)) {
            assert!(error.to_string().contains("device.sock"), "{error}");
        }
        peer.join().expect("the peer");
    }
}
