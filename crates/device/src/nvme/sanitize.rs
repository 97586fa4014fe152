//! Sanitize (NVMe base 2.0, 5.24 and 8.21): everything that the medium holds is erased or overwritten, behind
//! the command's completion.
//!
//! What is under way, and how the last one ended, lies in the label beside the blocks. So neither a reset
//! nor a power cut ends it: a controller that finds one under way goes on with the pass that was.
//! Meanwhile, and after one that has failed, the namespaces' doors are shut, which every I/O command
//! looks at anyway.

use std::cell::Cell;
use std::rc::Rc;

use bus::DevicePort;
use media::{Erase, Extent, Media, Purge};
use runtime::{Signal, Span};
use wire::QueueId;
use wire::nvme::admin::{Command, Sanitize, SanitizeAction};
use wire::nvme::event::AsyncEvent;
use wire::nvme::log::{SanitizeStatus, lid, sanicap};
use wire::nvme::status::Status;
use zerocopy::FromZeros;

use super::namespace::Door;
use super::self_test::Ended;
use super::slot::Cut;
use super::{Controller, DEALLOCATE_BYTES, PIECE_BYTES};

/// Bytes of a record in the label: how the last one stands, what it was, passes that have ended, and whether
/// nothing was written since.
pub(super) const KEPT_BYTES: usize = 11;

/// How the last one stands: SSTAT.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stands {
    /// There was none.
    #[default]
    Never = 0,
    Done = 1,
    UnderWay = 2,
    Failed = 3,
    /// It has failed, and the host has left that behind.
    FailedAndLeft = 4,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Record {
    stands: Stands,
    what: Sanitize,
    passes: u8,
}

/// The one that is under way, or was the last.
#[derive(Default)]
pub(super) struct Sanitizing {
    record: Cell<Record>,
    /// Nothing was written since the last that went well.
    clean: Cell<bool>,
    /// How much of it is done, in 65,536ths.
    progress: Cell<u16>,
    pub changed: Signal,
}

impl Sanitizing {
    /// As the label has it.
    pub fn store(&self, label: &mut Vec<u8>) {
        let Record { stands, what, passes } = self.record.get();
        let (dword10, pattern) = what.into_dwords();
        label.push(stands as u8);
        label.extend(dword10.to_le_bytes());
        label.extend(pattern.to_le_bytes());
        label.extend([passes, self.clean.get().into()]);
    }

    /// The reverse, if it makes sense; what follows in the label. One from before there was Sanitize has
    /// nothing here.
    pub fn recall<'a>(&self, label: &'a [u8]) -> Option<&'a [u8]> {
        let Some((&[stands, a, b, c, d, e, f, g, h, passes, clean], rest)) =
            label.split_first_chunk::<KEPT_BYTES>()
        else {
            return label.is_empty().then_some(label);
        };
        let stands = match stands {
            0 => Stands::Never,
            1 => Stands::Done,
            2 => Stands::UnderWay,
            3 => Stands::Failed,
            4 => Stands::FailedAndLeft,
            _ => return None,
        };
        let dwords = (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]));
        let what = Sanitize::from_dwords(dwords.0, dwords.1).ok()?;
        if passes > what.passes || bit_of(what.action) == 0 {
            return None;
        }
        self.record.set(Record { stands, what, passes });
        self.clean.set(clean == 1 && stands == Stands::Done);
        Some(rest)
    }

    /// What commands find at the namespaces.
    pub fn door(&self) -> Door {
        match self.record.get().stands {
            Stands::UnderWay => Door::Sanitizing,
            Stands::Failed => Door::FailedSanitize,
            Stands::Never | Stands::Done | Stands::FailedAndLeft => Door::Open,
        }
    }

    /// The log page.
    fn page(&self) -> SanitizeStatus {
        let Record { stands, what, passes } = self.record.get();
        let mut page = SanitizeStatus::new_zeroed();
        page.progress = u16::MAX.into();
        if stands == Stands::UnderWay {
            page.progress = self.progress.get().into();
        }
        let stands_for = match stands {
            Stands::FailedAndLeft => Stands::Failed as u16,
            other => other as u16,
        };
        let clean = if self.clean.get() { SanitizeStatus::GLOBAL_DATA_ERASED } else { 0 };
        page.status = (stands_for | u16::from(passes) << 3 | clean).into();
        if stands != Stands::Never {
            page.dword10 = what.into_dwords().0.into();
        }
        // How long one takes depends on the medium.
        page.times.fill(u32::MAX.into());
        page
    }
}

