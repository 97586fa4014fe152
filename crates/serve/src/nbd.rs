//! A drive for clients of NBD: the kernel's, qemu's, fio's, libnbd's.
//!
//! Each connection has two threads, one that reads requests and one that writes replies, in whatever order
//! the drive ends them; a third, the drive's, is everybody's. Several clients may come at once: a flush of
//! one is one of all. Who says what makes no sense is let go, and nobody else notices.

mod address;
mod clients;

use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::Path;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::Builder;

use bus::listen::Backoff;

use host::{Deallocated, IoError, Kind};
use wire::Lba;
use wire::nbd::{
    Ask, BlockSizeInfo, ClientFlags, Export, ExportInfo, FIXED_NEWSTYLE, FUA, Greeting,
    INFO_BLOCK_SIZE, NO_HOLE, NO_ZEROES, OPTION_BYTES_MAX, OptionHeader, OptionReply,
    REQUEST_BYTES_MAX, Reply, Request, error, option, parse_info, reply, transmission,
};
use zerocopy::{FromBytes, IntoBytes};

use address::Address;
use clients::{Clients, Incoming, Socket, Stream};

use crate::disk::{Client, Disk, Done, Operation, Shape};
use crate::served;
use plan::Plan;
use world::RunError;
use world::interfaces::Row;

/// What one connection may have under way: bytes that are read or written, and requests.
const BYTES_UNDER_WAY: usize = 64 << 20;
const REQUESTS_UNDER_WAY: usize = 128;

/// Options before transmission: a client that asks for ever is let go.
const OPTIONS_MAX: u32 = 64;

/// Serves the drive of a plan at this address, until it ends: a path for a Unix socket, or `HOST:PORT`.
///
/// # Errors
/// There is no listening at the address, or the drive does not start.
pub fn serve(
    row: &'static Row,
    plan: &Plan,
    address: &Path,
    say: impl Fn(&str) + Sync,
) -> Result<(), RunError> {
    let place = Address::of(address).map_err(RunError)?;
    let plan = &served(row, plan)?;
    let socket = Socket::bind(&place).map_err(|error| {
        RunError(format!("{}: {error}, expected a place to listen at", address.display()))
    })?;
    let disk = Disk::of_plan(row, plan)?;
    let (clients, mut backoff) = (Clients::default(), Backoff::default());
    say("waiting for clients");
    std::thread::scope(|scope| {
        loop {
            let stream = match socket.accept() {
                Ok(_) if disk.is_gone() => return Err(RunError("the drive has ended".into())),
                Ok(stream) => Arc::new(stream),
                Err(error) => {
                    if let Some(words) = backoff.failed(&error) {
                        say(&words);
                    }
                    clients.rest(backoff.left());
                    continue;
                }
            };
            let let_go = |why: String| say(&format!("a client was let go: {why}"));
            if let Err(why) = clients.admit(&stream) {
                let_go(why);
                continue;
            }
            let (disk, clients, say, own) = (&disk, &clients, &say, stream.clone());
            let thread = Builder::new().name("nbd client".into()).spawn_scoped(scope, move || {
                say("a client has connected");
                match connection(&own, disk, clients) {
                    Ok(()) => say("a client has gone"),
                    Err(error) => say(&format!("a client was let go: {error}")),
                }
                clients.leaves(&own);
            });
            if let Err(error) = thread {
                clients.leaves(&stream);
                let_go(format!("a thread for it: {error}"));
            }
        }
    })
}

/// What a client said makes no sense, in these words.
fn nonsense<T>(words: String) -> io::Result<T> {
    Err(io::Error::new(io::ErrorKind::InvalidData, words))
}

