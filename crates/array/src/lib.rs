//! Arrays: several block devices as one, striped, or with parity that tolerates the loss of one member.
//!
//! ```text
//!   caller ─► Array ─┬─ read: pieces, each from its member ─► or all others, if that is out
//!                    └─ write ─► task: stripe held ─► old data, parity ─► new data, parity
//! ```
//!
//! A write with parity runs in a task of the array, so that a dropped future leaves no stripe half written.
//! It reads the old data and parity of the written blocks, or the data of all other chunks, whichever is less
//! (nothing for a whole stripe), and writes data and parity concurrently.
//!
//! A member that fails is *out*: its content is reconstructed from the others. If a second member fails, the
//! array has failed. [`Array::replace`] and [`Array::rebuild`] restore redundancy.
//!
//! *The write hole.* Each member loses its writes in flight independently, so a power cut may leave a parity
//! that does not match its data. With all members present it is not read, and [`Array::resync`] corrects it.
//! If a member is lost before that, blocks that were never written may be lost with it. A journal
//! (`journal.rs`) prevents this and records the failed member; without one a member that returns must be
//! rebuilt.
//!
//! The layout is a pure function (`layout.rs`). Data and parity of a stripe are changed, or read together, by
//! one owner at a time, in order of request (`stripes.rs`). A member can be replaced and rebuilt under load.
//!
//! It is not a driver, and has no bus: it uses the [`BlockDevice`]s of its members. An array of simulated
//! devices is an interface around an interface (`world`'s `interfaces::Array`): the world starts a device per
//! member, each with an RNG seed of its own, and the disk is the array. Members use the same queue numbers,
//! so each member's bus has an executor handle with an offset ([`Rt::queues_from`]), and one table holds all
//! traces. Of concurrent commands, the last to end is the one that was waited for, and its trace is the
//! array's; sequential ones are added (`trace.rs`). A task can align the GC of all members
//! (`ftl::policy::GcControl`); the space that this may need is reserved.
//!
//! ```no_run
//! use array::{Array, Numbers, Options};
//! use bus::HostPort;
//! use host::BlockDevice;
//!
//! /// A parity array of these disks, for one core.
//! fn striped<P: HostPort, D: BlockDevice + Clone + 'static>(port: P, disks: Vec<D>) -> Array<P, D> {
//!     let traces = Numbers { queue: 0, depth: 0, queues: 0 };
//!     let (parity, journal, identity) = (true, 64, 7);
//!     let options = Options { chunk_bytes: 65536, parity, writes: 32, journal, identity, traces };
//!     let members = disks.into_iter().map(|disk| vec![disk]).collect();
//!     Array::new(vec![port], members, options).expect("disks of one block size").remove(0)
//! }
//! ```
#![no_std]
#![forbid(unsafe_code)]
#![warn(missing_docs)]
extern crate alloc;

mod change;
mod failure;
mod fit;
mod journal;
mod layout;
mod mailbox;
mod record;
mod start;
mod stripes;
mod together;
mod trace;

use alloc::boxed::Box;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::future::Future;

use bus::{Buffer, Cost, HostPort, OutOfMemory};
use runtime::{Rt, Stage, stage};
use wire::Lba;

use failure::{is_lost, is_unreadable};
use host::{BlockDevice, Deallocated, Geometry, IoError, Kind};
use journal::Journal;
pub use layout::{Layout, MEMBERS_MAX, Piece, Segment};
use mailbox::{Asked, Mailbox};
use record::{Region, Superblock};
use stripes::Stripes;
use together::all;
pub use trace::Numbers;
use trace::Ways;

/// Name of its host cost: XOR of 512 bytes for a parity.
pub const COSTS: &[&str] = &["parity"];

/// Stages recorded in addition to those of its members: the waits for stripes and for space in the journal,
/// and parity computation.
pub const STAGES: [&str; 3] = ["stripe wait", "journal wait", COSTS[0]];

/// Unit of [`COSTS`] in bytes.
const PARITY_BYTES: u32 = 512;