/// The bit of SANICAP that an action needs; none: it is none that sanitizes.
fn bit_of(action: SanitizeAction) -> u32 {
    match action {
        SanitizeAction::ExitFailure => 0,
        SanitizeAction::BlockErase => sanicap::BLOCK_ERASE,
        SanitizeAction::Overwrite => sanicap::OVERWRITE,
        SanitizeAction::CryptoErase => sanicap::CRYPTO_ERASE,
    }
}

/// What the controller still does while one is under way, or after one has failed.
fn is_allowed(command: &Command) -> bool {
    match command {
        Command::GetLogPage(ask) => [
            lid::ERROR,
            lid::SMART_HEALTH,
            lid::CHANGED_NAMESPACES,
            lid::RESERVATION,
            lid::SANITIZE,
        ]
        .contains(&ask.lid),
        // It has more to say itself.
        Command::Sanitize(_) => true,
        Command::Abort { .. }
        | Command::AsyncEventRequest
        | Command::CreateCq(_)
        | Command::CreateSq(_)
        | Command::DeleteCq { .. }
        | Command::DeleteSq { .. }
        | Command::GetFeatures { .. }
        | Command::SetFeatures(_)
        | Command::Identify(_)
        | Command::KeepAlive => true,
        _ => false,
    }
}

impl<P: DevicePort, M: Media> Controller<P, M> {
    fn sanitizing(&self) -> &Sanitizing {
        &self.namespaces.sanitizing
    }

    /// SANICAP. Nothing is encrypted, so that there is no key to forget; what a page of flash holds can't be
    /// overwritten. Blocks that are not deallocated stay as the last pass has left them.
    pub(super) fn sanitizing_capabilities(&self) -> u32 {
        match self.media.purge() {
            Purge::Whole(_) => sanicap::BLOCK_ERASE | sanicap::NOT_MODIFIED_AFTERWARDS,
            Purge::ByBlock => {
                sanicap::BLOCK_ERASE | sanicap::OVERWRITE | sanicap::NOT_MODIFIED_AFTERWARDS
            }
            Purge::Unsupported => 0,
        }
    }

    /// That an admin command may be done now.
    pub(super) fn admit(&self, command: &Command) -> Result<(), Status> {
        let refusal = self.sanitizing().door().refusal();
        if is_allowed(command) { Ok(()) } else { refusal.map_or(Ok(()), Err) }
    }

    /// Whether the blocks that errors were about are to be kept secret.
    pub(super) fn hides_blocks(&self) -> bool {
        self.sanitizing().door() != Door::Open
    }

    /// Begins one, or leaves a failure behind.
    pub(super) async fn sanitize(&self, what: Sanitize) -> Result<u32, Status> {
        let record = self.sanitizing().record.get();
        let exits = what.action == SanitizeAction::ExitFailure;
        if !exits && bit_of(what.action) & self.sanitizing_capabilities() == 0 {
            return Err(Status::INVALID_FIELD);
        }
        match record.stands {
            Stands::UnderWay => return Err(Status::SANITIZE_IN_PROGRESS),
            // What was begun without leave to fail is got out of by another like it alone.
            Stands::Failed if !record.what.unrestricted && (exits || what.unrestricted) => {
                return Err(Status::SANITIZE_FAILED);
            }
            Stands::Failed if exits => {
                let left = Record { stands: Stands::FailedAndLeft, ..record };
                return self.stand(left).map(|()| 0);
            }
            _ if exits => return Ok(0),
            _ => {}
        }
        self.namespaces.must_be_settled()?;
        self.pass_all()?;
        self.end_self_test(Ended::BySanitize, |_| true);
        self.sanitizing().clean.set(false);
        self.sanitizing().progress.set(0);
        self.stand(Record { stands: Stands::UnderWay, what, passes: 0 })?;
        self.sanitizing().changed.notify(&self.rt);
        Ok(0)
    }

    /// So it stands from now on, for good; if that cannot be kept, as before.
    fn stand(&self, record: Record) -> Result<(), Status> {
        let before = self.sanitizing().record.replace(record);
        self.namespaces.shut_doors();
        self.namespaces.keep(&*self.media).map_err(|error| {
            self.sanitizing().record.set(before);
            self.namespaces.shut_doors();
            self.failed(error)
        })
    }

