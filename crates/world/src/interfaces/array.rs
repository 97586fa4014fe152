//! An array: several devices of an interface, each with its driver, as one disk.

use std::marker::PhantomData;
use std::rc::Rc;

use array::{self as driver, Unfit};
use bus::sim::SimSpec;
use bus::vfio_user::Function;
use bus::{DevicePort, HostPort, Masks};
use device::faults::Faults;
use device::flash::Chips;
use ftl::Stats;
use host::InitError;
use media::contents::Backing;
use runtime::STAGES_MAX;

use super::{Driver, Interface, Row, collections};
use crate::medium::BackingStore;
use plan::{Collections, Plan};

/// The most writes under way at once where there is a parity: each has a task.
const WRITES_MAX: u32 = 256;

/// Devices of this interface below one switch, striped or with a parity by the host.
pub struct Array<I>(PhantomData<I>);

/// The drivers of the members, and what is made of their disks.
pub struct ArrayDriver<P: HostPort, D: Driver<P>> {
    members: Vec<D>,
    port: P,
    options: driver::Options,
    arrays: Vec<driver::Array<P, D::Disk>>,
}

/// Stages that an array has beside its members'.
const OWN: usize = driver::STAGES.len();

/// Queue numbers for an array's own journeys, for each of its queues: changes, and parts of them.
pub const TRACE_QUEUES: u16 = 2;

impl<I: Interface> Array<I> {
    const ALL_STAGES: &'static [&'static str] = &{
        let mut all = [""; STAGES_MAX];
        let (mut number, members) = (0, I::STAGES);
        while number < members.len() + OWN {
            all[number] = match number < members.len() {
                true => members[number],
                false => driver::STAGES[number - members.len()],
            };
            number += 1;
        }
        all
    };
}

fn array_of(plan: &Plan) -> &plan::Array {
    plan.array.as_ref().expect("checked before the world is built")
}

/// The plan of one member: its chance is its own.
pub fn of_member(plan: &Plan, number: u32) -> Plan {
    let mut plan = plan.clone();
    plan.run.seed = plan.run.seed.wrapping_add(u64::from(number) << 32);
    plan
}

impl<I: Interface> Interface for Array<I> {
    const ROW: &'static Row = match I::ARRAY {
        Some(row) => row,
        None => panic!("an interface without arrays"),
    };
    const NAME: &'static str = I::NAME;
    const SUMMARY: &'static str = I::SUMMARY;
    const FUNCTION: Option<fn(&Plan) -> Function> = I::FUNCTION;
    const STAGES: &'static [&'static str] = Self::ALL_STAGES.split_at(I::STAGES.len() + OWN).0;
    const DEPTH_MAX: u32 = I::DEPTH_MAX;
    const BARE: bool = I::BARE;
    const MASKS: Option<Masks> = I::MASKS;
    type Driver<P: HostPort> = ArrayDriver<P, I::Driver<P>>;

    fn members(plan: &Plan) -> Option<&plan::Array> {
        plan.array.as_ref()
    }

    fn check(plan: &Plan) -> Result<(), String> {
        I::check(plan)?;
        let origin = &plan.origin;
        let refuse = |key, expected| Err(format!("{origin}: {key}: expected {expected}"));
        let Some(array) = &plan.array else {
            return refuse("array", "a table [array]: how many devices, and how they make one");
        };
        if plan.medium.flash.as_ref().is_some_and(|flash| flash.state.is_some()) {
            return refuse("medium.flash.state", "none: the members of an array have no files");
        }
        if plan.medium.contents.backing != Backing::Memory {
            return refuse("medium.image", "none: the members of an array have no files");
        }
        if array.collections != Collections::Free && !I::BARE {
            let expected = format!(
                "free: by {} the members' own software collects, and nobody tells it when",
                I::NAME
            );
            return Err(format!("{origin}: array.collections: expected {expected}"));
        }
        let link = &plan.link;
        if link.credits.is_some() || link.held_up.is_some() || link.coherent {
            let expected = "a link without credits, held_up and coherent: below a switch it carries \
                            transfers as a whole";
            return refuse("link", expected);
        }
        if u64::from(array.chunk_bytes) > plan.device.mdts_bytes {
            let most = plan::units::size_text(plan.device.mdts_bytes);
            let expected = format!("at most device.mdts, which is {most}");
            return Err(format!("{origin}: array.chunk: expected {expected}"));
        }
        let beside = array.chunk_bytes + plan.medium.contents.block_bytes;
        if array.journal.is_some() && u64::from(beside) > plan.device.mdts_bytes {
            let expected =
                "less than device.mdts by a block: an entry of array.journal is one command";
            return refuse("array.chunk", expected);
        }
        Ok(())
    }

    fn register_bytes(plan: &Plan) -> u32 {
        I::register_bytes(plan)
    }

    fn trace_queues(queues: u32) -> u32 {
        I::trace_queues(queues)
    }

    fn own_cores(plan: &Plan) -> u32 {
        I::own_cores(plan)
    }

    fn adjust(plan: &Plan, spec: &mut SimSpec) {
        I::adjust(plan, spec);
    }

    fn start<P: DevicePort>(port: P, store: BackingStore, plan: &Plan, faults: &Rc<Faults>) {
        I::start(port, store, plan, faults);
    }

    fn start_bare<P: DevicePort>(port: P, chips: Rc<Chips>, plan: &Plan) {
        I::start_bare(port, chips, plan);
    }

    /// The ports are those to the first member, then those to the second, and so on.
    async fn connect<P: HostPort>(
        ports: Vec<P>,
        plan: &Plan,
    ) -> Result<Self::Driver<P>, InitError> {
        let array = array_of(plan);
        let each = ports.len() / array.devices as usize;
        let mut members = Vec::new();
        for (number, ports) in (0..).zip(ports.chunks(each)) {
            members.push(I::connect(ports.to_vec(), &of_member(plan, number)).await?);
        }
        let disks = members.iter().map(|member| (0..each).map(|n| member.disk(n)).collect());
        let options = driver::Options {
            chunk_bytes: array.chunk_bytes,
            parity: array.parity,
            writes: (plan.host.queues * plan.host.queue_depth).min(WRITES_MAX) as u16,
            journal: array.journal.unwrap_or(0),
            traces: driver::Numbers {
                queue: (array.devices * I::trace_queues(plan.host.queues)) as u16,
                depth: plan.host.queue_depth as u16,
                queues: TRACE_QUEUES * plan.host.queues as u16,
            },
        };
        let port = ports[0].clone();
        let arrays = driver::Array::new(ports[..each].to_vec(), disks.collect(), options);
        let arrays = arrays.map_err(unfit)?;
        let collectors: Option<Vec<_>> = members.iter().map(Driver::collector).collect();
        if let Some(collectors) = collectors {
            collections::start(port.rt(), collectors, array.collections);
        }
        match array.out {
            missing if array.journal.is_some() => {
                arrays[0].start(missing).await.map_err(unfit)?;
            }
            Some(out) => arrays[0].take_out(out),
            None => (),
        }
        Ok(ArrayDriver { members, port, options, arrays })
    }
}

