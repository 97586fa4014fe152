//! Drive of a fio job: submission of its requests, and their completions.

use std::collections::VecDeque;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, PoisonError};

use fnvme::{Client, Device, Direction, Error, Request, Ticket, Transfer};
use serve::disk::{self, Disk};

/// Default size of a job's file, bytes.
const SIZE: u64 = 16 << 20;
/// Maximum requests of one job in flight on the drive: the size of a ring. Further requests wait here.
pub(crate) const DEPTH: usize = 64;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Read,
    Write,
    Flush,
}

/// Returns the size of a job's file, bytes.
///
/// # Errors
/// `DOORBELL_FIO_SIZE` is not a positive multiple of 8 KiB.
pub(crate) fn size() -> Result<u64, String> {
    let Ok(text) = std::env::var("DOORBELL_FIO_SIZE") else { return Ok(SIZE) };
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match &text[digits.len()..] {
        "" => 0,
        "k" | "K" => 10,
        "m" | "M" => 20,
        "g" | "G" => 30,
        _ => 64,
    };
    let bytes =
        digits.parse::<u64>().ok().filter(|_| shift < 64).and_then(|n| n.checked_shl(shift));
    let bytes = bytes.filter(|bytes| *bytes > 0 && bytes.is_multiple_of(8192));
    bytes.ok_or_else(|| {
        format!("DOORBELL_FIO_SIZE: found {text:?}, expected a multiple of 8k, as in 16m")
    })
}

/// One job's connection to its drive.
pub(crate) struct Job {
    backend: Backend,
    in_flight: Vec<Option<InFlight>>,
    waiting: VecDeque<IoRequest>,
}

/// A request of fio. `name` is the address of its `struct io_u`, `at` that of its buffer.
pub(crate) struct IoRequest {
    pub name: usize,
    pub kind: Kind,
    pub offset: u64,
    pub at: usize,
    pub bytes: usize,
}

struct InFlight {
    request: IoRequest,
    ticket: Option<Ticket>,
}

enum Backend {
    /// libfnvme: each request has its own slot in the DMA buffer.
    Fastpath(Box<Client>),
    /// Another interface, whose drive runs in a thread.
    Other(Other),
}

/// A drive and its client. The client is declared first, hence dropped first: the drive ends when it has no
/// client.
struct Other {
    client: disk::Client,
    done: Receiver<disk::Done>,
    disk: Disk,
}

impl Other {
    fn start(interface: &str, bytes: u64) -> Result<Other, String> {
        let device = std::env::var("FNVME_DEVICE").unwrap_or_default();
        let disk = match device.strip_prefix("plan:") {
            Some(plan) => Disk::start_by_plan(interface, plan),
            None => Disk::start(interface, bytes),
        };
        let disk = disk.map_err(|error| error.to_string())?;
        let (client, done) = disk.client();
        Ok(Other { client, done, disk })
    }
}

/// Drive shared by the jobs that are threads of one process.
static SHARED: Mutex<Option<Arc<Device>>> = Mutex::new(None);

/// A completed request: the address of its `struct io_u`, and whether it succeeded.
pub(crate) struct Ended {
    pub name: usize,
    pub good: bool,
}

/// Access to fio's buffers by address.
pub(crate) trait Buffers {
    /// Copies `bytes` bytes from address `at`.
    fn from(&self, at: usize, bytes: usize) -> Vec<u8>;
    /// Copies `from` to address `at`.
    fn to(&self, at: usize, from: &[u8]);
}

impl Job {
    /// Starts the drive that the environment variables select.
    pub fn start() -> Result<Job, String> {
        let interface =
            std::env::var("DOORBELL_FIO_INTERFACE").unwrap_or_else(|_| "fastpath".into());
        let backend = if interface == "fastpath" {
            let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
            if shared.is_none() {
                let word = std::env::var("FNVME_DEVICE").unwrap_or_else(|_| "memory".into());
                *shared = Some(Arc::new(Device::open(&word).map_err(|error| error.to_string())?));
            }
            let device = shared.as_ref().expect("just put there");
            Backend::Fastpath(Box::new(device.alloc(size()?).map_err(|error| error.to_string())?))
        } else {
            Backend::Other(Other::start(&interface, size()?)?)
        };
        Ok(Job { backend, in_flight: (0..DEPTH).map(|_| None).collect(), waiting: VecDeque::new() })
    }

