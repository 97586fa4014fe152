//! `doorbell serve --nbd`, against a client that builds arbitrary messages byte by byte.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use crate::common::system::{self, Limit};
use crate::common::{Folder, doorbell};
use runtime::Rng;
use wire::nbd::{
    BlockSizeInfo, Export, ExportInfo, FUA, Greeting, NO_HOLE, OptionReply, Reply, Request, error,
    option, reply, transmission,
};
use zerocopy::{FromBytes, IntoBytes};

const SIZE: u64 = 16 << 20;
const BLOCK: usize = 512;
const READ: u16 = 0;
const WRITE: u16 = 1;
const DISC: u16 = 2;
const FLUSH: u16 = 3;
const TRIM: u16 = 4;
const ZEROES: u16 = 6;

/// A server, killed on drop.
struct Server {
    process: crate::common::Server,
    socket: PathBuf,
    /// Its log lines after it has begun to listen.
    lines: Mutex<Receiver<String>>,
    _folder: Arc<Folder>,
}

impl Server {
    fn start(name: &str, interface: &str) -> Server {
        Server::begin(&Arc::new(Folder::new(name)), &["--interface", interface])
    }

    fn begin(folder: &Arc<Folder>, more: &[&str]) -> Server {
        Server::at(folder, "nbd", more, &[])
    }

    /// At this address, with more arguments and these environment variables.
    fn at(folder: &Arc<Folder>, at: &str, more: &[&str], env: &[(&str, &str)]) -> Server {
        let (folder, socket) = (folder.clone(), folder.path(at));
        let mut command = doorbell(&folder, &["serve", "live", "--nbd", at]);
        command.args(["--set", "medium.capacity=16 MiB", "--set", "medium.block=512 B"]).args(more);
        command.envs(env.iter().copied());
        let mut process = crate::common::Server::listening(&folder, &mut command);
        let lines = process.read_by_a_thread();
        Server { process, socket, lines: Mutex::new(lines), _folder: folder }
    }

    fn lines(&self) -> MutexGuard<'_, Receiver<String>> {
        self.lines.lock().expect("not poisoned")
    }

    /// The number of log lines before one that contains `words`.
    fn log_has_within(&self, words: &str) -> usize {
        let late = Duration::from_secs(60);
        let holds = |line: &String| line.contains(words);
        let mut lines = std::iter::from_fn(|| self.lines().recv_timeout(late).ok());
        lines.position(|line| holds(&line)).unwrap_or_else(|| panic!("no line contains {words:?}"))
    }

    fn greeted(&self) -> Client {
        Client(UnixStream::connect(&self.socket).expect("it listens")).greeted()
    }

    fn client(&self) -> Client {
        self.greeted().in_transmission()
    }
}

struct Client<S = UnixStream>(S);

impl<S: Read + Write> Client<S> {
    fn greeted(mut self) -> Client<S> {
        assert_eq!(self.get::<Greeting>(), Greeting::new(3));
        self
    }

    fn in_transmission(mut self) -> Client<S> {
        self.put(&3_u32.to_be_bytes());
        self.option(option::GO, &[0, 0, 0, 0, 0, 0]);
        assert_eq!(self.answer().0, reply::INFO);
        assert_eq!(self.answer().0, reply::ACK);
        self
    }

    fn get<T: FromBytes + IntoBytes>(&mut self) -> T {
        let mut value = T::new_zeroed();
        self.0.read_exact(value.as_mut_bytes()).expect("it goes on speaking");
        value
    }

