//! Observer of the front end's DMA: writes are allowed to buffers of fetched reads and to the rings of
//! enabled queues, and nowhere else.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;

use device::dcx::Options;
use wire::BusAddr;
use wire::dcx::command::{self, Command, Entry};
use wire::dcx::notice;
use wire::dcx::registers::{Control, Group, Shape};
use wire::dcx::report::{self, Code, Report};
use zerocopy::FromBytes;

use crate::raw::watched::Watch;

/// A queue in the view of the front end.
struct QueueState {
    group: Group,
    /// True from the first read of CONTROL with ENABLE set until STATUS is 0.
    open: bool,
    /// Register values when last read.
    registers: BTreeMap<u32, u32>,
    /// Destination ranges of the fetched reads.
    buffers: Vec<Range<u64>>,
}

/// State of the checks, and counts of accesses.
pub struct Witness {
    queues: RefCell<Vec<QueueState>>,
    /// Transfers that succeeded, and those rejected by the bus.
    pub transfers: Cell<u64>,
    pub refused: Cell<u64>,
    pub fetches: Cell<u64>,
    /// Number of reports posted, by code.
    pub reports: RefCell<BTreeMap<u16, u64>>,
    /// Number of times that a queue was enabled, and that one faulted.
    pub lives: Cell<u64>,
    pub faults: Cell<u64>,
}

impl Witness {
    pub fn new(options: &Options) -> Witness {
        let new = |queue| QueueState {
            group: Group::of(options.block, queue),
            open: false,
            registers: BTreeMap::new(),
            buffers: Vec::new(),
        };
        Witness {
            queues: RefCell::new((0..u32::from(options.queues)).map(new).collect()),
            transfers: Cell::new(0),
            refused: Cell::new(0),
            fetches: Cell::new(0),
            reports: RefCell::default(),
            lives: Cell::new(0),
            faults: Cell::new(0),
        }
    }

    /// Number of reports with this code.
    pub fn reported(&self, code: Code) -> u64 {
        self.reports.borrow().get(&code.bits()).copied().unwrap_or(0)
    }
}

impl QueueState {
    fn address(&self, register: u32) -> u64 {
        let word = |register| u64::from(self.registers.get(&register).copied().unwrap_or(0));
        word(register + 4) << 32 | word(register)
    }

    fn ring(&self, register: u32, entry_bytes: usize) -> Range<u64> {
        let shape = self.registers.get(&self.group.shape).copied().unwrap_or(0);
        let entries = 1u64 << Shape::from_bits(shape).entries_log2().min(30);
        let at = self.address(register);
        at..at.saturating_add(entries * entry_bytes as u64)
    }
}

impl Watch for Witness {
    fn loaded(&self, register: u32, value: u32) {
        for queue in &mut *self.queues.borrow_mut() {
            if (queue.group.commands..queue.group.status).contains(&register) {
                queue.registers.insert(register, value);
            }
            if register == queue.group.control && Control::from_bits(value).enable() {
                queue.open = true;
            }
        }
    }

    fn stored(&self, register: u32, value: u32) {
        for queue in &mut *self.queues.borrow_mut() {
            if register == queue.group.status {
                match value {
                    0 => {
                        queue.open = false;
                        queue.buffers.clear();
                    }
                    1 => self.lives.set(self.lives.get() + 1),
                    _ => self.faults.set(self.faults.get() + 1),
                }
            }
        }
    }

    /// Allows DMA writes that these entries request.
    fn fetched(&self, at: BusAddr, entries: &[u8]) {
        for queue in self.queues.borrow_mut().iter_mut().filter(|queue| queue.open) {
            if !queue.ring(queue.group.commands, command::BYTES).contains(&at.0) {
                continue;
            }
            for entry in entries.chunks_exact(command::BYTES) {
                let entry = Entry::read_from_bytes(entry).expect("an entry's length");
                if let Ok(request) = entry.parse()
                    && let Command::Read { access, .. } = request.command
                {
                    let bytes = u64::from(access.bytes);
                    queue.buffers.push(access.at.0..access.at.0.saturating_add(bytes));
                }
            }
        }
    }

    fn validate(&self, at: BusAddr, bytes: u32) {
        let covers = |range: &Range<u64>| {
            range.contains(&at.0) && at.0.saturating_add(u64::from(bytes)) <= range.end
        };
        let queues = self.queues.borrow();
        let allowed = queues.iter().filter(|queue| queue.open).any(|queue| {
            let notice = queue.address(queue.group.notice);
            queue.buffers.iter().any(covers)
                || covers(&queue.ring(queue.group.reports, report::BYTES))
                || covers(&(notice..notice.saturating_add(notice::BYTES as u64)))
        });
        assert!(allowed, "{bytes} bytes are written at {at}, which no enabled queue has named");
    }

    fn ends(&self, went_through: bool) {
        let counter = if went_through { &self.transfers } else { &self.refused };
        counter.set(counter.get() + 1);
    }

    fn polls(&self) {
        self.fetches.set(self.fetches.get() + 1);
    }

    fn posts(&self, entry: &[u8]) {
        if let Ok(report) = Report::read_from_bytes(entry) {
            *self.reports.borrow_mut().entry(report.code().bits()).or_insert(0) += 1;
        }
    }

    fn interrupts(&self) {
        let open = self.queues.borrow().iter().any(|queue| queue.open);
        assert!(open, "an interrupt while every queue is disabled");
    }
}
