//! An array: several devices of an interface, each with its own driver, as one disk.

use std::borrow::Cow;
use std::marker::PhantomData;
use std::rc::Rc;

use array::{self as driver, StartError, Unfit};
use bus::sim::SimSpec;
use bus::vfio_user::Function;
use bus::{DevicePort, HostPort, Masks};
use device::faults::Faults;
use flash::chips::Chips;
use ftl::Stats;
use host::InitError;
use runtime::{Rng, STAGES_MAX, Time};

use super::{Driver, Interface, Lanes, Row, collections};
use crate::error::{CheckError, DriverError};
use crate::medium::BackingStore;
use plan::{Collections, Plan};

/// Maximum number of concurrent writes with parity; each has a task.
const WRITES_MAX: u32 = 256;

/// Devices of this interface below one switch, striped or with parity by the host.
pub struct Array<I>(PhantomData<I>);

/// The drivers of the members, and the array of their disks.
pub struct ArrayDriver<P: HostPort, D: Driver<P>> {
    members: Vec<D>,
    port: P,
    options: driver::Options,
    arrays: Vec<driver::Array<P, D::Disk>>,
}

/// Number of stages that an array adds to its members' stages.
const OWN: usize = driver::STAGES.len();

/// Trace queue numbers for each queue of an array: stripe updates, and their parts.
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

/// The plan of one member, with its own seed and its own files.
pub fn of_member(plan: &Plan, number: u32) -> Plan {
    let mut plan = plan.clone();
    plan.run.seed = plan.run.seed.wrapping_add(u64::from(number) << 32);
    plan.medium.number_files(number);
    if let Some(array) = &mut plan.array {
        array.member = number;
    }
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
    const PARTS: &'static [&'static [&'static str]] = &[&driver::STAGES];
    const LANES: Lanes = I::LANES;
    const DEPTH_MAX: u32 = I::DEPTH_MAX;
    const BARE: bool = I::BARE;
    const MASKS: Option<Masks> = I::MASKS;
    type Driver<P: HostPort> = ArrayDriver<P, I::Driver<P>>;

    fn members(plan: &Plan) -> Option<&plan::Array> {
        plan.array.as_ref()
    }

    fn check(plan: &Plan) -> Result<(), CheckError> {
        I::check(plan)?;
        let reject = |key, expected: &str| Err(CheckError::key(plan, key, expected));
        let Some(array) = &plan.array else {
            return reject("array", "a table [array]");
        };
        let by_themselves =
            matches!(array.collections, Collections::Free | Collections::Windows(_));
        if !by_themselves && !I::BARE {
            let expected = format!(
                "free or windows: with {} the members control their garbage collection",
                I::NAME
            );
            return reject("array.collections", &expected);
        }
        let link = &plan.link;
        if link.credits.is_some() || link.held_up.is_some() || link.coherent {
            let expected = "a link without credits, held_up and coherent: below a switch the link is \
                            modelled by whole transfers";
            return reject("link", expected);
        }
        if u64::from(array.chunk_bytes) > plan.device.mdts_bytes {
            let most = plan::units::size_text(plan.device.mdts_bytes);
            let expected = format!("at most device.mdts, which is {most}");
            return reject("array.chunk", &expected);
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

    fn reserved_cores(plan: &Plan) -> u32 {
        I::reserved_cores(plan)
    }

    fn adjust(plan: &Plan, spec: &mut SimSpec) {
        I::adjust(plan, spec);
    }

    fn passed(plan: &Plan) -> Cow<'_, Plan> {
        I::passed(plan)
    }

    fn start<P: DevicePort>(port: P, store: BackingStore, plan: &Plan, faults: &Rc<Faults>) {
        I::start(port, store, plan, faults);
    }

    fn start_bare<P: DevicePort>(port: P, chips: Rc<Chips>, plan: &Plan) {
        I::start_bare(port, chips, plan);
    }

    /// The ports are ordered by member.
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
            identity: identity(plan, ports[0].rt().now()),
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
            collections::start(port.rt(), collectors, array);
        }
        match array.out {
            missing if array.journal.is_some() => {
                arrays[0].start(missing).await.map_err(not_started)?;
            }
            Some(out) => arrays[0].take_out(out),
            None => (),
        }
        Ok(ArrayDriver { members, port, options, arrays })
    }
}

