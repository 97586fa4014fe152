//! Flash as a medium: a translation layer over chips.

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;

use ftl::policy;
use ftl::{Asleep, Error, Ftl, MountError, Options, Pages, Processing};
use media::contents::{Keep, LABEL_BYTES_MAX};
use media::{
    Boxed, Capabilities, Erase, Extent, Head, Heat, Hints, Labels, Media, MediaError, Placed,
    Purge, Start, Wear, WriteThrough,
};
use runtime::{Rt, Signal, Span, Stage, Time, Waits, stage};

/// Stages recorded by a drive, in addition to those of its chips.
pub const STAGES: &[&str] = &[
    "mount",
    "flash software wait",
    "flash software",
    ftl::STAGES[0],
    ftl::STAGES[1],
    ftl::STAGES[2],
    ftl::STAGES[3],
    ftl::STAGES[4],
];

/// Bytes kept per block if the medium keeps only stamps.
const STAMP_BYTES: u32 = media::contents::STAMP_BYTES as u32;

static ZEROS: [u8; 4096] = [0; 4096];

fn of_flash(error: Error) -> MediaError {
    match error {
        Error::Range => MediaError::Range,
        Error::Unreadable => MediaError::Unreadable,
        Error::Full => MediaError::Full,
        Error::Stale => MediaError::Stale,
        _ => MediaError::WriteFault,
    }
}

/// Flash as a medium. The translation layer is mounted at start; operations issued earlier wait for it.
pub struct Drive<P: Pages> {
    rt: Rt,
    options: Options,
    unit_bytes: u32,
    erase_time: Option<Span>,
    keep: Keep,
    ready_within: Span,
    /// Result of the mount. Empty until it ends.
    mounted: OnceCell<Result<Ftl<P>, MountError>>,
    has_mounted: Signal,
    /// The flash itself. The label is stored outside the pages, so it is accessible without a mount.
    pages: Rc<P>,
    label: RefCell<Vec<u8>>,
    /// No write completes any more: see [`Drive::close`].
    is_closed: Cell<bool>,
    stages: Stages,
}

struct Stages {
    mount: Stage,
    software: Waits,
    buffer: Stage,
    flush: Stage,
}

impl<P: Pages> Drive<P> {
    /// Starts over new flash, or flash in the state that a power cut left. `label` is the stored label.
    pub fn start(
        rt: &Rt,
        pages: Rc<P>,
        options: Options,
        keep: Keep,
        label: Vec<u8>,
    ) -> Rc<Drive<P>> {
        let drive = Rc::new(Drive::new(rt, &pages, options, keep, label));
        let mounting = drive.clone();
        rt.spawn(async move {
            let drive = mounting;
            let mounted = Ftl::mount(&drive.rt, pages, &drive.options).await;
            drive.rt.log("flash", "mounted", u64::from(mounted.is_ok()), 0);
            let _ = drive.mounted.set(mounted);
            drive.has_mounted.notify(&drive.rt);
            drop(drive);
        });
        drive
    }

    /// Starts over flash that was shut down with its translation layer state (`asleep`), without a mount.
    /// Otherwise as [`start`](Drive::start).
    pub fn wake(
        rt: &Rt,
        pages: Rc<P>,
        options: Options,
        keep: Keep,
        label: Vec<u8>,
        asleep: Asleep,
    ) -> Rc<Drive<P>> {
        let drive = Drive::new(rt, &pages, options, keep, label);
        let _ = drive.mounted.set(Ftl::wake(rt, pages, &drive.options, asleep));
        Rc::new(drive)
    }

    fn new(rt: &Rt, pages: &Rc<P>, options: Options, keep: Keep, label: Vec<u8>) -> Drive<P> {
        let ready_within = ftl::mount_time(&**pages, &options);
        Drive {
            rt: rt.clone(),
            options,
            unit_bytes: pages.shape().unit_bytes,
            erase_time: ftl::purge_time(&**pages),
            keep,
            ready_within,
            mounted: OnceCell::new(),
            has_mounted: Signal::default(),
            pages: pages.clone(),
            label: RefCell::new(label),
            is_closed: Cell::new(false),
            stages: Stages {
                mount: stage!(rt, STAGES, "mount"),
                software: Waits {
                    turn: stage!(rt, STAGES, "flash software wait"),
                    service: stage!(rt, STAGES, "flash software"),
                },
                buffer: stage!(rt, STAGES, "buffer wait"),
                flush: stage!(rt, STAGES, "flush"),
            },
        }
    }

