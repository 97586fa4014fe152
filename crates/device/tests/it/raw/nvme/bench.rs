//! A medium for tests: accessible contents, a configurable access time, and a gate that holds commands in
//! flight.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use media::contents::{Backing, Keep, Spec};
use media::{
    BlockMetadata, Boxed, Capabilities, Contents, Extent, Heat, Hints, Labels, Media, MediaError,
    Metadata, Placed,
};
use runtime::{Rt, Signal, Span, Time};

use super::flash::Flash;
use super::watch::Witness;

pub struct Bench {
    rt: Rt,
    contents: RefCell<Contents>,
    blocks: u64,
    block_bytes: u32,
    /// Duration of each medium access.
    pub span: Cell<Span>,
    closed: Cell<bool>,
    opened: Signal,
    /// Accesses that wait at the gate.
    pub waiting: Cell<u32>,
    pub flushes: Cell<u32>,
    /// Error of the next access.
    pub fails: Cell<Option<MediaError>>,
    /// Error of an access after the given number of others.
    pub fails_after: Cell<Option<(u32, MediaError)>>,
    /// True if the medium stores a label.
    pub labelled: Cell<bool>,
    /// True if storing a label fails.
    pub label_fails: Cell<bool>,
    /// True if the medium stores metadata.
    pub metadata: Cell<bool>,
    /// Checks that each write was requested by a command.
    pub witness: RefCell<Option<Rc<Witness>>>,
    /// Written and deallocated extents, in order.
    pub written: RefCell<Vec<Extent>>,
    /// Deallocated extents, in order; also in `written`.
    pub deallocated: RefCell<Vec<Extent>>,
    pub read: RefCell<Vec<Extent>>,
    /// Hints: first block, blocks, frequency of writes.
    pub hints: RefCell<Vec<(u64, u64, Heat)>>,
    /// Places of reads that named some.
    pub places: RefCell<Vec<Vec<u32>>>,
    /// Flash offered for host-directed GC.
    pub flash: Rc<Flash>,
}

impl Bench {
    pub fn new(rt: &Rt, blocks: u64, block_bytes: u32) -> Bench {
        let spec = Spec {
            capacity_bytes: blocks * u64::from(block_bytes),
            block_bytes,
            keep: Keep::Everything,
            backing: Backing::Memory,
        };
        Bench {
            rt: rt.clone(),
            contents: RefCell::new(Contents::new(spec).expect("a capacity of sense")),
            blocks,
            block_bytes,
            span: Cell::new(Span::us(1)),
            closed: Cell::new(false),
            opened: Signal::default(),
            waiting: Cell::new(0),
            flushes: Cell::new(0),
            fails: Cell::new(None),
            fails_after: Cell::new(None),
            labelled: Cell::new(true),
            label_fails: Cell::new(false),
            metadata: Cell::new(false),
            witness: RefCell::default(),
            written: RefCell::default(),
            deallocated: RefCell::default(),
            read: RefCell::default(),
            hints: RefCell::default(),
            places: RefCell::default(),
            flash: Rc::new(Flash::new(rt)),
        }
    }

    /// Makes accesses and flushes wait from now on.
    pub fn close(&self) {
        self.closed.set(true);
    }

    pub fn open(&self) {
        self.closed.set(false);
        self.opened.notify(&self.rt);
    }

    /// Returns when `accesses` accesses wait at the gate.
    pub async fn until_waiting(&self, accesses: u32) {
        while self.waiting.get() < accesses {
            self.rt.sleep(Span::us(1)).await;
        }
    }

    /// Contents of the medium from this block on.
    pub fn peek(&self, block: u64, bytes: usize) -> Vec<u8> {
        let mut data = vec![0; bytes];
        let offset = block * u64::from(self.block_bytes);
        self.contents.borrow().read_into(offset, &mut data).expect("blocks of the medium");
        data
    }

    /// Writes contents behind the controller's back.
    pub fn poke(&self, block: u64, data: &[u8]) {
        let offset = block * u64::from(self.block_bytes);
        self.contents.borrow_mut().write(offset, data).expect("blocks of the medium");
    }

    async fn pass(&self) -> Result<(), MediaError> {
        let waits = Waits(&self.waiting);
        self.waiting.set(self.waiting.get() + 1);
        while self.closed.get() {
            self.opened.changed(&self.rt, self.opened.version()).await;
        }
        drop(waits);
        if self.span.get() > Span::ZERO {
            self.rt.sleep(self.span.get()).await;
        }
        match self.fails_after.take() {
            Some((0, error)) => return Err(error),
            Some((others, error)) => self.fails_after.set(Some((others - 1, error))),
            None => {}
        }
        self.fails.take().map_or(Ok(()), Err)
    }

