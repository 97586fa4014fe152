//! The NVMe driver in a `no_std` program: a bump allocator, a panic handler, and no part of the operating
//! system except what the C runtime needs to call `main`.
//!
//! There is no SSD. The driver starts on a modelled link that is down, where every register reads all ones,
//! and must report that the device is gone. The exit status is 0 if it does.
#![no_std]
#![no_main]

extern crate alloc;

use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use core::ffi::{c_char, c_int};
use core::sync::atomic::{AtomicUsize, Ordering};

use alloc::vec::Vec;
use bus::link::LinkSpec;
use bus::sim::{NamedCost, SimBus, SimSpec};
use host::InitError;
use host::nvme::{COSTS, Controller, Options};
use runtime::{Log, Rt, Span};
use wire::BusAddr;
use wire::pcie::Generation;

const HEAP_BYTES: usize = 4 << 20;

/// Bump allocator. Memory is never freed, which suffices for a short-lived program.
#[repr(align(4096))]
struct Bump {
    heap: UnsafeCell<[u8; HEAP_BYTES]>,
    used: AtomicUsize,
}

// SAFETY: `used` only grows, and each range of the heap is handed out once.
unsafe impl Sync for Bump {}

// SAFETY: an allocation lies in the heap, is aligned, and overlaps no earlier allocation.
unsafe impl GlobalAlloc for Bump {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let base = self.heap.get().cast::<u8>();
        let mut begin = 0;
        let taken = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
            begin = used.checked_next_multiple_of(layout.align())?;
            begin.checked_add(layout.size()).filter(|end| *end <= HEAP_BYTES)
        });
        match taken {
            // SAFETY: the range ends within the heap. No layout has more than a page's alignment.
            Ok(_) => unsafe { base.add(begin) },
            Err(_) => core::ptr::null_mut(),
        }
    }

    unsafe fn dealloc(&self, _: *mut u8, _: Layout) {}
}

#[global_allocator]
static HEAP: Bump = Bump { heap: UnsafeCell::new([0; HEAP_BYTES]), used: AtomicUsize::new(0) };

unsafe extern "C" {
    safe fn abort() -> !;
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    abort()
}

/// A link and a host with round numbers. Their values do not matter, as nothing is measured.
fn spec() -> SimSpec {
    let costs: Vec<NamedCost> =
        COSTS.iter().map(|name| NamedCost { name, span: Span::ns(50) }).collect();
    SimSpec {
        link: LinkSpec {
            generation: Generation::Gen4,
            lanes: 4,
            mps: 256,
            mrrs: 512,
            rcb: 64,
            completion_bytes: 64,
            ecrc: false,
            latency: Span::ns(150),
            host_read: Span::ns(250),
            device_read: Span::ns(50),
            tlps_per_dllp: 4,
            credits: None,
            held_up: None,
            coherent: false,
        },
        memory_base: BusAddr(1 << 32),
        memory_bytes: 1 << 20,
        register_bytes: 8192,
        masks: None,
        relaxed_ordering: false,
        cores: 1,
        poll: Span::ns(20),
        interrupt: Span::us(1),
        host_costs: costs,
        device_costs: Vec::new(),
        device_processors: 0,
        device_copy: None,
        seed: 1,
        ports: None,
    }
}

/// Starts the driver on a link that is down, and returns its error.
fn start_on_dead_link() -> Result<(), InitError> {
    let rt = Rt::simulated(None, Log::Off);
    let bus = SimBus::new(&rt, spec());
    bus.take_link_down();
    rt.block_on(Controller::start(bus.host(0), Options::default())).map(|_| ())
}

/// Entry point for the C runtime. Returns 0 if the driver reports the device gone.
#[unsafe(no_mangle)]
pub extern "C" fn main(_: c_int, _: *const *const c_char) -> c_int {
    match start_on_dead_link() {
        Err(InitError::Gone { .. }) => 0,
        Err(_) => 1,
        Ok(()) => 2,
    }
}
