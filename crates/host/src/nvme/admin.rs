//! Admin queue pair, registers and admin commands of a controller.

use alloc::rc::Rc;
use alloc::vec::Vec;

use bus::{Buffer, HostPort};
use runtime::{Either, Rt, Span, race};
use wire::nvme::admin::{self, CreateCq, CreateSq, Priority};
use wire::nvme::entry::{Cqe, DataPointer, Sqe};
use wire::nvme::features::{NumberOfQueues, fid};
use wire::nvme::identify::{
    IDENTIFY_BYTES, IdentifyController, IdentifyNamespace, NamespaceList, cns,
};
use wire::{BusAddr, CommandId, Nsid, QueueId};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::bar::{AdminQueues, Bar};
use super::health::Health;
use super::pair::{Pair, PairSpec};
use super::shadow::Shadows;
use super::slots::End;
use super::{Completion, Doorbell, Options, Sgl};
use crate::InitError;

/// Most admin commands in flight.
const ADMIN_DEPTH: u16 = 31;

/// Vector of the admin completion queue (NVMe over PCIe 1.0, 3.5.1).
const ADMIN_VECTOR: u16 = 0;

/// Admin side of a controller.
pub(super) struct Admin<P: HostPort> {
    pub bar: Bar<P>,
    pub pair: Rc<Pair<P>>,
    shadows: Option<Rc<Shadows>>,
    timeout: Span,
}

impl<P: HostPort> Admin<P> {
    /// Reads the registers and allocates memory. Writes no register yet.
    pub async fn new(
        port: &P,
        options: &Options,
        health: &Rc<Health>,
    ) -> Result<Admin<P>, InitError> {
        let bar = Bar::probe(port, options).await?;
        let completion = match options.admin_completion {
            Completion::Interrupt { vector } if vector != ADMIN_VECTOR => {
                return Err(InitError::Unsupported {
                    what: "the vector of the admin queue",
                    found: u64::from(vector),
                    expected: "0, as the specification sets it",
                });
            }
            completion => completion,
        };
        let spec = PairSpec {
            qid: QueueId::ADMIN,
            depth: ADMIN_DEPTH,
            completion,
            doorbell: Doorbell::Each,
            transfer_bytes_max: IDENTIFY_BYTES as u32,
            sgl: Sgl::Never,
            tags: false,
            stride: bar.cap().dstrd(),
            entries_max: bar.cap().queue_entries_max(),
        };
        let pair = Pair::start(port, health, &spec)?;
        let shadows = match options.shadow_doorbells {
            true => Some(Rc::new(Shadows::new(port.arena())?)),
            false => None,
        };
        Ok(Admin { bar, pair, shadows, timeout: options.admin_timeout })
    }

    pub fn rt(&self) -> &Rt {
        self.pair.rt()
    }

    /// Disables the controller: from then on it writes nothing.
    pub async fn turn_off(&self) -> Result<(), InitError> {
        self.pair.close();
        self.bar.disable().await
    }

    /// Disables a controller in an unknown state.
    pub async fn turn_off_unknown(&self) -> Result<(), InitError> {
        self.pair.close();
        self.bar.disable_unknown().await
    }

    /// Enables the disabled controller. It has no I/O queues then.
    pub async fn turn_on(&self) -> Result<(), InitError> {
        self.pair.clear();
        self.pair.expose();
        let (sq, cq) = (&self.pair.sq, &self.pair.cq);
        let queues = AdminQueues {
            sq: sq.at(),
            sq_entries: sq.entries(),
            cq: cq.at(),
            cq_entries: cq.entries(),
        };
        self.bar.enable(queues).await?;
        self.pair.open();
        Ok(())
    }

    /// Disables a controller that will not be used; if it does not stop, quarantines its memory. Returns the
    /// reason, or a better one found meanwhile.
    pub async fn give_up(&self, reason: InitError) -> InitError {
        match self.turn_off().await {
            Ok(()) => {
                self.pair.clear();
                reason
            }
            Err(gone @ InitError::Gone { .. }) => {
                self.pair.clear();
                gone
            }
            Err(_) => {
                self.pair.quarantine();
                self.pair.slots.abandon(self.rt());
                reason
            }
        }
    }