/// Identity of an array that is new: of the seed, and live of the time.
fn identity(plan: &Plan, now: Time) -> u64 {
    Rng::for_part(plan.run.seed ^ now.0, "identity of an array").next_u64() | 1
}

/// Converts the error of a start.
fn not_started(error: StartError) -> InitError {
    match error {
        StartError::OtherArray { member, found, expected } => {
            InitError::ForeignMember { member, what: "array", found, expected }
        }
        StartError::Unfit(why) => unfit(why),
    }
}

/// Converts the error of unsuitable members.
fn unfit(Unfit { what, found, expected }: Unfit) -> InitError {
    InitError::Unsupported { what, found, expected }
}

impl<P: HostPort, D: Driver<P>> ArrayDriver<P, D> {
    /// The array at the port of this number.
    pub fn array(&self, number: usize) -> &driver::Array<P, D::Disk> {
        &self.arrays[number % self.arrays.len()]
    }
}

impl<P: HostPort, D: Driver<P>> Driver<P> for ArrayDriver<P, D> {
    type Disk = driver::Array<P, D::Disk>;

    fn disk(&self, number: usize) -> Self::Disk {
        self.array(number).clone()
    }

    async fn reset(&self) -> Result<(), DriverError> {
        for member in &self.members {
            member.reset().await?;
        }
        Ok(())
    }

    async fn stop(&self) -> Result<(), DriverError> {
        for member in &self.members {
            member.stop().await?;
        }
        Ok(())
    }

    /// Recomputes the parities that a power cut has left inconsistent, and returns their number. With a
    /// journal it is 0.
    async fn recover(&self) -> Result<u64, DriverError> {
        if self.options.journal > 0 {
            return Ok(0);
        }
        Ok(self.arrays[0].resync().await?)
    }

    /// Alternates between the complete array and one without a member.
    fn disk_without(&self, lost: u64) -> Self::Disk {
        if !self.options.parity || lost.is_multiple_of(2) || self.arrays[0].out().is_some() {
            return self.disk(0);
        }
        let disks = self.members.iter().map(|member| vec![member.disk(0)]).collect();
        let options = driver::Options { writes: 0, ..self.options };
        let array = driver::Array::new(vec![self.port.clone()], disks, options);
        let array = array.expect("the members formed an array before").remove(0);
        array.take_out((lost / 2 % self.members.len() as u64) as u32);
        array
    }

    fn notes(&self) -> Vec<String> {
        let counters = self.arrays[0].counters();
        let driver::Counters { whole, modified, recovered } = counters;
        let mut notes = Vec::new();
        if counters != driver::Counters::default() {
            notes.push(format!(
                "array: parities of {whole} segments written without reading, of {modified} after it; \
                 {recovered} pieces read from all other members"
            ));
        }
        for (number, member) in self.members.iter().enumerate() {
            notes.extend(member.notes().iter().map(|note| format!("member {number}: {note}")));
        }
        notes
    }

    fn software(&self) -> Option<Stats> {
        let mut all = self.members.iter().map(Driver::software);
        let first = all.next()??;
        all.try_fold(first, |sum, one| Some(sum.and(one?)))
    }

    fn memory_bytes(&self) -> u64 {
        self.members.iter().map(Driver::memory_bytes).sum()
    }

    fn memory(&self) -> Option<host_flash::Memory> {
        let mut all = self.members.iter().map(Driver::memory);
        let first = all.next()??;
        all.try_fold(first, |sum, one| Some(sum.and(one?)))
    }
}