    fn check(&self, at: Extent) -> Result<(), MediaError> {
        let inside = at.blocks > 0
            && at.block <= self.blocks
            && u64::from(at.blocks) <= self.blocks - at.block;
        if inside { Ok(()) } else { Err(MediaError::Range) }
    }
}

/// Counts an access at the gate, whether it passes or is dropped there.
struct Waits<'a>(&'a Cell<u32>);

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl Media for Bench {
    fn blocks(&self) -> u64 {
        self.blocks
    }

    fn block_bytes(&self) -> u32 {
        self.block_bytes
    }

    async fn read(&self, at: Extent) -> Result<Time, MediaError> {
        self.check(at)?;
        self.read.borrow_mut().push(at);
        self.pass().await?;
        Ok(Time::ZERO)
    }

    fn runs(&self, at: Extent, put: &mut dyn FnMut(u32, &[u8])) -> Result<(), MediaError> {
        self.check(at)?;
        let contents = self.contents.borrow();
        let offset = at.block * u64::from(self.block_bytes);
        let bytes = at.blocks * self.block_bytes;
        contents.runs(offset, bytes, &mut |o, run| put(o, run)).map_err(|_| MediaError::Unreadable)
    }

    async fn write(&self, at: Extent, data: &[u8]) -> Result<(), MediaError> {
        self.check(at)?;
        assert_eq!(data.len() as u64, u64::from(at.blocks) * u64::from(self.block_bytes));
        if let Some(witness) = &*self.witness.borrow() {
            let asked = witness.asked_to_write(at.block, at.blocks);
            assert!(asked, "{at:?} is written, and no command has asked for it");
        }
        self.pass().await?;
        self.written.borrow_mut().push(at);
        self.poke(at.block, data);
        Ok(())
    }

    async fn deallocate(&self, at: Extent) -> Result<(), MediaError> {
        self.check(at)?;
        if let Some(witness) = &*self.witness.borrow() {
            let asked = witness.asked_to_write(at.block, at.blocks);
            assert!(asked, "{at:?} is taken back, and no command has asked for it");
        }
        self.pass().await?;
        self.written.borrow_mut().push(at);
        self.deallocated.borrow_mut().push(at);
        let (offset, bytes) = (at.block, u64::from(at.blocks));
        let block = u64::from(self.block_bytes);
        let done = self.contents.borrow_mut().discard(offset * block, bytes * block);
        done.map_err(|_| MediaError::WriteFault)
    }

    fn capabilities(&self) -> Capabilities<'_> {
        Capabilities {
            placed: Some(self),
            hints: Some(self),
            labels: self.labelled.get().then_some(self as _),
            metadata: self.metadata.get().then_some(self as _),
            ..Capabilities::default()
        }
    }

    async fn flush(&self) -> Result<(), MediaError> {
        self.pass().await?;
        self.flushes.set(self.flushes.get() + 1);
        Ok(())
    }
}

impl Placed for Bench {
    fn read_placed<'a>(
        &'a self,
        at: Extent,
        places: &'a [u32],
    ) -> Boxed<'a, Result<Time, MediaError>> {
        self.places.borrow_mut().push(places.to_vec());
        Box::pin(self.read(at))
    }

    fn runs_placed(
        &self,
        at: Extent,
        _: &[u32],
        put: &mut dyn FnMut(u32, &[u8]),
    ) -> Result<(), MediaError> {
        self.runs(at, put)
    }
}

impl Hints for Bench {
    fn hint(&self, block: u64, blocks: u64, heat: Heat) {
        assert!(block <= self.blocks && blocks <= self.blocks - block, "{blocks} from {block}");
        self.hints.borrow_mut().push((block, blocks, heat));
    }
}

impl Labels for Bench {
    fn label(&self) -> Vec<u8> {
        self.contents.borrow().label().to_vec()
    }

    fn set_label(&self, label: &[u8]) -> Result<(), MediaError> {
        if self.label_fails.get() {
            return Err(MediaError::WriteFault);
        }
        let done = self.contents.borrow_mut().set_label(label);
        done.map_err(|_| MediaError::WriteFault)
    }
}

impl BlockMetadata for Bench {
    fn metadata_of(&self, block: u64) -> Result<Metadata, MediaError> {
        self.contents.borrow().metadata(block).map_err(|_| MediaError::Range)
    }

    fn set_metadata(&self, block: u64, metadata: Metadata) -> Result<(), MediaError> {
        let done = self.contents.borrow_mut().set_metadata(block, metadata);
        done.map_err(|_| MediaError::Range)
    }
}
