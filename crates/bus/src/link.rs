//! A PCIe link in virtual time: two directions, each a FIFO server for the wire. Sizes and rules are in
//! [`wire::pcie`].
//!
//! A transfer is one reservation and one event, whatever its number of TLPs: its bytes on the wire are
//! counted in closed form, and its time is rounded once. It is split into packets only if packets contend one
//! by one (flow-control credits, packets delayed in the root complex; both are off unless the plan configures
//! them). Without these both computations agree, which a test checks.
//!
//! # Exact
//!
//! - The bytes of every TLP: header of three or four dwords by address, framing by generation, ECRC if
//!   enabled.
//! - Splitting of writes at the maximum payload size and at 4 KiB, of reads at the maximum read request size,
//!   of completions at the read completion boundary.
//! - Line coding, and both directions at once.
//! - Posted writes land in order; neither a request nor a completion passes a posted write.
//!
//! 4 KiB at an address above 4 GiB take 2.432 us on Gen2 x4 with a payload of 128 bytes, as in the DC Express
//! paper.
//!
//! # Simplified
//!
//! - Switches, retimers and the chipset are latencies (`link.hops`), not queues. [`switch`](crate::switch)
//!   models a switch with several devices: a transfer holds its own link until the shared link has taken it.
//! - Acknowledgement and flow-control DLLPs are owed in proportion to TLPs and fill the gaps between
//!   transfers; those that found no gap precede the next transfer.
//! - The requests of one DMA read are sent one behind the other; the completions stream behind the first of
//!   them, after one `host_read`. Host memory and the root complex have no queue and no bandwidth of their
//!   own.
//! - Non-posted and completion credits are never short. No packet is lost or retried.
//! - Relaxed ordering has an effect only where packets can be delayed: elsewhere a packet has nothing to
//!   overtake.
//!
//! # No link
//!
//! With `link.coherent` both ends access one memory, as the threads of a live world do: a write takes the
//! link's latency and no time for its length, a read takes `host_read` alone. Plans of real machines
//! (docs/calibrate.md) are of this kind.

use alloc::collections::VecDeque;
use alloc::rc::Rc;
use core::cell::{Cell, RefCell};

use runtime::{Line, Rng, Span, Time, Turn};
use wire::pcie::{self, Generation, Pieces, ReadRules, TlpFormat, Traffic};

use crate::packets::Counters;
pub use crate::packets::{PacketKind, Packets};
use crate::switch::Switch;
pub use crate::switch::Way;

/// Parameters of a link. Every number has its source in the plan.
#[derive(Clone, Debug)]
pub struct LinkSpec {
    /// Generation: rate and line coding.
    pub generation: Generation,
    /// Number of lanes.
    pub lanes: u8,
    /// Maximum payload size, bytes.
    pub mps: u32,
    /// Maximum read request size, bytes.
    pub mrrs: u32,
    /// Read-completion boundary, bytes: 64 or 128.
    pub rcb: u32,
    /// Maximum payload of one completion from the root complex, bytes.
    pub completion_bytes: u32,
    /// Whether TLPs carry the end-to-end CRC.
    pub ecrc: bool,
    /// Latency from the last byte on the wire to the same byte at the other end: both PHYs, the wire, and
    /// every switch or chipset in between.
    pub latency: Span,
    /// Time from the arrival of a read request at the root complex to its first completion: lookup and
    /// memory.
    pub host_read: Span,
    /// Time from the arrival of a read request at the device to its completion: a register.
    pub device_read: Span,
    /// TLPs per acknowledgement DLLP, and per flow-control DLLP.
    pub tlps_per_dllp: u32,
    /// Flow-control credits of the receivers. `None` if they are never the bottleneck.
    pub credits: Option<Credits>,
    /// Packets delayed inside the root complex. `None` if there are none.
    pub held_up: Option<HeldUp>,
    /// No wire: both ends access one coherent memory, like two cores. The length of a transfer takes no
    /// time; a write is visible after `latency`, and a read waits for memory alone.
    pub coherent: bool,
}

