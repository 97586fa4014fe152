//! Fetching: polling doorbells, arbitration, reading entries, dispatch to slots.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bus::{Carry, DevicePort, Segment};
use media::Media;
use runtime::{Pool, Time, beside_others};
use wire::nvme::entry::Sqe;
use wire::nvme::opcode::io as opcode;
use wire::nvme::registers::CC;
use wire::{Nsid, QueueId};
use zerocopy::FromBytes;

use super::fused::ALONE;
use super::queue::{Burst, onward};
use super::slot::Fused;
use super::{Controller, QueueKind};

/// Bytes of a submission queue entry.
pub(super) const ENTRY: usize = size_of::<Sqe>();

/// Commands whose data are prefetched before they begin.
const AHEAD: usize = 2;

/// Register change seen by a watcher.
enum Noticed {
    Control,
    Commands(Burst),
}

impl<P: DevicePort, M: Media> Controller<P, M> {
    /// Task of a fetcher. One fetcher at a time watches the registers; when it has found work, it passes the
    /// watch on while it waits for its fetch.
    pub(super) async fn fetch(self: Rc<Self>) {
        let mut entries = vec![0; ENTRY * self.options.fetch_max as usize];
        let mut slots = Vec::with_capacity(self.options.fetch_max as usize);
        let mut held = None;
        loop {
            let watch = match held.take() {
                Some(watch) => watch,
                None => self.watch.take(&self.rt).await,
            };
            let noticed = self.port.on_registers(|| self.notice()).await;
            let seen = self.rt.now();
            match noticed {
                Noticed::Control => {
                    self.control_written.notify(&self.rt);
                    self.watch.give(&self.rt, watch);
                }
                Noticed::Commands(burst) => {
                    let pool = self.pool(QueueKind::of(burst.qid));
                    let take = |_| pool.try_take().expect("the burst fits the slots that are free");
                    slots.extend((0..burst.entries).map(take));
                    let bytes = &mut entries[..ENTRY * burst.entries as usize];
                    {
                        let mut bring = pin!(self.bring(burst, bytes, seen, &mut slots));
                        let mut begin =
                            |cx: &mut Context<'_>| bring.as_mut().poll(&mut beside_others(cx));
                        if poll_fn(|cx| Poll::Ready(begin(cx))).await.is_ready() {
                            // Over shared memory, a fetch completes immediately.
                            held = Some(watch);
                        } else {
                            self.watch.give(&self.rt, watch);
                            bring.await;
                        }
                    }
                    for slot in slots.drain(..) {
                        self.give_slot(QueueKind::of(burst.qid), slot);
                    }
                    // Let the commands begin before the next poll.
                    self.rt.yield_now().await;
                }
            }
        }
    }

    /// Checks for a register change that needs action.
    fn notice(&self) -> Option<Noticed> {
        let cc = match &self.place {
            Some(place) if !place.is_first() => place.posted(),
            _ => self.port.load(CC),
        };
        if cc != self.cc_noticed.get() {
            self.cc_noticed.set(cc);
            return Some(Noticed::Control);
        }
        let burst = if self.ready.get() { self.arbitrate() } else { None };
        if burst.is_none() && !self.is_other() {
            self.take_reports();
            self.publish_read_only();
            // Events that found the admin completion queue full are retried.
            self.tell_events();
        }
        burst.map(Noticed::Commands)
    }

    /// Fetches a burst and gives each command to a slot.
    async fn bring(&self, burst: Burst, bytes: &mut [u8], seen: Time, slots: &mut Vec<u16>) {
        let from = Segment { at: burst.at, bytes: bytes.len() as u32 };
        let fetched = self.port.read(&[from], bytes, Carry::All).await;
        if !self.fetched(burst) {
            self.quiet.notify(&self.rt);
            return;
        }
        if fetched.is_err() {
            // The queue is outside host memory: no single command can report that.
            self.fail("fetching a submission queue entry", burst.at.0);
            return;
        }
        let mut firsts = Vec::new();
        if self.firsts.get() > 0 {
            firsts.extend(self.first_before(burst.qid));
        }
        // Live, a command begins when it is given to its slot. Its data are asked for while those before it
        // are copied; asked for all at once, they would delay each other.
        let hints = burst.qid != QueueId::ADMIN && self.media.is_immediate();
        let entries = bytes.chunks_exact(ENTRY);
        let entries = entries.map(|bytes| Sqe::ref_from_bytes(bytes).expect("an entry's length"));
        let mut ahead = entries.clone();
        if hints {
            ahead.by_ref().take(AHEAD).for_each(|sqe| self.prefetch_blocks(sqe));
        }
        for sqe in entries {
            if hints && let Some(sqe) = ahead.next() {
                self.prefetch_blocks(sqe);
            }
            let cid = sqe.cid.get();
            self.rt.attach_trace(burst.qid.0, cid);
            if self.rt.is_traced() {
                self.rt.record_at(self.stages.doorbell, seen);
                self.rt.record(self.stages.fetch);
                self.rt.detach_trace();
            }
            self.rt.log("device", "fetched", u64::from(burst.qid.0), u64::from(cid));
            let pairs = burst.qid != QueueId::ADMIN;
            if pairs && (sqe.flags.fuse() != ALONE || !firsts.is_empty()) {
                self.fuse(burst.qid, *sqe, &mut firsts, slots);
                continue;
            }
            let slot = slots.pop().expect("a slot for every entry");
            self.slots[usize::from(slot)].give(&self.rt, burst.qid, sqe, Fused::Alone);
        }
        if !firsts.is_empty() {
            self.leave_firsts(burst.qid, &mut firsts, slots);
        }
    }

    /// Prefetches the blocks of a read that is about to begin; the command itself validates them.
    #[inline]
    fn prefetch_blocks(&self, sqe: &Sqe) {
        if sqe.opcode == opcode::READ
            && let Ok((_, namespace)) = self.active_at(Nsid(sqe.nsid.get()))
            && let lba = u64::from(sqe.cdw11.get()) << 32 | u64::from(sqe.cdw10.get())
            && let Ok(at) = namespace.extent(lba, 1)
        {
            self.media.prefetch(at);
        }
    }

    /// Ends a fetch. Returns false if its queue is being deleted or the controller disabled, and the entries
    /// must be discarded. Both wait for this, so that no fetch outlives its queue.
    fn fetched(&self, burst: Burst) -> bool {
        let mut sqs = self.sqs.borrow_mut();
        let sq = sqs[usize::from(burst.qid.0)].as_mut().expect("a queue outlives its fetch");
        sq.fetching = false;
        let wanted = self.ready.get() && !sq.deleting;
        if wanted {
            sq.fetched = onward(sq.fetched, burst.entries, sq.size);
            let others = self.sqs_end.get() > 2;
            if others || self.port.load(sq.tail_doorbell) != sq.head {
                // The watcher has skipped this queue meanwhile, or held others back for it.
                self.port.check_again();
            }
        }
        wanted
    }

    pub(super) fn pool(&self, kind: QueueKind) -> &Pool<u16> {
        match kind {
            QueueKind::Admin => &self.idle_admin,
            QueueKind::Io => &self.idle,
        }
    }

    /// Frees a slot. If it is the only free one, the fetcher may be waiting for it.
    pub(super) fn give_slot(&self, kind: QueueKind, slot: u16) {
        let pool = self.pool(kind);
        pool.give(&self.rt, slot);
        if pool.available() == 1 {
            self.port.check_again();
        }
    }
}
