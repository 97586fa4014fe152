//! Latency of 4 KiB reads at queue depth 1: through libfnvme without a copy, by our NVMe driver, and with
//! `pread` from a file in memory, in one run, as absolute numbers of a shared machine do not repeat.
//!
//! ```text
//! cargo run --release -p doorbell-fnvme --example latency [READS]
//! strace -f -o out target/release/examples/latency steady    what stands between the two calls of getpid
//! ```

use std::error::Error;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

use fnvme::{Client, Device, Direction};
use plan::Plan;
use world::interfaces::NVME;
use world::work::Work;
use world::{self, Options};

const BLOCK: u64 = 4096;
/// Range of the reads, bytes: it fits a core's cache.
const SPAN: u64 = 1 << 20;

/// CPU time of this thread, ns.
fn cpu() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or(0)
}

/// A pseudorandom offset, bytes.
fn place(n: u64) -> u64 {
    n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40 << 12 & (SPAN - 1)
}

fn row(name: &str, p50: u64, p99: u64, mean: u64, cpu: u64) {
    println!("{name:<28} {p50:>9} {p99:>9} {mean:>9} {cpu:>12}");
}

fn measured(
    name: &str,
    reads: u64,
    mut read: impl FnMut(u64) -> Result<(), Box<dyn Error>>,
) -> Result<(), Box<dyn Error>> {
    for n in 0..reads / 10 {
        read(place(n))?;
    }
    let mut spans = Vec::with_capacity(reads as usize);
    let (begun, had) = (Instant::now(), cpu());
    for n in 0..reads {
        let begun = Instant::now();
        read(place(n))?;
        spans.push(begun.elapsed().as_nanos() as u64);
    }
    let (mean, cpu) = (begun.elapsed().as_nanos() as u64 / reads, (cpu() - had) / reads);
    spans.sort_unstable();
    row(name, spans[spans.len() / 2], spans[spans.len() * 99 / 100], mean, cpu);
    Ok(())
}

fn by_driver(reads: u64) -> Result<(), Box<dyn Error>> {
    let sets = [("medium.capacity", "64 MiB"), ("run.breakdown_sample", "1048576")];
    let plan = Plan::open("live", &sets)?;
    let job = format!(
        "[r]\nrw=randread\nbs=4k\nsize=1m\nnorandommap=1\nio_size=1t\nnumber_ios={reads}\n"
    );
    let work = Work::parse(Path::new("latency"), &job, Default::default())?;
    let had = cpu();
    let run_result = world::live_in_threads(NVME, &plan, &work, Options::default())?;
    let seen = &run_result.jobs[0].1.stats.read;
    let mean = (1e9 / seen.iops(run_result.jobs[0].1.measured)) as u64;
    let (p50, p99) = (seen.total.percentile_ns(50_000), seen.total.percentile_ns(99_000));
    row("NVMe driver, two threads", p50, p99, mean, (cpu() - had) / reads);
    Ok(())
}

/// Allocates an area and writes all of it.
fn written(device: &Device) -> Result<Client, Box<dyn Error>> {
    let client = device.alloc(SPAN)?;
    client.copy_in(0, &vec![7; SPAN as usize])?;
    client.transfer(Direction::Write, 0, SPAN, 8192)?;
    Ok(client)
}

fn main() -> Result<(), Box<dyn Error>> {
    let word = std::env::args().nth(1);
    let device = Device::open("memory:64m")?;
    let client = written(&device)?;
    let read = |at| client.transfer(Direction::Read, at, BLOCK, 4096);
    if word.as_deref() == Some("steady") {
        for n in 0..5_000 {
            read(place(n))?;
        }
        let begun = std::process::id();
        for n in 0..20_000 {
            read(place(n))?;
        }
        println!("20000 reads, process {begun} {}", std::process::id());
        return Ok(());
    }
    let reads = word.and_then(|word| word.parse().ok()).unwrap_or(100_000);
    println!("{:<28} {:>9} {:>9} {:>9} {:>12}", "4 KiB, ns", "p50", "p99", "mean", "caller's CPU");
    measured("libfnvme, FP_DIRECT", reads, |at| Ok(read(at)?))?;
    drop((client, device));
    by_driver(reads)?;
    let path = Path::new("/dev/shm").join(format!("doorbell-latency-{}", std::process::id()));
    std::fs::write(&path, vec![7; SPAN as usize])?;
    let file = File::open(&path)?;
    std::fs::remove_file(&path)?;
    let mut buffer = vec![0; BLOCK as usize];
    measured("pread, a file in memory", reads, |at| Ok(file.read_exact_at(&mut buffer, at)?))
}
