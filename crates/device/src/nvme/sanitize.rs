//! Sanitize (NVMe base 2.0, 5.24 and 8.21): erases or overwrites all contents of the medium, in the
//! background.
//!
//! The state and the last result are in the medium's label, so neither a reset nor a power cut ends an
//! operation: a controller that finds one in progress resumes it with the current pass. During the operation,
//! and after a failed one, the access state of all namespaces rejects I/O; every I/O command checks it
//! anyway.
//!
//! Sanitize is offered only where nothing of the old contents is left: by overwriting blocks
//! ([`Purge::ByBlock`]), or where the medium erases itself at once ([`Purge::Whole`]), as flash does, whose
//! pages hold their data until their block is erased. `ftl` stops its tasks, writes a root of an empty map,
//! erases every block, and starts again with the known wear. It is not offered beside DC Express, whose
//! queues have no access states.

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

use super::access::Door;
use super::self_test::Ended;
use super::slot::{Cut, Slot};
use super::{Controller, DEALLOCATE_BYTES, PIECE_BYTES};

/// Record in the label, bytes: status, command, completed passes, and whether the medium is unwritten since.
pub(super) const KEPT_BYTES: usize = 11;

/// Status of the last sanitize operation: SSTAT.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stands {
    /// None so far.
    #[default]
    Never = 0,
    Done = 1,
    UnderWay = 2,
    Failed = 3,
    /// Failed, and the host has left the failure mode.
    FailedAndLeft = 4,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Record {
    stands: Stands,
    what: Sanitize,
    passes: u8,
}

/// The operation in progress, or the last one.
#[derive(Default)]
pub(super) struct Sanitizing {
    record: Cell<Record>,
    /// True if nothing was written since the last successful operation.
    clean: Cell<bool>,
    /// Progress in units of 1/65,536.
    progress: Cell<u16>,
    pub changed: Signal,
}

impl Sanitizing {
    /// Writes the state to a label.
    pub fn store(&self, label: &mut Vec<u8>) {
        let Record { stands, what, passes } = self.record.get();
        let (dword10, pattern) = what.into_dwords();
        label.push(stands as u8);
        label.extend(dword10.to_le_bytes());
        label.extend(pattern.to_le_bytes());
        label.extend([passes, self.clean.get().into()]);
    }

    /// Reads the state from a label, if valid. Returns the rest of the label. Older labels have no state.
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

    /// Access state of the namespaces.
    pub fn door(&self) -> Door {
        match self.record.get().stands {
            Stands::UnderWay => Door::Sanitizing,
            Stands::Failed => Door::FailedSanitize,
            Stands::Never | Stands::Done | Stands::FailedAndLeft => Door::Open,
        }
    }

    /// The Sanitize Status log page.
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
        // Estimated times: unknown, because they depend on the medium.
        page.times.fill(u32::MAX.into());
        page
    }
}

/// SANICAP bit required by an action; 0 if it does not sanitize.
fn bit_of(action: SanitizeAction) -> u32 {
    match action {
        SanitizeAction::ExitFailure => 0,
        SanitizeAction::BlockErase => sanicap::BLOCK_ERASE,
        SanitizeAction::Overwrite => sanicap::OVERWRITE,
        SanitizeAction::CryptoErase => sanicap::CRYPTO_ERASE,
    }
}