/// Flow-control credits that a receiver grants for posted writes.
#[derive(Clone, Copy, Debug)]
pub struct Credits {
    /// Header credits.
    pub headers: u32,
    /// Data credits, in units of 16 bytes.
    pub data: u32,
    /// Time from a packet's arrival to the return of its credits at the sender.
    pub return_after: Span,
}

/// Random delay of packets inside the root complex: relaxed ordering lets other packets overtake them.
#[derive(Clone, Copy, Debug)]
pub struct HeldUp {
    /// One packet in this many, on average.
    pub one_in: u64,
    /// Delay of such a packet.
    pub span: Span,
}

/// A transfer on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flight {
    /// Departure of the first byte.
    pub begin: Time,
    /// Departure of the last byte.
    pub sent: Time,
    /// The same, if its source had not been late: from then on the source takes the time, not the link.
    pub carried: Time,
    /// Arrival of the last byte.
    pub landed: Time,
}

/// A link, both directions.
pub struct Link {
    spec: LinkSpec,
    format: TlpFormat,
    byte_time: (u64, u64),
    /// log2 of its divisor, if that is a power of two, as it is for most links: a division would dominate
    /// the cost of a reservation.
    byte_time_log2: Option<u32>,
    up: Direction,
    down: Direction,
    switch: Option<Rc<Switch>>,
}

struct Direction {
    line: Line,
    packets: Counters,
    /// Bytes of DLLPs that wait for a gap.
    owed: Cell<u64>,
    /// Arrival time of the last strictly ordered write.
    landed: Cell<Time>,
    credits: RefCell<VecDeque<(Time, u32, u32)>>,
    available: Cell<(u32, u32)>,
    rng: RefCell<Rng>,
}

impl Direction {
    fn new(spec: &LinkSpec, rng: Rng) -> Direction {
        let available = spec.credits.map_or((0, 0), |c| (c.headers, c.data));
        Direction {
            line: Line::default(),
            packets: Counters::default(),
            owed: Cell::new(0),
            landed: Cell::new(Time::ZERO),
            credits: RefCell::default(),
            available: Cell::new(available),
            rng: RefCell::new(rng),
        }
    }
}

impl Link {
    /// An idle link. `seed` selects the packets that are delayed.
    pub fn new(spec: LinkSpec, seed: u64) -> Link {
        let format = TlpFormat { generation: spec.generation, ecrc: spec.ecrc };
        let byte_time = match spec.coherent {
            true => (0, 1),
            false => pcie::byte_time(spec.generation, spec.lanes),
        };
        let up = Direction::new(&spec, Rng::for_part(seed, "link up"));
        let down = Direction::new(&spec, Rng::for_part(seed, "link down"));
        let byte_time_log2 = byte_time.1.is_power_of_two().then(|| byte_time.1.ilog2());
        Link { spec, format, byte_time, byte_time_log2, up, down, switch: None }
    }

    /// An idle link below a switch.
    ///
    /// # Panics
    /// If packets contend one by one, or the link is coherent: a switch forwards whole transfers.
    pub fn below(spec: LinkSpec, seed: u64, switch: Rc<Switch>) -> Link {
        let whole = spec.credits.is_none() && spec.held_up.is_none() && !spec.coherent;
        assert!(whole, "a link below a switch carries transfers as a whole");
        Link { switch: Some(switch), ..Link::new(spec, seed) }
    }

    /// Time at which a transfer with this turn has left this link: below a switch it occupies the link
    /// until the shared link has taken it too.
    #[inline]
    fn passed(&self, way: Way, from: Time, turn: Turn, wire_bytes: u64) -> Time {
        match &self.switch {
            None => turn.end,
            Some(switch) => switch.pass(way, from, turn.begin, wire_bytes).end.max(turn.end),
        }
    }

    /// Parameters of the link.
    pub fn spec(&self) -> &LinkSpec {
        &self.spec
    }

