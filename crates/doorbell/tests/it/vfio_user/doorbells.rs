//! Our driver against a server that passes a file of another kind for its doorbells: other implementations
//! may use any file.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread;

use bus::HostPort;
use bus::vfio_user::Sharing;
use runtime::{Log, Rt, STD_CLOCK};
use wire::pci::FunctionKind;

use crate::common::{Folder, output_of};
use crate::vfio_user::raw::{receive_with, send_with};
use crate::vfio_user::serving::serve;
use crate::vfio_user::work;

/// Forwards bytes and descriptors until end of stream. Descriptors are replaced by `instead`, if given.
fn pass(from: &UnixStream, to: &UnixStream, instead: Option<&Option<File>>) {
    let mut buffer = vec![0; 1 << 16];
    while let Ok((bytes @ 1.., came)) = receive_with(from, &mut buffer) {
        let files: Vec<_> = match instead.filter(|_| !came.is_empty()) {
            Some(instead) => instead.iter().map(AsFd::as_fd).collect(),
            None => came.iter().map(AsFd::as_fd).collect(),
        };
        if send_with(to, &buffer[..bytes], &files).is_err() {
            break;
        }
    }
    for end in [from, to] {
        // The peer may have closed already.
        end.shutdown(std::net::Shutdown::Both).unwrap_or(());
    }
}

/// A socket through which one client reaches the server, with this file in place of the server's own.
fn proxy(folder: &Folder, server: &Path, file: Option<File>) -> PathBuf {
    let path = folder.path("between");
    let listener = UnixListener::bind(&path).expect("a socket");
    let server = server.to_owned();
    thread::spawn(move || {
        let (client, _) = listener.accept().expect("a client");
        let server = UnixStream::connect(server).expect("a server");
        thread::scope(|scope| {
            scope.spawn(|| pass(&client, &server, None));
            pass(&server, &client, Some(&file));
        });
    });
    path
}

fn run(folder: &Folder, file: Option<File>) -> String {
    let server = serve(folder, None);
    proxy(folder, &server.socket, file);
    let job = folder.file("few.fio", "[few]\nrw=randread\nbs=4k\nsize=1m\nnumber_ios=50\n");
    let output = output_of(&mut work::run_on(folder, "between", &job.display().to_string(), &[]));
    assert_eq!((output.code, output.err.as_str()), (Some(0), ""), "{}", output.out);
    // Notes are wrapped.
    output.out.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn unmappable_doorbell_page_error_names_file_and_reason() {
    let folder = Folder::new("vfu-unmapped");
    let out = run(&folder, Some(File::open("/proc/self/status").expect("proc")));
    let words = "between: registers and doorbells are written by messages: /proc/";
    assert!(out.contains(words) && out.contains("/status is on proc, where"), "{out}");
    let folder = Folder::new("vfu-not-offered");
    let out = run(&folder, None);
    let words = "written by messages: the server offers no mapping of them";
    assert!(out.contains(words), "{out}");
}

fn connect(socket: &Path) -> bus::vfio_user::Connection {
    let (kind, base) = (FunctionKind::NVME, wire::BusAddr(0));
    let connection = bus::vfio_user::connect(socket, kind, 1 << 20, base, Sharing::Mapped);
    connection.unwrap_or_else(|error| panic!("{error}"))
}

/// A file on disk works like memory: rung doorbells are in the file.
#[test]
fn doorbell_page_in_disk_file_is_mapped() {
    let folder = Folder::new("vfu-on-disk");
    let server = serve(&folder, None);
    let path = folder.file("doorbells", "");
    let file = File::options().read(true).write(true).open(path).expect("a file");
    file.set_len(1 << 20).expect("room");
    let seen = file.try_clone().expect("a descriptor");
    let socket = proxy(&folder, &server.socket, Some(file));
    let connection = connect(&socket);
    assert_eq!(connection.note(), None);
    let rt = Rt::live(&STD_CLOCK, None, Log::Off);
    let host = connection.host(&rt);
    host.write32(0x1008, 0x1234_5678);
    let mut all = vec![0; 1 << 20];
    seen.read_exact_at(&mut all, 0).expect("its bytes");
    let rung = all.windows(4).filter(|bytes| *bytes == 0x1234_5678_u32.to_le_bytes());
    assert_eq!(rung.count(), 1, "the doorbell is in the file");
    rt.drop_tasks();
}

/// A file shorter than the size in the region info is rejected, not stored into.
#[test]
fn doorbell_page_beyond_end_of_file_is_rejected() {
    let folder = Folder::new("vfu-short");
    let server = serve(&folder, None);
    let path = folder.file("doorbells", "");
    let file = File::options().read(true).write(true).open(path).expect("a file");
    let socket = proxy(&folder, &server.socket, Some(file));
    let connection = connect(&socket);
    let note = connection.note().expect("it can't be mapped");
    assert!(note.contains("doorbells: mapping it: "), "{note}");
}
