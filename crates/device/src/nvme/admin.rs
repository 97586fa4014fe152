//! The admin command set.

use bus::DevicePort;
use media::Media;
use wire::nvme::admin::{
    self, Command, CreateCq, CreateSq, GetLogPage, Identify, Priority, Request,
};
use wire::nvme::entry::{Cqe, DataPointer, Sqe};
use wire::nvme::log::{FirmwareSlots, SmartHealth, lid};
use wire::nvme::opcode;
use wire::nvme::prp::queue_base;
use wire::nvme::registers::Cc;
use wire::nvme::status::Status;
use wire::{BusAddr, CommandId, Nsid, QueueId};
use zerocopy::{FromZeros, IntoBytes};

use super::complete::Room;
use super::queue::{Cq, Sq, ends_in_address_space};
use super::slot::{Cut, Outcome, Slot};
use super::threads::What;
use super::{Controller, EVENT_REQUESTS_MAX, KELVIN, VECTORS};

const SQE_BYTES: u32 = size_of::<Sqe>() as u32;
const CQE_BYTES: u32 = size_of::<Cqe>() as u32;

impl<P: DevicePort, M: Media> Controller<P, M> {
    pub(super) async fn admin(&self, number: u16, sqe: &Sqe) -> Outcome {
        if !self.has_admin(sqe.opcode) {
            return Outcome::Done(Status::INVALID_OPCODE.with_dnr(), 0);
        }
        let request = match admin::parse(sqe) {
            Ok(request) => request,
            Err(status) => return Outcome::Done(status.with_dnr(), 0),
        };
        if let Err(status) = self.admit(&request.command) {
            return Outcome::Done(status, 0);
        }
        let done = match request.command {
            Command::AsyncEventRequest => return self.hold_event_request(request.cid),
            Command::CreateCq(create) => self.create_cq(request.data, create).await,
            Command::CreateSq(create) => self.create_sq(request.data, create).await,
            Command::DeleteCq { qid } => self.delete_cq(qid).await,
            Command::DeleteSq { qid } => self.delete_sq(qid).await,
            Command::Identify(ask) => self.answer_identify(number, &request, ask).await,
            Command::GetLogPage(ask) => self.answer_log(number, &request, ask).await,
            Command::SetFeatures(set) => self.set_features(number, &request, set).await,
            Command::GetFeatures { fid, select, cdw11 } => {
                self.get_features(number, &request, (fid, select, cdw11)).await
            }
            Command::Abort { sqid, cid } => self.abort(sqid, cid).await,
            Command::KeepAlive => {
                self.host_is_alive();
                Ok(0)
            }
            Command::FormatNvm(format) => self.format_nvm(request.nsid, format).await,
            Command::DoorbellBuffers => self.configure_shadows(request.data).await,
            Command::SelfTest(test) => self.self_test(request.nsid, test).await,
            Command::Sanitize(what) => self.sanitize(what).await,
            Command::CreateNamespace { csi } => self.create_namespace(number, &request, csi).await,
            Command::DeleteNamespace => self.delete_namespace(request.nsid).await,
            Command::AttachNamespace => self.attach_namespace(number, &request, true).await,
            Command::DetachNamespace => self.attach_namespace(number, &request, false).await,
            Command::Collect(what) => self.collect(what).await,
        };
        match done {
            Ok(result) => Outcome::Done(Status::SUCCESS, result),
            // Temporary conditions: the command may be retried, so DNR is clear (NVMe base 2.0, 3.3.3.2.1).
            Err(status @ (Status::FORMAT_IN_PROGRESS | Status::SANITIZE_IN_PROGRESS)) => {
                Outcome::Done(status, 0)
            }
            Err(status) => Outcome::Done(status.with_dnr(), 0),
        }
    }

    async fn create_cq(&self, data: DataPointer, create: CreateCq) -> Result<u32, Status> {
        self.validate_cq(data, create)?;
        let shadow = self.first_of_head(create.qid).await?;
        // Check again: another command may have created it during the await.
        let base = self.validate_cq(data, create)?;
        if let Some(thread) = self.thread_of(create.qid) {
            self.queues.given.borrow_mut().cqs.push(create.qid);
            return self.order(thread, What::CreateCq { create, base }).await;
        }
        let vector = create.irq_enabled.then_some(create.vector);
        let mut cq = Cq::new(create.qid, base, create.size, vector);
        cq.shadow = shadow;
        self.install_cq(create.qid, cq);
        Ok(0)
    }

