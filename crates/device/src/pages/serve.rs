//! From registers to slots: enabling, fetching, and protocol violations by the host.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use bus::{Carry, DevicePort, Segment};
use runtime::Time;
use wire::BusAddr;
use wire::pages::{
    ANSWER_BYTES, ANSWERS, Answer, COMMAND_BYTES, CONTROL, Command, Control, ENTRIES_LOG2_MAX,
    RING, RINGS, STATUS, State, TAIL,
};

use super::{End, Endpoints, Given, Open};

/// Register change seen by an endpoint.
enum Noticed {
    Control(Control),
    /// Number of commands waiting for which slots are free.
    Commands(Open, u32),
    /// A tail that no conforming host could have written.
    Nonsense,
}

impl<P: DevicePort> Endpoints<P> {
    /// Task of an endpoint: watches registers and fetches commands.
    pub(super) async fn serve(self: Rc<Self>, number: usize) {
        let end = &self.ends[number];
        let mut bytes = vec![0; COMMAND_BYTES * self.options.fetch_max as usize];
        let mut turn = 0;
        loop {
            match self.port.on_registers(|| self.notice(end)).await {
                Noticed::Control(control) => {
                    let enabled = end.open.get().is_some();
                    match (enabled, control.enable()) {
                        (false, true) => {
                            turn += 1;
                            self.enable(end, control, turn);
                        }
                        (_, false) => self.disable(end).await,
                        (true, true) => {}
                    }
                }
                Noticed::Commands(open, count) => {
                    let bytes = &mut bytes[..COMMAND_BYTES * count as usize];
                    self.bring(end, open, bytes).await;
                    // Let the commands begin before the next poll.
                    self.rt.yield_now().await;
                }
                Noticed::Nonsense => self.broken(end, "count"),
            }
        }
    }

    fn notice(&self, end: &End) -> Option<Noticed> {
        let control = self.port.load(end.register(CONTROL));
        if control != end.control.get() {
            end.control.set(control);
            return Some(Noticed::Control(Control::from_bits(control)));
        }
        let open = end.open.get()?;
        let waiting = self.port.load(end.register(TAIL)).wrapping_sub(end.head.get());
        if waiting > open.entries {
            return Some(Noticed::Nonsense);
        }
        let to_end = open.entries - end.head.get() % open.entries;
        let free = end.idle.available() as u32;
        let count = waiting.min(to_end).min(free).min(self.options.fetch_max);
        (count > 0).then_some(Noticed::Commands(open, count))
    }

    fn enable(&self, end: &End, control: Control, turn: u64) {
        let address = |register: u32| {
            let low = u64::from(self.port.load(end.register(register)));
            u64::from(self.port.load(end.register(register + 4))) << 32 | low
        };
        let (ring, answers) = (address(RING), address(ANSWERS));
        let log2 = self.port.load(end.register(RINGS));
        let sense = (1..=u32::from(ENTRIES_LOG2_MAX)).contains(&log2)
            && ring.is_multiple_of(64)
            && answers.is_multiple_of(16)
            && ring.checked_add(64 << log2).is_some()
            && answers.checked_add(16 << log2).is_some();
        if !sense {
            return self.broken(end, "registers");
        }
        end.head.set(self.port.load(end.register(TAIL)));
        end.answered.set(0);
        end.open.set(Some(Open {
            ring: BusAddr(ring),
            answers: BusAddr(answers),
            entries: 1 << log2,
            signals: control.signals(),
            turn,
        }));
        self.rt.log("pages", "enabled", end.number.into(), ring);
        self.store_state(end, State::new().with_ready(true));
    }

    /// Once the host reads "not ready", no write of these rings reaches host memory. Operations already
    /// started on the chips complete.
    async fn disable(&self, end: &End) {
        end.open.set(None);
        loop {
            let seen = end.quiet.version();
            if end.is_idle() {
                break;
            }
            end.quiet.changed(&self.rt, seen).await;
        }
        self.rt.log("pages", "disabled", end.number.into(), 0);
        self.store_state(end, State::new());
    }

    /// The host violated the protocol: the rings stay untouched until the host disables them.
    pub(super) fn broken(&self, end: &End, what: &'static str) {
        self.rt.log("pages", what, end.number.into(), end.head.get().into());
        end.open.set(None);
        self.store_state(end, State::new().with_broken(true));
    }

    fn store_state(&self, end: &End, state: State) {
        self.port.store(end.register(STATUS), state.into_bits());
    }

    /// Fetches commands and gives each to a free slot.
    async fn bring(&self, end: &End, open: Open, bytes: &mut [u8]) {
        let seen = self.rt.now();
        let place = u64::from(end.head.get() % open.entries) * COMMAND_BYTES as u64;
        let from = Segment { at: BusAddr(open.ring.0 + place), bytes: bytes.len() as u32 };
        if self.port_of(end).read(&[from], bytes, Carry::All).await.is_err() {
            return self.broken(end, "ring outside memory");
        }
        let count = (bytes.len() / COMMAND_BYTES) as u32;
        end.head.set(end.head.get().wrapping_add(count));
        for command in bytes.chunks_exact(COMMAND_BYTES) {
            let command = Command::parse(command.try_into().expect("64 bytes"), &self.shape);
            self.mark_fetched(command, seen);
            let number =
                end.idle.try_take().expect("as many were free, and only this task takes them");
            let slot = &end.slots[number as usize];
            slot.given.set(Some(Given { command, turn: open.turn }));
            slot.worker.begin(&self.rt);
        }
    }

    fn mark_fetched(&self, command: Result<Command, u16>, seen: Time) {
        if let Ok(command) = command {
            self.rt.attach_trace_number(command.trace);
            self.rt.record_at(self.stages.doorbell, seen);
            self.rt.record(self.stages.fetch);
            self.rt.detach_trace();
        }
    }

    /// Task of a slot: executes one command after another.
    pub(super) async fn work(self: Rc<Self>, number: usize, own: usize) {
        let end = &self.ends[number];
        let slot = &end.slots[own];
        loop {
            let given = poll_fn(|_| slot.given.take().map_or(Poll::Pending, Poll::Ready)).await;
            if let Ok(command) = given.command {
                self.rt.attach_trace_number(command.trace);
            }
            let answer = self.carry_out(end, slot, given).await;
            self.port.spend(self.costs.post).await;
            self.answer(end, given.turn, answer);
            self.rt.detach_trace();
            let waited = end.idle.available() == 0;
            end.idle.give(&self.rt, own as u32);
            end.quiet.notify(&self.rt);
            if waited {
                // The endpoint may have been waiting for this slot, the only free one.
                self.port.check_again();
            }
        }
    }

    /// Posts an answer. A conforming host has no more commands in flight than the ring has entries, so it has
    /// consumed the previous answer at this position; otherwise it loses that answer.
    fn answer(&self, end: &End, turn: u64, answer: Answer) {
        let Some(open) = end.open.get().filter(|open| open.turn == turn) else { return };
        let count = end.answered.get();
        end.answered.set(count.wrapping_add(1));
        let place = u64::from(count % open.entries) * ANSWER_BYTES as u64;
        let answer = Answer { lap: (count / open.entries).wrapping_add(1), ..answer };
        self.rt.log("pages", "answer", answer.id.into(), answer.status as u64);
        let at = BusAddr(open.answers.0 + place);
        if self.port_of(end).publish(at, &answer.to_bytes(), false).is_err() {
            self.broken(end, "answers outside memory");
        } else if open.signals {
            self.port_of(end).interrupt(end.number as u16);
        }
    }
}