    /// Latency of a read request and of its answer, each, without the time on the wire.
    pub fn read_latency(&self) -> Span {
        if self.spec.coherent { Span::ZERO } else { self.spec.latency }
    }

    /// Total time that this direction has been busy.
    pub fn busy(&self, way: Way) -> Span {
        self.direction(way).line.busy()
    }

    /// Packets sent in this direction.
    pub fn packets(&self, way: Way) -> Packets {
        self.direction(way).packets.packets()
    }

    fn direction(&self, way: Way) -> &Direction {
        match way {
            Way::Up => &self.up,
            Way::Down => &self.down,
        }
    }

    /// Time of `bytes` bytes on the wire: exact, then rounded up once.
    #[inline]
    pub fn time_of(&self, bytes: u64) -> Span {
        let (ps, per) = self.byte_time;
        match self.byte_time_log2 {
            Some(log2) => Span((bytes * ps + (per - 1)) >> log2),
            None => Span((bytes * ps).div_ceil(per)),
        }
    }

    /// Sends a posted write of `bytes` bytes to `address`, not before `from`; its source yields the last
    /// byte at `ready`. `landed` is called with offset, length and time of every piece that lands
    /// separately: once for the whole write unless packets can be delayed.
    pub fn post(
        &self,
        way: Way,
        from: Time,
        posted: Posted,
        mut landed: impl FnMut(u32, u32, Time),
    ) -> Flight {
        if self.takes_packets_apart(way) {
            return self.post_by_packets(way, from, posted, landed);
        }
        let flight = self.post_whole(way, from, posted);
        landed(0, posted.bytes, flight.landed);
        flight
    }

    /// Returns true if packets in this direction contend one by one.
    #[inline]
    pub(crate) fn takes_packets_apart(&self, way: Way) -> bool {
        self.spec.credits.is_some() || (self.spec.held_up.is_some() && way == Way::Up)
    }

    /// [`post`](Link::post) for writes that are not split into packets.
    pub(crate) fn post_whole(&self, way: Way, from: Time, posted: Posted) -> Flight {
        let direction = self.direction(way);
        let bytes = u64::from(posted.bytes);
        let size = pcie::posted_write(self.format, posted.address, bytes, self.spec.mps);
        let begin = self.begin_after_dllps(direction, from);
        let service = self.time_of(size.wire_bytes);
        let turn = direction.line.reserve(begin, service);
        let carried = self.passed(way, from, turn, size.wire_bytes);
        let sent = carried.max(posted.ready);
        direction.line.prolong(sent);
        self.count(way, PacketKind::MemoryWrite, size);
        let arrived = (sent + self.spec.latency).max(direction.landed.get());
        direction.landed.set(arrived);
        Flight { begin: turn.begin, sent, carried, landed: arrived }
    }

    /// [`post`](Link::post), packet by packet.
    fn post_by_packets(
        &self,
        way: Way,
        from: Time,
        posted: Posted,
        mut landed: impl FnMut(u32, u32, Time),
    ) -> Flight {
        let direction = self.direction(way);
        let begin = self.begin_after_dllps(direction, from).max(direction.line.free_at());
        let (mut burst_begin, mut burst_bytes, mut end) = (begin, 0, begin);
        let (mut last, mut done, mut carried) = (begin, 0, begin);
        let mut size = Traffic::default();
        let header = self.format.overhead_bytes(pcie::memory_header_bytes(posted.address));
        for packet in Pieces::new(posted.address, u64::from(posted.bytes), self.spec.mps) {
            let payload = packet.payload_bytes(posted.address);
            let units = payload.div_ceil(16);
            let granted = self.take_credits(direction, end, units);
            if granted > end {
                (burst_begin, burst_bytes) = (granted, 0);
            }
            burst_bytes += u64::from(header + payload);
            end = burst_begin + self.time_of(burst_bytes);
            carried = end;
            done += packet.bytes;
            if done == posted.bytes && posted.ready > end {
                end = posted.ready;
            }
            let arrived = end + self.spec.latency + self.hold_up(direction, way);
            let lands = self.order(direction, arrived, posted.relaxed);
            self.return_credits(direction, lands, units);
            landed(packet.offset as u32, packet.bytes, lands);
            last = last.max(lands);
            size.tlps += 1;
            size.payload_bytes += u64::from(payload);
            size.wire_bytes += u64::from(header + payload);
        }
        let turn = direction.line.reserve(begin, end.since(begin));
        self.count(way, PacketKind::MemoryWrite, size);
        Flight { begin: turn.begin, sent: turn.end, carried, landed: last }
    }