/// Why the members make no array, in the words of bring-up.
fn unfit(Unfit { what, found, expected }: Unfit) -> InitError {
    InitError::Unsupported { what, found, expected }
}

impl<P: HostPort, D: Driver<P>> ArrayDriver<P, D> {
    /// The array, as it is used by the port of this number.
    pub fn array(&self, number: usize) -> &driver::Array<P, D::Disk> {
        &self.arrays[number % self.arrays.len()]
    }
}

impl<P: HostPort, D: Driver<P>> Driver<P> for ArrayDriver<P, D> {
    type Disk = driver::Array<P, D::Disk>;

    fn disk(&self, number: usize) -> Self::Disk {
        self.array(number).clone()
    }

    async fn reset(&self) -> Result<(), String> {
        for member in &self.members {
            member.reset().await?;
        }
        Ok(())
    }

    async fn stop(&self) -> Result<(), String> {
        for member in &self.members {
            member.stop().await?;
        }
        Ok(())
    }

    /// Parities that the members have lost with their power; with a journal there are none.
    async fn recover(&self) -> Result<u64, String> {
        if self.options.journal > 0 {
            return Ok(0);
        }
        self.arrays[0].resync().await.map_err(|error| error.to_string())
    }

    /// Every other time all members are there.
    fn disk_without(&self, lost: u64) -> Self::Disk {
        if !self.options.parity || lost.is_multiple_of(2) || self.arrays[0].out().is_some() {
            return self.disk(0);
        }
        let disks = self.members.iter().map(|member| vec![member.disk(0)]).collect();
        let options = driver::Options { writes: 0, ..self.options };
        let array = driver::Array::new(vec![self.port.clone()], disks, options);
        let array = array.expect("they made one before").remove(0);
        array.take_out((lost / 2 % self.members.len() as u64) as u32);
        array
    }

    fn notes(&self) -> Vec<String> {
        let counters = self.arrays[0].counters();
        let driver::Counters { whole, modified, recovered } = counters;
        if counters == driver::Counters::default() {
            return Vec::new();
        }
        vec![format!(
            "array: parities of {whole} segments written without reading, of {modified} after it; \
             {recovered} pieces read from all other members"
        )]
    }

    fn software(&self) -> Option<Stats> {
        let mut all = self.members.iter().map(Driver::software);
        let first = all.next()??;
        all.try_fold(first, |sum, one| Some(sum.and(one?)))
    }
}
