//! Quantities derived from a plan: rates, times, memory. All are integers.

use bus::BUFFER_ALIGN;
use bus::link::{Link, LinkSpec};
use runtime::Span;
use wire::pcie::{self, TlpFormat};

use super::{Device, Host, Plan};

/// Bytes of a submission and of a completion queue entry (NVMe base 2.0, 3.3.3).
const ENTRY_BYTES: (u64, u64) = (64, 16);

/// Bytes of an address in a PRP list, and of the page that it names (NVMe base 2.0, 4.1.1).
const PRP_BYTES: (u64, u64) = (8, 4096);

/// Host memory for the admin queues, Identify data and log pages.
const ADMIN_BYTES: u64 = 64 << 10;

/// Quantities derived from a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Figures {
    /// Raw rate of the link in each direction, bytes per second, rounded down.
    pub link_bytes_per_s: u64,
    /// Payload rate in full packets to host memory, bytes per second, rounded down.
    pub payload_bytes_per_s: u64,
    /// Overhead of each packet to host memory, bytes.
    pub overhead_bytes: u32,
    /// Serialization time of a 4 KiB write to host memory.
    pub write_4k: Span,
    /// Reading 64 bytes of host memory, from the device, on a quiet link.
    pub read_64: Span,
    /// Reading a 32-bit register of the device, from the host, on a quiet link.
    pub read_register: Span,
    /// Latency of the medium to the first byte of 4 KiB with all banks idle; none without timing.
    pub medium_4k: Option<Span>,
    /// Host memory that the queues and their transfers need, bytes.
    pub memory_needed_bytes: u64,
}

impl Plan {
    /// Computes the quantities that follow from the plan.
    pub fn figures(&self) -> Figures {
        let (spec, base) = (&self.link, self.host.memory_base.0);
        let format = TlpFormat { generation: spec.generation, ecrc: spec.ecrc };
        let overhead_bytes = format.overhead_bytes(pcie::memory_header_bytes(base));
        let (ps, per) = pcie::byte_time(spec.generation, spec.lanes);
        let link_bytes_per_s = per * 1_000_000_000_000 / ps;
        let link = Link::new(spec.clone(), 0);
        let page = pcie::posted_write(format, base, 4096, spec.mps);
        Figures {
            link_bytes_per_s,
            payload_bytes_per_s: link_bytes_per_s * u64::from(spec.mps)
                / u64::from(spec.mps + overhead_bytes),
            overhead_bytes,
            write_4k: link.time_of(page.wire_bytes),
            read_64: round_trip(&link, base, 64, spec.host_read),
            // Registers lie below 4 GiB.
            read_register: round_trip(&link, 0, 4, spec.device_read),
            medium_4k: self.medium.first_of_4k(),
            memory_needed_bytes: memory_needed_bytes(&self.host, &self.device),
        }
    }
}

/// Round-trip time of a read: the request, `service` at the completer, and the completions.
fn round_trip(link: &Link, address: u64, bytes: u32, service: Span) -> Span {
    let spec: &LinkSpec = link.spec();
    let request = link.time_of(link.read_requests(address, bytes).wire_bytes);
    let answer = link.time_of(link.completions(address, bytes).wire_bytes);
    request + spec.latency + service + answer + spec.latency
}

/// Host memory in bytes for the host's queues at full depth, each command with the largest transfer and its
/// PRP list, rounded up to allocator buffers.
pub fn memory_needed_bytes(host: &Host, device: &Device) -> u64 {
    let buffer = |bytes: u64| bytes.next_power_of_two().max(BUFFER_ALIGN as u64);
    let entries = u64::from(host.queue_depth) + 1;
    let pages = device.mdts_bytes / PRP_BYTES.1 + 1;
    let command = buffer(device.mdts_bytes) + buffer(pages * PRP_BYTES.0);
    let queue = buffer(entries * ENTRY_BYTES.0)
        + buffer(entries * ENTRY_BYTES.1)
        + u64::from(host.queue_depth) * command;
    // Eight bytes of protection information per block of 512, if the host generates it.
    let tags =
        host.guard.map_or(0, |_| buffer(u64::from(host.queue_depth) * device.mdts_bytes / 64));
    u64::from(host.queues) * (queue + tags) + ADMIN_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(name: &str, sets: &[(&str, &str)]) -> Figures {
        Plan::open(name, sets).unwrap().figures()
    }

    /// Vučinić et al., "DC Express" (FAST 2014): 2.432 us to transfer 4 KiB, 0.368 us to reach them
    /// (Table 5), and "well over 0.6 us" a round trip (section 2).
    #[test]
    fn figures_of_dc_express_match_the_paper() {
        let figures = figures("dc-express", &[]);
        assert_eq!(figures.link_bytes_per_s, 2_000_000_000);
        assert_eq!(figures.payload_bytes_per_s, 2_000_000_000 * 128 / 152);
        assert_eq!(figures.overhead_bytes, 24);
        assert_eq!(figures.write_4k, Span::ns(2_432));
        // 24 bytes up, 64 + 20 down, 500 ps each, in addition to the plan's latencies.
        assert_eq!(figures.read_64, Span::ns(12 + 42 + 2 * 150 + 250));
        assert_eq!(figures.medium_4k, Some(Span::ps(110_000 + 7 * 36_857)));
    }

    #[test]
    fn a_hop_adds_its_latency_in_both_directions() {
        let hop = "[{ name = \"chipset\", latency = { value = \"1 us\", source = \"assumed\" } }]";
        let near = figures("dc-express", &[]);
        let far = figures("dc-express", &[("link.hops", hop)]);
        assert_eq!(far.read_64, near.read_64 + Span::us(2));
        assert_eq!(far.read_register, near.read_register + Span::us(2));
        assert_eq!(far.write_4k, near.write_4k);
    }

    #[test]
    fn rates_of_gen4_are_rounded_down() {
        let figures = figures("gen4", &[("link.mps", "256 B")]);
        // 16 GT/s, 4 lanes, 128 of 130 bits.
        assert_eq!(figures.link_bytes_per_s, 7_876_923_076);
        assert_eq!(figures.payload_bytes_per_s, 7_876_923_076 * 256 / 280);
    }

    #[test]
    fn memory_needed_counts_whole_buffers() {
        let sets = [("host.queues", "2"), ("host.queue_depth", "3"), ("device.mdts", "128 KiB")];
        let plan = Plan::open("gen4", &sets).unwrap();
        let command = (128 << 10) + 4096;
        let queue = 4096 + 4096 + 3 * command;
        assert_eq!(memory_needed_bytes(&plan.host, &plan.device), 2 * queue + (64 << 10));
        let guarded = [("host.protection", "host"), ("host.guard", "0 ns")];
        let plan = Plan::open("gen4", &[&sets[..], &guarded].concat()).unwrap();
        // Three times 2 KiB of protection information.
        assert_eq!(memory_needed_bytes(&plan.host, &plan.device), 2 * (queue + 8192) + (64 << 10));
    }
}
