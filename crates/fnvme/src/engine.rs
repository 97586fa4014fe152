//! FastPath live: an engine on its own thread, and its clients in other threads and processes.
//!
//! ```text
//!   client (any thread) ── ring, in shared memory ──► engine's thread ── NVMe ──► device
//!        │                                                ▲                (its own thread, the engine's, or
//!        └── orders: open, close ──► mailbox ─────────────┘                 another process)
//! ```
//!
//! The data path takes no lock shared between clients, and makes no system call while both ends are busy.
//! Orders are rare: they take a lock and get their result over a channel.

mod client;
mod directory;
mod error;
mod latencies;
mod mailbox;
mod names;
mod way;
mod worker;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;
use std::thread::JoinHandle;

use bus::Memory;
use bus::live;

pub use client::{Client, STAGING_BYTES, Ticket};
pub use directory::{NAME_BYTES, NAMES_MAX};
pub use error::Error;
use functions::Named;
pub use host::fastpath::{Function, Handle, Latency, Refused};
pub use latencies::{Counters, RequestKind};
use mailbox::{Mailbox, Order, Wanted};
use way::{Ready, Way};
pub use wire::fastpath::{Direction, Refusal, Request, Status, Transfer};

use plan::Plan;
use world::RunError;

/// Location of the engine's drive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Drive {
    /// In this process, as described by the plan.
    Here {
        /// True: on its own thread. False: on the engine's thread.
        own_thread: bool,
    },
    /// In the process of `doorbell serve --shm` that listens at this socket.
    Served(PathBuf),
    /// The NVMe function of the vfio-user server that listens at this socket.
    VfioUser(PathBuf),
    /// The NVMe function at this address, as in `0000:01:00.0`, bound to vfio-pci.
    Vfio(String),
}

/// A running engine. It ends when dropped.
pub struct Service {
    threads: Threads,
    memory: Memory,
    block_bytes: u32,
    in_process: bool,
}

/// Threads of a service. They end when it is dropped.
struct Threads {
    mailbox: Arc<Mailbox>,
    stop: Arc<AtomicBool>,
    running: Vec<JoinHandle<()>>,
    listening: Option<PathBuf>,
}

impl Service {
    /// Starts an engine on this drive. Blocks below `from` are reserved for the ordinary driver; the 8 KiB
    /// from there on hold the directory of named areas.
    ///
    /// # Errors
    /// The plan has no such machine, the drive does not start, or its medium keeps only stamps.
    pub fn start(plan: &Plan, drive: &Drive, from: u64) -> Result<Service, RunError> {
        let (way, plan) = Way::to(drive, plan)?;
        let (mailbox, stop) = (Arc::<Mailbox>::default(), Arc::new(AtomicBool::new(false)));
        let mut threads = Threads { mailbox, stop, running: Vec::new(), listening: None };
        if let Some(shared) = way.shared().filter(|_| !way.with_drive()) {
            let (plan, shared, stop) = (plan.clone(), shared.clone(), threads.stop.clone());
            let (tell, told) = sync_channel(1);
            threads.spawn("fastpath-drive", move || worker::drive(&plan, &shared, &stop, &tell))?;
            told.recv().map_err(RunError::of)??;
        }
        let (in_process, mailbox) = (way.shared().is_some(), threads.mailbox.clone());
        let (tell, told) = sync_channel(1);
        threads.spawn("fastpath-engine", move || {
            worker::run(worker::Setup { plan, way, from, mailbox, tell });
        })?;
        let Ready { block_bytes, memory } = told.recv().map_err(RunError::of)??;
        Ok(Service { threads, memory, block_bytes, in_process })
    }

    /// Opens a client in this process, with an area and a DMA buffer of at least `bytes` bytes each.
    ///
    /// # Errors
    /// No such area, handle or memory is left.
    pub fn open(&self, bytes: u64) -> Result<Client, Error> {
        self.open_by(Wanted { bytes, ..Wanted::default() })
    }

    /// Same as [`open`](Self::open), with a function that replaces the plan's. It runs on the engine's
    /// thread.
    ///
    /// # Errors
    /// As for [`open`](Self::open).
    pub fn open_through(&self, bytes: u64, function: Named) -> Result<Client, Error> {
        self.open_by(Wanted { bytes, function: Some(function), ..Wanted::default() })
    }

