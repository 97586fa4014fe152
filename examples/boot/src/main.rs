//! The stack without an operating system: an image that QEMU boots. It finds the machine's NVMe devices
//! behind any bridges, configures their interrupts, attaches them as SCSI disks and runs a workload on them
//! from all cores.
//!
//! ```text
//!   start.s ─► first_core ─► loader    memory, words of the command line
//!                 │          machine   the firmware's MP table; buses, windows
//!                 │          nvme      pin by the I/O APIC, then MSI-X: host::nvme over port.rs
//!                 │          team      every core's queue, by grants
//!                 │          policies  queues that cores share, by real locks
//!                 │          diskhog   behind scsi, each core its range, verified
//!                 └────────► console   a verdict a line; the machine ends with a status
//! ```
//!
//! The driver is that of `crates/host`, unchanged; `port.rs` is its whole interface to the machine.
//! `unsafe` is in `cpu`, `cores`, `interrupts`, `loader`, `heap`, `lock`, `mem` and here, with a safety
//! comment at each use.
#![no_std]
#![no_main]

extern crate alloc;

mod apic;
mod clock;
mod console;
mod cores;
mod cpu;
mod diskhog;
mod heap;
mod interrupts;
mod loader;
mod lock;
mod machine;
mod mem;
mod nvme;
mod policies;
mod port;
mod team;

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use bus::{Arena, Memory};
use core::ops::Range;
use core::ptr::NonNull;
use runtime::{Log, Rt, Span};
use wire::BusAddr;
use wire::pci::class;

use crate::apic::Local;
use crate::clock::CLOCK;
use crate::console::{say, verdict};
use crate::cores::CORES_MAX;
use crate::interrupts::Table;
use crate::loader::Loaded;
use crate::machine::{Firmware, Machine};
use crate::nvme::Bench;

core::arch::global_asm!(include_str!("start.s"), options(att_syntax));

/// Size of the heap, bytes. The rest of the memory is for devices.
const HEAP_BYTES: u64 = 16 << 20;
/// Device memory per core, bytes.
const PART_BYTES: u64 = 8 << 20;
/// Default and maximum run time of diskhog per disk, seconds; set by `seconds=N` on the command line.
const SECONDS: u64 = 2;
const SECONDS_MAX: u64 = 600;
/// Each policy of shared queues runs for this part of that time.
const POLICY_PART: u64 = 8;

/// Entry point of the first core, from `start.s`.
#[unsafe(no_mangle)]
#[allow(unsafe_code)]
extern "C" fn first_core(info: u64) -> ! {
    console::begin();
    // SAFETY: no memory has been used yet, and `info` is the loader's value.
    let loaded = match unsafe { loader::read(info) } {
        Ok(loaded) => loaded,
        Err(why) => console::end_badly(format_args!("{why}")),
    };
    let memory = loaded.memory.clone();
    if memory.end - memory.start < HEAP_BYTES + PART_BYTES + 4096 {
        console::end_badly(format_args!(
            "{} bytes of memory are too few",
            memory.end - memory.start
        ));
    }
    cpu::set_memory_end(memory.end);
    // SAFETY: usable memory after the image by the loader's map, whose first part only the heap uses.
    unsafe { heap::begin(memory.start as usize, HEAP_BYTES as usize) };
    run(&loaded, parts(memory.start + HEAP_BYTES..memory.end))
}

/// Divides the memory for devices into a part per core.
fn parts(memory: Range<u64>) -> Vec<Memory> {
    let begins = memory.clone().step_by(PART_BYTES as usize);
    let whole = begins.filter(|at| memory.end - at >= PART_BYTES).take(CORES_MAX);
    whole
        .filter_map(|at| {
            let start = NonNull::new(core::ptr::with_exposed_provenance_mut(at as usize))?;
            // SAFETY: usable memory by the loader's map, identity-mapped for ever, after the heap; the parts
            // do not overlap.
            #[allow(unsafe_code)]
            Some(unsafe { Memory::lent(start, PART_BYTES as usize, BusAddr(at)) })
        })
        .collect()
}

#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    console::end_badly(format_args!("{info}"))
}

/// Main function of the first core.
fn run(loaded: &Loaded, parts: Vec<Memory>) -> ! {
    say(format_args!(
        "# doorbell without an operating system, {} MiB of memory",
        loaded.memory.end >> 20
    ));
    let table = Table::new();
    interrupts::use_them(table);
    if let Err(why) = set_up(loaded, &parts, table) {
        verdict(format_args!("the machine can be used"), Err::<&str, _>(why));
    }
    console::end()
}