/// From a client's first word to its last.
fn connection(stream: &Arc<Stream>, disk: &Disk, clients: &Clients) -> io::Result<()> {
    let mut from = BufReader::with_capacity(64 << 10, Incoming::new(stream));
    let shape = disk.shape();
    if !negotiate(&mut from, stream, &shape, &|| clients.negotiated(stream))? {
        return Ok(());
    }
    from.get_mut().negotiated()?;
    let (client, done) = disk.client();
    let under_way = &UnderWay::default();
    std::thread::scope(|scope| {
        let writer = Builder::new().name("nbd replies".into()).spawn_scoped(scope, move || {
            let written = replies(stream, &done, under_way);
            // Whoever cannot be answered is not read from either.
            stream.end();
            under_way.close();
            written
        });
        let writer =
            writer.map_err(|error| io::Error::other(format!("a thread for it: {error}")))?;
        let read = requests(&mut from, client, &shape, under_way);
        // What is under way ends and is told of: then there is nobody left to tell.
        let written = writer.join().expect("it does not panic");
        read.and(written)
    })
}

fn read_as<T: FromBytes + IntoBytes>(from: &mut impl Read) -> io::Result<T> {
    let mut value = T::new_zeroed();
    from.read_exact(value.as_mut_bytes())?;
    Ok(value)
}

/// Whether the client wants transmission to begin. `agreed` is called before the answer that says so: a
/// client that has it keeps its place.
fn negotiate(
    from: &mut impl Read,
    mut to: &Stream,
    shape: &Shape,
    agreed: &dyn Fn(),
) -> io::Result<bool> {
    to.write_all(Greeting::new(FIXED_NEWSTYLE | NO_ZEROES).as_bytes())?;
    let flags = read_as::<ClientFlags>(from)?.flags.get();
    let known = u32::from(FIXED_NEWSTYLE | NO_ZEROES);
    if flags & !known != 0 || flags & u32::from(FIXED_NEWSTYLE) == 0 {
        return nonsense(format!("client flags {flags:#x}, expected fixed newstyle"));
    }
    for _ in 0..OPTIONS_MAX {
        let header: OptionHeader = read_as(from)?;
        let (asked, bytes) = (header.option.get(), header.bytes.get());
        if !header.is_sound() {
            return nonsense("an option without its magic number".into());
        }
        if bytes > OPTION_BYTES_MAX {
            // Nobody has this much to say; it is not read.
            answer(to, asked, reply::ERR_TOO_BIG, &[])?;
            return nonsense(format!("option {asked} with {bytes} bytes"));
        }
        let mut data = vec![0; bytes as usize];
        from.read_exact(&mut data)?;
        match asked {
            option::EXPORT_NAME if data.is_empty() => {
                agreed();
                to.write_all(export(shape).as_bytes())?;
                if flags & u32::from(NO_ZEROES) == 0 {
                    to.write_all(&[0; 124])?;
                }
                return Ok(true);
            }
            option::EXPORT_NAME => return nonsense("an export with a name".into()),
            option::ABORT => {
                answer(to, asked, reply::ACK, &[])?;
                return Ok(false);
            }
            option::LIST if data.is_empty() => {
                // The one export has an empty name.
                answer(to, asked, reply::SERVER, &[0; 4])?;
                answer(to, asked, reply::ACK, &[])?;
            }
            option::INFO | option::GO => match parse_info(&data) {
                None => answer(to, asked, reply::ERR_INVALID, b"a name, and what is asked")?,
                Some((name, _)) if !name.is_empty() => {
                    answer(to, asked, reply::ERR_UNKNOWN, b"the export has an empty name")?;
                }
                Some((_, infos)) => {
                    if asked == option::GO {
                        agreed();
                    }
                    tell(to, asked, infos, shape)?;
                    if asked == option::GO {
                        return Ok(true);
                    }
                }
            },
            option::LIST => answer(to, asked, reply::ERR_INVALID, &[])?,
            _ => answer(to, asked, reply::ERR_UNSUP, &[])?,
        }
    }
    nonsense(format!("more than {OPTIONS_MAX} options"))
}

fn answer(mut to: &Stream, asked: u32, reply: u32, data: &[u8]) -> io::Result<()> {
    to.write_all(OptionReply::new(asked, reply, data.len() as u32).as_bytes())?;
    to.write_all(data)
}