/// Returns true if an admin command is allowed during an operation, or after a failed one.
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
        // It has checks of its own.
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
        &self.shared.namespaces.sanitizing
    }

    /// SANICAP. There is no encryption, so no crypto erase; flash pages cannot be overwritten. Blocks that
    /// are not deallocated keep the data of the last pass.
    pub(super) fn sanitizing_capabilities(&self) -> u32 {
        match self.media.capabilities().purge {
            Purge::Whole(_) => sanicap::BLOCK_ERASE | sanicap::NOT_MODIFIED_AFTERWARDS,
            Purge::ByBlock => {
                sanicap::BLOCK_ERASE | sanicap::OVERWRITE | sanicap::NOT_MODIFIED_AFTERWARDS
            }
            Purge::Unsupported => 0,
        }
    }

    /// Checks that an admin command is allowed now.
    pub(super) fn admit(&self, command: &Command) -> Result<(), Status> {
        let refusal = self.sanitizing().door().refusal();
        if is_allowed(command) { Ok(()) } else { refusal.map_or(Ok(()), Err) }
    }

    /// Returns true if the error log must hide LBAs.
    pub(super) fn hides_blocks(&self) -> bool {
        self.sanitizing().door() != Door::Open
    }

    /// Starts an operation, or leaves the failure mode.
    pub(super) async fn sanitize(&self, what: Sanitize) -> Result<u32, Status> {
        let record = self.sanitizing().record.get();
        let exits = what.action == SanitizeAction::ExitFailure;
        if !exits && bit_of(what.action) & self.sanitizing_capabilities() == 0 {
            return Err(Status::INVALID_FIELD);
        }
        match record.stands {
            Stands::UnderWay => return Err(Status::SANITIZE_IN_PROGRESS),
            // A failed restricted operation can only be followed by another restricted one.
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
        self.shared.namespaces.must_be_settled()?;
        self.pass_all()?;
        self.end_self_test(Ended::BySanitize, |_| true);
        self.sanitizing().clean.set(false);
        self.sanitizing().progress.set(0);
        self.stand(Record { stands: Stands::UnderWay, what, passes: 0 })?;
        self.sanitizing().changed.notify(&self.rt);
        Ok(0)
    }

    /// Sets and stores the state; restores the previous one if that fails.
    fn stand(&self, record: Record) -> Result<(), Status> {
        let before = self.sanitizing().record.replace(record);
        self.shared.namespaces.shut_doors();
        self.shared.namespaces.keep(&*self.media).map_err(|error| {
            self.sanitizing().record.set(before);
            self.shared.namespaces.shut_doors();
            self.failed(error)
        })
    }

    /// Task that executes sanitize operations, first one interrupted by a power cut.
    pub(super) async fn run_sanitizes(self: Rc<Self>) {
        loop {
            let version = self.sanitizing().changed.version();
            let Record { stands, what, .. } = self.sanitizing().record.get();
            if stands != Stands::UnderWay || !self.shared.members.is_first(&self.shared.member) {
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
                // Treated as failed; restarts after a power cut.
                self.sanitizing().clean.set(false);
                self.sanitizing().record.set(Record { stands: Stands::Failed, ..record });
                self.shared.namespaces.shut_doors();
            }
            self.rt.log("device", "sanitized", stands as u64, 0);
            self.shared
                .members
                .all()
                .iter()
                .for_each(|one| one.tell(&self.rt, AsyncEvent::SANITIZED));
        }
    }

    /// Cancels the I/O commands that were already admitted, and waits until they have no further effect.
    async fn drain_io(&self) {
        let inside = |slot: &Slot| slot.busy.get().is_some_and(|(qid, _)| qid != QueueId::ADMIN);
        let why = Cut::With(Status::SANITIZE_IN_PROGRESS);
        self.shared
            .members
            .drain(&self.rt, why, |_, slot| inside(slot) && !slot.completing.get())
            .await;
    }

    async fn cleanse(&self, what: Sanitize) -> Result<(), Status> {
        media::ready(&*self.media).await;
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
        if let Some(whole) = self.media.capabilities().purge.whole() {
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
        self.shared.namespaces.marks.clear_all();
        Ok(())
    }

    /// Applies `each` to the whole medium in steps of `bytes` bytes. Progress is that of step `step` of
    /// `steps`.
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
            self.shared.namespaces.marks.clear(at);
            block += u64::from(at.blocks);
            let done = u128::from(all) * u128::from(step) + u128::from(block);
            let progress = done * 65_536 / (u128::from(all) * u128::from(steps));
            self.sanitizing().progress.set(progress.min(65_535) as u16);
            self.rt.yield_now().await;
        }
        Ok(())
    }

    /// Records that the medium will be written to after a successful sanitize.
    #[inline]
    pub(super) fn mark_dirty(&self) -> Result<(), Status> {
        if self.sanitizing().clean.get() { self.mark_dirty_for_good() } else { Ok(()) }
    }

    #[cold]
    fn mark_dirty_for_good(&self) -> Result<(), Status> {
        self.sanitizing().clean.set(false);
        self.shared.namespaces.keep(&*self.media).map_err(|error| {
            self.sanitizing().clean.set(true);
            self.failed(error)
        })
    }

    pub(super) fn sanitize_page(&self) -> SanitizeStatus {
        let mut page = self.sanitizing().page();
        if let Some(time) =
            self.media.capabilities().purge.whole().and_then(|whole| whole.erase_time())
        {
            let seconds = time.0.div_ceil(Span::s(1).0).min(u64::from(u32::MAX) - 1);
            page.times[SanitizeStatus::BLOCK_ERASE] = (seconds as u32).into();
        }
        page
    }
}
