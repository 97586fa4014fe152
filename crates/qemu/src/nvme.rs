//! Checks of an NVMe device: pin interrupts, MSI-X, verified operations.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use bus::Buffer;
use bus::live::LiveHost;
use bus::qtest::Endpoint;
use host::nvme::{Completion, Counters, Doorbell, Options, QueueOptions};
use host::pci::{Function, Message, Vectors};
use host::{BlockDevice, InitError};
use runtime::{Rng, Rt, Span};
use wire::pci::Bdf;
use wire::{Lba, Nsid};

use super::{Bench, QemuError, Verdicts, Wanted};
use world::interfaces::{Disk, LiveController};
use world::until;

/// Long, because QEMU shares the processors with this process.
const TIMEOUT: Span = Span::s(20);
/// Number of I/O queues requested.
const QUEUES: u16 = 4;
/// Maximum number of bytes per operation.
const EXTENT_BYTES: u64 = 32 << 10;
/// Bytes of a namespace that are written and read.
const SPAN_BYTES: u64 = 16 << 20;

/// Checks all namespaces of a device.
pub(super) async fn check(
    bench: &Bench<'_>,
    function: &Function,
    wanted: &Wanted<'_>,
    verdicts: &mut Verdicts<'_>,
) {
    let at = function.at;
    let endpoint = match prepare(bench, function).await {
        Ok(endpoint) => endpoint,
        Err(why) => return verdicts.take(&format!("{at} can be driven"), Err(why)),
    };
    let started = RefCell::new(None);
    let by_pin = async {
        let line = bench.predicted(function)?.line.input;
        endpoint.listen(Some(line));
        let controller = LiveController::start(endpoint.host(), options(None)).await;
        *started.borrow_mut() = Some(controller?);
        Ok(())
    };
    let name = format!("{at} comes up on its pin, and that is the line that is predicted");
    verdicts.take(&name, bench.raises(function, by_pin).await);
    let Some(controller) = started.take() else { return };
    endpoint.listen(None);
    if let Err(why) = use_vectors(bench, function, &endpoint, QUEUES + 1).await {
        return verdicts.take(&format!("{at} switches to MSI-X"), Err(why));
    }
    // QEMU replies in order, so the effects of the pin before the vectors have been reported by now.
    let before = bench.bus.machine.raised();
    let namespaces = controller.identity().namespaces.clone();
    let share = wanted.ios.div_ceil(namespaces.len().max(1) as u64);
    check_namespace(bench, &controller, at, wanted, share, verdicts).await;
    for nsid in namespaces.iter().skip(1) {
        match LiveController::start(endpoint.host(), options(Some(*nsid))).await {
            Ok(controller) => {
                check_namespace(bench, &controller, at, wanted, share, verdicts).await
            }
            // The driver reports features that it does not support, for example blocks with metadata.
            Err(why @ InitError::Unsupported { .. }) => {
                let name = format!("{at} namespace {nsid} is refused with a reason");
                verdicts.take(&name, Ok(why.to_string()));
            }
            Err(why) => verdicts.take(&format!("{at} namespace {nsid} comes up"), Err(why.into())),
        }
    }
    let lines = bench.changed(before);
    let quiet = if lines.is_empty() {
        Ok("none was raised".into())
    } else {
        Err(QemuError::Found(format!("{lines:?}")))
    };
    verdicts.take(&format!("{at} leaves its pin alone from then on"), quiet);
}

/// Verified operations on the namespace that a controller was started for, and its shutdown.
async fn check_namespace(
    bench: &Bench<'_>,
    controller: &LiveController,
    at: Bdf,
    wanted: &Wanted<'_>,
    ios: u64,
    verdicts: &mut Verdicts<'_>,
) {
    let nsid = controller.identity().nsid;
    let done = work(bench.rt, controller, wanted, ios).await;
    verdicts.take(&format!("{at} namespace {nsid} by MSI-X, verified"), done);
    let end = controller.shutdown().await.map_err(QemuError::from);
    verdicts.take(&format!("{at} is shut down"), end.map(|()| "in order".into()));
}