/// Options of an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Chunk size in bytes: whole blocks, at most the longest transfer of a member.
    pub chunk_bytes: u32,
    /// True if each stripe has a parity chunk.
    pub parity: bool,
    /// Most writes in flight, with parity.
    pub writes: u16,
    /// Number of journal entries, with parity. 0: the write hole is open, and a failed member is not
    /// recorded.
    pub journal: u32,
    /// Identity of a new array with a journal, not 0: by it members of other arrays are known.
    pub identity: u64,
    /// Identifier space of its request traces.
    pub traces: Numbers,
}

/// Error: the devices cannot form an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unfit {
    /// Property that does not fit.
    pub what: &'static str,
    /// Value found.
    pub found: u64,
    /// Required value.
    pub expected: &'static str,
}

/// Error: an array is not started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartError {
    /// The devices do not fit.
    Unfit(Unfit),
    /// A device is a member of another array.
    OtherArray {
        /// Its place, from 0.
        member: u32,
        /// Identity of the array that it is a member of.
        found: u64,
        /// Identity of the array of the other members.
        expected: u64,
    },
}

impl From<Unfit> for StartError {
    fn from(unfit: Unfit) -> StartError {
        StartError::Unfit(unfit)
    }
}

/// Handle on an array, for one core. Clones share its state.
pub struct Array<P: HostPort, D> {
    shared: Rc<Shared<P, D>>,
    /// Index of its port, and of each member's disk.
    number: usize,
}

impl<P: HostPort, D> Clone for Array<P, D> {
    fn clone(&self) -> Array<P, D> {
        Array { shared: self.shared.clone(), number: self.number }
    }
}

struct Shared<P: HostPort, D> {
    rt: Rt,
    ports: Vec<P>,
    parity: Vec<Cost>,
    /// By member, and by port.
    disks: RefCell<Vec<Vec<D>>>,
    layout: Layout,
    geometry: Geometry,
    deallocated: Deallocated,
    out: Cell<Option<Out>>,
    /// Error of a second failed member: the array has failed.
    failed: Cell<Option<IoError>>,
    stripes: Stripes,
    journal: Option<Journal>,
    mailbox: Mailbox,
    ways: Ways,
    stripe_wait: Stage,
    journal_wait: Stage,
    /// Scratch buffers for sums, reused between changes.
    rooms: RefCell<Vec<Vec<u8>>>,
    counters: Cell<Counters>,
}

/// Statistics of an array.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Segments written without reading.
    pub whole: u64,
    /// Segments for which old data or parity was read.
    pub modified: u64,
    /// Pieces reconstructed from the other members.
    pub recovered: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Out {
    member: u32,
    /// Stripes below this one have been rebuilt.
    rebuilt: u64,
}

/// Location on one member, accessed through one port.
#[derive(Clone, Copy)]
struct Place {
    number: usize,
    member: u32,
    block: u64,
}

