//! Control: requests in flight, turns of handles, and the commands left of each request.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use bus::Buffer;
use runtime::{Parked, Time};
use wire::fastpath::{Response, Status};

use super::schedule::{SCALE, Schedule, Share, Waiting};
use super::table::Job;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum From {
    /// A waiting task of this executor.
    Task,
    /// None: the task was dropped.
    NoOne,
    /// Ring with this number, counted from 1.
    Ring(u32),
}

pub(super) struct Request {
    pub fp_id: u16,
    pub tag: u16,
    pub job: Job,
    pub from: From,
    pub begun: Time,
    /// Identifier of its request trace.
    pub trace: u16,
    /// Memory that the drive may still access.
    pub keep: Option<Buffer>,
    followed: bool,
    issued: u32,
    completed: u32,
    status: Status,
}

/// A slot for a request. A task's slot stays in use until the task has fetched the response.
enum Slot {
    Free,
    UnderWay(Request),
    Answered(Answer),
}

/// Result of a task's request.
pub(super) struct Answer {
    pub response: Response,
    pub keep: Option<Buffer>,
    /// True if its request trace continues under the request's identifier.
    pub followed: bool,
}

/// One command of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Turn {
    /// Slot of its request.
    pub slot: u16,
    /// `fp_id` of its request's handle.
    pub fp_id: u16,
    /// Index in the request.
    pub number: u32,
    /// True for the request's last command.
    pub last: bool,
    pub job: Job,
    pub trace: u16,
}

/// A request whose last command has ended.
pub(super) struct Ended {
    pub fp_id: u16,
    pub from: From,
    pub response: Response,
}

/// Bookkeeping only: the caller does the waiting and the waking.
pub(super) struct Control {
    slots: Vec<Slot>,
    uses: Vec<u16>,
    owners: Vec<Option<Parked>>,
    lines: Vec<Line>,
    /// Handles with commands not yet taken by an engine, in round-robin order.
    turns: VecDeque<u16>,
    schedule: Schedule,
    /// `served` of the handle whose command was given out last, before it: where one that was away begins.
    reached: u64,
    /// Those handles as a rule sees them; empty between calls.
    waiting: Vec<Waiting>,
}

/// A handle as Control sees it.
struct Line {
    /// Slots of requests with commands not yet taken by an engine.
    slots: VecDeque<u16>,
    share: Share,
    served: u64,
}

impl Line {
    fn new(most: usize) -> Line {
        Line { slots: VecDeque::with_capacity(most), share: Share::default(), served: 0 }
    }
}

impl Control {
    /// Creates `requests` free slots.
    pub fn new(requests: u16, schedule: Schedule) -> Control {
        Control {
            slots: (0..requests).map(|_| Slot::Free).collect(),
            uses: (0..requests).map(|_| 0).collect(),
            owners: (0..requests).map(|_| None).collect(),
            lines: Vec::new(),
            turns: VecDeque::with_capacity(super::HANDLES_MAX),
            schedule,
            reached: 0,
            waiting: Vec::with_capacity(match schedule {
                Schedule::RoundRobin => 0,
                Schedule::By(_) => super::HANDLES_MAX,
            }),
        }
    }

    /// Sets the share of a handle. Its number may have been another's: opening a handle sets the default.
    pub fn set_share(&mut self, fp_id: u16, share: Share) {
        self.line(fp_id).share = Share { weight: share.weight.max(1), ..share };
    }

    fn line(&mut self, fp_id: u16) -> &mut Line {
        let (line, most) = (usize::from(fp_id), self.slots.len());
        if self.lines.len() <= line {
            self.lines.resize_with(line + 1, || Line::new(most));
        }
        &mut self.lines[line]
    }

    /// Identifier of the request trace of the slot's next request.
    pub fn trace(&self, slot: u16) -> u16 {
        self.uses[usize::from(slot)] << crate::SLOT_BITS | slot
    }

    /// Stores a request in a free slot and queues it.
    pub fn enter(&mut self, slot: u16, request: Request) {
        if self.line(request.fp_id).slots.is_empty() {
            let reached = self.reached;
            let line = self.line(request.fp_id);
            line.served = line.served.max(reached);
            self.turns.push_back(request.fp_id);
        }
        self.line(request.fp_id).slots.push_back(slot);
        self.uses[usize::from(slot)] = self.uses[usize::from(slot)].wrapping_add(1);
        self.slots[usize::from(slot)] = Slot::UnderWay(request);
    }