    /// Opens the area of this name: the one that an engine has made on this drive before, with its data, or
    /// a new one of at least `bytes` bytes. `bytes` is 0 to find one only, or the length that it has.
    ///
    /// The name is all that an owner needs, as names cannot be listed. An area has one client at a time.
    ///
    /// # Errors
    /// As for [`open`](Self::open); or the name is not valid, the area is in use or has another length, or
    /// the directory is full or cannot be written.
    pub fn open_named(
        &self,
        name: &str,
        bytes: u64,
        function: Option<Named>,
    ) -> Result<Client, Error> {
        self.open_by(Wanted { bytes, name: Some(name.into()), function })
    }

    /// Frees the area of this name, which no client has open. Its data are for its next owner to overwrite.
    ///
    /// # Errors
    /// No area has this name, it is in use, or the directory cannot be written.
    pub fn remove_named(&self, name: &str) -> Result<(), Error> {
        let (tell, told) = sync_channel(1);
        self.threads.mailbox.put(Order::Remove { name: name.into(), tell })?;
        told.recv().map_err(|_| Error::Gone)?
    }

    fn open_by(&self, wanted: Wanted) -> Result<Client, Error> {
        let (tell, told) = sync_channel(1);
        self.threads.mailbox.put(Order::Open(wanted, tell))?;
        let lane = told.recv().map_err(|_| Error::Gone)??;
        Client::here(&self.memory, lane, self.block_bytes, self.threads.mailbox.clone())
    }

    /// Reads or writes blocks of the drive by the ordinary NVMe driver, on a queue of its own.
    ///
    /// # Errors
    /// Errors of the driver.
    pub fn ordinary(&self, lba: u64, bytes: Vec<u8>, write: bool) -> Result<Vec<u8>, Error> {
        let (tell, told) = sync_channel(1);
        self.threads.mailbox.put(Order::Ordinary { lba, bytes, write, tell })?;
        told.recv().map_err(|_| Error::Gone)?
    }

    /// Accepts clients of other processes. Each brings its own memory, can access nothing else, and has one
    /// area, as long as that memory without its first page and the staging memory. The drive must be in
    /// this process.
    ///
    /// # Errors
    /// Listening at this socket fails, or the drive is outside this process.
    pub fn listen(&mut self, socket: &Path) -> Result<(), RunError> {
        if !self.in_process {
            let why =
                "the drive is outside this process and does not reach the memory of its clients";
            return Err(RunError::of(why));
        }
        let server = live::Server::bind(socket)?;
        let (mailbox, stop) = (self.threads.mailbox.clone(), self.threads.stop.clone());
        self.threads.listening = Some(socket.into());
        self.threads.spawn("fastpath-door", move || {
            while !stop.load(Ordering::Acquire) {
                // A client that fails its handshake is skipped.
                let Ok((shared, peer)) = server.accept(client::REGISTER_BYTES) else { continue };
                if mailbox.put(Order::Admit { shared, peer }).is_err() {
                    break;
                }
            }
        })
    }

    /// Latency statistics of the engine so far.
    ///
    /// # Errors
    /// The engine has ended.
    pub fn latency(&self) -> Result<Latency, Error> {
        let (tell, told) = sync_channel(1);
        self.threads.mailbox.put(Order::Latency { tell })?;
        told.recv().map_err(|_| Error::Gone)
    }

    /// Block size of the drive, bytes.
    pub fn block_bytes(&self) -> u32 {
        self.block_bytes
    }
}

impl Threads {
    fn spawn(&mut self, name: &str, body: impl FnOnce() + Send + 'static) -> Result<(), RunError> {
        let thread = std::thread::Builder::new().name(name.into()).spawn(body);
        self.running.push(thread?);
        Ok(())
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.mailbox.stop();
        self.stop.store(true, Ordering::Release);
        // A last connection ends the blocking accept, which then sees the stop flag.
        if let Some(socket) = &self.listening {
            let _ = live::connect(socket, 4096, wire::BusAddr(0));
        }
        // Threads are joined in reverse order: the engine shuts the drive down while the drive still runs.
        for thread in self.running.drain(..).rev() {
            let _ = thread.join();
        }
    }
}