impl<P: HostPort, D: BlockDevice + Clone + 'static> Array<P, D> {
    /// Creates an array; `disks` holds for each member one disk per port. Returns one handle per port.
    ///
    /// # Errors
    /// [`Unfit`] if the devices do not form an array.
    pub fn new(
        ports: Vec<P>,
        disks: Vec<Vec<D>>,
        options: Options,
    ) -> Result<Vec<Array<P, D>>, Unfit> {
        let first = disks.first().and_then(|disks| disks.first()).map(|disk| disk.geometry());
        let Some(first) = first else {
            return Err(Unfit { what: "members", found: 0, expected: "one at least" });
        };
        let all = || disks.iter().map(|disks| disks[0].geometry());
        fit::validate(&disks, first, &options)?;
        let (members, chunk) = (disks.len() as u32, options.chunk_bytes / first.block_bytes);
        let least = all().map(|geometry| geometry.blocks).min().unwrap_or(0);
        let entries = if options.parity { options.journal } else { 0 };
        let block_bytes = first.block_bytes;
        let kept = if entries > 0 { Region::blocks(entries, chunk.into(), block_bytes) } else { 0 };
        let layout = Layout::new(members, chunk.into(), options.parity, least.saturating_sub(kept));
        if layout.stripes() == 0 {
            let expected = "one behind which there is room for the journal";
            return Err(Unfit { what: "stripes", found: 0, expected });
        }
        let region = || Region::behind(&layout, entries, block_bytes);
        let superblock = Superblock::new(members, chunk.into());
        let journal = (entries > 0).then(|| Journal::new(options.identity, region(), superblock));
        let transfer = all().map(|geometry| geometry.transfer_bytes_max).min().unwrap_or(0);
        let zeros = disks.iter().all(|disks| disks[0].deallocated() == Deallocated::Zeros);
        let deallocated = match options.parity {
            // The parity of zeros is zero.
            true if zeros => Deallocated::Zeros,
            true => Deallocated::Unsupported,
            false => disks[0][0].deallocated(),
        };
        let rt = ports[0].rt().clone();
        let writes = if options.parity { options.writes } else { 0 };
        let shared = Rc::new(Shared {
            parity: ports.iter().map(|port| port.cost(COSTS[0])).collect(),
            layout,
            geometry: Geometry {
                blocks: layout.blocks(),
                transfer_bytes_max: transfer.saturating_mul(layout.data()) / first.block_bytes
                    * first.block_bytes,
                volatile_cache: all().any(|geometry| geometry.volatile_cache),
                ..first
            },
            deallocated,
            out: Cell::new(None),
            failed: Cell::new(None),
            stripes: Stripes::default(),
            journal,
            mailbox: Mailbox::new(writes),
            ways: Ways::new(options.traces, writes),
            stripe_wait: stage!(rt, &STAGES, "stripe wait"),
            journal_wait: stage!(rt, &STAGES, "journal wait"),
            rooms: RefCell::default(),
            counters: Cell::default(),
            disks: RefCell::new(disks),
            ports,
            rt,
        });
        for number in 0..shared.mailbox.places() {
            let task = shared.rt.spawn(shared.clone().work(number));
            shared.mailbox.belongs_to(number, task);
        }
        let each = |number| Array { shared: shared.clone(), number };
        Ok((0..shared.ports.len()).map(each).collect())
    }

    /// Mapping of blocks to members.
    pub fn layout(&self) -> &Layout {
        &self.shared.layout
    }

    /// Statistics.
    pub fn counters(&self) -> Counters {
        self.shared.counters.get()
    }

    /// Index of the member that is out; `None` if all are present.
    pub fn out(&self) -> Option<u32> {
        self.shared.out.get().map(|out| out.member)
    }

    /// Starts an array with a journal, before any other operation: determines the failed member, given a
    /// member known to be missing, and replays changes that may have been interrupted. Returns their number.
    ///
    /// # Errors
    /// [`StartError`] if more than one member is out, or has failed, or one is of another array.
    pub async fn start(&self, missing: Option<u32>) -> Result<u64, StartError> {
        self.shared.start(self.number, missing).await
    }

    /// Takes a member out, as if it had failed.
    pub fn take_out(&self, member: u32) {
        assert!(
            self.shared.layout.parity_of(0).is_some(),
            "without parity no member can be spared"
        );
        self.shared.out.set(Some(Out { member, rebuilt: 0 }));
    }

    /// Replaces the member that is out by another device, with one disk per port. Its content is not read
    /// before it is [rebuilt](Self::rebuild).
    ///
    /// # Errors
    /// [`Unfit`] if the device cannot be a member: the old one stays.
    ///
    /// # Panics
    /// If no member is out.
    pub fn replace(&self, disks: Vec<D>) -> Result<(), Unfit> {
        let out = self.shared.out.get().expect("a member is out");
        self.shared.validate_replacement(&disks)?;
        self.shared.out.set(Some(Out { rebuilt: 0, ..out }));
        self.shared.disks.borrow_mut()[out.member as usize] = disks;
        Ok(())
    }

    /// Rebuilds the [replaced](Self::replace) member stripe by stripe, with I/O in progress. Afterwards no
    /// member is out.
    ///
    /// # Errors
    /// A read or write failed: the member stays out.
    pub async fn rebuild(&self) -> Result<(), IoError> {
        let shared = &self.shared;
        let Some(Out { member, rebuilt }) = shared.out.get() else { return Ok(()) };
        if let Some(journal) = shared.journal.as_ref().filter(|_| rebuilt == 0) {
            shared.clear_records(journal, self.number, member).await?;
        }
        // Nothing is rebuilt any more after a write of another task to it has failed.
        let is_rebuilt = |rebuilt| match shared.out.get() == Some(Out { member, rebuilt }) {
            true => Ok(()),
            false => Err(IoError::of(Kind::Gone, None)),
        };
        for stripe in rebuilt..shared.layout.stripes() {
            let _held = shared.stripes.hold(&shared.rt, (stripe, stripe + 1)).await;
            is_rebuilt(stripe)?;
            shared.rebuild_stripe(self.number, member, stripe).await?;
            is_rebuilt(stripe)?;
            shared.out.set(Some(Out { member, rebuilt: stripe + 1 }));
        }
        let Some(journal) = &shared.journal else {
            shared.out.set(None);
            return Ok(());
        };
        // Its content must be durable before it is used.
        shared.flush_members(self.number).await?;
        is_rebuilt(shared.layout.stripes())?;
        shared.out.set(None);
        shared.settle(journal, self.number).await
    }

    /// Checks all stripes and corrects their parity, after a power cut. Returns the number of wrong parities.
    ///
    /// # Errors
    /// A read or write failed.
    pub async fn resync(&self) -> Result<u64, IoError> {
        let shared = &self.shared;
        let mut wrong = 0;
        if shared.layout.parity_of(0).is_none() {
            return Ok(0);
        }
        for stripe in 0..shared.layout.stripes() {
            let _held = shared.stripes.hold(&shared.rt, (stripe, stripe + 1)).await;
            wrong += u64::from(shared.resync_stripe(self.number, stripe).await?);
        }
        Ok(wrong)
    }
}

