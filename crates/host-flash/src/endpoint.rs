//! One endpoint: its two rings, its command slots, and its completion poller.

use alloc::boxed::Box;
use core::cell::Cell;
use core::task::{Context, Poll};

use bus::{Buffer, Cost, HostPort, OutOfMemory};
use runtime::{Either, Pool, Rt, Signal, Stage, StageName, race, stage};
use wire::BusAddr;
use wire::pages::{
    ANSWER_BYTES, ANSWERS, Answer, COMMAND_BYTES, CONTROL, Command, Control, Operation, RING,
    RINGS, STATUS, STRIDE, State, TAIL,
};

use super::schedule::{Schedule, die_of};
use super::store::{NONE, Store};
use host::nvme::Completion;
use host::register::until;
use host::{InitError, quarantine};

/// Number of invalid answers after which an endpoint is given up.
const NONSENSE_MAX: u32 = 64;

/// Slot for one command in flight.
struct Slot {
    /// Place that the answer goes to; [`NONE`] if the slot is free.
    place: Cell<u16>,
    /// Use count, modulo the bits of a command identifier.
    turn: Cell<u8>,
    /// Number of watchdog checks that found the command in flight.
    looks: Cell<u32>,
    trace: Cell<u32>,
    /// Its die, among those of the endpoint.
    die: Cell<usize>,
}

/// Bits of a command identifier that hold its slot; the bits above count its uses.
const SLOT_BITS: u32 = 10;

pub(super) struct Endpoint<P: HostPort> {
    pub number: u32,
    port: P,
    completion: Completion,
    ring: Buffer,
    answers: Buffer,
    entries: u32,
    tail: Cell<u32>,
    taken: Cell<u32>,
    slots: Box<[Slot]>,
    free: Pool<u16>,
    /// Number of endpoints, to which dies are dealt.
    of: u32,
    /// Commands that wait for their dies, if each die has a limit. Nothing else waits for slots then.
    schedule: Option<Schedule>,
    nonsense: Cell<u32>,
    submit: Cost,
    stages: Stages,
}

struct Stages {
    completion: Stage,
    noticing: Stage,
    slot: Stage,
}

impl<P: HostPort> Endpoint<P> {
    pub fn new(
        port: &P,
        (number, of): (u32, u32),
        depth: u16,
        completion: Completion,
        schedule: Option<Schedule>,
    ) -> Result<Self, OutOfMemory> {
        let entries = u32::from(depth).next_power_of_two().max(2);
        let rt = port.rt();
        let answers = port.arena().buffer(entries as usize * ANSWER_BYTES)?;
        answers.zero();
        let slot = |_| Slot {
            place: Cell::new(NONE),
            turn: Cell::new(0),
            looks: Cell::new(0),
            trace: Cell::new(u32::MAX),
            die: Cell::new(0),
        };
        Ok(Endpoint {
            number,
            port: port.clone(),
            completion,
            ring: port.arena().buffer(entries as usize * COMMAND_BYTES)?,
            answers,
            entries,
            tail: Cell::new(0),
            taken: Cell::new(0),
            slots: (0..depth).map(slot).collect(),
            free: Pool::new((0..depth).rev()),
            of,
            schedule,
            nonsense: Cell::new(0),
            submit: port.cost("submit"),
            stages: Stages {
                completion: stage!(rt, crate::STAGES, "completion"),
                noticing: rt.stage(StageName::of(
                    crate::STAGES,
                    match completion {
                        Completion::Polled | Completion::Hybrid => "poll",
                        Completion::Interrupt { .. } => "interrupt",
                    },
                )),
                slot: stage!(rt, crate::STAGES, "slot wait"),
            },
        })
    }

    fn rt(&self) -> &Rt {
        self.port.rt()
    }

    fn register(&self, offset: u32) -> u32 {
        self.number * STRIDE + offset
    }

    /// Host memory of its rings, and of its slots, in bytes.
    pub fn bytes(&self) -> (usize, usize) {
        let waiting = self.schedule.as_ref().map_or(0, Schedule::bytes);
        let slots = self.slots.len() * size_of::<Slot>();
        (self.ring.bytes() + self.answers.bytes(), slots + waiting)
    }