pub(super) fn options(nsid: Option<Nsid>) -> Options {
    Options {
        nsid,
        queues: QUEUES,
        timeout: TIMEOUT,
        admin_timeout: TIMEOUT,
        ready_floor: TIMEOUT,
        ready_ceiling: TIMEOUT,
        admin_completion: Completion::Interrupt { vector: 0 },
        ..Options::default()
    }
}

/// Checks that the function responds, and enables its pin.
async fn prepare(bench: &Bench<'_>, function: &Function) -> Result<Endpoint, QemuError> {
    function.enable(&bench.bus).await?;
    function.allow_pin(&bench.bus, true).await;
    let registers = function.bar(0).and_then(|bar| bar.at).ok_or(QemuError::NoRegisters)?;
    Ok(bench.bus.machine.endpoint(registers)?)
}

/// Prepares a function for interrupts by vectors from the beginning.
pub(super) async fn by_vectors(
    bench: &Bench<'_>,
    function: &Function,
    count: u16,
) -> Result<LiveHost, QemuError> {
    let endpoint = prepare(bench, function).await?;
    use_vectors(bench, function, &endpoint, count).await?;
    Ok(endpoint.host())
}

/// Assigns vectors to the admin queue and the others, in reverse, because no order is prescribed.
async fn use_vectors(
    bench: &Bench<'_>,
    function: &Function,
    endpoint: &Endpoint,
    count: u16,
) -> Result<(), QemuError> {
    let vectors = Vectors::find(&bench.bus, function)?;
    for vector in (0..vectors.count().min(count)).rev() {
        let (at, data) = endpoint.message(vector);
        let message = Message { at: at.0, data };
        vectors.set(vector, message).await?;
    }
    vectors.use_them(true).await;
    Ok(())
}

/// Runs `ios` operations over all queues, each verified; then reads back everything that was written.
async fn work(
    rt: &Rt,
    controller: &LiveController,
    wanted: &Wanted<'_>,
    ios: u64,
) -> Result<String, QemuError> {
    let identity = controller.identity();
    let queues = identity.queues.min(QUEUES.into()) as u16;
    let geometry = identity.geometry;
    let (begun, block) = (rt.now(), u64::from(geometry.block_bytes));
    let span = (geometry.blocks * block).min(SPAN_BYTES);
    let extent = EXTENT_BYTES.min(geometry.transfer_bytes_max.into());
    let workers = u64::from(wanted.depth).min(span / extent).max(1);
    let left = Rc::new(Cell::new(workers));
    let result = Rc::new(RefCell::new(Ok(0_u64)));
    let mut made = Vec::new();
    for number in 0..queues {
        // The last queue has the first vector.
        let completion = Completion::Interrupt { vector: queues - number };
        let depth = wanted.depth.div_ceil(queues).max(1);
        let own = QueueOptions {
            depth,
            completion,
            doorbell: Doorbell::Batched,
            ..QueueOptions::default()
        };
        made.push(controller.queue(own).await?);
    }
    for number in 0..workers {
        let queue = &made[number as usize % made.len()];
        let mut worker = Worker {
            disk: queue.disk.clone(),
            buffer: Some(queue.disk.buffer(extent as usize)?),
            extents: (number..span / extent).step_by(workers as usize).collect(),
            extent_blocks: extent / block,
            block: block as usize,
            written: vec![0; (span / block) as usize],
            rng: Rng::for_part(wanted.seed, &format!("worker {number}")),
        };
        let ios = ios / workers + u64::from(number < ios % workers);
        let (left, result) = (left.clone(), result.clone());
        rt.spawn(async move {
            let done = worker.run(ios).await;
            let mut result = result.borrow_mut();
            match (done, &mut *result) {
                (Ok(more), Ok(sum)) => *sum += more,
                (Err(why), Ok(_)) => *result = Err(why),
                (_, Err(_)) => {}
            }
            left.set(left.get() - 1);
        });
    }
    until(rt, || left.get() == 0).await;
    let read_again = result.replace(Ok(0))?;
    let took = rt.now().since(begun);
    // Repeated operations do not count as success.
    let seen: Vec<Counters> = made.iter().map(|queue| queue.counters()).collect();
    let late: u64 = seen.iter().map(|queue| queue.timeouts + queue.protocol_errors).sum();
    if late > 0 {
        return Err(QemuError::Late { commands: late });
    }
    // On a busy machine the watchdog may run between a completion and its interrupt.
    let found: u64 = seen.iter().map(|queue| queue.lost_interrupts).sum();
    Ok(format!(
        "{ios} operations of up to {extent} bytes, {workers} at once by {queues} queues, and {read_again} \
         reads after them, in {took}; the watchdog was first {found} times"
    ))
}

