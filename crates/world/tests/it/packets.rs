//! Packets on the link, by kind and direction, against counts worked out by hand: 4 KiB at depth 1 on Gen2 x4
//! with read requests of at most 512 bytes, completions of 64 bytes, and one acknowledgement and one
//! flow-control packet for each three TLPs of a transfer.

use bus::link::Packets;
use testing::{plan, simulate_by, work};
use wire::pcie::Traffic;
use world::Options;
use world::interfaces::{BLOCK, DCX, NVME, Row};

/// Bytes of framing (STP, sequence, LCRC, END) and a header of four words, for an address above 4 GiB. `LOW`
/// has a header of three words, for registers below 4 GiB and for completions.
const HIGH: u64 = 8 + 16;
const LOW: u64 = 8 + 12;
/// Operations of the longer run without those of the shorter one.
const COUNT: u64 = 1024;

fn packets(tlps: u64, header: u64, payload_bytes: u64) -> Traffic {
    Traffic { tlps, payload_bytes, wire_bytes: tlps * header + payload_bytes }
}

fn sum(parts: &[Traffic]) -> Traffic {
    parts.iter().fold(Traffic::default(), |sum, part| Traffic {
        tlps: sum.tlps + part.tlps,
        payload_bytes: sum.payload_bytes + part.payload_bytes,
        wire_bytes: sum.wire_bytes + part.wire_bytes,
    })
}

fn times(of: Traffic, count: u64) -> Traffic {
    Traffic {
        tlps: of.tlps * count,
        payload_bytes: of.payload_bytes * count,
        wire_bytes: of.wire_bytes * count,
    }
}

fn difference(more: Traffic, less: Traffic) -> Traffic {
    Traffic {
        tlps: more.tlps - less.tlps,
        payload_bytes: more.payload_bytes - less.payload_bytes,
        wire_bytes: more.wire_bytes - less.wire_bytes,
    }
}

/// Packets up and down of `COUNT` operations, without bring-up and shut-down.
fn counted(row: &'static Row, kind: &str, mps: u32) -> [Packets; 2] {
    let mps = format!("{mps} B");
    let plan = plan("dc-express", &[("link.mps", &mps), ("host.timeout", "3600 s")]);
    let run = |count| {
        let job = format!("[one]\nrw=rand{kind}\nbs=4k\nsize=256m\nnumber_ios={count}\n");
        let busy = simulate_by(row, &plan, &work(&job), Options::default()).busy;
        busy.expect("a simulated run").packets
    };
    let ((up, down), (up_less, down_less)) = (run(128 + COUNT), run(128));
    [(up, up_less), (down, down_less)].map(|(more, less)| Packets {
        memory_writes: difference(more.memory_writes, less.memory_writes),
        read_requests: difference(more.read_requests, less.read_requests),
        completions: difference(more.completions, less.completions),
        dllps: more.dllps - less.dllps,
    })
}

/// The data of 4 KiB as memory writes.
fn data(mps: u32) -> Traffic {
    packets(u64::from(4096 / mps), HIGH, 4096)
}

/// DLLPs that answer transfers of these numbers of TLPs.
fn dllps(transfers: &[u64]) -> u64 {
    transfers.iter().map(|tlps| 2 * tlps.div_ceil(3)).sum()
}

/// A read: the doorbell and the fetch of its entry, the data, the completion entry. A write: the device reads the
/// data with eight requests, whose answers are 64 cache lines.
#[test]
fn nvme_packets_match_hand_count() {
    let (entry, post, doorbell) = (packets(1, LOW, 64), packets(1, HIGH, 16), packets(1, LOW, 4));
    // The driver returns completion slots in quarters of the queue of 64.
    let doorbells = COUNT + COUNT / 16;
    for mps in [128, 256] {
        let [up, down] = counted(NVME, "read", mps);
        assert_eq!(up.memory_writes, times(sum(&[data(mps), post]), COUNT), "read, {mps}");
        assert_eq!(up.read_requests, times(packets(1, HIGH, 0), COUNT), "read, {mps}");
        assert_eq!(up.completions, Traffic::default(), "read, {mps}");
        assert_eq!(down.memory_writes, times(doorbell, doorbells), "read, {mps}");
        assert_eq!(down.read_requests, Traffic::default(), "read, {mps}");
        assert_eq!(down.completions, times(entry, COUNT), "read, {mps}");
        let data_tlps = u64::from(4096 / mps);
        assert_eq!(down.dllps, COUNT * dllps(&[1, data_tlps, 1]), "read, {mps}");
        assert_eq!(up.dllps, doorbells * dllps(&[1]) + COUNT * dllps(&[1]), "read, {mps}");

        let [up, down] = counted(NVME, "write", mps);
        assert_eq!(up.memory_writes, times(post, COUNT), "write, {mps}");
        assert_eq!(up.read_requests, times(packets(1 + 8, HIGH, 0), COUNT), "write, {mps}");
        assert_eq!(down.memory_writes, times(doorbell, doorbells), "write, {mps}");
        let answers = sum(&[entry, packets(64, LOW, 4096)]);
        assert_eq!(down.completions, times(answers, COUNT), "write, {mps}");
    }
}

/// A descriptor block of one command: two stores announce it, the device reads its 32 bytes and returns them
/// behind the data.
#[test]
fn descriptor_block_packets_match_hand_count() {
    let (block, returned) = (packets(1, LOW, 32), packets(1, HIGH, 32));
    for mps in [128, 256] {
        let [up, down] = counted(BLOCK, "read", mps);
        assert_eq!(up.memory_writes, times(sum(&[data(mps), returned]), COUNT), "read, {mps}");
        assert_eq!(up.read_requests, times(packets(1, HIGH, 0), COUNT), "read, {mps}");
        assert_eq!(down.memory_writes, times(packets(2, LOW, 8), COUNT), "read, {mps}");
        assert_eq!(down.completions, times(block, COUNT), "read, {mps}");

        let [up, down] = counted(BLOCK, "write", mps);
        assert_eq!(up.memory_writes, times(returned, COUNT), "write, {mps}");
        assert_eq!(up.read_requests, times(packets(1 + 8, HIGH, 0), COUNT), "write, {mps}");
        assert_eq!(down.memory_writes, times(packets(2, LOW, 8), COUNT), "write, {mps}");
        let answers = sum(&[block, packets(64, LOW, 4096)]);
        assert_eq!(down.completions, times(answers, COUNT), "write, {mps}");
    }
}

/// A read by tags has neither a doorbell nor a completion entry. The number of fetches follows from the
/// device's polls; each answer has as many cache lines as its request has 64 bytes, so it is not below the
/// number of requests.
#[test]
fn dc_express_read_has_data_packets_only() {
    for mps in [128, 256] {
        let [up, down] = counted(DCX, "read", mps);
        assert_eq!(up.memory_writes, times(data(mps), COUNT), "{mps}");
        assert_eq!(down.memory_writes, Traffic::default(), "{mps}");
        assert!(up.read_requests.tlps >= COUNT / 8, "{mps}: eight entries in a fetch at most");
        assert!(down.completions.tlps >= up.read_requests.tlps, "{mps}");
        assert_eq!(down.completions.payload_bytes, 64 * down.completions.tlps, "{mps}");
    }
}