    /// Landing time. A strict write lands after every earlier posted write; a relaxed one on arrival, but
    /// later strict writes wait for it.
    fn order(&self, direction: &Direction, arrived: Time, relaxed: bool) -> Time {
        let lands = if relaxed { arrived } else { arrived.max(direction.landed.get()) };
        direction.landed.set(direction.landed.get().max(lands));
        lands
    }

    fn hold_up(&self, direction: &Direction, way: Way) -> Span {
        match self.spec.held_up {
            Some(held_up) if way == Way::Up => {
                let unlucky = direction.rng.borrow_mut().below(held_up.one_in) == 0;
                if unlucky { held_up.span } else { Span::ZERO }
            }
            _ => Span::ZERO,
        }
    }

    /// The time, not before `from`, at which one header and `units` data credits are granted.
    fn take_credits(&self, direction: &Direction, from: Time, units: u32) -> Time {
        if self.spec.credits.is_none() {
            return from;
        }
        let (mut headers, mut data) = direction.available.get();
        let mut granted = from;
        let mut returning = direction.credits.borrow_mut();
        while let Some(&(at, h, d)) = returning.front() {
            if at > granted && headers >= 1 && data >= units {
                break;
            }
            granted = granted.max(at);
            headers += h;
            data += d;
            returning.pop_front();
        }
        direction.available.set((headers.saturating_sub(1), data.saturating_sub(units)));
        granted
    }

    fn return_credits(&self, direction: &Direction, lands: Time, units: u32) {
        if let Some(credits) = self.spec.credits {
            let at = lands + credits.return_after;
            // A receiver counts what it has freed (PCIe base 2.0, 2.6.1), so a relaxed packet that lands
            // before an earlier one returns its credits first. Strict packets land in order.
            let mut returning = direction.credits.borrow_mut();
            let place = returning.partition_point(|&(other, _, _)| other <= at);
            returning.insert(place, (at, 1, units));
        }
    }

    /// Sends a request or an answer that is not a posted write: a read request, or completions.
    pub fn send(&self, way: Way, kind: PacketKind, from: Time, size: Traffic) -> Flight {
        let direction = self.direction(way);
        let begin = self.begin_after_dllps(direction, from);
        let turn = direction.line.reserve(begin, self.time_of(size.wire_bytes));
        let sent = self.passed(way, from, turn, size.wire_bytes);
        direction.line.prolong(sent);
        self.count(way, kind, size);
        // Neither a read request nor a completion passes a posted write.
        let landed = match self.spec.coherent {
            true => sent,
            false => (sent + self.spec.latency).max(direction.landed.get()),
        };
        Flight { begin: turn.begin, sent, carried: sent, landed }
    }

    /// TLPs of a read request for `bytes` bytes at `address`.
    pub fn read_requests(&self, address: u64, bytes: u32) -> Traffic {
        pcie::read_requests(self.format, address, u64::from(bytes), self.spec.mrrs)
    }

    /// TLPs of its completions.
    pub fn completions(&self, address: u64, bytes: u32) -> Traffic {
        let payload_max = self.spec.completion_bytes.min(self.spec.mps);
        let rules = ReadRules { mrrs: self.spec.mrrs, rcb: self.spec.rcb, payload_max };
        pcie::completions(self.format, address, u64::from(bytes), rules)
    }