    fn put(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).expect("it goes on listening");
    }

    fn option(&mut self, option: u32, data: &[u8]) {
        let header = [&b"IHAVEOPT"[..], &option.to_be_bytes(), &(data.len() as u32).to_be_bytes()];
        self.put(&header.concat());
        self.put(data);
    }

    fn answer(&mut self) -> (u32, Vec<u8>) {
        let head: OptionReply = self.get();
        let mut data = vec![0; head.bytes.get() as usize];
        self.0.read_exact(&mut data).expect("the given length");
        (head.reply.get(), data)
    }

    fn ask(&mut self, kind: u16, flags: u16, cookie: u64, offset: u64, bytes: usize) {
        let request = Request {
            magic: 0x2560_9513.into(),
            flags: flags.into(),
            kind: kind.into(),
            cookie: cookie.into(),
            offset: offset.into(),
            bytes: (bytes as u32).into(),
        };
        self.put(request.as_bytes());
    }

    /// Runs one request alone: returns its error; `data` receives what was read.
    fn run(&mut self, kind: u16, flags: u16, offset: u64, data: &mut [u8]) -> u32 {
        self.ask(kind, flags, 77, offset, data.len());
        if kind == WRITE {
            self.put(data);
        }
        let reply: Reply = self.get();
        assert_eq!(reply, Reply::new(77, reply.error.get()));
        if kind == READ && reply.error.get() == 0 {
            self.0.read_exact(data).expect("what was read");
        }
        reply.error.get()
    }

    fn is_disconnected(&mut self) -> bool {
        self.0.read(&mut [0]).is_ok_and(|bytes| bytes == 0)
    }
}

#[test]
fn option_negotiation_replies() {
    let server = Server::start("nbd-options", "nvme");
    let mut client = server.greeted();
    client.put(&3_u32.to_be_bytes());
    client.option(option::LIST, &[]);
    assert_eq!(client.answer(), (reply::SERVER, vec![0; 4]), "one export without a name");
    assert_eq!(client.answer().0, reply::ACK);
    client.option(5, &[]);
    assert_eq!(client.answer().0, reply::ERR_UNSUP, "no TLS");
    client.option(option::GO, b"\x00\x00\x00\x05other\x00\x00");
    assert_eq!(client.answer().0, reply::ERR_UNKNOWN);
    client.option(option::INFO, b"\x00\x00\x00\xff");
    assert_eq!(client.answer().0, reply::ERR_INVALID);
    client.option(option::INFO, b"\x00\x00\x00\x00\x00\x01\x00\x03");
    let (kind, data) = client.answer();
    let export = ExportInfo::read_from_bytes(&data).expect("its length").export;
    assert_eq!((kind, export.size.get()), (reply::INFO, SIZE));
    let (kind, data) = client.answer();
    let lengths = BlockSizeInfo::read_from_bytes(&data).expect("its length");
    assert_eq!((kind, lengths.least.get(), lengths.most.get()), (reply::INFO, 512, 32 << 20));
    assert_eq!(client.answer().0, reply::ACK);
    client.option(option::ABORT, &[]);
    assert_eq!(client.answer().0, reply::ACK);
    assert!(client.is_disconnected());
    // The old handshake (NBD_OPT_EXPORT_NAME), with and without trailing zeros.
    for (flags, zeros) in [(1_u32, 124), (3, 0)] {
        let mut client = server.greeted();
        client.put(&flags.to_be_bytes());
        client.option(option::EXPORT_NAME, &[]);
        let export: Export = client.get();
        let all = transmission::FLUSH | transmission::FUA | transmission::TRIM;
        assert_eq!((export.size.get(), export.flags.get() & all), (SIZE, all));
        let mut end = vec![1; zeros];
        client.0.read_exact(&mut end).expect("zeros");
        assert!(end.iter().all(|byte| *byte == 0));
        assert_eq!(client.run(FLUSH, 0, 0, &mut []), 0);
    }
}

/// Random requests, many at a time and by two clients at once, each on its own half of the drive.
#[test]
fn random_requests_match_model() {
    for interface in ["nvme", "dcx", "block"] {
        let server = Server::start("nbd-model", interface);
        std::thread::scope(|scope| {
            for half in 0..2 {
                let (server, interface) = (&server, interface);
                scope.spawn(move || match_model(server, half, interface == "block"));
            }
        });
    }
}

