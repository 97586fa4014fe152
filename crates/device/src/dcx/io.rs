//! Execution of commands: read, write, fence.

use bus::{DevicePort, Direct, DmaError, Flags, Payload, Posting, Segment, Unreadable};
use media::{Extent, Media, MediaError};
use runtime::{Rt, Time};
use wire::BusAddr;
use wire::dcx::command::{Access, Command, Request};
use wire::dcx::report::Code;
use wire::pcie::Pieces;

use super::Front;
use super::queue::{Open, Queue};
use super::slot::Job;
use super::tagged::Tagged;
use crate::meter::Kind;
use crate::moved::{self, Blocks};

/// Bytes at the end of a buffer, at most, in the cache line of its last tag.
const LINE: u32 = 64;

fn of_dma(error: DmaError) -> Code {
    match error {
        DmaError::Address(_) => Code::BAD_ADDRESS,
        DmaError::Unreadable => Code::UNREADABLE,
    }
}

fn of_media(error: MediaError) -> Code {
    match error {
        MediaError::Range => Code::OUT_OF_RANGE,
        MediaError::Unreadable => Code::UNREADABLE,
        MediaError::Full => Code::FULL,
        _ => Code::WRITE_FAULT,
    }
}

/// The first bytes of some blocks.
pub(super) struct Head<'a, M> {
    of: Blocks<'a, Tagged<M>>,
    bytes: u32,
}

impl<'a, M: Media> Blocks<'a, Tagged<M>> {
    /// The first `bytes` bytes.
    pub(super) fn first(self, bytes: u32) -> Head<'a, M> {
        Head { of: self, bytes }
    }
}

impl<M: Media> Payload for Head<'_, M> {
    fn runs(&self, put: &mut dyn FnMut(u32, &[u8])) -> Result<(), Unreadable> {
        self.of.runs(&mut |offset: u32, run: &[u8]| {
            let length = run.len().min(self.bytes.saturating_sub(offset) as usize);
            put(offset, &run[..length]);
        })
    }
}

impl<P: DevicePort, M: Media> Front<P, M> {
    /// Executes one command, from fetch to report.
    pub(super) async fn execute(&self, number: u16, job: Job) {
        let since = self.faults.meter.begins(&self.rt, 1, number);
        self.port.spend(self.costs.parse).await;
        let queue = &self.queues[usize::from(job.queue)];
        let (entry, request) = (&job.entry, job.entry.parse());
        let injected = match request {
            Ok(request) if self.faults.is_on() => {
                Box::pin(self.injected(queue, number, &request)).await
            }
            _ => None,
        };
        let done = match request {
            _ if injected.is_some() => injected.expect("just looked at"),
            Ok(Request { command: Command::Read { access, tag_version, wide }, .. }) => {
                let mut under_way = UnderWay::new(&self.rt, queue);
                under_way.wide = wide;
                self.read(&mut under_way, number, access, tag_version).await.map(|()| None)
            }
            Ok(Request { command: Command::Write { access, fua }, .. }) => {
                self.write(number, access, fua).await.map(|()| Some(Code::DONE))
            }
            Ok(Request { command: Command::Fence, number: of, .. }) => {
                self.pass(queue, of).await;
                Ok(Some(Code::DONE))
            }
            Err(code) => Err(code),
        };
        let is_ok = done.is_ok();
        if let Some(code) = done.unwrap_or_else(Some) {
            self.port.spend(self.costs.post).await;
            if self.faults.is_on() {
                self.before_report(queue, number, &request).await;
            }
            self.report(queue, entry.number(), entry.slot(), code);
        }
        let is_read = matches!(request, Ok(Request { command: Command::Read { .. }, .. }));
        if !is_read {
            // After the report is posted: the pace times the next fetch from here.
            queue.drop_command(&self.rt, false);
        }
        if self.faults.meter.is_watched() {
            self.meter(&request, since, is_ok);
        }
        if self.faults.is_on() && self.faults.is_silent(queue.number + 1, entry.slot()) {
            self.rt.log("device", "no interrupt", u64::from(queue.number), entry.slot().into());
        } else if let Some(open) = queue.open.get().filter(|open| open.signals) {
            self.port.interrupt(open.vector);
            if self.faults.is_on() && self.faults.is_repeated(queue.number + 1, entry.slot()) {
                self.port.interrupt(open.vector);
            }
        }
    }

    #[cold]
    fn meter(&self, request: &Result<Request, Code>, since: Time, is_ok: bool) {
        let (kind, bytes) = match request {
            Ok(Request { command: Command::Read { access, .. }, .. }) => (Kind::Read, access.bytes),
            Ok(Request { command: Command::Write { access, .. }, .. }) => {
                (Kind::Write, access.bytes)
            }
            _ => (Kind::Other, 0),
        };
        self.faults.meter.ends(&self.rt, since, kind, bytes.into(), is_ok);
    }