impl<P: HostPort, D: BlockDevice + Clone> Shared<P, D> {
    /// Returns true if this stripe is not available on a member.
    fn is_out(&self, member: u32, stripe: u64) -> bool {
        self.out.get().is_some_and(|out| out.member == member && stripe >= out.rebuilt)
    }

    /// Handles a member's error; returns true if the array continues without it.
    fn goes_on_without(&self, member: u32, error: IoError) -> bool {
        if self.layout.parity_of(0).is_none() {
            return false;
        }
        let new = Out { member, rebuilt: 0 };
        match self.out.get() {
            Some(out) if out.member != member => {
                self.failed.set(self.failed.get().or(Some(error)));
                return false;
            }
            _ => self.out.set(Some(new)),
        }
        true
    }

    fn disk(&self, place: Place) -> D {
        self.disks.borrow()[place.member as usize][place.number].clone()
    }

    /// Fails if more members are out than parity tolerates.
    fn validate(&self) -> Result<(), IoError> {
        self.failed.get().map_or(Ok(()), Err)
    }

    fn count(&self, change: impl FnOnce(&mut Counters)) {
        let mut counters = self.counters.get();
        change(&mut counters);
        self.counters.set(counters);
    }

    /// Reads a piece into its part of the caller's buffer.
    async fn read_piece(&self, number: usize, piece: Piece, into: Buffer) -> Result<(), IoError> {
        let Piece { member, block, stripe, .. } = piece;
        if !self.is_out(member, stripe) {
            let disk = self.disk(Place { number, member, block });
            let (_, done) = disk.read(Lba(block), into.part(0, into.bytes())).await;
            let Err(error) = done else { return Ok(()) };
            let lost = is_lost(error.kind) && self.goes_on_without(member, error);
            let unreadable = is_unreadable(error.kind) && self.layout.parity_of(stripe).is_some();
            if !lost && !unreadable {
                return Err(error);
            }
        }
        self.validate()?;
        let way = self.ways.begin(&self.rt);
        let _held = self.hold((stripe, stripe + 1)).await;
        self.count(|counters| counters.recovered += 1);
        // Boxed: rare, with a large future.
        Box::pin(self.recover(Place { number, member, block }, &into, &way)).await
    }
}