    /// Waits until the flash is mounted.
    ///
    /// # Errors
    /// The mount failed.
    pub async fn software(&self) -> Result<&Ftl<P>, MountError> {
        loop {
            if let Some(mounted) = self.mounted.get() {
                return mounted.as_ref().map_err(|error| *error);
            }
            self.has_mounted.changed(&self.rt, self.has_mounted.version()).await;
            self.rt.record(self.stages.mount);
        }
    }

    /// From now on no write or deallocation completes. So a flush that is called afterwards covers all that
    /// was ever acknowledged, also while controllers run that serve a host during the flush.
    pub fn close(&self) {
        self.is_closed.set(!self.options.mistakes.stays_open_at_power_off);
    }

    /// Units that hold some of these blocks.
    fn units_of(&self, at: Extent) -> u64 {
        let blocks = u64::from(self.unit_bytes / self.options.block_bytes);
        let end = at.block + u64::from(at.blocks);
        end.div_ceil(blocks).saturating_sub(at.block / blocks)
    }

    /// Takes the processor's time for a read, or for a write.
    async fn process(&self, software: &Ftl<P>, at: Extent, is_read: bool) {
        let times = &self.options.processing;
        if *times == Processing::default() {
            return;
        }
        let units = self.units_of(at);
        let each = match (is_read, units) {
            (false, _) => times.update,
            (true, 0..=1) => times.lookup,
            (true, _) => times.split_lookup,
        };
        if each == Span::ZERO {
            return;
        }
        let turn = software.process(each * units);
        self.rt.sleep_until(turn.end).await;
        self.rt.record_turn(self.stages.software, turn);
    }

    /// Ends a write: in a closed drive, never.
    async fn written(&self) {
        if self.is_closed.get() {
            core::future::pending::<()>().await;
        }
        self.rt.record(self.stages.buffer);
    }

    /// Bytes of a mapping unit.
    pub fn unit_bytes(&self) -> u32 {
        self.unit_bytes
    }

    /// The translation layer, if it is mounted.
    pub fn mounted(&self) -> Option<&Ftl<P>> {
        self.mounted.get()?.as_ref().ok()
    }

    /// Passes zeros for the gap between two runs; the reader's buffer may hold other bytes.
    fn zeros(&self, from: u32, to: u32, put: &mut dyn FnMut(u32, &[u8])) {
        let (most, step) = match self.keep {
            Keep::Everything => (ZEROS.len() as u32, ZEROS.len() as u32),
            Keep::Stamps => (STAMP_BYTES, self.options.block_bytes),
        };
        let mut at = match self.keep {
            Keep::Everything => from,
            Keep::Stamps => from.next_multiple_of(step),
        };
        while at < to {
            put(at, &ZEROS[..most.min(to - at) as usize]);
            at += step;
        }
    }

    /// The label, when the drive is no longer in use.
    pub fn into_label(self) -> Vec<u8> {
        self.label.into_inner()
    }
}

impl<P: Pages> Media for Drive<P> {
    fn blocks(&self) -> u64 {
        let bytes = u64::from(self.options.units) * u64::from(self.unit_bytes);
        bytes / u64::from(self.options.block_bytes)
    }

    fn block_bytes(&self) -> u32 {
        self.options.block_bytes
    }

    fn head(&self) -> Option<Head> {
        match self.keep {
            Keep::Everything => None,
            Keep::Stamps => Some(Head { bytes: STAMP_BYTES, of: self.options.block_bytes }),
        }
    }

    /// Senses all pages in parallel. When it returns, the data are in the device's memory, or unmapped.
    async fn read(&self, at: Extent) -> Result<Time, MediaError> {
        let software = self.software().await.map_err(|_| MediaError::Unreadable)?;
        self.process(software, at, true).await;
        software.read(at.block, at.blocks).await.map_err(of_flash)?;
        Ok(Time::ZERO)
    }

    fn runs(&self, at: Extent, put: &mut dyn FnMut(u32, &[u8])) -> Result<(), MediaError> {
        self.runs_placed(at, &[], put)
    }

    /// Returns when the data are in the write buffer, or on flash if the buffer does not survive a power cut.
    async fn write(&self, at: Extent, data: &[u8]) -> Result<(), MediaError> {
        let software = self.software().await.map_err(|_| MediaError::WriteFault)?;
        self.process(software, at, false).await;
        software.write(at.block, data).await.map_err(of_flash)?;
        self.written().await;
        Ok(())
    }

