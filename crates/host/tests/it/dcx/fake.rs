//! Scripted DC Express device. It follows the protocol as far as the driver needs it; its script makes
//! packets late, reordered or lost, and reports wrong.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use bus::sim::SimDevice;
use bus::{DevicePort, Flags, Looks, Posting, Segment};
use runtime::{Span, Time};
use wire::dcx::command::{self, Access, Command, Entry, Request};
use wire::dcx::notice;
use wire::dcx::registers::{Control, GRAIN, Group, ID, LIMITS, Limits, MAGIC, Shape, Status};
use wire::dcx::report::{self, Code, Report};
use wire::pcie::Pieces;
use wire::{BusAddr, Lba};
use zerocopy::{FromBytes, IntoBytes};

pub const BLOCK: usize = 512;
pub const BLOCKS: u64 = 4096;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Success after this span, packets in order.
    After(Span),
    /// Success with packets in this order and this gap.
    Order(Vec<usize>, Span),
    /// This report after this span, without data.
    Reports(Span, Code),
    /// No answer. Fences do not wait for it.
    Never,
    /// Success, preceded by these reports.
    Among(Vec<Report>),
}

/// Behaviour on enabling or disabling a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turns {
    After(Span),
    Never,
    /// Reports in STATUS that the registers are invalid.
    Faults,
}

/// Chooses the handling of the n-th command.
pub type Script = Box<dyn FnMut(u64, &Request) -> Answer>;

/// Properties of the device. Tests change them while it runs.
pub struct Traits {
    pub limits: Limits,
    /// Granule of its tag, and the tag with its version.
    pub grain: u32,
    pub tag: Option<(u32, u32)>,
    pub on: Turns,
    pub off: Turns,
    pub fences: bool,
    pub io: Script,
}

impl Default for Traits {
    fn default() -> Traits {
        Traits {
            limits: Limits::new()
                .with_queues(2)
                .with_entries_log2(8)
                .with_transfer_log2(16)
                .with_block_log2(9),
            grain: 0,
            tag: None,
            on: Turns::After(Span::us(5)),
            off: Turns::After(Span::us(5)),
            fences: true,
            io: Box::new(|_, _| Answer::After(Span::us(1))),
        }
    }
}

#[derive(Clone, Copy)]
struct Open {
    commands: u64,
    reports: u64,
    notice: u64,
    entries: u32,
    packet_bytes: Option<u32>,
    signals: Option<u16>,
}

/// A device with one queue.
pub struct Fake {
    device: SimDevice,
    pub traits: RefCell<Traits>,
    group: Group,
    pub blocks: RefCell<BTreeMap<u64, Vec<u8>>>,
    open: Cell<Option<Open>>,
    next: Cell<u32>,
    reported: Cell<u32>,
    /// Numbers of commands that may still write data.
    live: RefCell<BTreeSet<u32>>,
    epoch: Cell<u64>,
    pub commands: Cell<u64>,
    pub fences: Cell<u64>,
    pub enables: Cell<u64>,
    /// Reads received, with the version of their tag.
    pub reads: RefCell<Vec<(Access, u32)>>,
}

impl Fake {
    pub fn start(device: SimDevice, traits: Traits) -> Rc<Fake> {
        let fake = Rc::new(Fake {
            device,
            traits: RefCell::new(traits),
            group: Group::of(0, 0),
            blocks: RefCell::default(),
            open: Cell::new(None),
            next: Cell::new(1),
            reported: Cell::new(0),
            live: RefCell::default(),
            epoch: Cell::new(0),
            commands: Cell::new(0),
            fences: Cell::new(0),
            enables: Cell::new(0),
            reads: RefCell::default(),
        });
        fake.device.store(ID, MAGIC);
        fake.device.store(LIMITS, fake.traits.borrow().limits.into_bits());
        fake.device.store(GRAIN, fake.traits.borrow().grain);
        fake.device.rt().spawn(fake.clone().control());
        fake
    }

    /// Contents of these blocks.
    pub fn data(&self, lba: Lba, blocks: u32) -> Vec<u8> {
        let held = self.blocks.borrow();
        let of = |lba| held.get(&lba).cloned().unwrap_or_else(|| super::world::pattern(lba));
        (lba.0..lba.0 + u64::from(blocks)).flat_map(of).collect()
    }