    /// Validates a new completion queue; returns its base address.
    fn validate_cq(&self, data: DataPointer, create: CreateCq) -> Result<BusAddr, Status> {
        self.check_new_queue(self.has_cq(create.qid))?;
        self.check_size(
            create.size,
            self.registers.settings.get().iocqes() == CQE_BYTES.ilog2() as u8,
        )?;
        if create.vector >= VECTORS {
            return Err(Status::INVALID_INTERRUPT_VECTOR);
        }
        self.queue_base(data, create.contiguous, create.size * CQE_BYTES)
    }

    async fn create_sq(&self, data: DataPointer, create: CreateSq) -> Result<u32, Status> {
        self.validate_sq(data, create)?;
        let shadow = self.first_of_tail(create.qid).await?;
        let base = self.validate_sq(data, create)?;
        if let Some(thread) = self.thread_of(create.cqid) {
            self.queues.given.borrow_mut().sqs.push((create.qid, create.cqid));
            return self.order(thread, What::CreateSq { create, base }).await;
        }
        // Without weighted arbitration there is one class (5.5: QPRIO is ignored).
        let by_weight = self.registers.settings.get().ams() == Cc::AMS_WEIGHTED;
        let priority = if by_weight { create.priority } else { Priority::Medium };
        let mut sq = Sq::new(create.qid, base, create.size, create.cqid, priority);
        sq.shadow = shadow;
        self.install_sq(create.qid, sq);
        Ok(0)
    }

    /// As [`validate_cq`](Self::validate_cq), for a submission queue.
    fn validate_sq(&self, data: DataPointer, create: CreateSq) -> Result<BusAddr, Status> {
        match self.has_cq(create.cqid) {
            // 5.5: an identifier out of range, and one without a completion queue, have different status
            // codes.
            None => return Err(Status::INVALID_QUEUE_IDENTIFIER),
            Some(false) => return Err(Status::COMPLETION_QUEUE_INVALID),
            Some(true) => {}
        }
        self.check_new_queue(self.has_sq(create.qid))?;
        self.check_size(
            create.size,
            self.registers.settings.get().iosqes() == SQE_BYTES.ilog2() as u8,
        )?;
        self.queue_base(data, create.contiguous, create.size * SQE_BYTES)
    }

    /// Whether there is a completion queue of this identifier, on any thread. `None`: it is out of range.
    fn has_cq(&self, qid: QueueId) -> Option<bool> {
        let here = self.queues.cqs.borrow().get(usize::from(qid.0)).map(Option::is_some)?;
        Some(here || self.queues.given.borrow().has_cq(qid))
    }

    /// As [`has_cq`](Self::has_cq), for a submission queue.
    fn has_sq(&self, qid: QueueId) -> Option<bool> {
        let here = self.queues.sqs.borrow().get(usize::from(qid.0)).map(Option::is_some)?;
        Some(here || self.queues.given.borrow().cq_of(qid).is_some())
    }

    /// Checks that the identifier is in range and unused.
    fn check_new_queue(&self, in_use: Option<bool>) -> Result<(), Status> {
        if in_use == Some(false) { Ok(()) } else { Err(Status::INVALID_QUEUE_IDENTIFIER) }
    }

    /// Checks the number of entries, and that CC.IOSQES or CC.IOCQES has the only supported entry size.
    fn check_size(&self, size: u32, entry_size_is_set: bool) -> Result<(), Status> {
        let fits = entry_size_is_set && size <= self.options.queue_entries_max;
        if fits { Ok(()) } else { Err(Status::INVALID_QUEUE_SIZE) }
    }

    fn queue_base(
        &self,
        data: DataPointer,
        contiguous: bool,
        bytes: u32,
    ) -> Result<BusAddr, Status> {
        // CAP.CQR: queues must be physically contiguous.
        if !contiguous {
            return Err(Status::INVALID_FIELD);
        }
        let (prp1, _) = data.prps()?;
        let base = queue_base(prp1, self.registers.settings.get().page_bytes())?;
        if ends_in_address_space(base, bytes) { Ok(base) } else { Err(Status::INVALID_FIELD) }
    }

    async fn delete_cq(&self, qid: QueueId) -> Result<u32, Status> {
        let thread = self.thread_of(qid).filter(|_| self.queues.given.borrow().has_cq(qid));
        if let Some(thread) = thread {
            if self.queues.given.borrow().sqs.iter().any(|(_, cqid)| *cqid == qid) {
                return Err(Status::INVALID_QUEUE_DELETION);
            }
            self.queues.given.borrow_mut().cqs.retain(|given| *given != qid);
            return self.order(thread, What::DeleteCq(qid)).await;
        }
        let mut cqs = self.queues.cqs.borrow_mut();
        let cq = cqs.get_mut(usize::from(qid.0)).filter(|cq| cq.is_some());
        let cq = cq.ok_or(Status::INVALID_QUEUE_IDENTIFIER)?;
        if self.queues.sqs.borrow().iter().flatten().any(|sq| sq.cqid == qid) {
            return Err(Status::INVALID_QUEUE_DELETION);
        }
        *cq = None;
        self.queues.shadows.changed();
        Ok(0)
    }

