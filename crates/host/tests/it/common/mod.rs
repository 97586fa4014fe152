//! Test world: the modelled bus with a scripted controller that can misbehave.
#![allow(dead_code)]

pub mod fake;
mod fake_io;

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use bus::link::LinkSpec;
use bus::sim::{NamedCost, SimBus, SimHost, SimSpec};
use fake::{Fake, Traits};
use host::nvme::{Controller, GUARD_COST, Options, Queue, QueueOptions};
use runtime::{Either, Log, Rng, Rt, Signal, Span, Traces, race};
use wire::BusAddr;
use wire::pcie::Generation;

pub const BLOCK: usize = 512;

/// Stages of the bus and the driver.
pub const STAGES: &[&str] = &[
    "core wait",
    "poll",
    "interrupt",
    "link wait",
    "data transfer",
    "host read",
    "device processor wait",
    "slot wait",
    "guard",
    "submit",
    "complete",
    "context switch",
    "completion",
    "request",
    "control",
    "function",
    "respond",
    "take response",
    "request wait",
    "turn wait",
    "count down",
];

pub struct World {
    pub rt: Rt,
    pub bus: SimBus,
    pub host: SimHost,
    pub fake: Rc<Fake>,
    pub log: Log,
}

#[derive(Default)]
pub struct Setup {
    /// Picks ready tasks at random.
    pub shuffle: Option<u64>,
    pub traces: Option<Traces>,
    /// Sets all host costs to zero.
    pub free_cpu: bool,
}

pub fn spec(free_cpu: bool) -> SimSpec {
    let cost = |name, ns| {
        let ns = if free_cpu { 0 } else { ns };
        NamedCost { name, span: Span::ns(ns) }
    };
    SimSpec {
        link: LinkSpec {
            generation: Generation::Gen3,
            lanes: 4,
            mps: 256,
            mrrs: 512,
            rcb: 64,
            completion_bytes: 64,
            ecrc: false,
            latency: Span::ns(150),
            host_read: Span::ns(100),
            device_read: Span::ns(50),
            tlps_per_dllp: 4,
            credits: None,
            held_up: None,
            coherent: false,
        },
        memory_base: BusAddr(0x1_0000_0000),
        memory_bytes: 16 << 20,
        register_bytes: 0x2000,
        relaxed_ordering: false,
        cores: 1,
        poll: Span::ns(20),
        interrupt: Span::ns(500),
        host_costs: vec![
            cost("submit", 90),
            cost(GUARD_COST, 200),
            cost("complete", 60),
            cost("context switch", 1200),
            cost("request", 30),
            cost("control", 16),
            cost("function", 5),
            cost("respond", 8),
            cost("take response", 20),
        ],
        device_costs: vec![],
        device_processors: 0,
        device_copy: None,
        masks: None,
        seed: 1,
    }
}

impl World {
    pub fn new(traits: Traits) -> World {
        World::with(traits, Setup::default())
    }

    pub fn with(traits: Traits, setup: Setup) -> World {
        let log = Log::kept();
        let rt = Rt::simulated(setup.traces, log.clone());
        if let Some(seed) = setup.shuffle {
            rt.shuffle_ready_tasks(Rng::for_part(seed, "ready"));
        }
        let spec = spec(setup.free_cpu);
        let bus = SimBus::new(&rt, spec);
        let fake = Fake::start(bus.device(), traits);
        World { host: bus.host(0), rt, bus, fake, log }
    }

    /// Starts a controller with one queue.
    pub async fn queue(
        &self,
        options: Options,
        queue: QueueOptions,
    ) -> (Controller<SimHost>, Rc<Queue<SimHost>>) {
        let controller = Controller::start(self.host.clone(), options).await.unwrap();
        let queue = controller.queue(queue).await.unwrap();
        (controller, queue)
    }

    /// Number of log entries of this kind.
    pub fn logged(&self, what: &str) -> usize {
        self.log.entries().iter().filter(|entry| entry.what == what).count()
    }
}

impl Drop for World {
    /// Breaks the cycle between tasks and executor.
    fn drop(&mut self) {
        self.rt.drop_tasks();
    }
}

/// Initial contents of block `lba`.
pub fn pattern(lba: u64) -> Vec<u8> {
    (0..BLOCK).map(|i| (lba.wrapping_mul(37) as u8).wrapping_add(i as u8)).collect()
}

/// Polls a future at most `times` times, then drops it. Returns its output if it was ready.
pub async fn poll_times<F: Future>(future: F, times: u32) -> Option<F::Output> {
    let mut future = Box::pin(future);
    let mut polls = 0;
    poll_fn(|cx| {
        if polls == times {
            return Poll::Ready(None);
        }
        polls += 1;
        match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if polls == times => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// Polls a future `late` after each wake-up.
pub async fn slowly<F: Future>(rt: &Rt, late: Span, future: F) -> F::Output {
    let mut future = Box::pin(future);
    loop {
        let mut polled = false;
        let output = poll_fn(|cx| {
            if std::mem::replace(&mut polled, true) {
                return Poll::Ready(None);
            }
            future.as_mut().poll(cx).map(Some)
        })
        .await;
        match output {
            Some(output) => return output,
            None => rt.sleep(late).await,
        }
    }
}

/// Runs tasks and collects their results.
pub struct Crowd<T> {
    rt: Rt,
    begun: Cell<usize>,
    done: Rc<(RefCell<Vec<T>>, Signal)>,
}

impl<T: 'static> Crowd<T> {
    pub fn new(rt: &Rt) -> Crowd<T> {
        Crowd { rt: rt.clone(), begun: Cell::new(0), done: Rc::default() }
    }

    pub fn spawn(&self, task: impl Future<Output = T> + 'static) {
        self.begun.set(self.begun.get() + 1);
        let (rt, done) = (self.rt.clone(), self.done.clone());
        self.rt.spawn(async move {
            let output = task.await;
            done.0.borrow_mut().push(output);
            done.1.notify(&rt);
        });
    }

    pub fn left(&self) -> usize {
        self.begun.get() - self.done.0.borrow().len()
    }

    /// Waits for all tasks, for at most `within`.
    pub async fn all(self, within: Span) -> Vec<T> {
        let deadline = self.rt.now() + within;
        while self.left() > 0 {
            let one_more = self.done.1.changed(&self.rt, self.done.1.version());
            if race(one_more, self.rt.sleep_until(deadline)).await == Either::Second(()) {
                panic!("{} tasks are stuck", self.left());
            }
        }
        std::mem::take(&mut *self.done.0.borrow_mut())
    }
}
