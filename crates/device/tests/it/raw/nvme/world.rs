//! Test bench: a raw host and a controller over a bench medium, in virtual time.

use std::rc::Rc;

use bus::link::{Credits, HeldUp, LinkSpec};
use bus::sim::{SimBus, SimHost, SimSpec};
use bus::{DevicePort, Masks};
use device::faults::Faults;
use device::nvme::{Controller, DeviceThread, Options, Threads};
use media::Labels;
use runtime::{Log, Rng, Rt, Span};
use wire::BusAddr;
use wire::nvme::registers::{INTMC, INTMS};

use super::Raw;
use super::bench::Bench;
use super::choice::Choice;
use super::watch::Witness;
use crate::raw::bus_spec;
use crate::raw::watched::Watched;

#[derive(Clone, Debug)]
pub struct Setup {
    pub options: Options,
    pub blocks: u64,
    pub block_bytes: u32,
    /// Initial label of the medium; `None` if the medium stores no label and there is one format.
    pub label: Option<Vec<u8>>,
    /// True if the medium stores metadata.
    pub metadata: bool,
    /// True if the controller offers host-directed GC.
    pub led: bool,
    /// True if the host may keep the map of the medium.
    pub mapped: bool,
    /// True if the medium is sanitized, so that any block may be written.
    pub sanitizes: bool,
    pub memory_base: BusAddr,
    pub memory_bytes: usize,
    /// Host memory latency of a fetch, excluding the link.
    pub host_read: Span,
    /// Costs of parsing a command and of posting its completion.
    pub parse: Span,
    pub post: Span,
    /// Threads that the queues are dealt to: here all are on one executor.
    pub threads: usize,
    /// One of them that has ended.
    pub ended: Option<usize>,
    /// Seed for picking ready tasks at random.
    pub shuffle: Option<u64>,
    /// True if the event log is kept in memory.
    pub logged: bool,
    /// Flow-control credits, and packets held up on the way.
    pub credits: Option<Credits>,
    pub held_up: Option<HeldUp>,
}

impl Default for Setup {
    fn default() -> Setup {
        Setup {
            options: Options::default(),
            blocks: 1 << 20,
            block_bytes: 512,
            label: Some(Vec::new()),
            metadata: false,
            led: false,
            mapped: false,
            sanitizes: false,
            memory_base: BusAddr(0x1_0000_0000),
            memory_bytes: 4 << 20,
            host_read: Span::ns(250),
            parse: Span::ns(40),
            post: Span::ns(20),
            threads: 1,
            ended: None,
            shuffle: None,
            logged: true,
            credits: None,
            held_up: None,
        }
    }
}

impl Setup {
    /// Doorbell stride of its controller, as in CAP.DSTRD: wider with several threads.
    pub fn stride(&self) -> u8 {
        if self.threads > 1 { self.options.widest_stride() } else { 0 }
    }

    pub fn spec(&self) -> SimSpec {
        let usual = bus_spec(&[("parse", self.parse), ("post completion", self.post)]);
        SimSpec {
            link: LinkSpec {
                host_read: self.host_read,
                credits: self.credits,
                held_up: self.held_up,
                ..usual.link
            },
            memory_base: self.memory_base,
            memory_bytes: self.memory_bytes,
            register_bytes: self.options.register_bytes(),
            masks: Some(Masks { set: INTMS, clear: INTMC }),
            ..usual
        }
    }