/// What the export is, to whoever asks for it by INFO or GO.
fn tell(
    to: &Stream,
    asked: u32,
    mut infos: impl Iterator<Item = u16>,
    shape: &Shape,
) -> io::Result<()> {
    let whole = ExportInfo { info: 0.into(), export: export(shape) };
    answer(to, asked, reply::INFO, whole.as_bytes())?;
    if infos.any(|info| info == INFO_BLOCK_SIZE) {
        let lengths = BlockSizeInfo {
            info: INFO_BLOCK_SIZE.into(),
            least: shape.geometry.block_bytes.into(),
            preferred: shape.geometry.block_bytes.max(4096).into(),
            most: REQUEST_BYTES_MAX.into(),
        };
        answer(to, asked, reply::INFO, lengths.as_bytes())?;
    }
    answer(to, asked, reply::ACK, &[])
}

fn export(shape: &Shape) -> Export {
    use transmission::{FLUSH, FUA, HAS_FLAGS, MULTI_CONN, TRIM, WRITE_ZEROES};
    let trim = if shape.deallocated == Deallocated::Unsupported { 0 } else { TRIM };
    let flags = HAS_FLAGS | FLUSH | FUA | WRITE_ZEROES | MULTI_CONN | trim;
    Export { size: size_of_drive(shape).into(), flags: flags.into() }
}

fn size_of_drive(shape: &Shape) -> u64 {
    shape.geometry.blocks * u64::from(shape.geometry.block_bytes)
}

/// Reads requests, and begins them, until the client goes.
fn requests(
    from: &mut impl Read,
    client: Client,
    shape: &Shape,
    under_way: &UnderWay,
) -> io::Result<()> {
    loop {
        let request: Request = match read_as(from) {
            Ok(request) => request,
            // Between two requests a client may go without a word.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => return Err(error),
        };
        if !request.is_sound() {
            return nonsense("a request without its magic number".into());
        }
        let (ask, bytes) = (Ask::of(request.kind.get()), request.bytes.get());
        let moved = match ask {
            Some(Ask::Disconnect) => return Ok(()),
            Some(Ask::Write) if bytes > REQUEST_BYTES_MAX => {
                return nonsense(format!("a write of {bytes} bytes"));
            }
            Some(Ask::Read | Ask::Write) => bytes.min(REQUEST_BYTES_MAX) as usize,
            _ => 0,
        };
        let Some(tag) = under_way.begin(request.cookie.get(), moved) else { return Ok(()) };
        let mut data = Vec::new();
        if ask == Some(Ask::Write) {
            data.resize(moved, 0);
            from.read_exact(&mut data)?;
        }
        match operation(ask, &request, data, shape) {
            Ok(operation) => {
                let durable = request.flags.get() & FUA != 0;
                let begun = client.begin(tag, request.offset.get(), operation, durable);
                begun.map_err(|error| io::Error::other(error.to_string()))?;
            }
            Err(error) => client.end(tag, Err(error)),
        }
    }
}

