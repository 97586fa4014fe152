//! NBD front end, for the clients of the Linux kernel, QEMU, fio and libnbd.
//!
//! Each connection has two threads: one reads requests, the other writes replies in the order in which the
//! drive completes them. The drive has one thread, for all connections. A flush by one client covers all
//! completed writes of all clients. A client that violates the protocol is dropped without effect on others.

use std::io::{self, BufReader, BufWriter, Read, Write};
use std::sync::mpsc::Receiver;
use std::thread::Builder;

use host::{Deallocated, IoError, Kind};
use runtime::Span;
use wire::Lba;
use wire::nbd::{
    Ask, BlockSizeInfo, ClientFlags, Export, ExportInfo, FIXED_NEWSTYLE, FUA, Greeting,
    INFO_BLOCK_SIZE, NO_HOLE, NO_ZEROES, OPTION_BYTES_MAX, OptionHeader, OptionReply,
    REQUEST_BYTES_MAX, Reply, Request, error, option, parse_info, reply, transmission,
};
use world::RunError;
use zerocopy::{FromBytes, IntoBytes};

use crate::disk::{Client, Disk, Done, Operation, Shape};
use crate::front_end::{Addresses, FrontEnd, Job, Limits};
use crate::in_flight::InFlight;
use crate::net::clients::{Admitted, many_at_a_time};
use crate::net::socket::{Socket, Stream};

/// Limits of requests and bytes in flight per connection.
const REQUESTS_IN_FLIGHT: usize = 128;
const BYTES_IN_FLIGHT: usize = 64 << 20;

/// Maximum options before transmission. A client that sends more is dropped.
const OPTIONS_MAX: u32 = 64;

/// The row of this front end.
pub static ROW: FrontEnd = FrontEnd {
    name: "nbd",
    value_name: "ADDRESS",
    help: "To NBD clients, any number of them: HOST:PORT, or the path of a Unix socket (unix:PATH, or with a \
           slash in it where it has a colon)",
    addresses: Addresses::One,
    limits: Limits {
        // Each client has two threads, and memory for its requests in flight.
        clients: 64,
        // Leaves 16 slots for other networks.
        clients_of_network: Some(48),
        // Negotiation takes several round trips.
        handshake: Span::s(10),
        in_flight: Some((REQUESTS_IN_FLIGHT, BYTES_IN_FLIGHT)),
    },
    serve,
};

fn serve(job: &Job<'_>) -> Result<(), RunError> {
    let (address, events) = job.first();
    let socket = Socket::bind(ROW.name, address).map_err(RunError::of)?;
    let drive = job.control.add(job.row, address, &job.plan, 1);
    let disk = Disk::controlled(job.row, &job.plan, drive.clone())?;
    let (limits, is_gone) = (&ROW.limits, || disk.is_gone());
    let serve_one = |client: &Admitted<'_>| connection(client, &disk);
    many_at_a_time(&socket, limits, &events, job.control, &drive, is_gone, serve_one)?;
    disk.save()?;
    events.stopped();
    Ok(())
}

/// Returns a protocol error with this message.
fn nonsense<T>(words: String) -> io::Result<T> {
    Err(io::Error::new(io::ErrorKind::InvalidData, words))
}

/// Serves one connection, from negotiation to disconnect.
fn connection(client: &Admitted<'_>, disk: &Disk) -> io::Result<()> {
    let stream = client.stream();
    let mut from = BufReader::with_capacity(64 << 10, client.incoming());
    let shape = disk.shape();
    if !negotiate(&mut from, stream, &shape, &|| client.keep_place())? {
        return Ok(());
    }
    from.get_mut().handshake_has_ended()?;
    let (client, done) = disk.client();
    let in_flight = &InFlight::new(REQUESTS_IN_FLIGHT, BYTES_IN_FLIGHT);
    std::thread::scope(|scope| {
        let writer = Builder::new().name("nbd replies".into()).spawn_scoped(scope, move || {
            let written = replies(stream, &done, in_flight);
            // Without replies there is no point in reading requests: end both directions.
            stream.end();
            in_flight.close();
            written
        });
        let writer =
            writer.map_err(|error| io::Error::other(format!("no thread for it: {error}")))?;
        let read = requests(&mut from, client, &shape, in_flight);
        // The writer ends after the completions of all requests in flight.
        let written = writer.join().expect("it does not panic");
        read.and(written)
    })
}

fn read_as<T: FromBytes + IntoBytes>(from: &mut impl Read) -> io::Result<T> {
    let mut value = T::new_zeroed();
    from.read_exact(value.as_mut_bytes())?;
    Ok(value)
}

/// Negotiates options; returns true if transmission begins. `agreed` is called before the final reply: a
/// client that has the reply keeps its slot.
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
            // No valid option is this long; its data is not read.
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

/// Sends the replies to INFO or GO: a description of the export.
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

/// Reads and submits requests until the client disconnects.
fn requests(
    from: &mut impl Read,
    client: Client,
    shape: &Shape,
    in_flight: &InFlight,
) -> io::Result<()> {
    loop {
        let request: Request = match read_as(from) {
            Ok(request) => request,
            // A client may disconnect between two requests without NBD_CMD_DISC.
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
        let Some(tag) = in_flight.begin(request.cookie.get(), moved) else { return Ok(()) };
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

/// Validates a request and converts it to an operation of the drive.
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

/// Sends a reply for each completion until the channel closes.
fn replies(stream: &Stream, done: &Receiver<Done>, in_flight: &InFlight) -> io::Result<()> {
    let mut to = BufWriter::with_capacity(256 << 10, stream);
    while let Ok(first) = done.recv() {
        let mut next = Some(first);
        while let Some(Done { tag, result }) = next {
            let cookie = in_flight.cookie(tag);
            let error = result.as_ref().err().map_or(0, number_of);
            to.write_all(Reply::new(cookie, error).as_bytes())?;
            to.write_all(result.as_deref().unwrap_or_default())?;
            in_flight.end(tag);
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