    /// A random setup: small controllers and large ones, fast and slow, all kinds of links.
    pub fn drawn(choice: &mut impl Choice) -> Setup {
        let options = Options {
            pci_vendors: (0, 0),
            slots: 1 + choice.below(40) as u16,
            fetchers: 1 + choice.below(4) as u16,
            fetch_max: 1 + choice.below(16) as u32,
            io_queues: 1 + choice.below(8) as u16,
            queue_entries_max: choice.of(&[2, 16, 256, 4096, 65_536]),
            transfer_bytes_max: choice.of(&[4096, 64 << 10, 1 << 20, 4 << 20]),
            arbitration_burst: choice.of(&[None, Some(1), Some(4)]),
            queue_groups: choice.of(&[1, 2, 3]),
            number: 0,
            names: Default::default(),
            life: Default::default(),
            controllers: 1,
            namespaces: 1,
            own_namespaces: false,
            protection: None,
            urgent_burst_max: choice.of(&[None, Some(1), Some(5)]),
            relaxed_ordering: choice.one_in(2),
            power_states: Vec::new(),
        };
        let credits = Credits { headers: 4, data: 64, return_after: Span::ns(300) };
        Setup {
            options,
            block_bytes: choice.of(&[512, 4096]),
            // A script assumes one block size, so there must be a single format.
            label: None,
            memory_bytes: 2 << 20,
            host_read: choice.of(&[Span::ZERO, Span::ns(250), Span::us(20)]),
            parse: choice.of(&[Span::ZERO, Span::ns(40)]),
            post: choice.of(&[Span::ZERO, Span::ns(20)]),
            threads: choice.of(&[1, 1, 3]),
            shuffle: choice.one_in(2).then(|| choice.word()),
            logged: false,
            credits: choice.one_in(3).then_some(credits),
            held_up: choice.one_in(3).then_some(HeldUp { one_in: 5, span: Span::us(2) }),
            ..Setup::default()
        }
    }

    /// Runs a test on a bench with this setup.
    pub fn run<T>(self, test: impl AsyncFnOnce(World) -> T) -> T {
        let log = if self.logged { Log::kept() } else { Log::Off };
        let rt = Rt::simulated(None, log.clone());
        if let Some(seed) = self.shuffle {
            rt.shuffle_ready_tasks(Rng::for_part(seed, "shuffle"));
        }
        let bus = SimBus::new(&rt, self.spec());
        let (medium, witness) = device(bus.device(), &self);
        let mut raw = Raw::new(bus.host(0));
        raw.stride = self.stride();
        let world = World { rt: rt.clone(), medium, witness, raw, log, setup: self };
        let result = rt.block_on(test(world));
        rt.drop_tasks();
        result
    }
}

/// Starts a watched controller on a port.
pub fn device<P: DevicePort>(port: P, setup: &Setup) -> (Rc<Bench>, Rc<Witness>) {
    let medium = Rc::new(Bench::new(port.rt(), setup.blocks, setup.block_bytes));
    let witness = Rc::new(Witness::new(setup.memory_base, setup.memory_bytes));
    medium.labelled.set(setup.label.is_some());
    medium.set_label(setup.label.as_deref().unwrap_or_default()).expect("a label of some bytes");
    medium.metadata.set(setup.metadata);
    witness.sanitizes.set(setup.sanitizes);
    medium.witness.replace(Some(witness.clone()));
    let watched = Watched { port, witness: witness.clone() };
    if setup.threads > 1 {
        deal(&watched, &medium, setup);
        return (medium, witness);
    }
    let controller = Controller::start(watched, medium.clone(), setup.options.clone());
    if setup.led {
        controller.offer_collections(medium.flash.clone());
    }
    if setup.mapped {
        controller.offer_map(medium.flash.clone());
    }
    (medium, witness)
}

/// Starts the parts of a controller whose queues are dealt.
fn deal<P: DevicePort>(port: &Watched<P, Witness>, medium: &Rc<Bench>, setup: &Setup) {
    let has_ended = |place: &DeviceThread| setup.ended == Some(place.number());
    for place in Threads::of(setup.threads).into_iter().filter(|place| !has_ended(place)) {
        let (options, faults) = (setup.options.clone(), Faults::none());
        let part = Controller::start_on(port.clone(), medium.clone(), options, faults, &place);
        if place.number() > 0 {
            port.rt().spawn(async move {
                part.serve_queues().await;
                drop(place);
            });
        }
    }
}

pub struct World {
    pub rt: Rt,
    pub medium: Rc<Bench>,
    pub witness: Rc<Witness>,
    pub raw: Raw<SimHost>,
    pub log: Log,
    pub setup: Setup,
}

impl World {
    /// Number of log entries with these values.
    pub fn logged(&self, component: &str, what: &str, a: u64) -> usize {
        let matches = |e: &&runtime::Entry| (e.component, e.what, e.a) == (component, what, a);
        self.log.entries().iter().filter(matches).count()
    }

    /// Interrupts that arrived at this vector.
    pub fn interrupts(&self, vector: u16) -> usize {
        self.logged("bus", "interrupt", u64::from(vector))
    }
}

/// Runs a test on the default bench.
pub fn on_a_bench<T>(test: impl AsyncFnOnce(World) -> T) -> T {
    Setup::default().run(test)
}