/// One of several concurrent workers, with its own extents and the expected contents of each of their blocks.
struct Worker {
    disk: Disk,
    buffer: Option<Buffer>,
    extents: Vec<u64>,
    extent_blocks: u64,
    block: usize,
    /// Number of writes to each block.
    written: Vec<u32>,
    rng: Rng,
}

impl Worker {
    /// Returns the number of reads of the final verification.
    async fn run(&mut self, ios: u64) -> Result<u64, QemuError> {
        for _ in 0..ios {
            let extent = self.extents[self.rng.below(self.extents.len() as u64) as usize];
            let blocks = 1 + self.rng.below(self.extent_blocks);
            let first =
                extent * self.extent_blocks + self.rng.below(self.extent_blocks - blocks + 1);
            if self.rng.chance(1, 2) {
                self.write(first, blocks).await?;
            } else {
                self.read(first, blocks).await?;
            }
        }
        let own = core::mem::take(&mut self.extents);
        let mut reads = 0;
        for extent in own {
            let first = extent * self.extent_blocks;
            let blocks = first..first + self.extent_blocks;
            if blocks.clone().any(|block| self.written[block as usize] > 0) {
                self.read(first, self.extent_blocks).await?;
                reads += 1;
            }
        }
        Ok(reads)
    }

    async fn write(&mut self, first: u64, blocks: u64) -> Result<(), QemuError> {
        let buffer = self.lend();
        for block in 0..blocks {
            let generation = &mut self.written[(first + block) as usize];
            *generation += 1;
            let bytes = contents(first + block, *generation, self.block);
            buffer.copy_in(block as usize * self.block, &bytes);
        }
        let part = buffer.part(0, blocks as usize * self.block);
        let (_, done) = self.disk.write(Lba(first), part, false).await;
        self.buffer = Some(buffer);
        Ok(done?)
    }

    async fn read(&mut self, first: u64, blocks: u64) -> Result<(), QemuError> {
        let buffer = self.lend();
        let part = buffer.part(0, blocks as usize * self.block);
        // Cleared, so that a completion without data is detected.
        part.zero();
        let (_, done) = self.disk.read(Lba(first), part).await;
        done?;
        let mut bytes = vec![0; self.block];
        for block in 0..blocks {
            let generation = self.written[(first + block) as usize];
            buffer.copy_out(block as usize * self.block, &mut bytes);
            // Contents that this run has not written are unknown.
            if generation > 0 && bytes != contents(first + block, generation, self.block) {
                let found = bytes[..16].try_into().expect("16 bytes");
                return Err(QemuError::Contents { lba: first + block, generation, found });
            }
        }
        self.buffer = Some(buffer);
        Ok(())
    }

    fn lend(&mut self) -> Buffer {
        self.buffer.take().expect("one operation at a time")
    }
}

/// Contents of a block after `generation` writes: every word identifies block and generation.
fn contents(lba: u64, generation: u32, bytes: usize) -> Vec<u8> {
    let word = |index: u64| {
        let seed = (lba << 32 | u64::from(generation)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (seed ^ index.wrapping_mul(0xd6e8_feb8_6659_fd93)).to_le_bytes()
    };
    (0..bytes as u64 / 8).flat_map(word).collect()
}
