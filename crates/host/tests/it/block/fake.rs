//! Scripted descriptor-block device. It follows the protocol as far as the driver needs it; its script
//! returns blocks late, in parts, wrong or never.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use bus::sim::SimDevice;
use bus::{Carry, DevicePort, Flags, Posting, Segment};
use runtime::{Either, Signal, Span, Time, race};
use wire::BusAddr;
use wire::block::descriptor::{BYTES, Descriptor, Operation, PAGE_BYTES, Status};
use wire::block::registers::{
    BLOCK, Block, CAPACITY, CONTROL, Control, ID, LIMITS, Limits, MAGIC, MEDIUM, Medium, OFFSET,
    READ_NS, RING, SHAPE, STATUS, Shape, Status as Ready, WRITE_NS,
};
use zerocopy::{FromBytes, IntoBytes};

pub const BLOCK_BYTES: usize = 512;
pub const BLOCKS: u64 = 1 << 14;

/// Handling of a block.
#[derive(Clone, Debug)]
pub enum Play {
    /// Returned after this span; descriptors without a status are done.
    Whole(Span, Vec<Status>),
    /// Descriptors are returned one by one in this order, with this gap.
    Each(Vec<usize>, Span),
    /// Only these descriptors are written, at these counts.
    Writes(Vec<(u32, Descriptor)>),
    /// The device never answers.
    Never,
    /// It shows this STATUS, and never answers.
    Stops(Ready),
}

/// Chooses the handling of the n-th block from its number and the count of its first descriptor.
pub type Script = Box<dyn FnMut(u64, u32, &[Descriptor]) -> Play>;

pub struct Traits {
    pub limits: Limits,
    pub medium: Medium,
    /// Reported capacity in blocks.
    pub blocks: u64,
    pub read_ns: u32,
    pub write_ns: u32,
    pub id: u32,
    /// Whether it becomes ready when enabled, and stops when disabled.
    pub turns_on: bool,
    pub turns_off: bool,
    pub play: Script,
}

impl Default for Traits {
    fn default() -> Traits {
        Traits {
            limits: Limits::new()
                .with_entries_log2(4)
                .with_block_max(4)
                .with_group(4)
                .with_ahead(0),
            medium: Medium::new().with_block_log2(9).with_channels(1),
            blocks: BLOCKS,
            read_ns: 0,
            write_ns: 0,
            id: MAGIC,
            turns_on: true,
            turns_off: true,
            play: Box::new(|_, _, _| Play::Whole(Span::us(2), Vec::new())),
        }
    }
}

#[derive(Clone, Copy)]
struct Open {
    ring: u64,
    entries: u32,
    signals: Option<u16>,
}

pub struct Fake {
    device: SimDevice,
    pub traits: RefCell<Traits>,
    pub contents: RefCell<BTreeMap<u64, Vec<u8>>>,
    open: Cell<Option<Open>>,
    switched: Signal,
    pub flushes: Cell<u32>,
    pub enables: Cell<u32>,
    /// Entries of the ring at the last enable.
    pub entries: Cell<u32>,
    /// Sizes of all blocks received.
    pub sizes: RefCell<Vec<u32>>,
    /// Page address and used bytes of every descriptor.
    pub pages: RefCell<Vec<(BusAddr, u32)>>,
}

impl Fake {
    pub fn start(device: SimDevice, traits: Traits) -> Rc<Fake> {
        for (register, value) in [
            (ID, traits.id),
            (LIMITS, traits.limits.into_bits()),
            (CAPACITY, traits.blocks as u32),
            (CAPACITY + 4, (traits.blocks >> 32) as u32),
            (MEDIUM, traits.medium.into_bits()),
            (READ_NS, traits.read_ns),
            (WRITE_NS, traits.write_ns),
        ] {
            device.store(register, value);
        }
        let fake = Rc::new(Fake {
            traits: RefCell::new(traits),
            contents: RefCell::default(),
            open: Cell::new(None),
            switched: Signal::default(),
            flushes: Cell::new(0),
            enables: Cell::new(0),
            entries: Cell::new(0),
            sizes: RefCell::default(),
            pages: RefCell::default(),
            device,
        });
        fake.device.rt().spawn(fake.clone().control());
        fake.device.rt().spawn(fake.clone().serve());
        fake
    }

    /// Contents of these blocks.
    pub fn data(&self, lba: u64, blocks: usize) -> Vec<u8> {
        let contents = self.contents.borrow();
        let block = |lba| contents.get(&lba).cloned().unwrap_or_else(|| super::world::pattern(lba));
        (lba..lba + blocks as u64).flat_map(block).collect()
    }

    async fn control(self: Rc<Self>) {
        let (device, mut seen) = (&self.device, 0);
        loop {
            let changed = || Some(device.load(CONTROL)).filter(|value| *value != seen);
            seen = device.on_registers(changed).await;
            let control = Control::from_bits(seen);
            if control.enable() && self.traits.borrow().turns_on {
                let shape = Shape::from_bits(device.load(SHAPE));
                device.store(BLOCK, 0);
                let high = u64::from(device.load(RING + 4));
                self.open.set(Some(Open {
                    ring: high << 32 | u64::from(device.load(RING)),
                    entries: 1 << shape.entries_log2(),
                    signals: control.signals().then_some(shape.vector()),
                }));
                self.entries.set(1 << shape.entries_log2());
                self.enables.set(self.enables.get() + 1);
                device.store(STATUS, Ready::new().with_ready(true).into_bits());
            } else if !control.enable() && self.traits.borrow().turns_off {
                self.open.set(None);
                device.store(STATUS, 0);
            }
            self.switched.notify(device.rt());
        }
    }

