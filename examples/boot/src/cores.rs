//! Secondary cores: start and job dispatch.
#![allow(unsafe_code)]

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use runtime::{Span, WallClock};

use crate::apic::Local;
use crate::clock::CLOCK;
use crate::interrupts::{self, Table};
use crate::lock::Lock;
use crate::{console, cpu, loader};

/// Maximum number of cores in use.
pub const CORES_MAX: usize = 16;
/// Timeout for a core to start.
const COMING: Span = Span::s(5);
const STACK_BYTES: usize = 256 << 10;

/// Work for a core, run once.
pub type Job = Box<dyn FnOnce() + Send>;

struct Core {
    here: AtomicBool,
    job: Lock<Option<Job>>,
}

static CORES: [Core; CORES_MAX] =
    [const { Core { here: AtomicBool::new(false), job: Lock::new(None) } }; CORES_MAX];
/// Interrupt descriptor table of all cores.
static TABLE: Lock<Option<&'static Table>> = Lock::new(None);

unsafe extern "C" {
    static core_trampoline: u8;
    static core_trampoline_end: u8;
    /// Stack and number of the core that is started next.
    static core_stack: AtomicU32;
    static core_number: AtomicU32;
}

/// Starts these processors one after another, by local APIC number. Returns the numbers of those that started
/// and of those that did not.
pub fn start(own: &Local, processors: &[u8], table: &'static Table) -> (Vec<u8>, Vec<u8>) {
    *TABLE.lock() = Some(table);
    let (mut here, mut missing) = (Vec::new(), Vec::new());
    lay_trampoline();
    for processor in processors.iter().take(CORES_MAX - 1) {
        let number = here.len() + 1;
        if start_one(own, *processor, number) {
            here.push(*processor)
        } else {
            missing.push(*processor)
        }
        if !missing.is_empty() {
            // It could still start, with the stack and number meant for the next core.
            break;
        }
    }
    (here, missing)
}

/// Copies the real-mode start code of a core to a page below 1 MiB.
fn lay_trampoline() {
    let from = &raw const core_trampoline;
    let bytes = (&raw const core_trampoline_end).addr() - from.addr();
    let to = core::ptr::with_exposed_provenance_mut::<u8>(loader::LOW_PAGE as usize);
    // SAFETY: the page is usable memory by the loader's map, it is not part of the heap, and the code is
    // shorter than a page.
    unsafe { core::ptr::copy_nonoverlapping(from, to, bytes) }
}

fn start_one(own: &Local, processor: u8, number: usize) -> bool {
    let stack = Box::leak(alloc::vec![0_u128; STACK_BYTES / 16].into_boxed_slice());
    let top = stack.as_ptr_range().end.expose_provenance() as u32;
    // SAFETY: two words of the image that only `start.s` reads, on the core that is started now.
    unsafe {
        core_stack.store(top, Ordering::Release);
        core_number.store(number as u32, Ordering::Release);
    }
    own.start(processor, (loader::LOW_PAGE >> 12) as u8);
    let begun = CLOCK.now();
    while !CORES[number].here.load(Ordering::Acquire) && CLOCK.now().since(begun) < COMING {
        cpu::pause();
    }
    CORES[number].here.load(Ordering::Acquire)
}

/// Entry point of a secondary core, from `start.s`.
#[unsafe(no_mangle)]
extern "C" fn other_core(number: usize) -> ! {
    let (Some(core), Some(table)) = (CORES.get(number), *TABLE.lock()) else { cpu::stop() };
    interrupts::use_them(table);
    if Local::begin().is_none() {
        console::end_badly(format_args!("core {number} has no local APIC"));
    }
    cpu::take_interrupts();
    core.here.store(true, Ordering::Release);
    loop {
        let job = core.job.lock().take();
        match job {
            Some(job) => job(),
            None => cpu::idle(),
        }
    }
}

/// Gives a core its next job, which it starts when its current one has ended. Secondary cores count from 1;
/// core 0 is the caller.
pub fn give(number: usize, job: Job) {
    *CORES[number].job.lock() = Some(job);
}