    /// Medium and link only: the host detects completion by the overwritten tags in its buffer.
    async fn read(
        &self,
        under_way: &mut UnderWay<'_>,
        number: u16,
        access: Access,
        tag_version: u32,
    ) -> Result<(), Code> {
        let (to, at) = self.validate(access)?;
        // Not the line with the tag that the host polls: it would be taken from the host twice.
        if let Some(direct) = self.port.direct() {
            direct.prefetch(Segment { bytes: to.bytes.saturating_sub(LINE), ..to });
        }
        let _reader = match tag_version {
            0 => None,
            // A replaced tag may be the end of data written since, so the host could not tell them apart.
            version => Some(self.media.begin_read(version).ok_or(Code::STALE_TAG)?),
        };
        let ready = self.media.read_head(at, to.bytes).await.map_err(of_media)?;
        self.send(number, to, at, ready, under_way).await.map_err(of_dma)
    }

    /// Sends blocks. Data of one command are sent at a time; if the pace says so, the next fetch is inserted
    /// between their packets.
    async fn send(
        &self,
        number: u16,
        to: Segment,
        at: Extent,
        ready: Time,
        under_way: &mut UnderWay<'_>,
    ) -> Result<(), DmaError> {
        let queue = under_way.queue;
        let Some(open) = queue.open.get() else { return Ok(()) };
        let how = self.posting(&open, under_way.wide);
        let sender = match self.sender.try_take() {
            Some(sender) => sender,
            None => {
                under_way.queue_data();
                let sender = self.sender.take(&self.rt).await;
                under_way.unqueue_data();
                sender
            }
        };
        let _turn = Turn { front: self, sender: Some(sender) };
        self.rt.record(self.stages.turn);
        under_way.begun = true;
        self.rt.log("device", "sends", u64::from(queue.number), u64::from(to.bytes));
        let timed = queue.pace.borrow().is_timed();
        let split = timed.then(|| {
            queue.pace.borrow_mut().begin_data(self.rt.now(), to.bytes, queue.poised.get())
        });
        let flip = if self.faults.is_on() { self.spoiled(number, at, to.bytes) } else { None };
        let blocks = Blocks { media: &*self.media, at, flip }.first(to.bytes);
        match split.flatten() {
            None => self.port.write(&[to], &blocks, how, ready).await?,
            Some(before) => {
                let before = whole_packets(to, before, open.packet_bytes);
                // Both parts must be one snapshot: a write in between would tear a block.
                let mut room = self.lend(number, to.bytes);
                let copy = &mut room[..to.bytes as usize];
                copy.fill(0);
                let put = &mut |offset: u32, run: &[u8]| {
                    copy[offset as usize..][..run.len()].copy_from_slice(run);
                };
                blocks.runs(put)?;
                let (first, rest) = copy.split_at(before as usize);
                if before > 0 {
                    let to = Segment { bytes: before, ..to };
                    let flags = if how.flags == Flags::Last { Flags::None } else { how.flags };
                    self.port.write(&[to], first, Posting { flags, ..how }, Time::ZERO).await?;
                }
                self.let_fetch_leave(queue).await;
                let at = BusAddr(to.at.0 + u64::from(before));
                let to = Segment { at, bytes: to.bytes - before };
                self.port.write(&[to], rest, how, ready).await?;
            }
        }
        if timed {
            under_way.ended = true;
            queue.pace.borrow_mut().end_data(self.rt.now());
            queue.turned.notify(&self.rt);
        }
        Ok(())
    }

    /// The form in which data of a queue are written, with the places of their tags.
    #[inline]
    pub(super) fn posting(&self, open: &Open, wide: bool) -> Posting {
        Posting {
            relaxed: self.options.relaxed_ordering && open.packet_bytes.is_some(),
            flags: open.packet_bytes.map_or(Flags::Last, Flags::EachPacket),
            wide,
        }
    }

    /// Lets the poller send its fetch now, ahead of the remaining data. Applies only to a poller that is
    /// waiting for this: another may have no slot, and would get none before these data have left.
    async fn let_fetch_leave(&self, queue: &Queue) {
        if !queue.poised.get() {
            return;
        }
        let seen = queue.left.version();
        queue.due.set(true);
        queue.turned.notify(&self.rt);
        queue.left.changed(&self.rt, seen).await;
    }