fn match_model(server: &Server, half: u64, trim_is_missing: bool) {
    const BLOCKS: usize = 256;
    let base = half * SIZE / 2;
    let mut rng = Rng::new(half);
    let mut client = server.client();
    let mut model = vec![0_u8; BLOCKS];
    for _ in 0..60 {
        // A batch of disjoint requests, answered in any order.
        let mut asked = Vec::new();
        let mut first = 0;
        while first < BLOCKS {
            let blocks = 1 + rng.below(20.min((BLOCKS - first) as u64)) as usize;
            let (at, fill) = (first..first + blocks, rng.below(256) as u8);
            let (offset, bytes) = (base + (first * BLOCK) as u64, blocks * BLOCK);
            let cookie = rng.next_u64() << 8 | asked.len() as u64;
            let durable = if rng.below(4) == 0 { FUA } else { 0 };
            match rng.below(4) {
                0 => {
                    client.ask(WRITE, durable, cookie, offset, bytes);
                    client.put(&vec![fill; bytes]);
                    model[at.clone()].fill(fill);
                    asked.push((cookie, None));
                }
                1 => {
                    client.ask(
                        ZEROES,
                        durable | (NO_HOLE * u16::from(fill & 1)),
                        cookie,
                        offset,
                        bytes,
                    );
                    model[at.clone()].fill(0);
                    asked.push((cookie, None));
                }
                2 if !trim_is_missing => {
                    client.ask(TRIM, durable, cookie, offset, bytes);
                    model[at.clone()].fill(0);
                    asked.push((cookie, None));
                }
                _ => {
                    client.ask(READ, 0, cookie, offset, bytes);
                    asked.push((cookie, Some(model[at.clone()].to_vec())));
                }
            }
            first += blocks;
        }
        for _ in 0..asked.len() {
            let reply: Reply = client.get();
            assert_eq!(reply.error.get(), 0);
            let place = asked.iter().position(|(cookie, _)| *cookie == reply.cookie.get());
            let (_, read) = asked.swap_remove(place.expect("it was asked"));
            let Some(fills) = read else { continue };
            let mut data = vec![0; fills.len() * BLOCK];
            client.0.read_exact(&mut data).expect("what was read");
            for (block, fill) in data.chunks(BLOCK).zip(fills) {
                assert!(block.iter().all(|byte| *byte == fill), "{block:?} {fill}");
            }
        }
    }
    client.ask(DISC, 0, 0, 0, 0);
    assert!(client.is_disconnected());
}

#[test]
fn long_request_is_split() {
    let server = Server::start("nbd-long", "nvme");
    let mut client = server.client();
    let mut data: Vec<u8> = (0..SIZE).map(|byte| (byte / 4093) as u8).collect();
    let wanted = data.clone();
    assert_eq!(client.run(WRITE, FUA, 0, &mut data), 0);
    data.fill(0);
    assert_eq!(client.run(READ, 0, 0, &mut data), 0);
    assert!(data == wanted);
    client.ask(ZEROES, 0, 1, 0, SIZE as usize);
    assert_eq!(client.get::<Reply>(), Reply::new(1, 0));
    assert_eq!(client.run(READ, 0, 0, &mut data), 0);
    assert!(data.iter().all(|byte| *byte == 0));
}

#[test]
fn invalid_requests_get_errors_and_server_continues() {
    let server = Server::start("nbd-refused", "nvme");
    let mut client = server.client();
    let mut block = [7; BLOCK];
    assert_eq!(client.run(WRITE, 0, SIZE - 512, &mut block), 0);
    assert_eq!(client.run(WRITE, 0, SIZE, &mut block), error::ENOSPC);
    assert_eq!(client.run(READ, 0, SIZE, &mut block), error::EINVAL);
    assert_eq!(client.run(READ, 0, u64::MAX - 511, &mut block), error::EINVAL);
    assert_eq!(
        client.run(WRITE, 0, 100, &mut block),
        error::EINVAL,
        "and its data are not a request"
    );
    assert_eq!(client.run(READ, 0, 0, &mut [0; 100]), error::EINVAL);
    assert_eq!(client.run(READ, 0, 0, &mut []), error::EINVAL);
    assert_eq!(client.run(READ, 1 << 9, 0, &mut block), error::EINVAL);
    assert_eq!(client.run(7, 0, 0, &mut []), error::EINVAL, "no such request");
    client.ask(READ, 0, 5, 0, 33 << 20);
    assert_eq!(client.get::<Reply>(), Reply::new(5, error::EINVAL));
    assert_eq!(client.run(READ, 0, SIZE - 512, &mut block), 0);
    assert_eq!(block, [7; BLOCK]);
    // After a write above the maximum length, or a request without its magic, the stream cannot be
    // resynchronized: the connection is closed.
    client.ask(WRITE, 0, 6, 0, 33 << 20);
    assert!(client.is_disconnected());
    let mut client = server.client();
    client.put(&[0x5a; 28]);
    assert!(client.is_disconnected());
}