    /// Programs the rings' addresses, and waits until the endpoint is enabled.
    pub async fn enable(&self, limit: runtime::Span) -> Result<(), InitError> {
        let both = |register: u32, at: BusAddr| {
            self.port.write32(self.register(register), at.0 as u32);
            self.port.write32(self.register(register + 4), (at.0 >> 32) as u32);
        };
        both(RING, self.ring.at());
        both(ANSWERS, self.answers.at());
        self.port.write32(self.register(RINGS), self.entries.ilog2());
        self.port.write32(self.register(TAIL), 0);
        let signals = matches!(self.completion, Completion::Interrupt { .. });
        let control = Control::new().with_enable(true).with_signals(signals);
        self.port.write32(self.register(CONTROL), control.into_bits());
        self.wait_for(State::new().with_ready(true), limit).await
    }

    /// Disables the endpoint. After `Ok` it no longer accesses host memory.
    pub async fn disable(&self, limit: runtime::Span) -> Result<(), InitError> {
        self.port.write32(self.register(CONTROL), Control::new().into_bits());
        self.wait_for(State::new(), limit).await
    }

    async fn wait_for(&self, wanted: State, limit: runtime::Span) -> Result<(), InitError> {
        let register = self.register(STATUS);
        let reached = |value: u32| (State::from_bits(value) == wanted).then_some(());
        until(&self.port, register, limit, reached).await.map_err(|found| match found {
            u32::MAX => InitError::Gone { register: "STATUS" },
            found => InitError::NotReady {
                register: "STATUS of an endpoint",
                found,
                expected: wanted.into_bits(),
                waited: limit,
            },
        })
    }

    /// Quarantines its rings: it may still access them.
    pub fn quarantine(&self) {
        quarantine(&self.ring);
        quarantine(&self.answers);
    }

    /// Waits for a slot and submits a command whose answer goes to this place.
    pub async fn submit(&self, store: &Store, port: &P, place: u16, operation: Operation) {
        let slot = match self.free.try_take() {
            Some(slot) => slot,
            None => self.free.take(self.rt()).await,
        };
        let held = Held { endpoint: self, slot: Some(slot), die: self.own(&operation) };
        held.submit(store, port, place, operation).await;
    }

    /// Returns true if each die has a limit.
    pub fn has_schedule(&self) -> bool {
        self.schedule.is_some()
    }

    /// Number of a command's die among those of this endpoint.
    fn own(&self, operation: &Operation) -> usize {
        (die_of(operation).0 / self.of) as usize
    }

    /// Queues a command for its die. It is [`granted`](Endpoint::granted) a slot, or must
    /// [`leave`](Endpoint::leave).
    pub fn enter(&self, place: u16, operation: &Operation) {
        if let Some(schedule) = &self.schedule {
            schedule.enter(self.own(operation), die_of(operation).1, place);
        }
        self.hand_out();
    }

