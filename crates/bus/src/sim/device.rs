//! Device port of the modelled bus.

use alloc::rc::Rc;
use core::cell::Cell;
use core::convert::Infallible;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll, ready};

use runtime::{Rt, Sleep, Span, Spend, Stage, Time, Urgency};
use wire::BusAddr;

use super::host::INTERRUPTS_AT;
use super::landing::{Bytes, Item, Load};
use super::{Bus, COPY_BYTES, VECTORS};
use crate::link::{Flight, Link, PacketKind, Posted, Way};
use crate::pieces::{Sink, gather, scatter, scatter_flagged};
use crate::{
    Carry, Cost, DevicePort, DmaError, Flags, InterruptPin, Looks, OutOfRange, Payload, Posting,
    Segment,
};

/// Device port. Cheap to clone.
#[derive(Clone)]
pub struct SimDevice {
    bus: Rc<Bus>,
    /// The port of the device's switch that it sends by.
    port: u32,
}

impl SimDevice {
    pub(super) fn new(bus: Rc<Bus>, port: u32) -> SimDevice {
        SimDevice { bus, port }
    }

    #[inline]
    fn link(&self) -> &Link {
        &self.bus.links[self.port as usize]
    }

    fn validate(&self, segments: &[Segment]) -> Result<(), DmaError> {
        // A function without bus mastering, or below a bridge without it, reaches no memory.
        let reaches = self.bus.reaches_memory() || self.bus.down.get();
        for segment in segments {
            if !reaches || !self.bus.host.memory.holds(segment.at, segment.bytes as usize) {
                let (at, bytes) = (segment.at, segment.bytes as usize);
                return Err(DmaError::Address(OutOfRange { at, bytes }));
            }
        }
        Ok(())
    }

    /// A device without DMA engines copies data on its processor.
    async fn copy(&self, bytes: usize) {
        let bus = &self.bus;
        if let Some(page) = bus.spec.device_copy {
            let span = Span(page.0 * bytes as u64 / COPY_BYTES);
            let turn = bus.processor().spend(&bus.rt, span, Urgency::Task).await;
            bus.rt.record_at(bus.stages.processor, turn.begin);
        }
    }

    /// Reserves the link for one segment and schedules the arrival of its bytes, which are all of `load`.
    fn post_segment(&self, posted: Posted, load: Load) -> Flight {
        let (bus, link, now) = (&self.bus, self.link(), self.bus.rt.now());
        let flight = match link.takes_packets_apart(Way::Up) {
            true => self.post_apart(now, posted, load),
            false => {
                let flight = link.post_whole(Way::Up, now, posted);
                bus.land(flight.landed, Item::Memory(load));
                flight
            }
        };
        bus.rt.record_at(bus.stages.transfer.turn, flight.begin);
        flight
    }

    /// As [`post_segment`](Self::post_segment), for packets that may land one by one.
    #[cold]
    fn post_apart(&self, now: Time, posted: Posted, load: Load) -> Flight {
        let bus = &self.bus;
        let whole = Cell::new(None);
        let mut load = Some(load);
        let flight = self.link().post(Way::Up, now, posted, |offset, bytes, at| {
            if bytes == posted.bytes {
                whole.set(Some(at));
            } else if let Some(load) = &load {
                let part = cut(load, posted.address + u64::from(offset), bytes, bus);
                bus.land(at, Item::Memory(part));
            }
        });
        match (whole.get(), load.take()) {
            (Some(at), Some(load)) => bus.land(at, Item::Memory(load)),
            (_, Some(load)) => drop(load),
            _ => {}
        }
        flight
    }
}

/// The part of a load that lies in this address range.
fn cut(load: &Bytes, begin: u64, bytes: u32, bus: &Bus) -> Load {
    let end = begin + u64::from(bytes);
    let mut part = bus.landings.bytes();
    for &(at, from, length) in &load.runs {
        let (low, high) = (at.max(begin), (at + u64::from(length)).min(end));
        if low < high {
            let from = from as usize + (low - at) as usize;
            let length = (high - low) as usize;
            part.runs.push((low, part.data.len() as u32, length as u32));
            part.data.extend_from_slice(&load.data[from..from + length]);
        }
    }
    part
}

/// Copies a payload's runs into a load, each with its address in host memory.
fn load_from<P: Payload + ?Sized>(
    load: &mut Bytes,
    to: &[Segment],
    what: &P,
    how: Posting,
) -> Result<(), DmaError> {
    match how.flags {
        Flags::None => scatter(to, what, |at, run, _| load.put(at, run)),
        // Bytes that land together become visible together: a flag is one more run, zero if nothing covers
        // it.
        _ => scatter_flagged(to, what, how, load),
    }
}