    /// Outstanding commands of the queue complete first, as aborted.
    async fn delete_sq(&self, qid: QueueId) -> Result<u32, Status> {
        let given = self.queues.given.borrow().cq_of(qid);
        if let Some(thread) = given.and_then(|cqid| self.thread_of(cqid)) {
            let refused = self.order(thread, What::DeleteSq(qid)).await?;
            if refused != 0 {
                return Err(Status::INVALID_QUEUE_IDENTIFIER);
            }
            self.queues.given.borrow_mut().sqs.retain(|(sqid, _)| *sqid != qid);
            return Ok(0);
        }
        self.end_sq(qid).await.map(|()| 0)
    }

    /// Deletes a submission queue of this thread.
    pub(super) async fn end_sq(&self, qid: QueueId) -> Result<(), Status> {
        {
            let mut sqs = self.queues.sqs.borrow_mut();
            let sq = sqs.get_mut(usize::from(qid.0)).and_then(Option::as_mut);
            let sq = sq.filter(|sq| !sq.deleting).ok_or(Status::INVALID_QUEUE_IDENTIFIER)?;
            sq.deleting = true;
            self.fetching.arbiter.forget(qid);
        }
        self.drain_sq(qid).await;
        self.remove_sq(qid);
        Ok(())
    }

    async fn answer_identify(
        &self,
        number: u16,
        request: &Request,
        ask: Identify,
    ) -> Result<u32, Status> {
        let page = self.identify(request.nsid, ask)?;
        self.answer(number, request.data, &page[..]).await.map(|()| 0)
    }

    async fn answer_log(
        &self,
        number: u16,
        request: &Request,
        ask: GetLogPage,
    ) -> Result<u32, Status> {
        // 5.16.1.3: the page is kept per controller only (LPA), so a namespace is rejected.
        if ask.lid == lid::SMART_HEALTH && ![Nsid::NONE, Nsid::BROADCAST].contains(&request.nsid) {
            return Err(Status::INVALID_FIELD);
        }
        let page = self.log_page(ask.lid)?;
        if ask.offset > page.len() as u64 {
            return Err(Status::INVALID_FIELD);
        }
        // Bytes past the page's end are undefined (5.16): zeros. The transfer limit applies.
        let most = u64::from(self.options.transfer_bytes_max);
        if ask.bytes > most {
            return Err(Status::INVALID_FIELD);
        }
        let mut answer = page[ask.offset as usize..].to_vec();
        answer.resize(ask.bytes as usize, 0);
        self.answer(number, request.data, &answer).await?;
        if !ask.retain_event {
            self.unsilence(ask.lid);
        }
        Ok(0)
    }

    fn log_page(&self, lid: u8) -> Result<Vec<u8>, Status> {
        match lid {
            lid::ERROR => Ok(self.error_page()),
            lid::SMART_HEALTH => Ok(self.health().as_bytes().to_vec()),
            lid::FIRMWARE_SLOTS => {
                let mut slots = FirmwareSlots::new_zeroed();
                slots.afi = 1;
                let firmware = wire::nvme::identify::ascii_padded(env!("CARGO_PKG_VERSION"));
                slots.revisions[0] = firmware.expect("ASCII");
                Ok(slots.as_bytes().to_vec())
            }
            lid::COMMANDS_SUPPORTED => Ok(self.effects().as_bytes().to_vec()),
            lid::SELF_TEST => Ok(self.self_test_page()),
            lid::RESERVATION => Ok(self.notification_page().as_bytes().to_vec()),
            lid::SANITIZE if self.has_admin(opcode::admin::SANITIZE) => {
                Ok(self.sanitize_page().as_bytes().to_vec())
            }
            lid::SUPERBLOCKS => self.superblocks_page(),
            lid::MOVES => self.moves_page(),
            _ => Err(Status::INVALID_LOG_PAGE),
        }
    }

    /// The error log; LBAs are cleared during a sanitize.
    fn error_page(&self) -> Vec<u8> {
        let mut page = self.with_errors(|errors| errors.page());
        if self.hides_blocks() {
            page.iter_mut().for_each(|entry| entry.lba = 0.into());
        }
        page.as_bytes().to_vec()
    }

