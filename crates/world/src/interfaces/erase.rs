//! Erasure of an interface's types: the making of its row.

use std::rc::Rc;

use bus::{DevicePort, HostPort};
use ftl::Stats;
use host::InitError;
use runtime::{Rt, STAGES_MAX};

use super::collections::Collector;
use super::interface::{Driver, Interface};
use super::lanes;
use super::row::{Boxed, Connected, Disk, Ends, Erased, Front, Row};
use super::stages;
use crate::engine::{self, JobResult, Setup, Source};
use crate::error::DriverError;
use plan::Plan;

impl<P: DevicePort> Front<P> {
    const fn of<I: Interface>() -> Front<P> {
        Front {
            start: I::start::<P>,
            start_bare: I::start_bare::<P>,
            divide: I::divide::<P>,
            deal: I::deal::<P>,
        }
    }
}

impl<P: DevicePort, H: HostPort> Ends<P, H> {
    const fn of<I: Interface>() -> Ends<P, H> {
        Ends { front: Front::of::<I>(), connect: connect::<I, H> }
    }
}

fn connect<I: Interface, H: HostPort>(
    ports: Vec<H>,
    plan: &Plan,
) -> Boxed<'_, Result<Connected<H>, InitError>> {
    Box::pin(async {
        let driver = Box::new(I::connect(ports, plan).await?);
        Ok(Connected { row: I::ROW, driver })
    })
}

impl Row {
    /// The row of an interface. Only the port types that it supports are compiled.
    pub const fn of<I: Interface>() -> Row {
        // An interface with more stages does not compile, nor one that lacks a stage of its parts, or a lane.
        assert!(I::STAGES.len() <= STAGES_MAX);
        assert!(stages::covers(I::STAGES, stages::EVERYWHERE));
        assert!(stages::covers(I::STAGES, I::PARTS));
        lanes::check(I::LANES, I::STAGES);
        Row {
            name: I::NAME,
            summary: I::SUMMARY,
            stages: I::STAGES,
            lanes: I::LANES,
            depth_max: I::DEPTH_MAX,
            masks: I::MASKS,
            faults: I::FAULTS,
            bare: I::BARE,
            live: I::LIVE,
            array: I::ARRAY,
            check: I::check,
            register_bytes: I::register_bytes,
            members: I::members,
            function: I::FUNCTION,
            vectors: I::vectors,
            trace_queues: I::trace_queues,
            own_cores: I::own_cores,
            reserved_cores: I::reserved_cores,
            adjust: I::adjust,
            passed: I::passed,
            share: I::share,
            simulated: Ends::of::<I>(),
            in_memory: if I::LIVE { Some(Ends::of::<I>()) } else { None },
            over_vfio_user: match I::FUNCTION {
                Some(_) if I::LIVE => Some(Front::of::<I>()),
                _ => None,
            },
        }
    }
}

impl<P: HostPort, D: Driver<P>> Erased<P> for D {
    fn run(
        &self,
        number: usize,
        rt: Rt,
        source: Source,
        setup: Setup<P>,
    ) -> Boxed<'static, JobResult> {
        let disk = Driver::disk(self, number);
        Box::pin(async move { engine::run(&rt, source, disk, setup).await })
    }

    fn disk(&self, number: usize) -> Disk {
        Disk(Rc::new(Driver::disk(self, number)))
    }

    fn disk_without(&self, lost: u64) -> Disk {
        Disk(Rc::new(Driver::disk_without(self, lost)))
    }

    fn reset(&self) -> Boxed<'_, Result<(), DriverError>> {
        Box::pin(Driver::reset(self))
    }

    fn stop(&self) -> Boxed<'_, Result<(), DriverError>> {
        Box::pin(Driver::stop(self))
    }

    fn recover(&self) -> Boxed<'_, Result<u64, DriverError>> {
        Box::pin(Driver::recover(self))
    }

    fn collector(&self) -> Option<Collector> {
        Driver::collector(self)
    }

    fn notes(&self) -> Vec<String> {
        Driver::notes(self)
    }

    fn software(&self) -> Option<Stats> {
        Driver::software(self)
    }

    fn memory_bytes(&self) -> u64 {
        Driver::memory_bytes(self)
    }

    fn memory(&self) -> Option<host_flash::Memory> {
        Driver::memory(self)
    }
}
