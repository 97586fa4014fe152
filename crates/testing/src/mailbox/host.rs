//! Host side: a driver that holds a mailbox for the duration of a request.

use std::cell::Cell;
use std::rc::Rc;

use ::host::{BlockDevice, Geometry, InitError, IoError, Kind, OutOfMemory};
use ::wire::{BusAddr, Lba};
use bus::{Buffer, Cost, HostPort};
use runtime::{Pool, Rt, Stage, stage};
use world::DriverError;
use world::interfaces::{self, Boxed};

use super::wire::{self, Direction, Request, Status};

/// Stages that the driver records, in addition to its costs.
pub const STAGES: &[&str] = &["mailbox wait", "answer"];

/// Driver for all mailboxes, through any of its ports.
pub struct Driver<P: HostPort> {
    shared: Rc<Shared>,
    ports: Vec<P>,
}

struct Shared {
    memory: Buffer,
    free: Pool<u16>,
    /// Number of the last request of each mailbox.
    rung: Vec<Cell<u32>>,
    geometry: Geometry,
}

/// The disk, as accessed from one core.
pub struct Disk<P: HostPort> {
    shared: Rc<Shared>,
    port: P,
    submit: Cost,
    complete: Cost,
    wait: Stage,
    answer: Stage,
}

impl<P: HostPort> Driver<P> {
    pub async fn connect(ports: Vec<P>, used: u16) -> Result<Driver<P>, InitError> {
        let port = &ports[0];
        let blocks = u64::from(port.read32(wire::BLOCKS).await)
            | u64::from(port.read32(wire::BLOCKS + 4).await) << 32;
        let block_bytes = port.read32(wire::BLOCK_BYTES).await;
        if block_bytes == u32::MAX {
            return Err(InitError::Gone { register: "BLOCK_BYTES" });
        }
        let memory = port.arena().buffer(usize::from(wire::MAILBOXES) * wire::STRIDE as usize)?;
        memory.zero();
        port.write32(wire::BASE, memory.at().0 as u32);
        port.write32(wire::BASE + 4, (memory.at().0 >> 32) as u32);
        let transfer_bytes_max = wire::TRANSFER_BYTES_MAX;
        let shared = Shared {
            memory,
            free: Pool::new((0..used).rev()),
            rung: (0..wire::MAILBOXES).map(|_| Cell::new(0)).collect(),
            geometry: Geometry {
                blocks,
                block_bytes,
                transfer_bytes_max,
                buffer_align: 4,
                volatile_cache: true,
            },
        };
        Ok(Driver { shared: Rc::new(shared), ports })
    }
}

impl<P: HostPort> Driver<P> {
    /// A disk for each port.
    pub fn disks(&self) -> impl Iterator<Item = Rc<Disk<P>>> {
        self.ports.iter().map(|port| {
            Rc::new(Disk {
                shared: self.shared.clone(),
                submit: port.cost("submit"),
                complete: port.cost("complete"),
                wait: stage!(port.rt(), STAGES, "mailbox wait"),
                answer: stage!(port.rt(), STAGES, "answer"),
                port: port.clone(),
            })
        })
    }
}

impl<P: HostPort> interfaces::Driver for Driver<P> {
    fn reset(&self) -> Boxed<'_, Result<(), DriverError>> {
        Box::pin(async { Err(DriverError::Unsupported("a mailbox has no reset")) })
    }

    fn stop(&self) -> Boxed<'_, Result<(), DriverError>> {
        Box::pin(async { Ok(()) })
    }
}

/// A mailbox with a request. If dropped before the answer, it spawns a task that keeps the mailbox and the
/// buffer until the answer: the device may still write to both.
struct Posted<P: HostPort> {
    shared: Rc<Shared>,
    port: P,
    mailbox: u16,
    buffer: Option<Buffer>,
    answered: bool,
    /// Stage from the device's last mark to the arrival of the answer.
    landing: Stage,
}

