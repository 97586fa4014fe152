//! Test bench: a raw host, a front end and an NVMe controller over a bench medium, in virtual time.

use std::rc::Rc;

use bus::DevicePort;
use bus::link::{Credits, HeldUp, LinkSpec};
use bus::sim::{SimBus, SimHost, SimSpec};
use device::dcx::{Front, Options, TagSource, TagSpec, Tagged};
use device::nvme::{self, Controller};
use runtime::{Log, Rng, Rt, Span};

use super::Raw;
use super::watch::Witness;
use crate::raw::bus_spec;
use crate::raw::nvme::bench::Bench;
use crate::raw::watched::Watched;

/// First offset of host memory used by the front end's host; memory below is the NVMe host's.
pub const DCX_FROM: u64 = 1 << 20;

#[derive(Clone, Debug)]
pub struct Setup {
    pub options: Options,
    pub blocks: u64,
    pub block_bytes: u32,
    pub memory_bytes: usize,
    /// The link's maximum payload, in bytes.
    pub mps: u32,
    /// Host memory latency of a fetch, excluding the link.
    pub host_read: Span,
    /// Costs of parsing a command and of posting its report.
    pub parse: Span,
    pub post: Span,
    /// The granule of the device's tag, in bytes.
    pub grain: Option<u32>,
    pub tag_bits: u32,
    pub source: TagSource,
    /// Contents of the first blocks when the front end starts.
    pub contents: Vec<u8>,
    /// Seed for picking ready tasks at random.
    pub shuffle: Option<u64>,
    pub credits: Option<Credits>,
    pub held_up: Option<HeldUp>,
}

impl Default for Setup {
    fn default() -> Setup {
        Setup {
            options: Options {
                block: nvme::Options::default().register_bytes(),
                queues: 4,
                entries_log2: 8,
                slots: 32,
                fetch_max: 8,
                anticipate: true,
                sleep_after: 8,
                poll_gap_max: None,
                transfer_bytes_max: 64 << 10,
                relaxed_ordering: false,
                traces_from: 2,
            },
            blocks: 4096,
            block_bytes: 512,
            memory_bytes: 4 << 20,
            mps: 128,
            host_read: Span::ns(250),
            parse: Span::ns(40),
            post: Span::ns(20),
            grain: None,
            tag_bits: 32,
            source: TagSource::Intervals,
            contents: super::pattern(1, 64 << 10),
            shuffle: None,
            credits: None,
            held_up: None,
        }
    }
}

impl Setup {
    /// A setup in which data packets may overtake others, and do when a packet is held up.
    pub fn disordered() -> Setup {
        let mut setup = Setup::default();
        setup.options.relaxed_ordering = true;
        setup.held_up = Some(HeldUp { one_in: 3, span: Span::us(20) });
        setup
    }

    pub fn spec(&self) -> SimSpec {
        let usual = bus_spec(&[("parse", self.parse), ("post completion", self.post)]);
        SimSpec {
            link: LinkSpec {
                mps: self.mps,
                host_read: self.host_read,
                credits: self.credits,
                held_up: self.held_up,
                ..usual.link
            },
            memory_bytes: self.memory_bytes,
            register_bytes: (self.options.block + self.options.block_bytes())
                .next_multiple_of(4096),
            relaxed_ordering: self.options.relaxed_ordering,
            ..usual
        }
    }

    /// Runs a test on a bench with this setup.
    pub fn run<T>(self, test: impl AsyncFnOnce(World) -> T) -> T {
        let rt = Rt::simulated(None, Log::Off);
        if let Some(seed) = self.shuffle {
            rt.shuffle_ready_tasks(Rng::for_part(seed, "shuffle"));
        }
        let bus = SimBus::new(&rt, self.spec());
        let Device { medium, tagged, front, witness } = device(bus.device(), &self);
        let raw = Raw::new(bus.host(0), self.options.block, DCX_FROM);
        let nvme = crate::raw::nvme::Raw::new(bus.host(0));
        let setup = self;
        let world = World { rt: rt.clone(), medium, tagged, front, witness, raw, nvme, setup };
        let result = rt.block_on(test(world));
        rt.drop_tasks();
        result
    }
}

pub struct Device<P> {
    pub medium: Rc<Bench>,
    pub tagged: Rc<Tagged<Bench>>,
    pub front: Rc<Front<Watched<P, Witness>, Bench>>,
    pub witness: Rc<Witness>,
}

/// Starts a watched front end and an NVMe controller on a port.
pub fn device<P: DevicePort>(port: P, setup: &Setup) -> Device<P> {
    let rt = port.rt().clone();
    let medium = Rc::new(Bench::new(&rt, setup.blocks, setup.block_bytes));
    medium.poke(0, &setup.contents);
    let tagged = Rc::new(match setup.grain {
        Some(grain) => {
            let spec = TagSpec { grain, bits: setup.tag_bits, source: setup.source };
            Tagged::choosing(&rt, medium.clone(), spec).expect("it can be read")
        }
        None => Tagged::without_tags(&rt, medium.clone()),
    });
    Controller::start(port.clone(), tagged.clone(), nvme::Options::default());
    let witness = Rc::new(Witness::new(&setup.options));
    let watched = Watched { port, witness: witness.clone() };
    let front = Front::start(watched, tagged.clone(), setup.options.clone());
    Device { medium, tagged, front, witness }
}

pub struct World {
    pub rt: Rt,
    pub medium: Rc<Bench>,
    pub tagged: Rc<Tagged<Bench>>,
    pub front: Rc<Front<Watched<bus::sim::SimDevice, Witness>, Bench>>,
    pub witness: Rc<Witness>,
    pub raw: Raw<SimHost>,
    pub nvme: crate::raw::nvme::Raw<SimHost>,
    pub setup: Setup,
}

/// Runs a test on the default bench.
pub fn on_a_bench<T>(test: impl AsyncFnOnce(World) -> T) -> T {
    Setup::default().run(test)
}