/// A kill of the server is a power cut: flushed data are in the file.
#[test]
fn durable_data_survives_server_kill() {
    let kept = ["--set", "medium.keep=everything", "--set", "medium.file=drive"];
    survives_kills("nbd-kept", &kept);
    // As long as nothing leaves memory, the file has what was flushed and nothing else.
    survives_kills("nbd-bounded", &[&kept[..], &["--set", "medium.resident=\"1 MiB\""]].concat());
}

fn survives_kills(name: &str, kept: &[&str]) {
    let folder = Arc::new(Folder::new(name));
    for (turn, flags) in [(1, FUA), (2, 0)] {
        let server = Server::begin(&folder, kept);
        let mut client = server.client();
        let mut block = [0; BLOCK];
        for before in 1..turn {
            assert_eq!(client.run(READ, 0, u64::from(before) * 4096, &mut block), 0);
            assert_eq!(block, [before; BLOCK]);
        }
        block.fill(turn);
        assert_eq!(client.run(WRITE, flags, u64::from(turn) * 4096, &mut block), 0);
        if flags == 0 {
            assert_eq!(client.run(FLUSH, 0, 0, &mut []), 0);
        }
    }
    let server = Server::begin(&folder, kept);
    let mut block = [0; BLOCK];
    assert_eq!(server.client().run(READ, 0, 2 * 4096, &mut block), 0);
    assert_eq!(block, [2; BLOCK]);
}

/// Clients that send random bytes, disconnect or never read replies, next to a well-behaved one.
#[test]
fn hostile_clients_do_not_affect_others() {
    let server = Server::start("nbd-hostile", "nvme");
    let mut good = server.client();
    let mut rng = Rng::new(9);
    for turn in 0..150_u64 {
        let mut bad = if turn % 2 == 0 { server.greeted() } else { server.client() };
        for _ in 0..rng.below(20) {
            let mut bytes: Vec<u8> = (0..rng.below(80)).map(|_| rng.next_u64() as u8).collect();
            if rng.below(2) == 0 {
                let kind = rng.below(8) as u16;
                let (offset, length) = (rng.below(SIZE / 2), rng.below(70_000) as usize);
                // The server may have disconnected it already.
                let magic = [0x25, 0x60, 0x95, 0x13, 0, 0, 0, kind as u8];
                bytes = [&magic[..], &rng.next_u64().to_be_bytes(), &offset.to_be_bytes()].concat();
                bytes.extend((length as u32).to_be_bytes());
            }
            if bad.0.write_all(&bytes).is_err() {
                break;
            }
        }
        let mut block = [turn as u8; BLOCK];
        assert_eq!(good.run(WRITE, 0, SIZE - 512, &mut block), 0);
        block.fill(0);
        assert_eq!(good.run(READ, 0, SIZE - 512, &mut block), 0);
    }
    // A client that never reads its replies is held up; others are not.
    let mut deaf = server.client();
    deaf.0.set_nonblocking(true).expect("a socket");
    let request = Request {
        magic: 0x2560_9513.into(),
        flags: 0.into(),
        kind: READ.into(),
        cookie: 1.into(),
        offset: 0.into(),
        bytes: (8 << 20).into(),
    };
    while deaf.0.write_all(request.as_bytes()).is_ok() {}
    let mut block = [3; BLOCK];
    assert_eq!(good.run(READ, 0, SIZE - 512, &mut block), 0);
}

