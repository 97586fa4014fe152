//! Fetching: polling doorbells, arbitration, reading entries, dispatch to slots.

use std::cell::Cell;
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
use wire::nvme::status::Status;
use wire::{Nsid, QueueId};
use zerocopy::FromBytes;

use super::Controller;
use super::arbitrate::Arbiter;
use super::fused::ALONE;
use super::queue::{Burst, ENTRY, onward};
use super::slot::{Fused, QueueKind};
use crate::ahead::{self, Moves};

/// Bytes after which a fetcher leaves a turn to others, between bursts; a command counts as a page or more.
const EXECUTED_MAX: u32 = 64 * EXECUTED_MIN;
pub(super) const EXECUTED_MIN: u32 = 4096;

pub(super) struct Fetching {
    pub arbiter: Arbiter,
    /// Permission to watch the registers.
    watch: Pool<Watch>,
    /// Bytes moved by commands executed where they were fetched, since other tasks had a turn.
    pub executed: Cell<u32>,
}

/// Permission to watch the registers; a single token.
struct Watch;

impl Default for Fetching {
    fn default() -> Fetching {
        Fetching { arbiter: Arbiter::default(), watch: Pool::new([Watch]), executed: Cell::new(0) }
    }
}

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
                None => self.fetching.watch.take(&self.rt).await,
            };
            let noticed = self.port.on_registers(|| self.notice()).await;
            let seen = self.rt.now();
            match noticed {
                Noticed::Control => {
                    self.registers.control_written.notify(&self.rt);
                    self.fetching.watch.give(&self.rt, watch);
                }
                Noticed::Commands(burst) => {
                    let pool = self.slots.idle(QueueKind::of(burst.qid));
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
                            self.fetching.watch.give(&self.rt, watch);
                            bring.await;
                        }
                    }
                    let given = slots.len() < burst.entries as usize;
                    for slot in slots.drain(..) {
                        self.give_slot(QueueKind::of(burst.qid), slot);
                    }
                    if given || burst.entries == 1 || self.fetching.executed.get() >= EXECUTED_MAX {
                        // Let the commands begin before the next poll, and the other tasks run. After a lone
                        // command, a poll at once would find nothing.
                        self.fetching.executed.set(0);
                        self.rt.yield_now().await;
                    }
                }
            }
        }
    }

    /// Checks for a register change that needs action.
    fn notice(&self) -> Option<Noticed> {
        let cc = match &self.shared.place {
            Some(place) if !place.is_first() => place.posted(),
            _ => self.port.load(CC),
        };
        if cc != self.registers.cc_noticed.get() {
            self.registers.cc_noticed.set(cc);
            return Some(Noticed::Control);
        }
        let burst = if self.registers.ready.get() { self.arbitrate() } else { None };
        if burst.is_none() && !self.is_other() {
            self.take_reports();
            self.publish_read_only();
            // Events that found the admin completion queue full are retried.
            self.tell_events();
        }
        burst.map(Noticed::Commands)
    }

    /// Fetches a burst; executes its commands at once, or gives them to slots.
    async fn bring(&self, burst: Burst, bytes: &mut [u8], seen: Time, slots: &mut Vec<u16>) {
        let from = Segment { at: burst.at, bytes: bytes.len() as u32 };
        let fetched = self.port.read(&[from], bytes, Carry::All).await;
        if !self.fetched(burst) {
            self.slots.quiet.notify(&self.rt);
            return;
        }
        if fetched.is_err() {
            // The queue is outside host memory: no single command can report that.
            self.fail("fetching a submission queue entry", burst.at.0);
            return;
        }
        let mut firsts = Vec::new();
        if self.queues.firsts.get() > 0 {
            firsts.extend(self.first_before(burst.qid));
        }
        let hints = burst.qid != QueueId::ADMIN && self.media.is_immediate();
        let entries = bytes.chunks_exact(ENTRY);
        let entries = entries.map(|bytes| Sqe::ref_from_bytes(bytes).expect("an entry's length"));
        let ask = |moves: Moves, part| moves.prefetch(part, &*self.media);
        let begin = |sqe: &Sqe| self.dispatch(burst.qid, sqe, seen, hints, &mut firsts, slots);
        ahead::each(entries, hints, |sqe| self.moves(sqe), ask, begin);
        if !firsts.is_empty() {
            self.leave_firsts(burst.qid, &mut firsts, slots);
        }
    }

    /// Executes a command at once, or gives it to a slot.
    #[inline(always)]
    fn dispatch(
        &self,
        qid: QueueId,
        sqe: &Sqe,
        seen: Time,
        immediate: bool,
        firsts: &mut Vec<Sqe>,
        slots: &mut Vec<u16>,
    ) {
        let cid = sqe.cid.get();
        self.rt.attach_trace(qid.0, cid);
        let traced = self.rt.is_traced();
        if traced {
            self.rt.record_at(self.stages.doorbell, seen);
            self.rt.record(self.stages.fetch);
        }
        self.rt.log("device", "fetched", u64::from(qid.0), u64::from(cid));
        let pairs = qid != QueueId::ADMIN;
        if pairs && (sqe.flags.fuse() != ALONE || !firsts.is_empty()) {
            if traced {
                self.rt.detach_trace();
            }
            self.fuse(qid, *sqe, firsts, slots);
            return;
        }
        let slot = *slots.last().expect("a slot for every entry");
        let executed = if immediate { self.at_once(slot, sqe) } else { None };
        if traced {
            self.rt.detach_trace();
        }
        if executed != Some(Status::SUCCESS) || !self.completed_at_once(qid, sqe.id()) {
            slots.pop();
            let slot = &self.slots[slot];
            slot.give(&self.rt, qid, sqe, Fused::Alone, executed);
        }
    }

    /// Data of a read or a write that is about to begin, for a hint; the command itself validates them.
    #[inline]
    fn moves(&self, sqe: &Sqe) -> Option<Moves> {
        let to_write = sqe.opcode == opcode::WRITE;
        if !to_write && sqe.opcode != opcode::READ {
            return None;
        }
        let (_, namespace) = self.active_at(Nsid(sqe.nsid.get())).ok()?;
        let lba = u64::from(sqe.cdw11.get()) << 32 | u64::from(sqe.cdw10.get());
        let block = namespace.extent(lba, 1).ok()?.block;
        let blocks = u32::from(sqe.cdw12.get() as u16) + 1;
        Some(Moves { block, bytes: blocks.saturating_mul(self.block_bytes), to_write })
    }

    /// Ends a fetch. Returns false if its queue is being deleted or the controller disabled, and the entries
    /// must be discarded. Both wait for this, so that no fetch outlives its queue.
    fn fetched(&self, burst: Burst) -> bool {
        let mut sqs = self.queues.sqs.borrow_mut();
        let sq = sqs[usize::from(burst.qid.0)].as_mut().expect("a queue outlives its fetch");
        sq.fetching = false;
        let wanted = self.registers.ready.get() && !sq.deleting;
        if wanted {
            sq.fetched = onward(sq.fetched, burst.entries, sq.size);
            let others = self.queues.sqs_end.get() > 2;
            if others || self.port.load(sq.tail_doorbell) != sq.head {
                // The watcher has skipped this queue meanwhile, or held others back for it.
                self.port.check_again();
            }
        }
        wanted
    }

    /// Frees a slot. If it is the only free one, the fetcher may be waiting for it.
    pub(super) fn give_slot(&self, kind: QueueKind, slot: u16) {
        let pool = self.slots.idle(kind);
        pool.give(&self.rt, slot);
        if pool.available() == 1 {
            self.port.check_again();
        }
    }
}
