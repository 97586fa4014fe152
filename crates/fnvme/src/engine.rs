//! FastPath live: an engine on a thread of its own, and its clients in other threads and processes.
//!
//! ```text
//!   client (any thread) ── ring, in shared memory ──► engine's thread ── NVMe ──► device
//!        │                                                ▲                (its own thread, the engine's, or
//!        └── orders: open, close ──► desk ────────────────┘                 another process)
//! ```
//!
//! What moves data takes no lock that another client's does, and makes no system call while both ends are
//! at work. Orders are rare: a lock, and an answer over a channel.

mod client;
mod mailbox;
mod worker;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;
use std::thread::JoinHandle;

use bus::Memory;
use bus::live::{self, Shared};

pub use client::{Client, Error, STAGING_BYTES, Ticket};
use functions::Named;
pub use host::fastpath::{Function, Handle, Latency, Refused};
use mailbox::{Mailbox, Order};
pub use wire::fastpath::{Direction, Refusal, Request, Status, Transfer};

use plan::Plan;
use serve::plan_for_clients;
use world::interfaces::FASTPATH;
use world::{self, RunError};

/// Where the engine's drive is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Drive {
    /// In this process: the plan's.
    Here {
        /// On a thread of its own; else it shares the engine's.
        own_thread: bool,
    },
    /// In the process of `doorbell serve --shm` that listens at this socket.
    Served(PathBuf),
}

/// An engine that runs. Ends when dropped.
pub struct Service {
    mailbox: Arc<Mailbox>,
    memory: Memory,
    block_bytes: u32,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    listening: Option<PathBuf>,
}

impl Service {
    /// Starts an engine on this drive. Blocks below `from` are left to the ordinary driver.
    ///
    /// # Errors
    /// The plan has no such machine, or the drive does not start, or its medium keeps only stamps.
    pub fn start(plan: &Plan, drive: &Drive, from: u64) -> Result<Service, RunError> {
        let plan = match drive {
            Drive::Here { .. } => &plan_for_clients(FASTPATH, plan)?,
            Drive::Served(_) => plan,
        };
        let (mailbox, stop) = (Arc::<Mailbox>::default(), Arc::new(AtomicBool::new(false)));
        let (shared, far) = match drive {
            Drive::Here { .. } => (world::shared(FASTPATH, plan)?, None),
            Drive::Served(path) => {
                let (bytes, base) = (plan.host.memory_bytes as usize, plan.host.memory_base);
                let (shared, far) = live::connect(path, bytes, base).map_err(RunError::of)?;
                (shared, Some(far))
            }
        };
        let mut service = Service {
            mailbox: mailbox.clone(),
            memory: shared.host_memory.clone(),
            block_bytes: 0,
            stop: stop.clone(),
            threads: Vec::new(),
            listening: None,
        };
        let own_thread = *drive == Drive::Here { own_thread: true };
        if own_thread {
            let (plan, shared, stop) = (plan.clone(), shared.clone(), stop.clone());
            let (tell, told) = sync_channel(1);
            service.spawn("fastpath-drive", move || worker::drive(&plan, &shared, &stop, &tell))?;
            told.recv().map_err(RunError::of)??;
        }
        let with_drive = !own_thread && far.is_none();
        let (plan, (tell, told)) = (plan.clone(), sync_channel(1));
        service.spawn("fastpath-engine", move || {
            worker::run(worker::Setup { plan, shared, far, with_drive, from, mailbox, tell });
        })?;
        service.block_bytes = told.recv().map_err(RunError::of)??;
        Ok(service)
    }

    fn spawn(&mut self, name: &str, body: impl FnOnce() + Send + 'static) -> Result<(), RunError> {
        let thread = std::thread::Builder::new().name(name.into()).spawn(body);
        self.threads.push(thread.map_err(RunError::of)?);
        Ok(())
    }

    /// A client in this process, with an area of at least so many bytes and a DMA buffer as long.
    ///
    /// # Errors
    /// No such area, handle or memory is left.
    pub fn open(&self, bytes: u64) -> Result<Client, Error> {
        self.open_by(bytes, None)
    }

    /// The same, and the client's blocks pass this function instead of the plan's, on the engine's thread.
    ///
    /// # Errors
    /// As for [`open`](Self::open).
    pub fn open_through(&self, bytes: u64, function: Named) -> Result<Client, Error> {
        self.open_by(bytes, Some(function))
    }

    fn open_by(&self, bytes: u64, function: Option<Named>) -> Result<Client, Error> {
        let (tell, told) = sync_channel(1);
        self.mailbox.put(Order::Open { bytes, function, tell })?;
        let lane = told.recv().map_err(|_| Error::Gone)??;
        Client::here(&self.memory, lane, self.block_bytes, self.mailbox.clone())
    }

    /// Reads or writes blocks of the drive by the ordinary NVMe driver, whose queue is beside the engine's.
    ///
    /// # Errors
    /// What the driver says.
    pub fn ordinary(&self, lba: u64, bytes: Vec<u8>, write: bool) -> Result<Vec<u8>, Error> {
        let (tell, told) = sync_channel(1);
        self.mailbox.put(Order::Ordinary { lba, bytes, write, tell })?;
        told.recv().map_err(|_| Error::Gone)?
    }

    /// Admits clients of other processes: each brings memory of its own, reaches nothing else, and has one
    /// area, as long as that memory without its first page. The drive has to be in this process.
    ///
    /// # Errors
    /// There is no listening at this socket.
    pub fn listen(&mut self, socket: &Path) -> Result<(), RunError> {
        let server = live::Server::bind(socket).map_err(RunError::of)?;
        let (mailbox, stop) = (self.mailbox.clone(), self.stop.clone());
        self.listening = Some(socket.into());
        self.spawn("fastpath-door", move || {
            while !stop.load(Ordering::Acquire) {
                // A client that does not greet is its own fault; the next may.
                let Ok((shared, peer)) = server.accept(client::REGISTER_BYTES) else { continue };
                if mailbox.put(Order::Admit { shared, peer }).is_err() {
                    break;
                }
            }
        })
    }

    /// What the engine has seen so far.
    ///
    /// # Errors
    /// The engine has ended.
    pub fn latency(&self) -> Result<Latency, Error> {
        let (tell, told) = sync_channel(1);
        self.mailbox.put(Order::Latency { tell })?;
        told.recv().map_err(|_| Error::Gone)
    }

    /// Bytes of the drive's blocks.
    pub fn block_bytes(&self) -> u32 {
        self.block_bytes
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.mailbox.stop();
        self.stop.store(true, Ordering::Release);
        // Whoever waits at the door is let in, and sees that it is over.
        if let Some(socket) = &self.listening {
            let _ = live::connect(socket, 4096, wire::BusAddr(0));
        }
        // The engine last: it leaves the drive in order while that still answers.
        for thread in self.threads.drain(..).rev() {
            let _ = thread.join();
        }
    }
}

/// What an engine's thread is given of the bus.
type Bus = Shared;
