//! Completions: an entry of the completion queue, its write, and the interrupt.

use bus::DevicePort;
use media::Media;
use wire::nvme::entry::Cqe;
use wire::{BusAddr, QueueId};
use zerocopy::IntoBytes;

use super::Controller;

/// State of a completion queue.
pub(super) enum Room {
    At(Place),
    /// Full: the host must consume first.
    Full,
    /// The queue was deleted meanwhile.
    Gone,
}

/// A reserved completion queue entry: address, phase tag, vector, and submission queue head to report.
pub(super) struct Place {
    at: BusAddr,
    phase: bool,
    vector: Option<u16>,
    sq_head: u16,
}

impl<P: DevicePort, M: Media> Controller<P, M> {
    /// Posts a completion, once its queue has space.
    pub(super) async fn complete(&self, qid: QueueId, cqe: Cqe) {
        self.port.spend(self.stages.post).await;
        let place = match self.place_for(qid) {
            Room::Full => {
                // The poll may have found an invalid head doorbell.
                self.tell_events();
                let place = self.port.on_registers(|| self.place_unless_full(qid)).await;
                self.rt.record(self.stages.queue_full);
                place
            }
            Room::At(place) => Some(place),
            Room::Gone => None,
        };
        if let Some(place) = place {
            self.post(qid, cqe, place);
        }
    }

    fn place_unless_full(&self, qid: QueueId) -> Option<Option<Place>> {
        match self.place_for(qid) {
            Room::Full => {
                self.tell_events();
                None
            }
            Room::At(place) => Some(Some(place)),
            Room::Gone => Some(None),
        }
    }

    /// Reserves an entry in the completion queue of this submission queue.
    pub(super) fn place_for(&self, qid: QueueId) -> Room {
        let (room, bad_head) = self.look_for_place(qid);
        if bad_head {
            self.tell_bad_doorbell();
        }
        room
    }

    fn look_for_place(&self, qid: QueueId) -> (Room, bool) {
        let sqs = self.queues.sqs.borrow();
        let mut cqs = self.queues.cqs.borrow_mut();
        let Some(sq) = sqs[usize::from(qid.0)].as_ref() else { return (Room::Gone, false) };
        let Some(cq) = cqs[usize::from(sq.cqid.0)].as_mut() else { return (Room::Gone, false) };
        let mut bad_head = false;
        let reserved = cq.reserve().or_else(|| {
            let head = self.port.load(cq.head_doorbell);
            cq.is_waited_for = true;
            if self.queues.shadows.are_on() && cq.shadow.is_due(head, head != cq.head()) {
                self.notice_shadow();
                return None;
            }
            if cq.consumed(head) {
                cq.bad_head = None;
            } else {
                bad_head = cq.bad_head.replace(head) != Some(head);
            }
            cq.reserve()
        });
        let room = match reserved {
            None => Room::Full,
            Some((at, phase)) => {
                cq.is_waited_for = false;
                Room::At(Place { at, phase, vector: cq.vector, sq_head: sq.fetched as u16 })
            }
        };
        (room, bad_head)
    }

    /// Writes a completion into its entry, then its interrupt.
    pub(super) fn post(&self, qid: QueueId, cqe: Cqe, place: Place) {
        let cqe = cqe.with_queue(qid, place.sq_head).with_phase(place.phase);
        if self.faults.is_on() {
            if self.faults.is_down() {
                return;
            }
            self.faults.posted(&self.rt, qid.0);
        }
        self.rt.log("device", "completed", u64::from(qid.0), u64::from(cqe.cid.get()));
        if self.port.publish(place.at, cqe.as_bytes(), false).is_err() {
            self.fail("posting a completion", place.at.0);
        } else if self.faults.is_on() && self.faults.is_silent(qid.0, cqe.cid.get()) {
            self.rt.log("device", "no interrupt", u64::from(qid.0), u64::from(cqe.cid.get()));
        } else if self.port.pin().is_some() {
            let cqid = self.queues.sqs.borrow()[usize::from(qid.0)].as_ref().map(|sq| sq.cqid);
            let mut cqs = self.queues.cqs.borrow_mut();
            if let Some(cq) = cqid.and_then(|cqid| cqs[usize::from(cqid.0)].as_mut()) {
                cq.posted();
            }
            drop(cqs);
            self.drive_pin();
        } else if let Some(vector) = place.vector {
            self.signal(vector, qid, cqe.status());
            if self.faults.is_on() && self.faults.is_repeated(qid.0, cqe.cid.get()) {
                self.rt.log("device", "interrupt again", u64::from(qid.0), cqe.cid.get().into());
                self.signal(vector, qid, cqe.status());
            }
        }
    }
}