fn set_up(loaded: &Loaded, parts: &[Memory], table: &'static Table) -> Result<(), String> {
    let hertz = CLOCK.begin()?;
    let firmware = Firmware::read().map_err(|why| why.to_string())?;
    apic::silence_the_old(firmware.imcr);
    let own = Local::begin().ok_or("the local APIC is where memory is")?;
    cpu::take_interrupts();
    let text = format!(
        "at {:#x}: {} processors, {} I/O APICs, {} wires from PCI buses; the counter runs at {} MHz",
        firmware.at,
        firmware.processors.len(),
        firmware.controllers.len(),
        firmware.wires.count(),
        hertz / 1_000_000
    );
    verdict(format_args!("firmware's MP table"), Ok::<_, &str>(text));
    let cores = start_cores(&own, &firmware, table);
    let rt = Rt::live(&CLOCK, None, Log::Off);
    let (first, others) = parts.split_first().ok_or("no memory is left for devices")?;
    let arena = Arena::new(first.clone());
    let span = seconds(loaded.command_line);
    rt.block_on(async {
        let machine = enumerate(&rt).await?;
        let bench =
            Bench { rt: &rt, arena: &arena, machine: &machine, firmware: &firmware, cores: &cores };
        work(&bench, others, span).await;
        Ok(())
    })
}

/// Starts all processors in the MP table. Returns the local APIC numbers of running ones, this one first.
fn start_cores(own: &Local, firmware: &Firmware, table: &'static Table) -> Vec<u8> {
    let first = cpu::apic_number();
    let others: Vec<u8> =
        firmware.processors.iter().copied().filter(|number| *number != first).collect();
    let (here, missing) = cores::start(own, &others, table);
    let mut all = alloc::vec![first];
    all.extend(here);
    let result = match missing.first() {
        None => Ok(format!("{}, by their local APICs {all:?}", all.len())),
        Some(number) => Err(format!("that with local APIC {number} did not come")),
    };
    verdict(format_args!("cores work"), result);
    all
}

/// Returns the run time of diskhog per disk.
fn seconds(command_line: &str) -> Span {
    let mut words = command_line.split_ascii_whitespace();
    let named = words.find_map(|word| word.strip_prefix("seconds=")?.parse().ok());
    Span::s(named.unwrap_or(SECONDS).min(SECONDS_MAX))
}

async fn enumerate(rt: &Rt) -> Result<Machine, String> {
    let begun = rt.now();
    let machine = Machine::enumerate().await.map_err(|why| why.to_string())?;
    let took = rt.now().since(begun);
    let text = format!(
        "{:?}, {} functions on {} root buses, in {took}",
        machine.board,
        machine.tree.functions.len(),
        machine.roots.len()
    );
    let trouble = machine.tree.troubles.first().map(ToString::to_string);
    verdict(format_args!("buses are numbered, windows placed"), trouble.map_or(Ok(text), Err));
    if let Some(at) = machine.bus.mapped {
        let same = match machine.differs_by_ports().await {
            0 => Ok("they agree"),
            words => Err(format!("{words} words differ")),
        };
        verdict(format_args!("configuration space by ports and mapped at {at:#x}"), same);
    }
    Ok(machine)
}

/// Starts each NVMe device, runs diskhog on it from all cores, and shuts it down.
async fn work(bench: &Bench<'_>, parts: &[Memory], span: Span) {
    let mut found = 0;
    for function in bench.machine.tree.of_class(class::NVME) {
        let first_message = found * (bench.cores.len() + 1);
        found += 1;
        if first_message + bench.cores.len() >= interrupts::MESSAGES_MAX {
            say(format_args!("# {}: no messages are left for its vectors", function.at));
            continue;
        }
        let Some(device) = bench.bring_up(function, first_message).await else { continue };
        let mut good = team::run(bench.rt, &device, bench.cores, parts, span).await;
        if good {
            let others = &parts[..parts.len().min(bench.cores.len() - 1)];
            good = policies::run(bench.rt, &device, others, span / POLICY_PART).await;
        }
        let end = device.controller.shutdown().await.map_err(|error| error.to_string());
        verdict(format_args!("{} is shut down", device.name), end.map(|()| "in order"));
        if !good {
            // Another core may still use memory that the next device would get.
            return;
        }
    }
    let found = if found > 0 { Ok(found.to_string()) } else { Err("none") };
    verdict(format_args!("NVMe devices are found"), found);
}

/// Symbol that the compiler's support library, built for programs that unwind, refers to. Never called: a
/// panic ends the machine without unwinding.
#[unsafe(no_mangle)]
#[allow(unsafe_code)]
extern "C" fn _Unwind_Resume() -> ! {
    console::end_badly(format_args!("something unwinds"))
}