    /// Enables shadow doorbells, if requested. There must be no I/O queues yet.
    pub async fn set_up_shadows(&self) -> Result<(), InitError> {
        let Some(shadows) = &self.shadows else { return Ok(()) };
        shadows.clear();
        self.pair.begin_shadows(shadows);
        let (told, asked) = shadows.at();
        let build = |cid| admin::doorbell_buffers(cid, told, asked);
        self.execute("Doorbell Buffer Config", None, build).await?;
        self.pair.keep_shadows();
        Ok(())
    }

    /// Runs a command, for at most the admin time-out. Meanwhile the slot owns the buffer, also after a
    /// time-out.
    pub async fn execute(
        &self,
        step: &'static str,
        buffer: Option<Buffer>,
        build: impl Fn(CommandId) -> Sqe,
    ) -> Result<(Cqe, Option<Buffer>), InitError> {
        let waited = self.timeout;
        let command = self.command(step, buffer, build);
        match race(command, self.rt().sleep(waited)).await {
            Either::First(result) => result,
            Either::Second(()) => Err(InitError::TimedOut { step, waited }),
        }
    }

    /// As [`execute`](Self::execute), without a time-out.
    pub async fn command(
        &self,
        step: &'static str,
        buffer: Option<Buffer>,
        build: impl Fn(CommandId) -> Sqe,
    ) -> Result<(Cqe, Option<Buffer>), InitError> {
        let slot = self.pair.slots.claim(self.rt()).await;
        if !self.pair.is_open() {
            return Err(InitError::Reset { step });
        }
        if let Some(buffer) = buffer {
            slot.keep(buffer);
        }
        self.pair.submit(build(slot.launch()));
        match slot.end().await {
            End::Lost if self.pair.port().is_gone() => Err(InitError::Gone { register: step }),
            End::Lost => Err(InitError::Reset { step }),
            End::Completed => match slot.completion().status().ok() {
                Ok(()) => Ok((slot.completion(), slot.release())),
                Err(status) => Err(InitError::Refused { step, status }),
            },
        }
    }

    /// Runs a command that fills a buffer of `N` bytes, at most a page.
    async fn fetch<const N: usize>(
        &self,
        step: &'static str,
        build: impl Fn(CommandId, DataPointer) -> Sqe,
        into: &mut [u8; N],
    ) -> Result<(), InitError> {
        const { assert!(N <= 4096, "a page needs no list") };
        let buffer = self.pair.port().arena().buffer(N)?;
        buffer.zero();
        let data = DataPointer::Prp { prp1: buffer.at(), prp2: BusAddr(0) };
        let (_, buffer) = self.execute(step, Some(buffer), |cid| build(cid, data)).await?;
        if let Some(buffer) = buffer {
            buffer.copy_out(0, into);
        }
        Ok(())
    }

    pub async fn identify_controller(&self) -> Result<IdentifyController, InitError> {
        let mut bytes = [0; IDENTIFY_BYTES];
        let step = "Identify Controller";
        let build = |cid, data| admin::identify(cid, Nsid::NONE, cns::CONTROLLER, data);
        self.fetch(step, build, &mut bytes).await?;
        let mut identify = IdentifyController::new_zeroed();
        identify.as_mut_bytes().copy_from_slice(&bytes);
        Ok(identify)
    }

    /// Active namespaces, at most the first 1024.
    pub async fn active_namespaces(&self) -> Result<Vec<Nsid>, InitError> {
        let mut bytes = [0; IDENTIFY_BYTES];
        let step = "Identify: active namespaces";
        let build = |cid, data| admin::identify(cid, Nsid::NONE, cns::ACTIVE_NAMESPACES, data);
        self.fetch(step, build, &mut bytes).await?;
        let list = NamespaceList::ref_from_bytes(&bytes).expect("a list has this length");
        Ok(list.iter().collect())
    }

    pub async fn identify_namespace(&self, nsid: Nsid) -> Result<IdentifyNamespace, InitError> {
        let mut bytes = [0; IDENTIFY_BYTES];
        let build = |cid, data| admin::identify(cid, nsid, cns::NAMESPACE, data);
        self.fetch("Identify Namespace", build, &mut bytes).await?;
        let mut identify = IdentifyNamespace::new_zeroed();
        identify.as_mut_bytes().copy_from_slice(&bytes);
        Ok(identify)
    }

