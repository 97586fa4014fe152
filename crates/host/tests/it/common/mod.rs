//! Test world: the modelled bus with a scripted controller that can misbehave.
#![allow(dead_code)]

pub mod fake;
mod fake_io;

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;

use bus::link::LinkSpec;
use bus::sim::{NamedCost, SimBus, SimHost, SimSpec};
use bus::{Buffer, HostPort};
use fake::{Fake, Traits};
use host::BlockDevice;
use host::nvme::{Controller, GUARD_COST, Options, Queue, QueueOptions};
use runtime::{Either, Log, Rng, Rt, Signal, Span, Traces, race};
use wire::pcie::Generation;
use wire::{BusAddr, Lba};

pub const BLOCK: usize = 512;

/// Stages of the bus and the driver.
pub const STAGES: &[&str] = &[
    "core wait",
    "poll",
    "interrupt",
    "link wait",
    "data transfer",
    "media",
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

/// A cost of the host's or the device's software.
pub fn cost(name: &'static str, ns: u64) -> NamedCost {
    NamedCost { name, span: Span::ns(ns) }
}

/// A modelled bus on which software costs nothing.
pub fn bus_spec() -> SimSpec {
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
        memory_bytes: 4 << 20,
        register_bytes: 0x2000,
        relaxed_ordering: false,
        cores: 1,
        poll: Span::ns(20),
        interrupt: Span::ns(500),
        host_costs: vec![],
        device_costs: vec![],
        device_processors: 0,
        device_copy: None,
        masks: None,
        seed: 1,
        ports: None,
    }
}

/// The bus of the NVMe driver's tests.
pub fn spec(free_cpu: bool) -> SimSpec {
    let cost = |name, ns| cost(name, if free_cpu { 0 } else { ns });
    SimSpec {
        memory_bytes: 16 << 20,
        register_bytes: 0x2000,
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
        ..bus_spec()
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

/// An operation that is dropped while it is under way.
pub type Operation<D> = fn(D, Buffer) -> Pin<Box<dyn Future<Output = ()>>>;

/// A read and a write of the buffer's length, and a flush.
pub fn operations<D: BlockDevice + 'static>() -> [(&'static str, Operation<D>); 3] {
    [
        ("read", |device, buffer| {
            Box::pin(async move {
                device.read(Lba(8), buffer).await.1.unwrap();
            })
        }),
        ("write", |device, buffer| {
            Box::pin(async move {
                device.write(Lba(8), buffer, false).await.1.unwrap();
            })
        }),
        ("flush", |device, buffer| {
            Box::pin(async move {
                device.flush().await.unwrap();
                drop(buffer);
            })
        }),
    ]
}

/// Buffers of another user, at all addresses that are free now.
pub struct Canaries(Vec<Buffer>);

impl Canaries {
    /// As many of this length as there is room for, up to `most`.
    pub fn new(host: &SimHost, bytes: usize, most: usize) -> Canaries {
        let canary = |_| {
            let buffer = host.arena().buffer(bytes).ok()?;
            buffer.copy_in(0, &vec![0xee; bytes]);
            Some(buffer)
        };
        Canaries((0..most).map_while(canary).collect())
    }

    pub fn hold(&self, place: BusAddr) -> bool {
        self.0.iter().any(|buffer| buffer.at() == place)
    }

    #[track_caller]
    pub fn assert_alive(&self) {
        for buffer in &self.0 {
            let mut seen = vec![0; buffer.bytes()];
            buffer.copy_out(0, &mut seen);
            assert!(seen.iter().all(|byte| *byte == 0xee), "a foreign write");
        }
    }
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