/// With more clients than the limit, a new one takes the place of one that has not negotiated.
#[test]
fn silent_clients_are_evicted_for_new_ones() {
    let server = Server::start("nbd-silent", "nvme");
    let mut known = server.client();
    let crowd: Vec<_> =
        (0..200).map(|_| UnixStream::connect(&server.socket).expect("it listens")).collect();
    let mut block = [9; BLOCK];
    assert_eq!(server.client().run(WRITE, 0, 0, &mut block), 0);
    // A client that has negotiated keeps its place, even if it is silent for long.
    assert_eq!(known.run(READ, 0, 0, &mut block), 0);
    assert_eq!(block, [9; BLOCK]);
    drop(crowd);
    // If all have negotiated, another client has to wait until one disconnects.
    let mut all: Vec<_> = (0..62).map(|_| server.client()).collect();
    while all.len() < 63 {
        let mut next = Client(UnixStream::connect(&server.socket).expect("it listens"));
        if next.0.read_exact(&mut [0; 18]).is_ok() {
            next.put(&3_u32.to_be_bytes());
            next.option(option::GO, &[0, 0, 0, 0, 0, 0]);
            assert_eq!((next.answer().0, next.answer().0), (reply::INFO, reply::ACK));
            all.push(next);
        }
    }
    let mut late = Client(UnixStream::connect(&server.socket).expect("it listens"));
    assert!(late.is_disconnected());
    assert_eq!(all[62].run(READ, 0, 0, &mut block), 0);
    drop(all);
    server.log_has_within("client dropped: there are 64");
}

#[test]
fn negotiation_times_out_but_idle_transmission_does_not() {
    let server = Server::start("nbd-deadline", "nvme");
    let mut idle = server.client();
    let mut silent = server.greeted();
    // A byte now and then does not extend the time-out.
    let mut slow = server.greeted();
    slow.put(&3_u32.to_be_bytes());
    slow.0.set_read_timeout(Some(Duration::from_millis(200))).expect("a socket");
    let bytes = [&b"IHAVEOPT"[..], &3_u32.to_be_bytes(), &4000_u32.to_be_bytes(), &[0; 1000]];
    let bytes = bytes.concat();
    let ends = |client: &mut Client| match client.0.read(&mut [0]) {
        Ok(bytes) => bytes == 0,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    };
    let sent =
        bytes.iter().take_while(|byte| slow.0.write_all(&[**byte]).is_ok() && !ends(&mut slow));
    assert!(sent.count() < bytes.len(), "a byte every 200 ms is served for ever");
    assert!(ends(&mut silent));
    let mut block = [1; BLOCK];
    assert_eq!(idle.run(WRITE, 0, 0, &mut block), 0);
    for _ in 0..2 {
        server.log_has_within("it has not ended its negotiation in 10.000s");
    }
}

#[test]
fn accept_backs_off_at_fd_limit_and_resumes() {
    let mut server = Server::start("nbd-emfile", "nvme");
    let mut known = server.client();
    let before = system::limit(&server.process.child, Limit::Descriptors, 4);
    let crowd: Vec<_> = (0..20)
        .map(|_| UnixStream::connect(&server.socket).expect("the kernel takes connections"))
        .collect();
    std::thread::sleep(Duration::from_secs(1));
    let mut block = [2; BLOCK];
    assert_eq!(known.run(WRITE, 0, 0, &mut block), 0);
    system::limit(&server.process.child, Limit::Descriptors, before);
    assert_eq!(server.client().run(READ, 0, 0, &mut block), 0);
    assert!(server.process.lives());
    drop(crowd);
    assert_eq!(server.log_has_within("accepting: "), 1, "behind the known client's own");
    let told = std::iter::from_fn(|| server.lines().try_recv().ok());
    let told = told.filter(|line| line.contains("accepting: ")).count();
    assert_eq!(told, 0, "once is enough");
}