/// What a request asks of the drive, if it makes sense.
fn operation(
    ask: Option<Ask>,
    request: &Request,
    data: Vec<u8>,
    shape: &Shape,
) -> Result<Operation, IoError> {
    let (at, bytes) = (request.offset.get(), u64::from(request.bytes.get()));
    let block = u64::from(shape.geometry.block_bytes);
    let refuse = |kind, why| Err(IoError::refused(kind, Lba(at / block), why));
    let Some(ask) = ask else { return refuse(Kind::Refused, "a request that there is") };
    if request.flags.get() & !(FUA | NO_HOLE) != 0 {
        return refuse(Kind::Refused, "no flags but FUA and NO_HOLE");
    }
    if ask == Ask::Flush {
        return Ok(Operation::Flush);
    }
    if bytes == 0 || !(at | bytes).is_multiple_of(block) {
        return refuse(Kind::Refused, "one or more whole blocks");
    }
    if at.checked_add(bytes).is_none_or(|end| end > size_of_drive(shape)) {
        let grows = matches!(ask, Ask::Write | Ask::WriteZeroes);
        let kind = if grows { Kind::Full } else { Kind::OutOfRange };
        return refuse(kind, "blocks below the capacity");
    }
    match ask {
        Ask::Read if bytes > u64::from(REQUEST_BYTES_MAX) => {
            refuse(Kind::Refused, "at most 32 MiB")
        }
        Ask::Trim if shape.deallocated == Deallocated::Unsupported => {
            refuse(Kind::Unsupported, "a drive that can be trimmed")
        }
        Ask::Read => Ok(Operation::Read(bytes as usize)),
        Ask::Write => Ok(Operation::Write(data)),
        Ask::Trim => Ok(Operation::Trim(bytes)),
        Ask::WriteZeroes => {
            let may_deallocate = request.flags.get() & NO_HOLE == 0;
            Ok(Operation::Zero { bytes, may_deallocate })
        }
        Ask::Flush | Ask::Disconnect => unreachable!("neither moves blocks"),
    }
}

/// Tells the client of every end, until there will be no other.
fn replies(stream: &Stream, done: &Receiver<Done>, under_way: &UnderWay) -> io::Result<()> {
    let mut to = BufWriter::with_capacity(256 << 10, stream);
    while let Ok(first) = done.recv() {
        let mut next = Some(first);
        while let Some(Done { tag, result }) = next {
            let cookie = under_way.cookie(tag);
            let error = result.as_ref().err().map_or(0, number_of);
            to.write_all(Reply::new(cookie, error).as_bytes())?;
            to.write_all(result.as_deref().unwrap_or_default())?;
            under_way.end(tag);
            next = done.try_recv().ok();
        }
        to.flush()?;
    }
    Ok(())
}

fn number_of(failed: &IoError) -> u32 {
    match failed.kind {
        Kind::Refused | Kind::OutOfRange => error::EINVAL,
        Kind::Unsupported => error::ENOTSUP,
        Kind::Full => error::ENOSPC,
        Kind::OutOfMemory => error::ENOMEM,
        Kind::Gone | Kind::Closed => error::ESHUTDOWN,
        _ => error::EIO,
    }
}

/// What a connection has under way, with a bound.
struct UnderWay {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    /// Cookies, and bytes that are moved.
    places: Vec<Option<(u64, usize)>>,
    bytes: usize,
    closed: bool,
}

impl Default for UnderWay {
    fn default() -> UnderWay {
        let places = vec![None; REQUESTS_UNDER_WAY];
        let state = Mutex::new(State { places, bytes: 0, closed: false });
        UnderWay { state, changed: Condvar::new() }
    }
}

impl UnderWay {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nobody panics with it")
    }

    /// Waits for a place for a request that moves so many bytes; none: nobody is answered any more.
    fn begin(&self, cookie: u64, bytes: usize) -> Option<u64> {
        let is_full = |state: &mut State| {
            let fits = state.bytes == 0 || state.bytes + bytes <= BYTES_UNDER_WAY;
            !(state.closed || fits && state.places.contains(&None))
        };
        let waited = self.changed.wait_while(self.state(), is_full);
        let mut state = waited.expect("nobody panics with it");
        if state.closed {
            return None;
        }
        let free = state.places.iter().position(Option::is_none).expect("waited for");
        state.places[free] = Some((cookie, bytes));
        state.bytes += bytes;
        Some(free as u64)
    }

    fn cookie(&self, tag: u64) -> u64 {
        self.state().places[tag as usize].expect("it was begun").0
    }

    fn end(&self, tag: u64) {
        let mut state = self.state();
        let (_, bytes) = state.places[tag as usize].take().expect("it was begun");
        state.bytes -= bytes;
        self.changed.notify_one();
    }

    fn close(&self) {
        self.state().closed = true;
        self.changed.notify_one();
    }
}
