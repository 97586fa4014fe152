//! An array: several devices of an interface, each with its own driver, as one disk.

use std::marker::PhantomData;

use array::{self as driver, StartError, Unfit};
use bus::{DevicePort, HostPort};
use ftl::Stats;
use host::InitError;
use runtime::{Rng, Time};

use super::array_gc;
use super::driver::{Boxed, Connected, Disk, Driver};
use super::row::{Connect, Devices, Ends, Front, Interface, Row, boxed};
use crate::error::{CheckError, DriverError};
use plan::{Collections, Plan};

/// Maximum number of concurrent writes with parity; each has a task.
const WRITES_MAX: u32 = 256;

/// Devices of this interface below one switch, striped or with parity by the host.
pub struct Array<I>(PhantomData<I>);

/// An interface whose devices can be members of an array.
pub trait Member: Interface {
    const ROW: &'static Row;
}

/// The drivers of the members, and the array of their disks at each port.
pub struct ArrayDriver<P: HostPort> {
    members: Vec<Connected<P>>,
    port: P,
    options: driver::Options,
    arrays: Vec<driver::Array<P, Disk>>,
}

/// Stages that an array adds to its members' stages.
pub(super) use driver::STAGES;

/// Trace queue numbers for each queue of an array: stripe updates, and their parts.
pub const TRACE_QUEUES: u16 = 2;

/// The row of an array of such devices, but for its stages. No faults are injected into its members.
pub(super) const fn row(of: Row, ends: Ends) -> Row {
    Row { faults: false, devices: Devices::OfArray, ends, ..of }
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

/// Checks that such devices can be the members of the plan's array.
pub(crate) fn check(row: &Row, plan: &Plan) -> Result<(), CheckError> {
    let Some(array) = row.members(plan) else { return Ok(()) };
    let reject = |key, expected: &str| Err(CheckError::key(plan, key, expected));
    let by_themselves = matches!(array.collections, Collections::Free | Collections::Windows(_));
    if !by_themselves && !row.is_bare() {
        let expected = format!(
            "free or windows: with {} the members control their garbage collection",
            row.name
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

impl<I: Member> Interface for Array<I> {
    fn front<P: DevicePort>() -> Front<P> {
        Front::of_one(I::front())
    }

    async fn connect<P: HostPort>(ports: Vec<P>, plan: &Plan) -> Result<Connected<P>, InitError> {
        over(I::ROW, boxed::<I, P>, ports, plan).await
    }
}

/// Connects the members, whose ports are in their order, and makes the array of their disks.
async fn over<P: HostPort>(
    row: &Row,
    member: Connect<P>,
    ports: Vec<P>,
    plan: &Plan,
) -> Result<Connected<P>, InitError> {
    let array = array_of(plan);
    let each = ports.len() / array.devices as usize;
    let mut members = Vec::new();
    for (number, ports) in (0..).zip(ports.chunks(each)) {
        members.push(member(ports.to_vec(), &of_member(plan, number)).await?);
    }
    let disks = members.iter().map(|member| (0..each).map(|n| member.disk(n)).collect());
    let options = driver::Options {
        chunk_bytes: array.chunk_bytes,
        parity: array.parity,
        writes: (plan.host.queues * plan.host.queue_depth).min(WRITES_MAX) as u16,
        journal: array.journal.unwrap_or(0),
        identity: identity(plan, ports[0].rt().now()),
        traces: driver::Numbers {
            queue: (array.devices * (row.queues)(plan.host.queues).traces) as u16,
            depth: plan.host.queue_depth as u16,
            queues: TRACE_QUEUES * plan.host.queues as u16,
        },
    };
    let port = ports[0].clone();
    let arrays = driver::Array::new(ports[..each].to_vec(), disks.collect(), options);
    let arrays = arrays.map_err(unfit)?;
    let collectors: Option<Vec<_>> = members.iter().map(|member| member.collector()).collect();
    if let Some(collectors) = collectors {
        array_gc::start(port.rt(), collectors, array);
    }
    match array.out {
        missing if array.journal.is_some() => {
            arrays[0].start(missing).await.map_err(not_started)?;
        }
        Some(out) => arrays[0].take_out(out),
        None => (),
    }
    let disks = arrays.clone();
    Ok(Connected::new(ArrayDriver { members, port, options, arrays }, disks))
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

impl<P: HostPort> ArrayDriver<P> {
    /// The array at the port of this number.
    pub fn array(&self, number: usize) -> &driver::Array<P, Disk> {
        &self.arrays[number % self.arrays.len()]
    }
}

impl<P: HostPort> Driver for ArrayDriver<P> {
    fn reset(&self) -> Boxed<'_, Result<(), DriverError>> {
        Box::pin(async {
            for member in &self.members {
                member.reset().await?;
            }
            Ok(())
        })
    }

    fn stop(&self) -> Boxed<'_, Result<(), DriverError>> {
        Box::pin(async {
            for member in &self.members {
                member.stop().await?;
            }
            Ok(())
        })
    }

    /// Recomputes the parities that a power cut has left inconsistent, and returns their number. With a
    /// journal it is 0.
    fn recover(&self) -> Boxed<'_, Result<u64, DriverError>> {
        Box::pin(async {
            if self.options.journal > 0 {
                return Ok(0);
            }
            Ok(self.arrays[0].resync().await?)
        })
    }

    /// Alternates between the complete array and one without a member.
    fn disk_without(&self, lost: u64) -> Option<Disk> {
        if !self.options.parity || lost.is_multiple_of(2) || self.arrays[0].out().is_some() {
            return None;
        }
        let disks = self.members.iter().map(|member| vec![member.disk(0)]).collect();
        let options = driver::Options { writes: 0, ..self.options };
        let array = driver::Array::new(vec![self.port.clone()], disks, options);
        let array = array.expect("the members formed an array before").remove(0);
        array.take_out((lost / 2 % self.members.len() as u64) as u32);
        Some(Disk::of(array))
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
        let mut all = self.members.iter().map(|member| member.software());
        let first = all.next()??;
        all.try_fold(first, |sum, one| Some(sum.and(one?)))
    }

    fn memory_bytes(&self) -> u64 {
        self.members.iter().map(|member| member.memory_bytes()).sum()
    }

    fn memory(&self) -> Option<host_flash::Memory> {
        let mut all = self.members.iter().map(|member| member.memory());
        let first = all.next()??;
        all.try_fold(first, |sum, one| Some(sum.and(one?)))
    }
}