#[test]
fn thread_spawn_failure_disconnects_client_and_serves_next() {
    let folder = Arc::new(Folder::new("nbd-thread"));
    // Stacks so large that the address space fits exactly 0 or 1 of them, and everything else is small.
    let stack = (1_u64 << 30).to_string();
    // Room for no thread, and for one of the two. Each case has a server of its own, as stacks are cached
    // for reuse.
    for stacks in [0, 1] {
        let server = Server::at(&folder, "nbd", &[], &[("RUST_MIN_STACK", &stack)]);
        let (mut known, mut block) = (server.client(), [3; BLOCK]);
        // When it replies it has both threads.
        assert_eq!(known.run(WRITE, 0, 0, &mut block), 0);
        let (_, bytes) = system::mappings(&server.process.child);
        let room = bytes + (stacks << 30) + (512 << 20);
        let before = system::limit(&server.process.child, Limit::Memory, room);
        let mut bad = Client(UnixStream::connect(&server.socket).expect("it listens"));
        if stacks == 1 {
            let _: Greeting = bad.get();
            bad.put(&3_u32.to_be_bytes());
            bad.option(option::GO, &[0, 0, 0, 0, 0, 0]);
            assert_eq!((bad.answer().0, bad.answer().0), (reply::INFO, reply::ACK));
        }
        assert!(bad.is_disconnected());
        server.log_has_within("client dropped: no thread for it: ");
        assert_eq!(known.run(WRITE, 0, 0, &mut block), 0);
        system::limit(&server.process.child, Limit::Memory, before);
        assert_eq!(server.client().run(READ, 0, 0, &mut block), 0);
    }
}

/// A server on a TCP port of its own, and its address.
fn tcp_server(name: &str) -> (Server, String) {
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = free.local_addr().expect("its own").to_string();
    drop(free);
    let server = Server::at(&Arc::new(Folder::new(name)), &address, &[], &[]);
    (server, address)
}

/// Clients that have negotiated are never evicted: the limit per address holds.
#[test]
fn connection_limit_per_address_leaves_room_for_others() {
    let (server, address) = tcp_server("nbd-address");
    let connect = || Client(TcpStream::connect(&address).expect("it listens"));
    let mut there: Vec<_> = (0..48).map(|_| connect().greeted().in_transmission()).collect();
    assert!(connect().is_disconnected(), "the forty-ninth");
    server.log_has_within("there are 48 clients from 127.0.0.1");
    let mut block = [5; BLOCK];
    assert!(there.iter_mut().all(|client| client.run(READ, 0, 0, &mut block) == 0));
    drop(there);
    while connect().0.read_exact(&mut [0; 18]).is_err() {}
}

/// At the limit per address, a new client takes the place of one that has not negotiated.
#[test]
fn silent_tcp_clients_do_not_block_others_of_their_address() {
    let (_server, address) = tcp_server("nbd-silent-tcp");
    let connect = || TcpStream::connect(&address).expect("it listens");
    let mut known = Client(connect()).greeted().in_transmission();
    // Exactly the limit per address, then more.
    for silent in [47, 48, 150] {
        let crowd: Vec<_> = (0..silent).map(|_| connect()).collect();
        let mut good = Client(connect()).greeted().in_transmission();
        let mut block = [silent as u8; BLOCK];
        assert_eq!(good.run(WRITE, 0, 0, &mut block), 0, "beside {silent}");
        // A client that has negotiated keeps its place, even if it is silent for long.
        block.fill(0);
        assert_eq!(known.run(READ, 0, 0, &mut block), 0, "beside {silent}");
        assert_eq!(block, [silent as u8; BLOCK]);
        drop(crowd);
    }
}

#[test]
fn socket_has_owner_only_mode() {
    use std::os::unix::fs::PermissionsExt;
    let server = Server::start("nbd-mode", "nvme");
    let mode = std::fs::metadata(&server.socket).expect("it is there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}