    async fn deallocate(&self, at: Extent) -> Result<(), MediaError> {
        let software = self.software().await.map_err(|_| MediaError::WriteFault)?;
        software.trim(at.block, at.blocks).await.map_err(of_flash)?;
        self.written().await;
        Ok(())
    }

    async fn flush(&self) -> Result<(), MediaError> {
        let software = self.software().await.map_err(|_| MediaError::WriteFault)?;
        software.flush().await.map_err(of_flash)?;
        self.rt.record(self.stages.flush);
        Ok(())
    }

    fn capabilities(&self) -> Capabilities<'_> {
        Capabilities {
            start: Some(self),
            placed: Some(self),
            hints: Some(self),
            labels: Some(self),
            // Pages hold their data until their block is erased.
            purge: Purge::Whole(self),
            wear: Some(self),
            ..Capabilities::default()
        }
    }
}

impl<P: Pages> WriteThrough for Drive<P> {
    async fn write_through(&self, at: Extent, data: &[u8]) -> Result<(), MediaError> {
        let software = self.software().await.map_err(|_| MediaError::WriteFault)?;
        self.process(software, at, false).await;
        software.write_through(at.block, data).await.map_err(of_flash)?;
        self.written().await;
        Ok(())
    }
}

impl<P: Pages> Start for Drive<P> {
    /// Also returns if the mount failed; later operations then fail.
    fn ready(&self) -> Boxed<'_, ()> {
        Box::pin(async {
            self.software().await.ok();
        })
    }

    fn ready_within(&self) -> Span {
        self.ready_within
    }
}

impl<P: Pages> Placed for Drive<P> {
    fn read_placed<'a>(
        &'a self,
        at: Extent,
        places: &'a [u32],
    ) -> Boxed<'a, Result<Time, MediaError>> {
        Box::pin(async move {
            let software = self.software().await.map_err(|_| MediaError::Unreadable)?;
            software.read_placed(at.block, at.blocks, places).await.map_err(of_flash)?;
            Ok(Time::ZERO)
        })
    }

    fn runs_placed(
        &self,
        at: Extent,
        places: &[u32],
        put: &mut dyn FnMut(u32, &[u8]),
    ) -> Result<(), MediaError> {
        let software = self.mounted().ok_or(MediaError::Unreadable)?;
        let mut seen = 0;
        let scratch_guard =
            software.lend_placed(at.block, at.blocks, places, &mut |offset, run| {
                self.zeros(seen, offset, put);
                put(offset, run);
                seen = offset + run.len() as u32;
            });
        scratch_guard.map_err(of_flash)?;
        self.zeros(seen, at.blocks * self.options.block_bytes, put);
        Ok(())
    }
}

impl<P: Pages> Hints for Drive<P> {
    /// Hints are advice: one that comes before the mount is lost.
    fn hint(&self, block: u64, blocks: u64, heat: Heat) {
        let heat = match heat {
            Heat::Typical => policy::Heat::Typical,
            Heat::Hot => policy::Heat::Hot,
            Heat::Cold => policy::Heat::Cold,
        };
        let _ = self.mounted().map(|software| software.hint(block, blocks, heat));
    }
}

impl<P: Pages> Wear for Drive<P> {
    fn percent_used(&self) -> u8 {
        self.pages.percent_used()
    }
}

impl<P: Pages> Erase for Drive<P> {
    fn erase_time(&self) -> Option<Span> {
        self.erase_time
    }

    fn erase<'a>(
        &'a self,
        progress: &'a mut dyn FnMut(u32, u32),
    ) -> Boxed<'a, Result<(), MediaError>> {
        Box::pin(async move {
            let software = self.software().await.map_err(|_| MediaError::WriteFault)?;
            software.purge(progress).await.map_err(of_flash)
        })
    }
}

/// The label is in separate cells of the controller and is written atomically with respect to power cuts.
impl<P: Pages> Labels for Drive<P> {
    fn label(&self) -> Vec<u8> {
        self.label.borrow().clone()
    }

    fn set_label(&self, label: &[u8]) -> Result<(), MediaError> {
        if label.len() > LABEL_BYTES_MAX {
            return Err(MediaError::WriteFault);
        }
        self.pages.keep_beside(label).map_err(|why| of_flash(why.into()))?;
        *self.label.borrow_mut() = label.to_vec();
        Ok(())
    }
}