impl Sink for Bytes {
    fn put(&mut self, at: BusAddr, run: &[u8]) -> Result<(), DmaError> {
        let begin = self.data.len() as u32;
        self.data.extend_from_slice(run);
        match self.runs.last_mut() {
            Some((last, _, bytes)) if *last + u64::from(*bytes) == at.0 => {
                *bytes += run.len() as u32
            }
            _ => self.runs.push((at.0, begin, run.len() as u32)),
        }
        Ok(())
    }

    fn flag(&mut self, at: BusAddr, word: u32) -> Result<(), DmaError> {
        self.put(at, &word.to_le_bytes())
    }

    fn wide_flag(&mut self, at: BusAddr, word: u64) -> Result<(), DmaError> {
        self.put(at, &word.to_le_bytes())
    }
}

/// Future of a cost of the device. Written by hand, like the host's: every command waits for several, and
/// each nested future adds to the time of every poll.
struct Spent<'a> {
    bus: &'a Bus,
    work: Work<'a>,
    stage: Stage,
}

enum Work<'a> {
    Elapses(Sleep<'a>),
    Occupies(Spend<'a>),
}

impl Future for Spent<'_> {
    type Output = ();
    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        match &mut this.work {
            Work::Elapses(sleep) => ready!(Pin::new(sleep).poll(cx)),
            Work::Occupies(spend) => {
                let turn = ready!(Pin::new(spend).poll(cx));
                this.bus.rt.record_at(this.bus.stages.processor, turn.begin);
            }
        }
        this.bus.rt.record(this.stage);
        Poll::Ready(())
    }
}

impl DevicePort for SimDevice {
    type Direct = Infallible;

    fn rt(&self) -> &Rt {
        &self.bus.rt
    }

    fn through(&self, port: u32) -> SimDevice {
        let ports = self.bus.links.len() as u32;
        SimDevice::new(self.bus.clone(), port.min(ports - 1))
    }

    fn load(&self, register: u32) -> u32 {
        self.bus.registers.borrow()[register as usize / 4]
    }

    fn store(&self, register: u32, value: u32) {
        self.bus.registers.borrow_mut()[register as usize / 4] = value;
    }

    async fn on_registers<T>(&self, mut check: impl FnMut() -> Option<T>) -> T {
        loop {
            let version = self.bus.registers_written.version();
            if let Some(found) = check() {
                return found;
            }
            self.bus.registers_written.changed(&self.bus.rt, version).await;
        }
    }

    fn check_again(&self) {
        self.bus.registers_written.notify(&self.bus.rt);
    }

    async fn read(&self, from: &[Segment], to: &mut [u8], carry: Carry) -> Result<(), DmaError> {
        self.validate(from)?;
        let (bus, rt, link) = (&self.bus, &self.bus.rt, self.link());
        // Requests go up one behind the other; completions stream down behind the first.
        let (mut first, mut last) = (Time::NEVER, Time::ZERO);
        for segment in from {
            let size = link.read_requests(segment.at.0, segment.bytes);
            let asked = link.send(Way::Up, PacketKind::ReadRequest, rt.now(), size);
            // All requests of a segment have the same length; this is the time of those behind the first.
            let rest = size.wire_bytes - size.wire_bytes / size.tlps.max(1);
            let first_here = Time(asked.landed.0 - link.time_of(rest).0);
            (first, last) = (first.min(first_here), last.max(asked.landed));
        }
        if from.is_empty() {
            return Ok(());
        }
        let host_read = link.spec().host_read;
        rt.sleep_until(first + host_read).await;
        gather(from, to, carry, |at, part| Ok(bus.host.memory.read(at, part)?))?;
        rt.record(bus.stages.host_read);
        self.copy(to.len()).await;
        let mut landed = last + host_read + link.read_latency();
        for segment in from {
            let size = link.completions(segment.at.0, segment.bytes);
            landed =
                landed.max(link.send(Way::Down, PacketKind::Completion, rt.now(), size).landed);
        }
        rt.sleep_until(landed).await;
        Ok(())
    }

    fn fetch(
        &self,
        at: BusAddr,
        into: &mut [u8],
        entry_bytes: usize,
        _: Looks,
        mut is_new: impl FnMut(u32, u32) -> bool,
    ) -> impl Future<Output = Result<u32, DmaError>> {
        let (bus, rt, link) = (&self.bus, &self.bus.rt, self.link());
        let segment = Segment { at, bytes: into.len() as u32 };
        let validated = self.validate(&[segment]);
        let size = link.read_requests(at.0, segment.bytes);
        let asked =
            validated.is_ok().then(|| link.send(Way::Up, PacketKind::ReadRequest, rt.now(), size));
        async move {
            validated?;
            let asked = asked.expect("sent, as it was judged").landed;
            rt.sleep_until(asked + link.spec().host_read).await;
            bus.host.memory.read(at, into)?;
            let size = link.completions(at.0, segment.bytes);
            rt.sleep_until(link.send(Way::Down, PacketKind::Completion, rt.now(), size).landed)
                .await;
            let flag = |entry: &[u8]| u32::from_le_bytes(*entry.last_chunk().expect("a word"));
            let entries = into.chunks_exact(entry_bytes).map(flag);
            Ok((0..).zip(entries).take_while(|&(number, word)| is_new(number, word)).count() as u32)
        }
    }

