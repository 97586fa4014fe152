//! All clients share the server's process: one that exhausts its own limits takes no resources from the
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
fn silent_clients_do_not_delay_others() {
    let folder = Folder::new("vfu-silence");
    let mut server = serve(&folder, None);
    // More clients than may negotiate at once, each with nothing or half a header: at 5 s each it would
    // take minutes.
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
fn mapping_limit_of_one_client_spares_other_sockets() {
    let folder = Folder::new("vfu-many");
    let sockets = ["serve", "live", "--vfio-user", "socket", "--vfio-user", "other"];
    let mut command = doorbell(&folder, &sockets);
    command.args(SETS);
    let mut server = serve_by(&folder, &mut command);
    let mut hostile = Raw::greeted(&server.socket);
    let memory = file(2 * PAGE);
    let mut refused = None;
    for number in 0..70_000_u64 {
        // Neighbours are never adjacent in the file, so that the kernel cannot merge mappings.
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
    // Its mappings are available again to the next client on its own socket too.
    drop(hostile);
    let mut next = Raw::greeted(&server.socket);
    next.map(0, PAGE, 3, Some((&memory, 0))).expect("a mapping");
    next.reset();
    assert!(server.lives());
}

#[test]
fn accept_backs_off_at_fd_limit_and_resumes() {
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
    // The accept error and the wait for the next client are logged once; disconnects of the crowd add no
    // line.
    let lines = server.log_has_within("client connected");
    assert!(lines <= 4 + 20, "{lines} lines");
    assert!(spun < 50, "it has used {spun} ticks of 10 ms in a second");
}

#[test]
fn silent_connections_do_not_exhaust_file_descriptors() {
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
fn fds_across_message_fragments_count_together() {
    let folder = Folder::new("vfu-parts");
    let mut server = serve(&folder, None);
    let bad = Raw::greeted(&server.socket);
    server.expect_event("client connected");
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
    server.expect_event("waiting for a client");
    assert!(Raw::greeted(&server.socket).read(7, 0, 4).is_ok());
}

#[test]
fn device_thread_spawn_failure_disconnects_client_and_serves_next() {
    let folder = Folder::new("vfu-thread");
    let mut command = doorbell(&folder, &["serve", "live", "--vfio-user", "socket"]);
    // Stacks so large that the address space fits exactly 0 or 1 of them, and everything else is small.
    command.args(SETS).env("RUST_MIN_STACK", (1_u64 << 30).to_string());
    let mut server = serve_by(&folder, &mut command);
    let (_, bytes) = system::mappings(&server.child);
    let most = system::limit(&server.child, Limit::Memory, bytes + (512 << 20));
    for _ in 0..3 {
        let mut raw = Raw::greeted(&server.socket);
        assert!(raw.receive().is_none(), "it is let go");
        server.expect_event("client connected");
        server.log_mentions("client dropped: no thread for its device: ");
        server.expect_event("waiting for a client");
    }
    system::limit(&server.child, Limit::Memory, most);
    let mut raw = Raw::greeted(&server.socket);
    raw.reset();
    assert!(server.lives());
}

#[test]
fn sockets_and_images_have_owner_only_mode() {
    let folder = Folder::new("vfu-mode");
    let _server = serve(&folder, Some(&folder.path("image")));
    for name in ["socket", "image"] {
        let mode = std::fs::metadata(folder.path(name)).expect("it is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
}
