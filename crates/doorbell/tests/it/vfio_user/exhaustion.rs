//! What clients have in common is the server's process: one that takes what it can get takes nothing from the
//! next.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;

use wire::vfio_user::errno;

use crate::common::system::{self, Limit};
use crate::common::{Folder, doorbell};
use crate::vfio_user::raw::{Raw, file};
use crate::vfio_user::serving::{SETS, serve, serve_by, ticks_of};

const PAGE: u64 = 4096;

#[test]
fn silent_clients_keep_nobody_waiting() {
    let folder = Folder::new("vfu-silence");
    let mut server = serve(&folder, None);
    // More than may greet at once, each with nothing or half a header: 5 s for each would be minutes.
    let silent = |number: usize| {
        let mut socket = UnixStream::connect(&server.socket).expect("the server listens");
        socket.write_all(&[1, 0, 1, 0, 30][..number % 6]).expect("the server takes bytes");
        socket
    };
    let _crowd: Vec<_> = (0..100).map(silent).collect();
    assert!(Raw::greeted(&server.socket).read(7, 0, 4).is_ok());
    assert!(server.lives());
}

#[test]
fn a_client_that_maps_all_it_can_leaves_the_next_socket_its_own() {
    let folder = Folder::new("vfu-many");
    let sockets = ["serve", "live", "--vfio-user", "socket", "--vfio-user", "other"];
    let mut command = doorbell(&folder, &sockets);
    command.args(SETS);
    let mut server = serve_by(&folder, &mut command);
    let mut hostile = Raw::greeted(&server.socket);
    let memory = file(2 * PAGE);
    let mut refused = None;
    for number in 0..70_000_u64 {
        // Neighbours are never the file's next page, so that the kernel makes one mapping of none.
        let mapped = hostile.map(number * PAGE, PAGE, 3, Some((&memory, number % 2 * PAGE)));
        if let Err(error) = mapped {
            refused = Some((number, error));
            break;
        }
    }
    assert_eq!(refused, Some((16_000, errno::ENOSPC)), "half of 32,000");
    let (mappings, _) = system::mappings(&server.child);
    assert!(mappings < 65_530 / 2, "{mappings}");
    let mut next = Raw::greeted(&folder.path("other"));
    next.map(0, PAGE, 3, Some((&memory, 0))).expect("a mapping");
    next.reset();
    // What it had is the next's on its own socket too.
    drop(hostile);
    let mut next = Raw::greeted(&server.socket);
    next.map(0, PAGE, 3, Some((&memory, 0))).expect("a mapping");
    next.reset();
    assert!(server.lives());
}

#[test]
fn without_descriptors_it_rests_and_goes_on_when_there_are_some() {
    let folder = Folder::new("vfu-emfile");
    let mut server = serve(&folder, None);
    let most = system::limit(&server.child, Limit::Descriptors, 4);
    let crowd: Vec<_> = (0..20)
        .map(|_| UnixStream::connect(&server.socket).expect("the kernel takes connections"))
        .collect();
    let ticks = ticks_of(&server);
    std::thread::sleep(std::time::Duration::from_secs(1));
    let spun = ticks_of(&server) - ticks;
    system::limit(&server.child, Limit::Descriptors, most);
    let mut good = Raw::greeted(&server.socket);
    assert!(good.read(7, 0, 4).is_ok());
    drop(crowd);
    // It has said once that it cannot accept, and that it waits for the next; a crowd that goes says no more.
    let lines = server.log_has_within("client connected");
    assert!(lines <= 4 + 20, "{lines} lines");
    assert!(spun < 50, "it has used {spun} ticks of 10 ms in a second");
}

#[test]
fn descriptors_are_the_process_own_while_a_crowd_is_silent() {
    let folder = Folder::new("vfu-few");
    let mut server = serve(&folder, None);
    system::limit(&server.child, Limit::Descriptors, 16);
    let _crowd: Vec<_> = (0..60)
        .map(|_| UnixStream::connect(&server.socket).expect("the kernel takes connections"))
        .collect();
    let mut good = Raw::greeted(&server.socket);
    let memory = file(PAGE);
    good.map(0, PAGE, 3, Some((&memory, 0))).expect("a mapping");
    good.reset();
    let lines = server.log_has_within("client connected");
    assert!(lines <= 4, "{lines} lines");
}

#[test]
fn descriptors_beside_parts_of_a_message_are_counted_together() {
    let folder = Folder::new("vfu-parts");
    let mut server = serve(&folder, None);
    let bad = Raw::greeted(&server.socket);
    server.says("client connected");
    let memory = file(PAGE);
    let fds = [std::os::fd::AsFd::as_fd(&memory); 16];
    // A message of a megabyte, byte by byte.
    let header = wire::vfio_user::Header::command(9, 10, 1 << 20);
    let bytes = zerocopy::IntoBytes::as_bytes(&header);
    for byte in bytes.iter().chain(&[0; 100]) {
        if crate::vfio_user::raw::send_with(&bad.socket, &[*byte], &fds).is_err() {
            break;
        }
    }
    server.log_mentions("more than 16 descriptors beside one message");
    server.says("waiting for a client");
    assert!(Raw::greeted(&server.socket).read(7, 0, 4).is_ok());
}

#[test]
fn a_client_without_a_thread_for_its_device_is_let_go_and_the_next_is_served() {
    let folder = Folder::new("vfu-thread");
    let mut command = doorbell(&folder, &["serve", "live", "--vfio-user", "socket"]);
    // Stacks so long that there is room for one or there is not, while all else is small.
    command.args(SETS).env("RUST_MIN_STACK", (1_u64 << 30).to_string());
    let mut server = serve_by(&folder, &mut command);
    let (_, bytes) = system::mappings(&server.child);
    let most = system::limit(&server.child, Limit::Memory, bytes + (512 << 20));
    for _ in 0..3 {
        let mut raw = Raw::greeted(&server.socket);
        assert!(raw.receive().is_none(), "it is let go");
        server.says("client connected");
        server.log_mentions("client dropped: no thread for its device: ");
        server.says("waiting for a client");
    }
    system::limit(&server.child, Limit::Memory, most);
    let mut raw = Raw::greeted(&server.socket);
    raw.reset();
    assert!(server.lives());
}

#[test]
fn sockets_and_images_are_their_owners_alone() {
    let folder = Folder::new("vfu-mode");
    let _server = serve(&folder, Some(&folder.path("image")));
    for name in ["socket", "image"] {
        let mode = std::fs::metadata(folder.path(name)).expect("it is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
}