    /// No-op: a read request never passes a posted write.
    fn fence(&self) {}

    async fn write<P: Payload + ?Sized>(
        &self,
        to: &[Segment],
        what: &P,
        how: Posting,
        ready: Time,
    ) -> Result<(), DmaError> {
        self.validate(to)?;
        let mut load = self.bus.landings.bytes();
        load_from(&mut load, to, what, how)?;
        self.copy(to.iter().map(|segment| segment.bytes as usize).sum()).await;
        let relaxed = how.relaxed;
        let posted = |segment: &Segment, ready| {
            let (address, bytes) = (segment.at.0, segment.bytes);
            Posted { address, bytes, relaxed, ready }
        };
        let now = self.bus.rt.now();
        let (mut carried, mut sent) = (now, now);
        let mut take = |flight: Flight| {
            (carried, sent) = (carried.max(flight.carried), sent.max(flight.sent));
        };
        if let [segment] = to {
            take(self.post_segment(posted(segment, ready), load));
        } else {
            for (index, segment) in to.iter().enumerate() {
                let ready = if index + 1 == to.len() { ready } else { Time::ZERO };
                let mine = cut(&load, segment.at.0, segment.bytes, &self.bus);
                take(self.post_segment(posted(segment, ready), mine));
            }
        }
        self.bus.rt.sleep_until(sent).await;
        // Behind the time of the link alone, it was the medium that was not ready.
        self.bus.rt.record_at(self.bus.stages.transfer.service, carried);
        self.bus.rt.record(self.bus.stages.media);
        Ok(())
    }

    fn publish(&self, at: BusAddr, entry: &[u8], relaxed: bool) -> Result<(), DmaError> {
        let segment = Segment { at, bytes: entry.len() as u32 };
        self.validate(&[segment])?;
        let mut load = self.bus.landings.bytes();
        load_from(&mut load, &[segment], entry, Posting::STRICT)?;
        let bytes = segment.bytes;
        self.post_segment(Posted { address: at.0, bytes, relaxed, ready: Time::ZERO }, load);
        Ok(())
    }

    fn interrupt(&self, vector: u16) {
        let (bus, now) = (&self.bus, self.bus.rt.now());
        let vector = match bus.pci_slot.get() {
            None => vector,
            Some(pci_slot) => match pci_slot.message(vector) {
                Some((INTERRUPTS_AT, data)) => data as u16,
                // The message targets an ordinary memory word.
                Some((at, data)) => {
                    let _ = self.publish(BusAddr(at), &data.to_le_bytes(), false);
                    return;
                }
                None => return,
            },
        };
        if (vector as usize) < VECTORS {
            let posted =
                Posted { address: INTERRUPTS_AT, bytes: 4, relaxed: false, ready: Time::ZERO };
            let flight = self.link().post(Way::Up, now, posted, |_, _, _| {});
            bus.land(flight.landed, Item::Interrupt { vector });
        }
    }

    fn cost(&self, name: &str) -> Cost {
        Bus::cost(&self.bus.device_costs, name)
    }

    fn spend(&self, cost: Cost) -> impl Future<Output = ()> {
        let bus = &*self.bus;
        let (named, stage) = &bus.device_costs[cost.0 as usize];
        let work = match bus.processors.is_empty() {
            true => Work::Elapses(bus.rt.sleep(named.span)),
            false => Work::Occupies(bus.processor().spend(&bus.rt, named.span, Urgency::Task)),
        };
        Spent { bus, work, stage: *stage }
    }

    fn elapse(&self, cost: Cost) -> impl Future<Output = ()> {
        let bus = &*self.bus;
        let (named, stage) = &bus.device_costs[cost.0 as usize];
        Spent { bus, work: Work::Elapses(bus.rt.sleep(named.span)), stage: *stage }
    }

    fn pin(&self) -> Option<&dyn InterruptPin> {
        self.bus.pin.get().is_some().then_some(self)
    }
}

impl InterruptPin for SimDevice {
    fn drive(&self, level: bool) {
        self.bus.drive_pin(level);
    }
}