impl<P: HostPort> Posted<P> {
    async fn answer(&mut self) -> Result<Status, Kind> {
        let place = u64::from(self.mailbox) * wire::STRIDE + wire::STATUS_AT;
        let at = BusAddr(self.shared.memory.at().0 + place);
        let number = self.shared.rung[usize::from(self.mailbox)].get();
        let check = || {
            let word = self.shared.memory.load_u32(place as usize);
            let gone = || self.port.is_gone().then_some(Err(Kind::Gone));
            let found = wire::status_of(word, number).map(Ok).or_else(gone);
            found.inspect(|_| self.port.rt().record(self.landing))
        };
        let answer = self.port.on_memory(at, 4, check).await;
        self.answered = true;
        answer
    }
}

impl<P: HostPort> Drop for Posted<P> {
    fn drop(&mut self) {
        let rt = self.port.rt().clone();
        if self.answered {
            self.shared.free.give(&rt, self.mailbox);
            return;
        }
        let (shared, port) = (self.shared.clone(), self.port.clone());
        let (mailbox, buffer, landing) = (self.mailbox, self.buffer.take(), self.landing);
        let mut left = Posted { shared, port, mailbox, buffer, answered: false, landing };
        rt.spawn(async move {
            let _ = left.answer().await;
        });
    }
}

impl<P: HostPort> Disk<P> {
    fn rt(&self) -> &Rt {
        self.port.rt()
    }

    /// Processes a request from submission to completion.
    async fn run(
        &self,
        direction: Direction,
        lba: Lba,
        buffer: Option<Buffer>,
    ) -> (Option<Buffer>, Result<(), IoError>) {
        let (entered, shared) = (self.rt().now(), &self.shared);
        let bytes = buffer.as_ref().map_or(0, |buffer| buffer.bytes() as u64);
        let blocks = (bytes / u64::from(shared.geometry.block_bytes)) as u32;
        let at = buffer.as_ref().map_or(BusAddr(0), Buffer::at);
        let mailbox = shared.free.take(self.rt()).await;
        self.rt().begin_trace(0, mailbox, entered);
        self.rt().record(self.wait);
        // From here on, a drop returns the mailbox. `answered` is true because nothing is submitted yet.
        let (port, shared) = (self.port.clone(), self.shared.clone());
        let landing = self.answer;
        let mut posted = Posted { shared, port, mailbox, buffer, answered: true, landing };
        self.port.spend(self.submit).await;
        let request = Request { direction, lba, blocks, buffer: at };
        let place = usize::from(mailbox) * wire::STRIDE as usize;
        self.shared.memory.copy_in(place, &request.to_bytes());
        let rung = &self.shared.rung[usize::from(mailbox)];
        rung.set((rung.get() + 1) & (u32::MAX >> 2));
        posted.answered = false;
        self.port.write32(wire::BELLS + 4 * u32::from(mailbox), rung.get());
        let answer = posted.answer().await;
        self.port.spend(self.complete).await;
        let result = match answer {
            Ok(Status::Done) => Ok(()),
            Ok(Status::Refused) => Err(IoError::of(Kind::Refused, Some(lba))),
            Ok(Status::Failed) => Err(IoError::of(Kind::MediaFailed, Some(lba))),
            Err(kind) => Err(IoError::of(kind, Some(lba))),
        };
        (posted.buffer.take(), result)
    }
}

impl<P: HostPort> BlockDevice for Disk<P> {
    fn geometry(&self) -> Geometry {
        self.shared.geometry
    }

    fn buffer(&self, bytes: usize) -> Result<Buffer, OutOfMemory> {
        self.port.arena().buffer(bytes)
    }

    async fn read(&self, lba: Lba, into: Buffer) -> (Buffer, Result<(), IoError>) {
        let (buffer, result) = self.run(Direction::Read, lba, Some(into)).await;
        (buffer.expect("given to the request"), result)
    }

    async fn write(&self, lba: Lba, from: Buffer, fua: bool) -> (Buffer, Result<(), IoError>) {
        let (buffer, result) = self.run(Direction::Write, lba, Some(from)).await;
        let flushed = if fua && result.is_ok() { self.flush().await } else { Ok(()) };
        (buffer.expect("given to the request"), result.and(flushed))
    }

    async fn flush(&self) -> Result<(), IoError> {
        self.run(Direction::Flush, Lba(0), None).await.1
    }
}