impl<P: HostPort, D: BlockDevice + Clone + 'static> Array<P, D> {
    /// Passes a change to a change task.
    async fn change(&self, asked: Asked) -> Result<(), IoError> {
        self.shared.mailbox.carry_out(&self.shared.rt, &self.shared.ways, asked).await
    }

    async fn read_all(&self, lba: Lba, into: &Buffer) -> Result<(), IoError> {
        let shared = &*self.shared;
        let blocks = shared.geometry.validate(lba, into)?;
        let block_bytes = shared.geometry.block_bytes as usize;
        let part = |piece: Piece| {
            let part =
                into.part(piece.from as usize * block_bytes, piece.blocks as usize * block_bytes);
            shared.read_piece(self.number, piece, part)
        };
        let done = all(&shared.rt, shared.layout.pieces(lba.0, blocks), part).await;
        done.map_err(|error| error.at(lba))
    }

    /// Without parity, writes need no order.
    async fn write_striped(&self, lba: Lba, from: &Buffer, fua: bool) -> Result<(), IoError> {
        let shared = &*self.shared;
        let blocks = from.bytes() as u32 / shared.geometry.block_bytes;
        let write = |piece: Piece| shared.write_piece(self.number, piece, from, fua);
        all(&shared.rt, shared.layout.pieces(lba.0, blocks), write).await
    }

    async fn deallocate_striped(&self, lba: Lba, blocks: u32) -> Result<(), IoError> {
        let shared = &*self.shared;
        let (layout, number) = (shared.layout, self.number);
        let one = |member| async move {
            let Some((from, to)) = layout.share_of(member, lba.0, blocks.into()) else {
                return Ok(());
            };
            let disk = shared.disk(Place { number, member, block: from });
            disk.deallocate(Lba(from), (to - from) as u32).await
        };
        all(&shared.rt, 0..layout.members(), one).await
    }
}

impl<P: HostPort, D: BlockDevice + Clone + 'static> BlockDevice for Array<P, D> {
    fn geometry(&self) -> Geometry {
        self.shared.geometry
    }

    fn buffer(&self, bytes: usize) -> Result<Buffer, OutOfMemory> {
        self.shared.ports[self.number].arena().buffer(bytes)
    }

    async fn read(&self, lba: Lba, into: Buffer) -> (Buffer, Result<(), IoError>) {
        let done = self.read_all(lba, &into).await;
        (into, done)
    }

    async fn write(&self, lba: Lba, from: Buffer, fua: bool) -> (Buffer, Result<(), IoError>) {
        if let Err(error) = self.shared.geometry.validate(lba, &from) {
            return (from, Err(error));
        }
        let named = |error: IoError| error.at(lba);
        if self.shared.layout.parity_of(0).is_none() {
            let done = self.write_striped(lba, &from, fua).await;
            return (from, done.map_err(named));
        }
        let place = from.part(0, from.bytes());
        let done = self.change(Asked::Write { number: self.number, lba, from, fua }).await;
        (place, done.map_err(named))
    }

    fn flush(&self) -> impl Future<Output = Result<(), IoError>> {
        let (shared, number) = (&*self.shared, self.number);
        async move {
            shared.validate()?;
            // Acknowledged changes are durable in the journal.
            if shared.journal.is_some() { Ok(()) } else { shared.flush_members(number).await }
        }
    }

    fn deallocated(&self) -> Deallocated {
        self.shared.deallocated
    }

    async fn deallocate(&self, lba: Lba, blocks: u32) -> Result<(), IoError> {
        self.shared.geometry.validate_range(lba, blocks.into())?;
        if self.shared.deallocated == Deallocated::Unsupported {
            let why = "members with a command for it, and zeros behind it";
            return Err(IoError::refused(Kind::Unsupported, lba, why));
        }
        let done = match self.shared.layout.parity_of(0) {
            None => self.deallocate_striped(lba, blocks).await,
            Some(_) => self.change(Asked::Deallocate { number: self.number, lba, blocks }).await,
        };
        done.map_err(|error| error.at(lba))
    }
}