    async fn control(self: Rc<Self>) {
        let mut seen = 0;
        loop {
            let changed = || Some(self.device.load(self.group.control)).filter(|c| *c != seen);
            seen = self.device.on_registers(changed).await;
            let control = Control::from_bits(seen);
            let (on, off) = (self.traits.borrow().on, self.traits.borrow().off);
            let (turns, status) = match control.enable() {
                true => (on, Status::new().with_ready(true)),
                false => (off, Status::new()),
            };
            if !control.enable() && turns != Turns::Never {
                self.open.set(None);
                self.epoch.set(self.epoch.get() + 1);
                self.live.borrow_mut().clear();
            }
            match turns {
                Turns::Never => continue,
                Turns::Faults => {
                    self.device.store(self.group.status, status.with_fault(true).into_bits());
                    continue;
                }
                Turns::After(span) => self.device.rt().sleep(span).await,
            }
            if control.enable() {
                self.enable(control);
            }
            self.device.store(self.group.status, status.into_bits());
        }
    }

    fn enable(self: &Rc<Self>, control: Control) {
        let word = |register| u64::from(self.device.load(register));
        let address = |register| word(register + 4) << 32 | word(register);
        let shape = Shape::from_bits(self.device.load(self.group.shape));
        let packet = u32::from(shape.packet_log2());
        self.open.set(Some(Open {
            commands: address(self.group.commands),
            reports: address(self.group.reports),
            notice: address(self.group.notice),
            entries: 1 << shape.entries_log2(),
            packet_bytes: (packet > 0).then(|| 1 << packet),
            signals: control.signals().then_some(shape.vector()),
        }));
        self.next.set(1);
        self.reported.set(0);
        self.enables.set(self.enables.get() + 1);
        let tag = self.traits.borrow().tag;
        if let Some((tag, version)) = tag {
            self.tell_tag(tag, version);
        }
        self.device.rt().spawn(self.clone().poll(self.epoch.get()));
    }

    /// Writes a tag to the notice.
    pub fn tell_tag(&self, tag: u32, version: u32) {
        let open = self.open.get().expect("an enabled queue");
        let words = [[0; 4], tag.to_le_bytes(), version.to_le_bytes()];
        let at = BusAddr(open.notice + notice::TAG as u64);
        self.device.publish(at, words.as_flattened(), false).expect("the driver's memory");
    }

    async fn poll(self: Rc<Self>, epoch: u64) {
        let mut bytes = [0; command::BYTES];
        while epoch == self.epoch.get() {
            let open = self.open.get().expect("enabled in this epoch");
            let next = self.next.get();
            let place = u64::from(next.wrapping_sub(1) & (open.entries - 1));
            let at = BusAddr(open.commands + place * command::BYTES as u64);
            let is_new = |_, word: u32| word == next;
            let fetched = self.device.fetch(at, &mut bytes, command::BYTES, Looks::Many, is_new);
            let found = fetched.await;
            if found != Ok(1) || epoch != self.epoch.get() {
                assert!(found.is_ok(), "the driver's memory");
                continue;
            }
            self.next.set(next.wrapping_add(1));
            let entry = Entry::read_from_bytes(&bytes).expect("an entry's length");
            let request = entry.parse().expect("the driver sends sense");
            self.device.rt().spawn(self.clone().serve(request, epoch));
        }
    }

    async fn serve(self: Rc<Self>, request: Request, epoch: u64) {
        let rt = self.device.rt().clone();
        let ends = match request.command {
            Command::Fence => {
                if !self.traits.borrow().fences {
                    return;
                }
                while self.live.borrow().iter().any(|number| *number < request.number) {
                    rt.sleep(Span::ns(100)).await;
                }
                self.fences.set(self.fences.get() + 1);
                Some(Code::DONE)
            }
            Command::Read { access, tag_version, .. } => {
                self.reads.borrow_mut().push((access, tag_version));
                self.live.borrow_mut().insert(request.number);
                let ends = self.answer(&request, access, true, epoch).await;
                self.live.borrow_mut().remove(&request.number);
                ends
            }
            Command::Write { access, .. } => self.answer(&request, access, false, epoch).await,
        };
        if epoch != self.epoch.get() {
            return;
        }
        if let Some(code) = ends {
            self.report(request.number, request.slot, code);
        }
        self.interrupt();
    }