    /// Requests I/O queues; returns the number that the controller grants.
    pub async fn number_of_queues(&self, wanted: u16) -> Result<u32, InitError> {
        let wanted = u32::from(wanted.max(1));
        let value = NumberOfQueues::of(wanted, wanted).into_bits();
        let build = |cid| admin::set_feature(cid, fid::NUMBER_OF_QUEUES, value);
        let (cqe, _) = self.execute("Set Features: Number of Queues", None, build).await?;
        let granted = NumberOfQueues::from_bits(cqe.dw0.get());
        Ok(granted.sqs().min(granted.cqs()))
    }

    pub async fn set_feature(
        &self,
        step: &'static str,
        fid: u8,
        value: u32,
    ) -> Result<(), InitError> {
        self.execute(step, None, |cid| admin::set_feature(cid, fid, value)).await?;
        Ok(())
    }

    /// Reads a log page, which re-enables its events.
    pub async fn read_log(&self, lid: u8) -> Result<(), InitError> {
        let mut bytes = [0; 512];
        let count = bytes.len() as u64;
        let build = |cid, data| admin::get_log_page(cid, lid, count, data);
        self.fetch("Get Log Page", build, &mut bytes).await
    }

    /// Creates a queue pair on the controller, the completion queue first.
    pub async fn create(&self, pair: &Pair<P>, priority: Priority) -> Result<(), InitError> {
        let qid = pair.qid();
        let (vector, irq_enabled) = match pair.completion() {
            Completion::Polled | Completion::Hybrid => (0, false),
            Completion::Interrupt { vector } => (vector, true),
        };
        let size = pair.cq.entries();
        let cq = CreateCq { qid, size, vector, irq_enabled, contiguous: true };
        let size = pair.sq.entries();
        let sq = CreateSq { qid, size, cqid: qid, priority, contiguous: true };
        pair.expose();
        if let Some(shadows) = &self.shadows {
            pair.begin_shadows(shadows);
            pair.keep_shadows();
        }
        self.create_at(cq, pair.cq.at(), sq, pair.sq.at()).await
    }

    /// Creates a queue pair at these addresses.
    pub async fn create_at(
        &self,
        cq: CreateCq,
        cq_at: BusAddr,
        sq: CreateSq,
        sq_at: BusAddr,
    ) -> Result<(), InitError> {
        let build = |cid| admin::create_cq(cid, cq_at, cq);
        self.execute("Create I/O Completion Queue", None, build).await?;
        let build = |cid| admin::create_sq(cid, sq_at, sq);
        match self.execute("Create I/O Submission Queue", None, build).await {
            Ok(_) => Ok(()),
            Err(error) => {
                // Frees the identifier for reuse, if the controller still responds.
                let build = |cid| admin::delete_cq(cid, cq.qid);
                self.execute("Delete I/O Completion Queue", None, build).await.ok();
                Err(error)
            }
        }
    }

    /// Deletes a queue pair, the submission queue first.
    pub async fn delete(&self, qid: QueueId) -> Result<(), InitError> {
        let build = |cid| admin::delete_sq(cid, qid);
        self.execute("Delete I/O Submission Queue", None, build).await?;
        let build = |cid| admin::delete_cq(cid, qid);
        self.execute("Delete I/O Completion Queue", None, build).await?;
        Ok(())
    }

    /// Sends an Abort. The controller may ignore it.
    pub async fn abort(&self, queue: QueueId, victim: CommandId) -> Result<(), InitError> {
        self.execute("Abort", None, |cid| admin::abort(cid, queue, victim)).await?;
        Ok(())
    }

    /// Sets an optional feature; a rejection is ignored.
    pub async fn try_feature(
        &self,
        step: &'static str,
        fid: u8,
        value: u32,
    ) -> Result<(), InitError> {
        match self.set_feature(step, fid, value).await {
            Err(InitError::Refused { status, .. }) => {
                let (fid, status) = (u64::from(fid), u64::from(status.bits()));
                self.rt().log("host", "feature-refused", fid, status);
                Ok(())
            }
            result => result,
        }
    }
}

impl<P: HostPort> Drop for Admin<P> {
    fn drop(&mut self) {
        self.pair.stop();
    }
}
