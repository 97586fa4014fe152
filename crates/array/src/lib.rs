//! Several block devices as one: striped, or with a parity that outlives any one of them.
//!
//! ```text
//!   caller ─► Array ─┬─ read: pieces, each from its member ─► or all others, if that is out
//!                    └─ write ─► task: stripe held ─► old data, parity ─► new data, parity
//! ```
//!
//! A write with parity is carried out by a task of the array, so that a caller who drops its future leaves no
//! stripe half written. It reads what it needs of the old (data and parity of what it writes, or the data of
//! all others, whichever is less; of a stripe that it writes whole nothing), and writes data and parity at
//! once.
//!
//! A member that fails is *out*: what it held is what the others add up to. With one more the array has
//! failed. What is out comes back by [`Array::replace`] and [`Array::rebuild`].
//!
//! *The write hole.* Each member loses what is under way by itself, so a power cut may leave a parity that
//! is not its data's. With all members there nobody reads it, and [`Array::resync`] makes it right. A member
//! that is lost before that takes blocks with it that nobody wrote. With a journal (`journal.rs`) that cannot
//! be, and who is out is written down; without one a member that comes back must be rebuilt.
#![no_std]
#![forbid(unsafe_code)]
#![warn(missing_docs)]
extern crate alloc;

mod change;
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
use runtime::{Rt, Stage};
use wire::Lba;

use host::{BlockDevice, Deallocated, Geometry, IoError, Kind};
use journal::Journal;
pub use layout::{Layout, MEMBERS_MAX, Piece, Segment};
use mailbox::{Asked, Mailbox};
use record::{Region, Superblock};
use stripes::Stripes;
use together::all;
pub use trace::Numbers;
use trace::Ways;

/// The cost that a port is asked for: 512 bytes of one buffer added to those of another, for a parity.
pub const COSTS: &[&str] = &["parity"];

/// The stages that an array has beside those of its members: until stripes are nobody else's, until the
/// journal has room, and parities.
pub const STAGES: [&str; 3] = ["stripe wait", "journal wait", COSTS[0]];

/// The unit of [`COSTS`], bytes.
const PARITY_BYTES: u32 = 512;

/// What an array is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Bytes of a member that follow one another: whole blocks, no more than one command of a member's moves.
    pub chunk_bytes: u32,
    /// A chunk of each stripe is the parity of the others.
    pub parity: bool,
    /// Writes under way at once, where there is a parity.
    pub writes: u16,
    /// Entries of its journal, where there is a parity; none: the write hole is open, and who is out is not
    /// kept.
    pub journal: u32,
    /// Where its own journeys are.
    pub traces: Numbers,
}

/// Why devices make no array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unfit {
    /// What was looked at.
    pub what: &'static str,
    /// What was found.
    pub found: u64,
    /// What would have been one.
    pub expected: &'static str,
}

/// An array, as it is used from one core. Clones are the same.
pub struct Array<P: HostPort, D> {
    shared: Rc<Shared<P, D>>,
    /// The number of its port, and of each member's disk.
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
    /// Who has failed beside it: with both out, nothing can be believed.
    failed: Cell<Option<IoError>>,
    stripes: Stripes,
    journal: Option<Journal>,
    mailbox: Mailbox,
    ways: Ways,
    stripe_wait: Stage,
    journal_wait: Stage,
    rooms: RefCell<Vec<Vec<u8>>>,
    counters: Cell<Counters>,
}

/// What an array has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Segments of stripes that were written without reading anything.
    pub whole: u64,
    /// Segments for which old data or parity were read.
    pub modified: u64,
    /// Pieces that were read from all members but theirs.
    pub recovered: u64,
}

/// A member that has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Out {
    member: u32,
    /// The stripes before this one have been rebuilt.
    rebuilt: u64,
}

/// Bytes on one member.
#[derive(Clone, Copy)]
struct Place {
    number: usize,
    member: u32,
    block: u64,
}