    async fn serve(self: Rc<Self>) {
        let mut number = 0;
        loop {
            let switched = self.switched.changed(self.device.rt(), self.switched.version());
            match self.open.get() {
                None => switched.await,
                Some(open) => {
                    if let Either::Second(never) =
                        race(switched, self.blocks(open, &mut number)).await
                    {
                        match never {}
                    }
                }
            }
        }
    }

    async fn blocks(&self, open: Open, number: &mut u64) -> std::convert::Infallible {
        let mut told = Block::new();
        loop {
            let block = || Some(Block::from_bits(self.device.load(BLOCK))).filter(|b| *b != told);
            told = self.device.on_registers(block).await;
            let (first, size) = (self.device.load(OFFSET), u32::from(told.size()));
            let mut descriptors = Vec::new();
            for n in 0..size {
                let mut bytes = [0; BYTES];
                let piece = [self.place(open, first.wrapping_add(n))];
                self.device.read(&piece, &mut bytes, Carry::All).await.expect("the ring is there");
                descriptors.push(Descriptor::read_from_bytes(&bytes).expect("its length"));
            }
            self.sizes.borrow_mut().push(size);
            let play = (self.traits.borrow_mut().play)(*number, first, &descriptors);
            *number += 1;
            self.play(open, first, &descriptors, play).await;
        }
    }

    async fn play(&self, open: Open, first: u32, descriptors: &[Descriptor], play: Play) {
        match play {
            Play::Whole(span, statuses) => {
                self.device.rt().sleep(span).await;
                let mut back = Vec::new();
                for (n, descriptor) in descriptors.iter().enumerate() {
                    let status = statuses.get(n).copied().unwrap_or(Status::DONE);
                    back.push((
                        first.wrapping_add(n as u32),
                        self.answer(*descriptor, status).await,
                    ));
                }
                // The very last word is the flag.
                for (count, descriptor) in back {
                    self.write(open, count, &descriptor).await;
                }
                self.signal(open);
            }
            Play::Each(order, apart) => {
                for n in order {
                    self.device.rt().sleep(apart).await;
                    let back = self.answer(descriptors[n], Status::DONE).await;
                    self.write(open, first.wrapping_add(n as u32), &back).await;
                    self.signal(open);
                }
            }
            Play::Writes(writes) => {
                for (count, descriptor) in writes {
                    self.write(open, count, &descriptor).await;
                }
                self.signal(open);
            }
            Play::Never => core::future::pending().await,
            Play::Stops(status) => {
                self.device.store(STATUS, status.into_bits());
                core::future::pending().await
            }
        }
    }

    fn signal(&self, open: Open) {
        if let Some(vector) = open.signals {
            self.device.interrupt(vector);
        }
    }

    fn place(&self, open: Open, count: u32) -> Segment {
        let place = u64::from(count & (open.entries - 1));
        Segment { at: BusAddr(open.ring + place * BYTES as u64), bytes: BYTES as u32 }
    }

    async fn write(&self, open: Open, count: u32, descriptor: &Descriptor) {
        let how = Posting { flags: Flags::Last, ..Posting::STRICT };
        let to = [self.place(open, count)];
        let written = self.device.write(&to, descriptor.as_bytes(), how, Time::ZERO).await;
        written.expect("the ring is there");
    }

    /// Transfers the data of a successful command.
    async fn answer(&self, descriptor: Descriptor, status: Status) -> Descriptor {
        let command = descriptor.parse().expect("our driver makes sense");
        let page = [Segment { at: command.at, bytes: PAGE_BYTES }];
        let (lba, blocks) = (command.offset / 512, command.bytes as usize / BLOCK_BYTES);
        if command.bytes > 0 {
            self.pages.borrow_mut().push((command.at, command.bytes));
        }
        if status == Status::DONE {
            match command.operation {
                Operation::Read => {
                    let mut data = self.data(lba, blocks);
                    data.resize(PAGE_BYTES as usize, 0xdd);
                    let sent = self.device.write(&page, &data[..], Posting::STRICT, Time::ZERO);
                    sent.await.expect("a page of host memory");
                }
                Operation::Write { .. } => {
                    let mut data = vec![0; PAGE_BYTES as usize];
                    let read = self.device.read(&page, &mut data, Carry::All);
                    read.await.expect("a page of host memory");
                    let blocks = data.chunks_exact(BLOCK_BYTES).take(blocks);
                    let blocks = (lba..).zip(blocks.map(<[u8]>::to_vec));
                    self.contents.borrow_mut().extend(blocks);
                }
                Operation::Flush => self.flushes.set(self.flushes.get() + 1),
            }
        }
        descriptor.answered(status)
    }
}