    /// The handle whose turn it is, which leaves the order.
    fn whose(&mut self) -> Option<u16> {
        let Schedule::By(rule) = self.schedule else { return self.turns.pop_front() };
        if self.turns.len() < 2 {
            return self.turns.pop_front();
        }
        for fp_id in &self.turns {
            let line = &self.lines[usize::from(*fp_id)];
            let oldest = line.slots.front().map(|slot| &self.slots[usize::from(*slot)]);
            let since = match oldest {
                Some(Slot::UnderWay(request)) => request.begun,
                _ => unreachable!("what stands in line is under way"),
            };
            let (share, served) = (line.share, line.served);
            self.waiting.push(Waiting { fp_id: *fp_id, share, served, since });
        }
        let chosen = rule(&self.waiting);
        self.waiting.clear();
        let chosen = if chosen < self.turns.len() { chosen } else { 0 };
        self.turns.remove(chosen)
    }

    /// Next command of the handle whose turn it is, from its oldest request.
    pub fn next(&mut self) -> Option<Turn> {
        let fp_id = self.whose()?;
        let line = &mut self.lines[usize::from(fp_id)];
        self.reached = line.served;
        line.served = line.served.saturating_add(SCALE / u64::from(line.share.weight));
        let line = &mut line.slots;
        let slot = *line.front().expect("a handle with a turn has a request");
        let Slot::UnderWay(request) = &mut self.slots[usize::from(slot)] else {
            unreachable!("what stands in line is under way");
        };
        let turn = request.turn(slot);
        if turn.last {
            line.pop_front();
        }
        if !line.is_empty() {
            self.turns.push_back(fp_id);
        }
        Some(turn)
    }

    fn under_way(&mut self, slot: u16) -> &mut Request {
        match &mut self.slots[usize::from(slot)] {
            Slot::UnderWay(request) => request,
            _ => unreachable!("only a request that is under way has commands"),
        }
    }

    /// Sets whether the trace of a request continues under its own identifier.
    pub fn follow(&mut self, slot: u16, followed: bool) {
        self.under_way(slot).followed = followed;
    }

    /// Records the end of a command. Returns its request if that has ended; a ring's slot is free then, a
    /// task's slot when the response has been fetched.
    pub fn complete(&mut self, slot: u16, status: Status, now: Time) -> Option<Ended> {
        let request = self.under_way(slot);
        request.completed += 1;
        if request.status.is_good() && !status.is_good() {
            request.status = status;
            let fp_id = request.fp_id;
            self.withdraw(slot, fp_id);
        }
        let request = self.under_way(slot);
        let more = request.status.is_good() && request.issued < request.job.commands();
        if more || request.completed < request.issued {
            return None;
        }
        let ns = now.since(request.begun).as_ns();
        let response = Response::new(request.tag, request.status, request.completed, ns);
        let (fp_id, from, followed) = (request.fp_id, request.from, request.followed);
        let keep = request.keep.take();
        self.slots[usize::from(slot)] = match from {
            From::Task => Slot::Answered(Answer { response, keep, followed }),
            From::Ring(_) | From::NoOne => Slot::Free,
        };
        Some(Ended { fp_id, from, response })
    }

    /// Removes a request from its handle's queue: no more of its commands are issued.
    fn withdraw(&mut self, slot: u16, fp_id: u16) {
        let line = &mut self.lines[usize::from(fp_id)].slots;
        line.retain(|other| *other != slot);
        if line.is_empty() {
            self.turns.retain(|other| *other != fp_id);
        }
    }

    /// Takes the response to a task's request and frees the slot.
    pub fn fetch(&mut self, slot: u16) -> Option<Answer> {
        if !matches!(self.slots[usize::from(slot)], Slot::Answered(_)) {
            return None;
        }
        match core::mem::replace(&mut self.slots[usize::from(slot)], Slot::Free) {
            Slot::Answered(answer) => Some(answer),
            _ => unreachable!("it was just looked at"),
        }
    }

    /// Detaches the task that waits for this request. Returns true if the slot is free.
    pub fn orphan(&mut self, slot: u16) -> bool {
        self.owners[usize::from(slot)] = None;
        match &mut self.slots[usize::from(slot)] {
            Slot::UnderWay(request) => {
                request.from = From::NoOne;
                false
            }
            Slot::Answered(_) | Slot::Free => {
                self.slots[usize::from(slot)] = Slot::Free;
                true
            }
        }
    }

    /// Task to wake at the end of the slot's request.
    pub fn owner(&mut self, slot: u16) -> &mut Option<Parked> {
        &mut self.owners[usize::from(slot)]
    }