    /// Slot of the command that was queued with this place; until there is one, the task is woken for it.
    pub fn granted(&self, cx: &Context<'_>, place: u16) -> Option<Held<'_, P>> {
        match self.schedule.as_ref()?.poll(self.rt(), cx, place) {
            Poll::Ready((die, slot)) => Some(Held { endpoint: self, slot: Some(slot), die }),
            Poll::Pending => None,
        }
    }

    /// Withdraws a command, if it still waits.
    pub fn leave(&self, place: u16) {
        let left = self.schedule.as_ref().and_then(|schedule| schedule.leave(place));
        if let Some((die, slot)) = left {
            self.give_back(die, slot);
        }
    }

    /// Gives free slots to commands that wait for their dies.
    fn hand_out(&self) {
        let Some(schedule) = &self.schedule else { return };
        while let Some(die) = schedule.next() {
            let Some(slot) = self.free.try_take() else { return };
            schedule.grant(self.rt(), die, slot);
        }
    }

    fn give_back(&self, die: usize, slot: u16) {
        self.schedule.iter().for_each(|schedule| schedule.ended(die));
        self.free.give(self.rt(), slot);
        self.hand_out();
    }

    /// Counts a watchdog check; returns true if a command has been in flight for more than `looks` checks.
    pub fn is_stuck(&self, looks: u32) -> bool {
        let mut stuck = false;
        for slot in self.slots.iter().filter(|slot| slot.place.get() != NONE) {
            slot.looks.set(slot.looks.get() + 1);
            stuck |= slot.looks.get() > looks;
        }
        stuck
    }

    /// Next answer, if it has arrived.
    fn next(&self) -> Option<[u8; ANSWER_BYTES]> {
        let place = (self.taken.get() % self.entries) as usize * ANSWER_BYTES;
        let lap = (self.taken.get() / self.entries).wrapping_add(1);
        // Acquire: the bytes before the lap word are visible.
        if self.answers.load_u32(place + ANSWER_BYTES - 4) != lap {
            return None;
        }
        let mut bytes = [0; ANSWER_BYTES];
        self.answers.copy_out(place, &mut bytes);
        Some(bytes)
    }

    /// Processes pending answers, at most one ring; returns false after too many invalid ones.
    fn drain(&self, store: &Store) -> bool {
        for _ in 0..self.entries {
            let Some(bytes) = self.next() else { break };
            self.taken.set(self.taken.get().wrapping_add(1));
            if !self.deliver(store, Answer::parse(&bytes)) {
                self.rt().log("host", "bad answer", self.number.into(), self.taken.get().into());
                self.nonsense.set(self.nonsense.get() + 1);
            }
        }
        self.nonsense.get() < NONSENSE_MAX
    }

    /// Validates an answer and delivers it; returns false if it is invalid.
    fn deliver(&self, store: &Store, answer: Option<Answer>) -> bool {
        let Some(answer) = answer else { return false };
        let index = answer.id & ((1 << SLOT_BITS) - 1);
        let Some(slot) = self.slots.get(usize::from(index)) else { return false };
        let same = u16::from(slot.turn.get()) == answer.id >> SLOT_BITS;
        if slot.place.get() == NONE || !same {
            return false;
        }
        let rt = self.rt();
        rt.attach_trace_number(slot.trace.get());
        if rt.is_traced() {
            rt.record_at(self.stages.completion, self.port.noticed());
            rt.record(self.stages.noticing);
            rt.detach_trace();
        }
        let place = slot.place.replace(NONE);
        self.give_back(slot.die.get(), index);
        store.ended(rt, place, answer);
        true
    }

    /// Polls for answers until `gone`, or until this endpoint is gone or has sent too many invalid ones.
    pub async fn poll_completions(&self, store: &Store, gone: &Signal) {
        let mut interrupts = 0;
        let (rt, port) = (self.rt(), &self.port);
        loop {
            let gone = gone.changed(rt, 0);
            let come = async {
                match self.completion {
                    Completion::Polled | Completion::Hybrid => self.on_answer().await,
                    Completion::Interrupt { vector } => {
                        interrupts = port.on_interrupt(vector, interrupts).await;
                    }
                }
            };
            if let Either::First(()) = race(gone, come).await {
                return;
            }
            if !self.drain(store) || port.is_gone() {
                return;
            }
            // Woken tasks run before the next poll.
            rt.yield_now().await;
        }
    }

    async fn on_answer(&self) {
        let place = (self.taken.get() % self.entries) as usize * ANSWER_BYTES;
        let at = BusAddr(self.answers.at().0 + place as u64);
        let check = || (self.next().is_some() || self.port.is_gone()).then_some(());
        self.port.on_memory(at, ANSWER_BYTES as u32, check).await;
    }
}

/// A slot without a command.
pub(super) struct Held<'a, P: HostPort> {
    endpoint: &'a Endpoint<P>,
    slot: Option<u16>,
    die: usize,
}

impl<P: HostPort> Held<'_, P> {
    /// Submits a command whose answer goes to this place.
    pub async fn submit(self, store: &Store, port: &P, place: u16, operation: Operation) {
        self.endpoint.rt().record(self.endpoint.stages.slot);
        port.spend(self.endpoint.submit).await;
        self.launch(store, port, place, operation);
    }

    /// Submits the command; the endpoint owns the slot from here on.
    fn launch(mut self, store: &Store, port: &P, place: u16, operation: Operation) {
        let index = self.slot.take().expect("launched once");
        let endpoint = self.endpoint;
        let slot = &endpoint.slots[usize::from(index)];
        let turn = (slot.turn.get() + 1) % (1 << (16 - SLOT_BITS));
        slot.turn.set(turn);
        slot.looks.set(0);
        slot.place.set(place);
        slot.die.set(self.die);
        slot.trace.set(endpoint.rt().trace());
        store.launch(place);
        let id = u16::from(turn) << SLOT_BITS | index;
        let command = Command { id, trace: slot.trace.get(), operation };
        let tail = endpoint.tail.get();
        let at = (tail % endpoint.entries) as usize * COMMAND_BYTES;
        endpoint.ring.copy_in(at, &command.to_bytes());
        endpoint.tail.set(tail.wrapping_add(1));
        port.write32(endpoint.register(TAIL), tail.wrapping_add(1));
    }
}

impl<P: HostPort> Drop for Held<'_, P> {
    fn drop(&mut self) {
        if let Some(slot) = self.slot.take() {
            self.endpoint.give_back(self.die, slot);
        }
    }
}