    /// The life of whoever sanitizes: one after another, beginning with what a power cut has left.
    pub(super) async fn run_sanitizes(self: Rc<Self>) {
        loop {
            let version = self.sanitizing().changed.version();
            let Record { stands, what, .. } = self.sanitizing().record.get();
            if stands != Stands::UnderWay || !self.members.is_first(&self.member) {
                self.sanitizing().changed.changed(&self.rt, version).await;
                continue;
            }
            self.rt.log("device", "sanitize", what.into_dwords().0.into(), 0);
            self.drain_io().await;
            let done = self.cleanse(what).await;
            self.sanitizing().clean.set(done.is_ok());
            let stands = if done.is_ok() { Stands::Done } else { Stands::Failed };
            let record = self.sanitizing().record.get();
            if self.stand(Record { stands, ..record }).is_err() {
                // It is as good as failed, and after a power cut it begins again.
                self.sanitizing().clean.set(false);
                self.sanitizing().record.set(Record { stands: Stands::Failed, ..record });
                self.namespaces.shut_doors();
            }
            self.rt.log("device", "sanitized", stands as u64, 0);
            self.members.all().iter().for_each(|one| one.tell(&self.rt, AsyncEvent::SANITIZED));
        }
    }

    /// Cuts the I/O commands that have passed the doors, and waits until none of them can do any more.
    async fn drain_io(&self) {
        let inside =
            |slot: &super::Slot| slot.busy.get().is_some_and(|(qid, _)| qid != QueueId::ADMIN);
        let why = Cut::With(Status::SANITIZE_IN_PROGRESS);
        self.members.drain(&self.rt, why, |_, slot| inside(slot) && !slot.completing.get()).await;
    }

    async fn cleanse(&self, what: Sanitize) -> Result<(), Status> {
        self.media.ready().await;
        let overwrites = if what.action == SanitizeAction::Overwrite { what.passes } else { 0 };
        let erases = overwrites == 0 || !what.keep_allocated;
        let steps = u32::from(overwrites) + u32::from(erases);
        for pass in self.sanitizing().record.get().passes..overwrites {
            let bytes = what.pattern_of(pass).to_le_bytes().repeat(PIECE_BYTES as usize / 4);
            self.over_all(PIECE_BYTES, (pass.into(), steps), async |at| {
                let bytes = &bytes[..(at.blocks * self.block_bytes) as usize];
                self.media.write(at, bytes).await
            })
            .await?;
            self.flush().await?;
            let record = self.sanitizing().record.get();
            self.stand(Record { passes: pass + 1, ..record })?;
        }
        if let Some(whole) = self.media.purge().whole() {
            self.erase_at_once(whole).await?;
        } else if erases {
            let step = (steps - 1, steps);
            self.over_all(DEALLOCATE_BYTES, step, async |at| self.media.deallocate(at).await)
                .await?;
        }
        self.flush().await
    }

    async fn erase_at_once(&self, whole: &dyn Erase) -> Result<(), Status> {
        let mut progress = |done, of| {
            let progress = u64::from(done) * 65_536 / u64::from(of);
            self.sanitizing().progress.set(progress.min(65_535) as u16);
        };
        whole.erase(&mut progress).await.map_err(|error| self.failed(error))?;
        self.namespaces.marks.clear_all();
        Ok(())
    }

    /// Does this to the whole medium, so many bytes at a time; it is one of so many steps.
    async fn over_all(
        &self,
        bytes: u32,
        (step, steps): (u32, u32),
        each: impl AsyncFn(Extent) -> Result<(), media::MediaError>,
    ) -> Result<(), Status> {
        let (all, most) = (self.media.blocks(), u64::from(bytes / self.block_bytes));
        let mut block = 0;
        while block < all {
            let at = Extent { block, blocks: most.min(all - block) as u32 };
            each(at).await.map_err(|error| self.failed(error))?;
            self.namespaces.marks.clear(at);
            block += u64::from(at.blocks);
            let done = u128::from(all) * u128::from(step) + u128::from(block);
            let progress = done * 65_536 / (u128::from(all) * u128::from(steps));
            self.sanitizing().progress.set(progress.min(65_535) as u16);
            self.rt.yield_now().await;
        }
        Ok(())
    }

    /// Something is going to be written: from now on it is no longer so that nothing was.
    #[inline]
    pub(super) fn mark_dirty(&self) -> Result<(), Status> {
        if self.sanitizing().clean.get() { self.mark_dirty_for_good() } else { Ok(()) }
    }

    #[cold]
    fn mark_dirty_for_good(&self) -> Result<(), Status> {
        self.sanitizing().clean.set(false);
        self.namespaces.keep(&*self.media).map_err(|error| {
            self.sanitizing().clean.set(true);
            self.failed(error)
        })
    }

    pub(super) fn sanitize_page(&self) -> SanitizeStatus {
        let mut page = self.sanitizing().page();
        if let Some(time) = self.media.purge().whole().and_then(|whole| whole.erase_time()) {
            let seconds = time.0.div_ceil(Span::s(1).0).min(u64::from(u32::MAX) - 1);
            page.times[SanitizeStatus::BLOCK_ERASE] = (seconds as u32).into();
        }
        page
    }
}