    /// Hours with power, over the life of the drive.
    pub(super) fn power_on_hours(&self) -> u64 {
        self.options.life.counts(self.rt.now()).power_on_s / 3600
    }

    fn health(&self) -> SmartHealth {
        let mut health = SmartHealth::new_zeroed();
        let counts = self.options.life.counts(self.rt.now());
        // A data unit is 1000 blocks of 512 bytes, rounded up.
        let units = |bytes: u64| u128::from(bytes.div_ceil(512_000));
        health.temperature = (KELVIN + 40).into();
        health.available_spare = 100;
        health.available_spare_threshold = 10;
        health.percentage_used =
            self.media.capabilities().wear.map_or(0, |wear| wear.percent_used());
        health.data_units_read = units(counts.bytes_read).into();
        health.data_units_written = units(counts.bytes_written).into();
        health.host_reads = u128::from(counts.reads).into();
        health.host_writes = u128::from(counts.writes).into();
        health.power_cycles = u128::from(counts.power_cycles).into();
        health.power_on_hours = u128::from(counts.power_on_s / 3600).into();
        health.unsafe_shutdowns = u128::from(counts.unsafe_shutdowns).into();
        health.media_errors = u128::from(counts.media_errors).into();
        health.error_log_entries = u128::from(self.with_errors(|errors| errors.count)).into();
        health
    }

    /// Aborts a command, best effort: if it waits, it is cancelled and completes before the Abort.
    async fn abort(&self, sqid: QueueId, cid: CommandId) -> Result<u32, Status> {
        let given = self.queues.given.borrow().cq_of(sqid);
        match given.and_then(|cqid| self.thread_of(cqid)) {
            Some(thread) => self.order(thread, What::Abort(sqid, cid)).await,
            None => Ok(self.abort_here(sqid, cid).await),
        }
    }

    /// Aborts a command of this thread. Returns dword 0 of the completion.
    pub(super) async fn abort_here(&self, sqid: QueueId, cid: CommandId) -> u32 {
        const NOT_ABORTED: u32 = 1;
        let here = |slot: &Slot| {
            let (queue, second) = slot.busy.get()?;
            (queue == sqid && (second == cid || slot.is_paired_with(cid))).then_some(second)
        };
        let waits = |slot: &Slot| here(slot).is_some() && !slot.completing.get();
        let victim = self.slots.iter().find(|slot| waits(slot));
        let Some(victim) = victim.filter(|_| sqid != QueueId::ADMIN) else {
            return NOT_ABORTED;
        };
        match here(victim) == Some(cid) {
            true => victim.cut(&self.rt, Cut::With(Status::ABORT_REQUESTED)),
            false => self.abort_first(victim),
        }
        while waits(victim) {
            let version = self.slots.quiet.version();
            self.slots.quiet.changed(&self.rt, version).await;
        }
        0
    }

    /// Keeps the request outstanding until there is an event.
    fn hold_event_request(&self, cid: CommandId) -> Outcome {
        {
            let mut events = self.health.events.borrow_mut();
            if events.held.len() >= EVENT_REQUESTS_MAX {
                return Outcome::Done(Status::AER_LIMIT_EXCEEDED.with_dnr(), 0);
            }
            events.held.push_back(cid);
        }
        self.tell_events();
        Outcome::Held
    }

    /// Completes outstanding requests with queued events, unless the controller was shut down.
    pub(super) fn tell_events(&self) {
        while !self.is_shut_down() {
            {
                let events = self.health.events.borrow();
                if events.held.is_empty() || events.pending.is_empty() {
                    return;
                }
            }
            // If the completion queue is full, try later.
            let Room::At(place) = self.place_for(QueueId::ADMIN) else { return };
            let mut events = self.health.events.borrow_mut();
            let cid = events.held.pop_front().expect("not empty");
            let event = events.pending.pop_front().expect("not empty");
            events.silent.push(event.log_page());
            drop(events);
            let cqe = Cqe::new(cid, Status::SUCCESS).with_result(event.into_bits());
            self.post(QueueId::ADMIN, cqe, place);
        }
    }

    /// Unmasks the events of a log page that was read.
    fn unsilence(&self, lid: u8) {
        self.health.events.borrow_mut().silent.retain(|page| *page != lid);
        if lid == lid::RESERVATION {
            self.notification_is_read();
        }
        if lid == lid::SUPERBLOCKS {
            self.tell_of_space_again();
        }
        if lid == lid::MOVES {
            self.tell_of_moves_again();
        }
    }
}
