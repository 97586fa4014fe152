//! Hosts without a driver, one for each front end, shared with the fuzz targets and the tests of `rtl`.

// Each program that shares this module uses only a part of it.
#![allow(dead_code)]

pub mod block;
pub mod dcx;
pub mod nvme;
pub mod watched;

use bus::link::LinkSpec;
use bus::sim::{NamedCost, SimSpec};
use runtime::Span;
use wire::BusAddr;
use wire::pcie::Generation;

/// A modelled bus, and a device whose software takes this long.
pub fn bus_spec(device_costs: &[(&'static str, Span)]) -> SimSpec {
    let cost = |(name, span): &(&'static str, Span)| NamedCost { name, span: *span };
    SimSpec {
        link: LinkSpec {
            generation: Generation::Gen3,
            lanes: 4,
            mps: 256,
            mrrs: 512,
            rcb: 64,
            completion_bytes: 256,
            ecrc: false,
            latency: Span::ns(150),
            host_read: Span::ns(250),
            device_read: Span::ns(50),
            tlps_per_dllp: 4,
            credits: None,
            held_up: None,
            coherent: false,
        },
        memory_base: BusAddr(0x1_0000_0000),
        memory_bytes: 4 << 20,
        register_bytes: 0x2000,
        masks: None,
        relaxed_ordering: false,
        cores: 1,
        poll: Span::ns(20),
        interrupt: Span::us(1),
        host_costs: Vec::new(),
        device_costs: device_costs.iter().map(cost).collect(),
        device_processors: 0,
        device_copy: None,
        seed: 1,
        ports: None,
    }
}