    /// Counts packets, and the DLLPs in the other direction that acknowledge them and return their credits.
    fn count(&self, sent: Way, kind: PacketKind, size: Traffic) {
        if self.spec.coherent {
            return;
        }
        let (out, back) = match sent {
            Way::Up => (&self.up, &self.down),
            Way::Down => (&self.down, &self.up),
        };
        out.packets.add(kind, size);
        let dllps = 2 * size.tlps.div_ceil(u64::from(self.spec.tlps_per_dllp));
        back.packets.add_dllps(dllps);
        back.owed.set(back.owed.get() + dllps * u64::from(pcie::DLLP_BYTES));
    }

    /// DLLPs fill the gaps between TLPs; those without a gap go first.
    fn begin_after_dllps(&self, direction: &Direction, from: Time) -> Time {
        let owed = direction.owed.replace(0);
        if owed == 0 {
            return from;
        }
        from.max(direction.line.free_at() + self.time_of(owed))
    }
}

/// Parameters of a posted write on the link.
#[derive(Clone, Copy, Debug)]
pub struct Posted {
    /// Bus address of the first byte.
    pub address: u64,
    /// Length in bytes.
    pub bytes: u32,
    /// Relaxed-ordering attribute.
    pub relaxed: bool,
    /// Time at which the source yields the last byte.
    pub ready: Time,
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use alloc::vec::Vec;

    /// The link of Vučinić et al., "DC Express" (FAST 2014), with zero latency.
    pub(crate) fn gen2_x4() -> LinkSpec {
        LinkSpec {
            generation: Generation::Gen2,
            lanes: 4,
            mps: 128,
            mrrs: 512,
            rcb: 64,
            completion_bytes: 64,
            ecrc: false,
            latency: Span::ZERO,
            host_read: Span::ZERO,
            device_read: Span::ZERO,
            tlps_per_dllp: 4,
            credits: None,
            held_up: None,
            coherent: false,
        }
    }

    const ABOVE_4_GIB: u64 = 0x1_0000_0000;

    fn posted(bytes: u32) -> Posted {
        Posted { address: ABOVE_4_GIB, bytes, relaxed: false, ready: Time::ZERO }
    }

    #[test]
    fn write_of_4_kib_takes_2432_ns_on_dc_express_link() {
        let link = Link::new(gen2_x4(), 0);
        let flight = link.post(Way::Up, Time::ZERO, posted(4096), |_, _, _| {});
        assert_eq!(flight.sent.since(flight.begin), Span::ns(2_432));
    }

    #[test]
    fn write_split_into_packets_takes_same_time_as_whole() {
        for bytes in [4, 64, 100, 128, 4096, 1 << 20] {
            let whole = Link::new(gen2_x4(), 0);
            let plenty = Credits { headers: 1 << 20, data: 1 << 24, return_after: Span::us(1) };
            let packets = Link::new(LinkSpec { credits: Some(plenty), ..gen2_x4() }, 0);
            for _ in 0..3 {
                let a = whole.post(Way::Up, Time::ZERO, posted(bytes), |_, _, _| {});
                let b = packets.post(Way::Up, Time::ZERO, posted(bytes), |_, _, _| {});
                assert_eq!(a, b, "{bytes} bytes");
            }
            for way in [Way::Up, Way::Down] {
                assert_eq!(whole.packets(way), packets.packets(way), "{bytes} bytes");
            }
        }
    }

    /// One header credit, returned 100 ns after its packet arrives: a packet of 152 bytes every
    /// 76 + 100 ns.
    #[test]
    fn flow_control_credits_limit_packet_rate() {
        let one = Credits { headers: 1, data: 8, return_after: Span::ns(100) };
        let link = Link::new(LinkSpec { credits: Some(one), ..gen2_x4() }, 0);
        let flight = link.post(Way::Up, Time::ZERO, posted(512), |_, _, _| {});
        assert_eq!(flight.sent.0, 4 * 76_000 + 3 * 100_000);
    }