impl<P: HostPort, D: BlockDevice + Clone + 'static> Array<P, D> {
    /// An array of these: by member, and for each the disks of the cores that `ports` are on.
    ///
    /// # Errors
    /// They don't make one.
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
        validate(&disks, first, &options)?;
        let (members, chunk) = (disks.len() as u32, options.chunk_bytes / first.block_bytes);
        let least = all().map(|geometry| geometry.blocks).min().unwrap_or(0);
        let entries = if options.parity { options.journal } else { 0 };
        let kept = if entries > 0 { Region::blocks(entries, chunk.into()) } else { 0 };
        let layout = Layout::new(members, chunk.into(), options.parity, least.saturating_sub(kept));
        if layout.stripes() == 0 {
            let expected = "one behind which there is room for the journal";
            return Err(Unfit { what: "stripes", found: 0, expected });
        }
        let new = |entries| {
            let superblock = Superblock::new(members, chunk.into());
            Journal::new(Region::behind(&layout), entries, superblock)
        };
        let journal = (entries > 0).then(|| new(entries));
        let transfer = all().map(|geometry| geometry.transfer_bytes_max).min().unwrap_or(0);
        let zeros = disks.iter().all(|disks| disks[0].deallocated() == Deallocated::Zeros);
        let deallocated = match options.parity {
            // Of zeros the parity is zero.
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
            stripe_wait: rt.stage(STAGES[0]),
            journal_wait: rt.stage(STAGES[1]),
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

    /// How blocks are laid over members.
    pub fn layout(&self) -> &Layout {
        &self.shared.layout
    }

    /// What has been done so far.
    pub fn counters(&self) -> Counters {
        self.shared.counters.get()
    }

    /// The member that is out, if one is.
    pub fn out(&self) -> Option<u32> {
        self.shared.out.get().map(|out| out.member)
    }

    /// Before anything else is asked of an array with a journal: finds out who is out, beside a member that
    /// is known to be missing, and carries out again the changes that may have been cut off. Gives how many.
    ///
    /// # Errors
    /// More than one member is out, or has failed.
    pub async fn start(&self, missing: Option<u32>) -> Result<u64, Unfit> {
        self.shared.start(self.number, missing).await
    }

    /// A member is out from now on, as if it had failed.
    pub fn take_out(&self, member: u32) {
        assert!(self.shared.layout.parity_of(0).is_some(), "without a parity nobody can be spared");
        self.shared.out.set(Some(Out { member, rebuilt: 0 }));
    }

    /// Another device takes the place of the member that is out: its disks, for each port. What it holds is
    /// not looked at before it is [rebuilt](Self::rebuild).
    ///
    /// # Panics
    /// If no member is out.
    pub fn replace(&self, disks: Vec<D>) {
        let out = self.shared.out.get().expect("a member is out");
        self.shared.disks.borrow_mut()[out.member as usize] = disks;
    }

    /// Writes to the member that was [replaced](Self::replace) what it has to hold, stripe by stripe, under
    /// whatever goes on. It is no longer out then.
    ///
    /// # Errors
    /// Something can't be read, or not be written: it stays out.
    pub async fn rebuild(&self) -> Result<(), IoError> {
        let shared = &self.shared;
        let Some(Out { member, rebuilt }) = shared.out.get() else { return Ok(()) };
        for stripe in rebuilt..shared.layout.stripes() {
            let _held = shared.stripes.hold(&shared.rt, (stripe, stripe + 1)).await;
            if shared.out.get() != Some(Out { member, rebuilt: stripe }) {
                return Err(IoError::of(Kind::Gone, None));
            }
            shared.rebuild_stripe(self.number, member, stripe).await?;
            shared.out.set(Some(Out { member, rebuilt: stripe + 1 }));
        }
        let Some(journal) = &shared.journal else {
            shared.out.set(None);
            return Ok(());
        };
        // What it holds outlives a power cut before anybody believes it.
        shared.flush_members(self.number).await?;
        shared.out.set(None);
        shared.settle(journal, self.number).await
    }

    /// Looks at all stripes, and makes their parity what it has to be: after members have lost their power.
    /// Gives how many were wrong.
    ///
    /// # Errors
    /// Something can't be read or written.
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

/// Whether they are enough, and alike.
fn validate<D: BlockDevice>(
    disks: &[Vec<D>],
    first: Geometry,
    options: &Options,
) -> Result<(), Unfit> {
    let unfit = |what, found, expected| Err(Unfit { what, found, expected });
    let least = if options.parity { 3 } else { 1 };
    let members = disks.len();
    if !(least..=MEMBERS_MAX).contains(&members) {
        return unfit("members", members as u64, "3 to 16 with a parity, else 1 to 16");
    }
    let chunk = u64::from(options.chunk_bytes);
    for geometry in disks.iter().map(|disks| disks[0].geometry()) {
        if geometry.block_bytes != first.block_bytes {
            return unfit("bytes of a block", geometry.block_bytes.into(), "those of the first");
        }
        let most = u64::from(geometry.transfer_bytes_max);
        if chunk == 0 || !chunk.is_multiple_of(geometry.block_bytes.into()) || chunk > most {
            return unfit("bytes of a chunk", chunk, "whole blocks, one command's at most");
        }
        let entry = chunk + u64::from(geometry.block_bytes);
        if options.parity && options.journal > 0 && entry > most {
            let expected = "with a block beside it, one command's at most: there is a journal";
            return unfit("bytes of a chunk", chunk, expected);
        }
    }
    Ok(())
}

impl<P: HostPort, D: BlockDevice + Clone> Shared<P, D> {
    /// Whether this stripe of a member can't be had from it.
    fn is_out(&self, member: u32, stripe: u64) -> bool {
        self.out.get().is_some_and(|out| out.member == member && stripe >= out.rebuilt)
    }

    /// A member has answered so: whether the array goes on without it.
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

    /// Whether there are more members out than a parity makes up for.
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
        // Seldom, and long.
        Box::pin(self.recover(Place { number, member, block }, &into, &way)).await
    }
}

/// Whether a member that fails so is of no more use.
fn is_lost(kind: Kind) -> bool {
    use Kind::{Closed, DeviceFailed, Gone, Reset, TimedOut};
    matches!(kind, Gone | Closed | TimedOut | DeviceFailed | Reset)
}

/// Whether what a member cannot give so is to be had of the others.
fn is_unreadable(kind: Kind) -> bool {
    matches!(kind, Kind::MediaFailed | Kind::Corrupted)
}

impl<P: HostPort, D: BlockDevice + Clone + 'static> Array<P, D> {
    /// Lets a task change stripes.
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

    /// Without a parity, writes need no order among themselves.
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
            // What has been acknowledged is in the journal.
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