    /// Fetches the data and writes them to the medium. A write ends with a report.
    async fn write(&self, number: u16, access: Access, fua: bool) -> Result<(), Code> {
        let (from, at) = self.validate(access)?;
        if !from.bytes.is_multiple_of(self.media.block_bytes()) {
            return Err(Code::INVALID_FIELD);
        }
        let mut room = self.lend(number, from.bytes);
        let data = &mut room[..from.bytes as usize];
        self.port.read(&[from], data, moved::carry(self.media.head())).await.map_err(of_dma)?;
        self.rt.record(self.stages.transfer);
        if self.faults.is_on()
            && let Some(flip) = self.spoiled(number, at, from.bytes)
        {
            data[flip.byte as usize] ^= flip.bits;
        }
        self.media.write(at, data).await.map_err(of_media)?;
        if fua {
            self.media.flush().await.map_err(of_media)?;
        }
        Ok(())
    }

    /// Waits until no earlier command of the queue is in flight. The report is strictly ordered, so it
    /// arrives after everything that those commands posted.
    async fn pass(&self, queue: &Queue, fence: u32) {
        loop {
            let seen = self.quiet.version();
            let earlier = self.slots.iter().any(|slot| {
                slot.busy.get().is_some_and(|(of, number)| {
                    of == queue.number && fence.wrapping_sub(number).wrapping_sub(1) < u32::MAX / 2
                })
            });
            if !earlier {
                return;
            }
            self.quiet.changed(&self.rt, seen).await;
        }
    }

    /// Validates LBA range, size and transfer limit; returns the host memory segment and the blocks.
    fn validate(&self, access: Access) -> Result<(Segment, Extent), Code> {
        let located = self.locate(access);
        if located == Err(Code::OUT_OF_RANGE)
            && let Some(refusals) = self.media.capabilities().refusals
        {
            let blocks = access.bytes.div_ceil(self.media.block_bytes());
            refusals.out_of_range(access.lba.0, blocks.into());
        }
        located
    }

    /// As [`validate`](Self::validate), without telling the medium of a refused range.
    pub(super) fn locate(&self, access: Access) -> Result<(Segment, Extent), Code> {
        let (capacity, block_bytes) = (self.media.blocks(), self.media.block_bytes());
        let blocks = access.bytes.div_ceil(block_bytes);
        if blocks > 1 && !access.bytes.is_multiple_of(block_bytes) {
            return Err(Code::INVALID_FIELD);
        }
        let inside = access.lba.0 <= capacity && u64::from(blocks) <= capacity - access.lba.0;
        if !inside {
            return Err(Code::OUT_OF_RANGE);
        }
        if access.bytes > self.options.transfer_bytes_max {
            return Err(Code::TOO_LONG);
        }
        let segment = Segment { at: access.at, bytes: access.bytes };
        Ok((segment, Extent { block: access.lba.0, blocks }))
    }
}

/// The length of the whole packets within the first `bytes` bytes of a transfer.
fn whole_packets(to: Segment, bytes: u32, packet_bytes: Option<u32>) -> u32 {
    let packet = packet_bytes.unwrap_or(128);
    let ends = Pieces::new(to.at.0, u64::from(to.bytes), packet)
        .map(|piece| piece.offset as u32 + piece.bytes);
    ends.take_while(|end| *end <= bytes).last().unwrap_or(0)
}

/// A read counted by the pace until it ends.
pub(super) struct UnderWay<'a> {
    rt: &'a Rt,
    queue: &'a Queue,
    /// Its buffer is marked with wide tags.
    wide: bool,
    /// Its data wait for the link.
    queued: bool,
    begun: bool,
    ended: bool,
}

impl<'a> UnderWay<'a> {
    pub fn new(rt: &'a Rt, queue: &'a Queue) -> UnderWay<'a> {
        UnderWay { rt, queue, wide: false, queued: false, begun: false, ended: false }
    }

    fn queue_data(&mut self) {
        self.queued = true;
        self.queue.pace.borrow_mut().queue_data();
    }

    fn unqueue_data(&mut self) {
        if std::mem::take(&mut self.queued) {
            self.queue.pace.borrow_mut().unqueue_data();
        }
    }

    /// Ends counting here: the read is still in flight, and another guard counts it.
    pub fn go_on(mut self) {
        self.ended = true;
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.unqueue_data();
        if !self.ended {
            self.queue.drop_command(self.rt, self.begun);
        }
    }
}

/// Permission to send; returned when dropped.
struct Turn<'a, P: DevicePort, M: Media> {
    front: &'a Front<P, M>,
    sender: Option<super::Sender>,
}

impl<P: DevicePort, M: Media> Drop for Turn<'_, P, M> {
    fn drop(&mut self) {
        if let Some(sender) = self.sender.take() {
            self.front.sender.give(&self.front.rt, sender);
        }
    }
}
