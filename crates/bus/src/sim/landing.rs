//! TLPs in flight, and the effects of their arrival.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::task::Poll;

use runtime::{TaskId, Time};
use wire::BusAddr;

use super::Bus;

/// A posted write that has not landed.
pub(super) enum Item {
    /// Bytes for host memory.
    Memory(Load),
    Register {
        register: u32,
        value: u32,
    },
    Interrupt {
        vector: u16,
    },
    /// An edge of the interrupt pin.
    Pin {
        level: bool,
    },
}

/// Bytes in flight to host memory: runs of one buffer, each with its address.
#[derive(Default)]
pub(super) struct Bytes {
    pub data: Vec<u8>,
    /// Address, offset in `data`, length.
    pub runs: Vec<(u64, u32, u32)>,
}

/// Boxed, because a load is moved many times.
pub(super) type Load = Box<Bytes>;

/// Queue of one direction: landing time, sequence number, item. Sorted by landing time, then by sequence
/// number. Only relaxed packets land in another order than that of posting.
type OneWay = VecDeque<(Time, u64, Item)>;

struct Ways {
    up: OneWay,
    down: OneWay,
    posted: u64,
}

/// Items in flight in both directions.
pub(super) struct Landings {
    ways: RefCell<Ways>,
    /// Empty loads with capacity, for reuse.
    spare: RefCell<Vec<Load>>,
    task: Cell<Option<TaskId>>,
}

impl Landings {
    pub(super) fn new() -> Landings {
        let one_way = || VecDeque::with_capacity(64);
        let ways = RefCell::new(Ways { up: one_way(), down: one_way(), posted: 0 });
        Landings { ways, spare: RefCell::default(), task: Cell::new(None) }
    }

    /// An empty load, with capacity from an earlier one.
    pub(super) fn bytes(&self) -> Load {
        self.spare.borrow_mut().pop().unwrap_or_default()
    }

    #[inline]
    fn put(&self, at: Time, item: Item) {
        let mut ways = self.ways.borrow_mut();
        let number = ways.posted;
        ways.posted += 1;
        let due = match item {
            Item::Register { .. } => &mut ways.down,
            Item::Memory(_) | Item::Interrupt { .. } | Item::Pin { .. } => &mut ways.up,
        };
        match due.back() {
            Some((last, ..)) if *last > at => {
                let place = due.partition_point(|(other, ..)| *other <= at);
                due.insert(place, (at, number, item));
            }
            _ => due.push_back((at, number, item)),
        }
    }

    #[inline]
    fn take_due(&self, now: Time) -> Option<Item> {
        let mut ways = self.ways.borrow_mut();
        let first =
            |way: &OneWay| way.front().map_or((Time::NEVER, 0), |(at, number, _)| (*at, *number));
        let (next_up, next_down) = (first(&ways.up), first(&ways.down));
        if next_up.0.min(next_down.0) > now {
            return None;
        }
        let way = if next_up < next_down { &mut ways.up } else { &mut ways.down };
        way.pop_front().map(|(.., item)| item)
    }

    fn recycle(&self, mut bytes: Load) {
        bytes.data.clear();
        bytes.runs.clear();
        self.spare.borrow_mut().push(bytes);
    }
}

impl Bus {
    /// Schedules the arrival of an item.
    pub(super) fn land(&self, at: Time, item: Item) {
        self.landings.put(at, item);
        let task = self.landings.task.get().expect("started with the bus");
        self.rt.wake_at(at, task);
    }

    fn write_register(&self, register: u32, value: u32) {
        let mut registers = self.registers.borrow_mut();
        if let Some(masks) = self.spec.masks.filter(|masks| masks.has(register)) {
            let (set, clear) = (masks.set as usize / 4, masks.clear as usize / 4);
            let word = masks.written(register, registers[set], value);
            (registers[set], registers[clear]) = (word, word);
        } else if let Some(word) = registers.get_mut(register as usize / 4) {
            *word = value;
        }
    }

    fn arrive(&self, item: Item) {
        match item {
            Item::Memory(bytes) => {
                if self.reaches_memory() {
                    for &(at, begin, length) in &bytes.runs {
                        let run = &bytes.data[begin as usize..(begin + length) as usize];
                        self.host
                            .memory
                            .write(BusAddr(at), run)
                            .expect("judged when it was posted");
                        self.host.changed(&self.rt, at, u64::from(length));
                    }
                    let first = bytes.runs.first().map_or(0, |run| run.0);
                    self.rt.log("bus", "memory", first, bytes.runs.len() as u64);
                }
                self.landings.recycle(bytes);
            }
            Item::Register { register, value } if self.is_reached() => {
                self.write_register(register, value);
                self.rt.log("bus", "register", u64::from(register), u64::from(value));
                self.send_edge();
                self.registers_written.notify(&self.rt);
            }
            Item::Interrupt { vector } if self.reaches_memory() => {
                if let Some(count) = self.interrupts.get(vector as usize) {
                    count.set(count.get().wrapping_add(1));
                }
                self.rt.log("bus", "interrupt", u64::from(vector), 0);
                self.interrupted.notify(&self.rt);
            }
            Item::Pin { level } if !self.down.get() => self.set_line(level),
            Item::Register { .. } | Item::Interrupt { .. } | Item::Pin { .. } => {}
        }
    }
}

/// Starts the task that processes arrivals.
pub(super) fn start(bus: &Rc<Bus>) {
    // The bus owns the executor's handle, and the executor the task: a weak reference breaks the cycle.
    let weak = Rc::downgrade(bus);
    let task = bus.rt.spawn(core::future::poll_fn(move |_| {
        let Some(bus) = weak.upgrade() else {
            return Poll::Ready(());
        };
        while let Some(item) = bus.landings.take_due(bus.rt.now()) {
            bus.arrive(item);
        }
        Poll::Pending
    }));
    bus.landings.task.set(Some(task));
}