    /// Four headers; a delayed packet holds its own credit, or those of all behind it (Vučinić et al.,
    /// "DC Express", FAST 2014, section 3).
    #[test]
    fn strict_packets_hold_credits_behind_delayed_one() {
        let four = Credits { headers: 4, data: 32, return_after: Span::ns(100) };
        let sometimes = HeldUp { one_in: 8, span: Span::us(1) };
        let spec = LinkSpec { credits: Some(four), held_up: Some(sometimes), ..gen2_x4() };
        let sent = |relaxed| {
            let link = Link::new(spec.clone(), 3);
            link.post(Way::Up, Time::ZERO, Posted { relaxed, ..posted(1 << 16) }, |_, _, _| {}).sent
        };
        let (strict, relaxed) = (sent(false), sent(true));
        assert!(strict.0 > relaxed.0 + relaxed.0 / 4, "{strict:?} {relaxed:?}");
    }

    #[test]
    fn relaxed_packets_overtake_delayed_ones_strict_do_not() {
        let sometimes = HeldUp { one_in: 2, span: Span::us(1) };
        let spec = LinkSpec { held_up: Some(sometimes), ..gen2_x4() };
        let landings = |relaxed| {
            let link = Link::new(spec.clone(), 3);
            let mut moments = Vec::new();
            let posted = Posted { relaxed, ..posted(4096) };
            link.post(Way::Up, Time::ZERO, posted, |_, _, at| moments.push(at));
            assert_eq!(moments.len(), 32);
            moments
        };
        assert!(landings(false).is_sorted());
        assert!(!landings(true).is_sorted());
    }

    #[test]
    fn dllps_fill_gaps_and_delay_only_a_busy_link() {
        let link = Link::new(gen2_x4(), 0);
        link.post(Way::Up, Time::ZERO, posted(4096), |_, _, _| {});
        // 32 TLPs owe 16 DLLPs of 8 bytes: 64 ns of the idle downstream direction, which end long before
        // this write.
        let later = link.post(Way::Down, Time(10_000_000), posted(4), |_, _, _| {});
        assert_eq!(later.begin, Time(10_000_000));
        let link = Link::new(gen2_x4(), 0);
        link.post(Way::Down, Time::ZERO, posted(128), |_, _, _| {});
        link.post(Way::Up, Time::ZERO, posted(4096), |_, _, _| {});
        let behind = link.post(Way::Down, Time::ZERO, posted(128), |_, _, _| {});
        assert_eq!(behind.begin.0, 76_000 + 64_000);
    }

    #[test]
    fn coherent_link_time_does_not_depend_on_length() {
        let spec = LinkSpec { coherent: true, latency: Span::ns(80), ..gen2_x4() };
        let link = Link::new(spec, 0);
        for bytes in [4, 4096] {
            let flight = link.post(Way::Up, Time::ZERO, posted(bytes), |_, _, _| {});
            assert_eq!((flight.sent, flight.landed), (Time::ZERO, Time(80_000)), "{bytes} bytes");
        }
        let asked = link.send(
            Way::Up,
            PacketKind::ReadRequest,
            Time::ZERO,
            link.read_requests(ABOVE_4_GIB, 64),
        );
        assert_eq!(asked.landed, Time::ZERO, "it waits for no write of the same end");
        assert_eq!(link.packets(Way::Up), Packets::default());
    }

    #[test]
    fn link_directions_are_independent_except_for_dllps() {
        let link = Link::new(gen2_x4(), 0);
        let up = link.post(Way::Up, Time::ZERO, posted(4096), |_, _, _| {});
        let down = link.post(Way::Down, Time::ZERO, posted(4096), |_, _, _| {});
        assert_eq!(down.begin.0, 64_000, "only the acknowledgements of the other way");
        assert_eq!(up.sent.0, 2_432_000);
    }
}