    /// Quarantines all memory held by requests: the drive may write to it at any time.
    pub fn quarantine(&self) {
        for slot in &self.slots {
            if let Slot::UnderWay(Request { keep: Some(buffer), .. }) = slot {
                crate::quarantine(buffer);
            }
        }
    }
}

impl Request {
    /// A new request, with no command issued.
    pub fn new(fp_id: u16, tag: u16, job: Job, from: From, begun: Time, trace: u16) -> Request {
        Request {
            fp_id,
            tag,
            job,
            from,
            begun,
            trace,
            keep: None,
            followed: false,
            issued: 0,
            completed: 0,
            status: Status::Good,
        }
    }

    fn turn(&mut self, slot: u16) -> Turn {
        let number = self.issued;
        self.issued += 1;
        let last = self.issued == self.job.commands();
        Turn { slot, fp_id: self.fp_id, number, last, job: self.job, trace: self.trace }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use runtime::Span;
    use wire::fastpath::{Direction, Refusal};
    use wire::{BusAddr, Lba};

    fn job(commands: u32) -> Job {
        let (direction, lba, at) = (Direction::Read, Lba(0), BusAddr(0));
        Job::Move { direction, lba, at, block_size: 4096, commands }
    }

    fn enter(control: &mut Control, slot: u16, fp_id: u16, commands: u32) {
        let from = From::Ring(0);
        control.enter(slot, Request::new(fp_id, slot, job(commands), from, Time(0), 0));
    }

    /// One handle with long requests and others with short ones: a handle waits for at most one command of
    /// each other handle.
    #[test]
    fn handles_scheduled_round_robin_per_command() {
        let mut control = Control::new(16, Schedule::RoundRobin);
        enter(&mut control, 0, 0, 256);
        enter(&mut control, 1, 0, 256);
        assert_eq!(control.next().unwrap().slot, 0);
        enter(&mut control, 2, 7, 2);
        enter(&mut control, 3, 3, 1);
        let turns: Vec<_> = (0..6).map(|_| control.next().unwrap().slot).collect();
        // The long request was queued first; each other handle gets one command per round.
        assert_eq!(turns, [0, 2, 3, 0, 2, 0]);
        let rest = (0..1000).map_while(|_| control.next()).count();
        assert_eq!(rest, 512 - 4, "what was asked for and not yet given out");
    }

    /// Handles that always have requests get equal shares, to within one command.
    #[test]
    fn handle_shares_equal_for_any_request_size() {
        let mut control = Control::new(64, Schedule::RoundRobin);
        let sizes = [1, 2, 16, 256, 7];
        let mut shares = [0_u32; 5];
        for (fp_id, size) in sizes.iter().enumerate() {
            enter(&mut control, fp_id as u16, fp_id as u16, *size);
        }
        for round in 0..1000 {
            let turn = control.next().expect("there is always something");
            shares[usize::from(turn.slot)] += 1;
            control.complete(turn.slot, Status::Good, Time(round));
            if turn.last {
                enter(&mut control, turn.slot, turn.slot, sizes[usize::from(turn.slot)]);
            }
        }
        assert!(shares.iter().max().unwrap() - shares.iter().min().unwrap() <= 1, "{shares:?}");
    }

    /// Commands of each handle out of `commands`; all of them always have requests.
    fn shares(schedule: Schedule, weights: &[u16], commands: u64) -> Vec<u64> {
        let mut control = Control::new(64, schedule);
        for (fp_id, weight) in weights.iter().enumerate() {
            let within = Span::us(100 / u64::from(*weight));
            control.set_share(fp_id as u16, Share { weight: *weight, within });
            enter(&mut control, fp_id as u16, fp_id as u16, 3);
        }
        let mut given = vec![0; weights.len()];
        for now in 0..commands {
            let turn = control.next().expect("there is always something");
            given[usize::from(turn.slot)] += 1;
            control.complete(turn.slot, Status::Good, Time(now));
            if turn.last {
                let from = From::Ring(0);
                let begun = Time(now * 1_000_000);
                let again = Request::new(turn.slot, turn.slot, job(3), from, begun, 0);
                control.enter(turn.slot, again);
            }
        }
        given
    }

    #[test]
    fn weighted_schedule_divides_commands_by_weight() {
        assert_eq!(shares(Schedule::WEIGHTED, &[1, 2, 4, 8], 1500), [100, 200, 400, 800]);
        assert_eq!(shares(Schedule::RoundRobin, &[1, 2, 4, 8], 1500), [375; 4]);
    }

    #[test]
    fn weighted_schedule_gives_nothing_back_for_an_absence() {
        let mut control = Control::new(8, Schedule::WEIGHTED);
        enter(&mut control, 0, 0, 1000);
        (0..500).for_each(|_| assert_eq!(control.next().unwrap().slot, 0));
        enter(&mut control, 1, 1, 1000);
        let of_first = (0..100).filter(|_| control.next().unwrap().slot == 0).count();
        assert!((49..=51).contains(&of_first), "{of_first} of 100");
    }

    #[test]
    fn deadline_schedule_takes_the_earliest_deadline() {
        let mut control = Control::new(8, Schedule::DEADLINE);
        for (fp_id, us) in [(0, 900), (1, 100), (2, 500)] {
            control.set_share(fp_id, Share { weight: 1, within: Span::us(us) });
            enter(&mut control, fp_id, fp_id, 2);
        }
        let order: Vec<_> = (0..6).map(|_| control.next().unwrap().slot).collect();
        assert_eq!(order, [1, 1, 2, 2, 0, 0]);
    }

    #[test]
    fn schedule_of_the_caller_replaces_round_robin() {
        let last: Schedule = Schedule::By(|waiting| waiting.len() - 1);
        let mut control = Control::new(8, last);
        (0..3).for_each(|fp_id| enter(&mut control, fp_id, fp_id, 1));
        let order: Vec<_> = (0..3).map(|_| control.next().unwrap().slot).collect();
        assert_eq!(order, [2, 1, 0]);
        let past: Schedule = Schedule::By(|_| 99);
        let mut control = Control::new(8, past);
        (0..3).for_each(|fp_id| enter(&mut control, fp_id, fp_id, 1));
        assert_eq!(control.next().unwrap().slot, 0, "an index past the end is round robin");
    }

    #[test]
    fn request_ends_with_last_command_in_any_order() {
        let mut control = Control::new(4, Schedule::RoundRobin);
        let slot = 2;
        enter(&mut control, slot, 0, 3);
        let turns: Vec<_> = (0..3).map(|_| control.next().unwrap()).collect();
        assert_eq!(turns.iter().map(|turn| turn.number).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(turns.iter().filter(|turn| turn.last).count(), 1);
        assert!(control.complete(slot, Status::Good, Time(1)).is_none());
        assert!(control.complete(slot, Status::Good, Time(2)).is_none());
        let ended = control.complete(slot, Status::Good, Time(5_000)).expect("the last");
        assert_eq!(ended.response, Response::new(slot, Status::Good, 3, 5));
    }

    #[test]
    fn first_failure_stops_request_and_sets_status() {
        let mut control = Control::new(4, Schedule::RoundRobin);
        let (slot, other) = (0, 1);
        enter(&mut control, slot, 0, 100);
        enter(&mut control, other, 0, 1);
        for _ in 0..3 {
            control.next().unwrap();
        }
        let (first, second) = (Status::Engine(Refusal::TimeOut), Status::Engine(Refusal::Bus));
        assert!(control.complete(slot, Status::Good, Time(0)).is_none());
        assert!(control.complete(slot, first, Time(0)).is_none(), "one is still with the drive");
        assert_eq!(control.next().unwrap().slot, other, "the next request of the handle");
        let ended = control.complete(slot, second, Time(0)).expect("the last that was given out");
        assert_eq!(ended.response, Response::new(slot, first, 3, 0));
        assert!(control.next().is_none());
    }

    #[test]
    fn response_fetched_once() {
        let mut control = Control::new(1, Schedule::RoundRobin);
        control.enter(0, Request::new(0, 9, job(1), From::Task, Time(0), 0));
        control.next().unwrap();
        assert!(control.fetch(0).is_none());
        assert!(control.complete(0, Status::Good, Time(0)).is_some());
        assert_eq!(control.fetch(0).unwrap().response.tag.get(), 9);
        assert!(control.fetch(0).is_none());
    }

    #[test]
    fn slot_of_dropped_task_freed_by_last_command() {
        let mut control = Control::new(1, Schedule::RoundRobin);
        control.enter(0, Request::new(0, 9, job(1), From::Task, Time(0), 0));
        control.next().unwrap();
        assert!(!control.orphan(0));
        assert_eq!(control.complete(0, Status::Good, Time(0)).unwrap().from, From::NoOne);
        control.enter(0, Request::new(0, 9, job(1), From::Task, Time(0), 0));
        control.next().unwrap();
        control.complete(0, Status::Good, Time(0)).unwrap();
        assert!(control.orphan(0));
    }
}