    /// Submits a request, or queues it here while all slots are in use. FIO_Q_BUSY is not an alternative: fio
    /// 3.33 then resubmits, but its own verification of that write fails.
    pub fn begin(&mut self, request: IoRequest, buffers: &dyn Buffers) -> Result<(), Error> {
        match self.in_flight.iter().position(Option::is_none) {
            Some(place) if self.waiting.is_empty() => self.begin_at(place, request, buffers),
            _ => {
                self.waiting.push_back(request);
                Ok(())
            }
        }
    }

    fn begin_at(
        &mut self,
        place: usize,
        request: IoRequest,
        buffers: &dyn Buffers,
    ) -> Result<(), Error> {
        let ticket = match &self.backend {
            Backend::Fastpath(client) => Some(submit(client, place, &request, buffers)?),
            Backend::Other(disk) => {
                let operation = match request.kind {
                    Kind::Read => disk::Operation::Read(request.bytes),
                    Kind::Write => disk::Operation::Write(buffers.from(request.at, request.bytes)),
                    Kind::Flush => disk::Operation::Flush,
                };
                let begun = disk.client.begin(place as u64, request.offset, operation, false);
                begun.map_err(|_| Error::Gone)?;
                None
            }
        };
        self.in_flight[place] = Some(InFlight { request, ticket });
        Ok(())
    }

    /// Appends the requests that have completed since the last call, and submits waiting ones in their slots.
    pub fn ended(&mut self, buffers: &dyn Buffers, ended: &mut Vec<Ended>) {
        match &self.backend {
            Backend::Fastpath(client) => {
                for place in 0..DEPTH {
                    let Some(InFlight { request, ticket }) = &self.in_flight[place] else {
                        continue;
                    };
                    let ticket = ticket.expect("a request of libfnvme has one");
                    let Some(result) = client.poll(ticket) else { continue };
                    let mut good = result.is_ok();
                    if good && request.kind == Kind::Read {
                        let mut bytes = vec![0; request.bytes];
                        good = client.copy_out(slot(client, place), &mut bytes).is_ok();
                        buffers.to(request.at, &bytes);
                    }
                    ended.push(Ended { name: request.name, good });
                    self.in_flight[place] = None;
                }
            }
            Backend::Other(disk) => {
                while let Ok(done) = disk.done.try_recv() {
                    let InFlight { request, .. } =
                        self.in_flight[done.tag as usize].take().expect("it was begun");
                    if let (Ok(bytes), Kind::Read) = (&done.result, request.kind) {
                        buffers.to(request.at, bytes);
                    }
                    ended.push(Ended { name: request.name, good: done.result.is_ok() });
                }
            }
        }
        while let Some(place) = self.in_flight.iter().position(Option::is_none)
            && let Some(request) = self.waiting.pop_front()
        {
            let name = request.name;
            if self.begin_at(place, request, buffers).is_err() {
                ended.push(Ended { name, good: false });
            }
        }
    }

    /// Whether the drive has ended: there are no further completions.
    pub fn is_gone(&self) -> bool {
        match &self.backend {
            Backend::Fastpath(client) => client.is_gone(),
            Backend::Other(disk) => disk.disk.is_gone(),
        }
    }
}

/// Offset of a slot in the DMA buffer, bytes.
fn slot(client: &Client, place: usize) -> u64 {
    place as u64 * (client.buffer_bytes() / DEPTH as u64 / 8192 * 8192)
}

fn submit(
    client: &Client,
    place: usize,
    request: &IoRequest,
    buffers: &dyn Buffers,
) -> Result<Ticket, Error> {
    let IoRequest { kind, offset, at, bytes, .. } = *request;
    let handle = client.handle();
    if kind == Kind::Flush {
        return client.submit(&Request::flush(0, handle.fp_id, handle.generation));
    }
    let buffer_offset = slot(client, place);
    if bytes as u64 > slot(client, 1) {
        return Err(Error::Length(bytes as u64));
    }
    let direction = match kind {
        Kind::Read => Direction::Read,
        _ => Direction::Write,
    };
    if kind == Kind::Write {
        client.copy_in(buffer_offset, &buffers.from(at, bytes))?;
    }
    let block_size = (1_u64 << (bytes as u64 | offset).trailing_zeros()).min(4096) as u32;
    let transfer = Transfer { direction, offset, size: bytes as u32, block_size, buffer_offset };
    client.submit(&Request::transfer(0, handle.fp_id, handle.generation, &transfer))
}