    fn interrupt(&self) {
        if let Some(vector) = self.open.get().and_then(|open| open.signals) {
            self.device.interrupt(vector);
        }
    }

    async fn answer(
        &self,
        request: &Request,
        access: Access,
        is_read: bool,
        epoch: u64,
    ) -> Option<Code> {
        let number = self.commands.get();
        self.commands.set(number + 1);
        let answer = (self.traits.borrow_mut().io)(number, request);
        let rt = self.device.rt();
        let (order, gap) = match answer {
            Answer::Never => return None,
            Answer::Reports(span, code) => {
                rt.sleep(span).await;
                return Some(code);
            }
            Answer::After(span) => {
                rt.sleep(span).await;
                (None, Span::ZERO)
            }
            Answer::Order(order, gap) => (Some(order), gap),
            Answer::Among(forged) => {
                forged.iter().for_each(|report| self.publish(report));
                self.interrupt();
                rt.sleep(Span::us(5)).await;
                (None, Span::ZERO)
            }
        };
        if epoch != self.epoch.get() {
            return None;
        }
        if !is_read {
            self.take(access).await;
            return Some(Code::DONE);
        }
        self.send(access, order, gap, epoch).await;
        None
    }

    async fn take(&self, access: Access) {
        let mut data = vec![0; access.bytes as usize];
        let from = Segment { at: access.at, bytes: data.len() as u32 };
        self.device.read(&[from], &mut data, bus::Carry::All).await.expect("the driver's memory");
        for (lba, block) in (access.lba.0..).zip(data.chunks_exact(BLOCK)) {
            self.blocks.borrow_mut().insert(lba, block.to_vec());
        }
    }

    /// Sends blocks packet by packet.
    async fn send(&self, access: Access, order: Option<Vec<usize>>, gap: Span, epoch: u64) {
        let Some(open) = self.open.get() else { return };
        let data = self.data(access.lba, access.bytes / BLOCK as u32);
        let Some(packet) = open.packet_bytes else {
            let to = Segment { at: access.at, bytes: data.len() as u32 };
            let how = Posting { flags: Flags::Last, ..Posting::STRICT };
            self.device.write(&[to], &data[..], how, Time::ZERO).await.expect("memory");
            return;
        };
        let pieces: Vec<_> = Pieces::new(access.at.0, data.len() as u64, packet).collect();
        let order = order.unwrap_or_else(|| (0..pieces.len()).collect());
        let how = Posting { flags: Flags::EachPacket(packet), ..Posting::STRICT };
        let mut sent = BTreeSet::new();
        for place in order {
            // Each packet once: a read's landed data is not written again.
            if !sent.insert(place % pieces.len()) {
                continue;
            }
            let piece = pieces[place % pieces.len()];
            let part = &data[piece.offset as usize..][..piece.bytes as usize];
            let to = Segment { at: BusAddr(access.at.0 + piece.offset), bytes: piece.bytes };
            self.device.write(&[to], part, how, Time::ZERO).await.expect("memory");
            if gap > Span::ZERO {
                self.device.rt().sleep(gap).await;
            }
            if epoch != self.epoch.get() {
                return;
            }
        }
    }

    fn report(&self, command: u32, slot: u16, code: Code) {
        self.publish(&Report::new(0, command, slot, code));
    }

    /// Posts a report with the next number.
    pub fn publish(&self, report: &Report) {
        let Some(open) = self.open.get() else { return };
        let number = self.reported.get() + 1;
        self.reported.set(number);
        let place = u64::from((number - 1) & (open.entries - 1));
        let at = BusAddr(open.reports + place * report::BYTES as u64);
        let report = Report::new(number, report.command(), report.slot(), report.code());
        self.device.publish(at, report.as_bytes(), false).expect("the driver's memory");
    }
}
