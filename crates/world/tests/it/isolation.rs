//! Two clients on one device: a hostile one reads, writes and stops nothing of the other's.
//!
//! The hostile client has no driver: it stores entries by hand, of NVMe and of DC Express. The other reads
//! and verifies meanwhile. Each test with something switched off sees the attack succeed: blocks that
//! overlap, memory that is known to both controllers, and a register window that both clients have.

use std::cell::Cell;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use bus::live::{LiveDevice, LiveHost, Shared};
use bus::{HostPort, Memory};
use device::faults::Faults;
use host::BlockDevice;
use media::Range;
use plan::Plan;
use runtime::{Log, Rt, STD_CLOCK, Span};
use wire::dcx::registers::{Control, Group, MAGIC, Shape};
use wire::{BusAddr, Lba};
use world::device::{Device, MediumState};
use world::interfaces::{DCX, Disk, NVME, Row};

use testing::{plan, turn};

/// Blocks of each client. The victim's begin at 0, the hostile client's after them.
const BLOCKS: u64 = 4096;
const BLOCK: usize = 512;
const MEMORY_BYTES: usize = 8 << 20;
const VICTIM_AT: BusAddr = BusAddr(7 << 32);
const HOSTILE_AT: BusAddr = BusAddr(1 << 32);
/// Blocks that the victim verifies.
const USED: u64 = 64;
/// Looks of a wait, of which each is a pass of the executor: far more than an answer takes.
const LOOKS_MAX: u32 = 500_000;

/// Parts of the isolation that a test switches off.
#[derive(Clone, Copy, Default)]
struct Off {
    /// The hostile client's extent is the whole drive.
    extent: bool,
    /// Its controller reaches the victim's memory.
    memory: bool,
    /// Its registers are the victim's.
    registers: bool,
}

/// Harm to the victim, and what the attacker did.
#[derive(Debug, Default, PartialEq, Eq)]
struct Harm {
    /// Verified reads with other data than those written.
    blocks: u64,
    /// Operations of the victim that failed.
    errors: u64,
    /// Bytes of its memory that it did not write itself.
    memory: u64,
    /// Reads of the attacker that returned the victim's data.
    disclosed: u64,
}

#[derive(Default)]
struct Tried {
    refused: Cell<u64>,
    done: Cell<u64>,
}

struct Raw<'a> {
    rt: &'a Rt,
    shared: Shared,
    memory: Memory,
    /// Blocks of the drive as the attacker takes them to be.
    victim_blocks: Vec<u64>,
    target: BusAddr,
    tried: &'a Tried,
    disclosed: Cell<u64>,
}

const ADMIN: u64 = 0x0000;
const ADMIN_DONE: u64 = 0x1000;
const IO: u64 = 0x2000;
const IO_DONE: u64 = 0x3000;
const ENTRIES: u32 = 32;
const DCX_COMMANDS: u64 = 0x4000;
const DCX_REPORTS: u64 = 0x5000;
const DATA: u64 = 0x10000;

const READ: u8 = 1;
const WRITE: u8 = 2;
const FENCE: u8 = 3;

/// A command of DC Express, but its number.
#[derive(Clone, Copy)]
struct Dcx {
    opcode: u8,
    slot: u16,
    tag_version: u32,
    lba: u64,
    at: BusAddr,
}

impl Dcx {
    fn entry(self, number: u32) -> [u8; 64] {
        let mut entry = [0; 64];
        entry[0] = self.opcode;
        entry[2..4].copy_from_slice(&self.slot.to_le_bytes());
        entry[4..8].copy_from_slice(&self.tag_version.to_le_bytes());
        entry[8..16].copy_from_slice(&self.lba.to_le_bytes());
        entry[16..24].copy_from_slice(&self.at.0.to_le_bytes());
        let bytes: u32 = if self.opcode == FENCE { 0 } else { 4096 };
        entry[24..28].copy_from_slice(&bytes.to_le_bytes());
        entry[60..].copy_from_slice(&number.to_le_bytes());
        entry
    }
}

/// A submission queue entry from its parts.
fn sqe(opcode: u8, id: u16, nsid: u32, prp: BusAddr, dwords: [u32; 3]) -> [u8; 64] {
    let mut entry = [0; 64];
    let mut put = |at: usize, word: u32| entry[at..at + 4].copy_from_slice(&word.to_le_bytes());
    put(0, u32::from(opcode) | u32::from(id) << 16);
    put(4, nsid);
    put(24, prp.0 as u32);
    put(28, (prp.0 >> 32) as u32);
    dwords.into_iter().zip([40, 44, 48]).for_each(|(word, at)| put(at, word));
    entry
}

impl Raw<'_> {
    fn at(&self, offset: u64) -> BusAddr {
        BusAddr(HOSTILE_AT.0 + offset)
    }

    /// Returns false if the condition did not become true.
    async fn wait(&self, mut done: impl FnMut() -> bool) -> bool {
        let mut looks = 0;
        poll_fn(|cx| {
            looks += 1;
            if done() || looks == LOOKS_MAX {
                return Poll::Ready(looks < LOOKS_MAX);
            }
            self.rt.poll_again(cx, false);
            Poll::Pending
        })
        .await
    }

    async fn enable(&self) {
        let shared = &self.shared;
        self.memory.zero(self.at(0), DATA as usize).expect("its own memory");
        shared.store(0x14, 0);
        assert!(self.wait(|| shared.load(0x1c) & 1 == 0).await, "CSTS.RDY stays 1");
        shared.store(0x24, (ENTRIES - 1) | (ENTRIES - 1) << 16);
        for (register, at) in [(0x28, self.at(ADMIN)), (0x30, self.at(ADMIN_DONE))] {
            shared.store(register, at.0 as u32);
            shared.store(register + 4, (at.0 >> 32) as u32);
        }
        shared.store(0x14, 1 | 6 << 16 | 4 << 20);
        assert!(self.wait(|| shared.load(0x1c) & 1 == 1).await, "CSTS.RDY stays 0");
    }

    /// One command at a time, number `count` of this queue: its status.
    async fn command(&self, queue: u32, count: u32, entry: [u8; 64]) -> u16 {
        let (sq, cq) = if queue == 0 { (ADMIN, ADMIN_DONE) } else { (IO, IO_DONE) };
        let (place, memory) = (count % ENTRIES, &self.memory);
        memory.write(self.at(sq + 64 * u64::from(place)), &entry).expect("its own memory");
        self.shared.store(0x1000 + 8 * queue, (place + 1) % ENTRIES);
        let last = self.at(cq + 16 * u64::from(place) + 12);
        let phase = 1 - (count / ENTRIES) % 2;
        let word = || memory.load_u32(last).expect("its own memory");
        assert!(self.wait(|| word() >> 16 & 1 == phase).await, "no completion: {entry:?}");
        self.shared.store(0x1004 + 8 * queue, (place + 1) % ENTRIES);
        let status = (word() >> 17 & 0x7ff) as u16;
        let counter = if status == 0 { &self.tried.done } else { &self.tried.refused };
        counter.set(counter.get() + 1);
        status
    }

    /// Counts data of the victim in the attacker's buffer, and clears it.
    fn look(&self) {
        let mut found = [0; 4096];
        self.memory.read(self.at(DATA), &mut found).expect("its own memory");
        let disclosed = found.chunks_exact(BLOCK).any(|block| block.starts_with(b"victim"));
        self.disclosed.set(self.disclosed.get() + u64::from(disclosed));
        self.memory.write(self.at(DATA), &[0x66; 4096]).expect("its own memory");
    }

    async fn nvme(&self) {
        self.enable().await;
        let mut admin = 0;
        let mut create = async |opcode: u8, at: BusAddr, dwords: [u32; 2]| {
            let done =
                self.command(0, admin, sqe(opcode, 0, 0, at, [dwords[0], dwords[1], 0])).await;
            admin += 1;
            done
        };
        let size = (ENTRIES - 1) << 16;
        // A pair in the victim's memory is refused, or its completions reach nothing.
        create(5, self.target, [2 | size, 1]).await;
        create(1, self.target, [2 | size, 1 | 2 << 16]).await;
        assert_eq!(create(5, self.at(IO_DONE), [1 | size, 1]).await, 0);
        assert_eq!(create(1, self.at(IO), [1 | size, 1 | 1 << 16]).await, 0);
        let mut count = 0;
        let mut io = async |opcode: u8, prp: BusAddr, lba: u64| {
            let words = [lba as u32, (lba >> 32) as u32, 7];
            self.command(1, count, sqe(opcode, count as u16, 1, prp, words)).await;
            count += 1;
        };
        for &lba in &self.victim_blocks {
            // Reads, then writes, write zeroes, compares and verifies.
            io(2, self.at(DATA), lba).await;
            self.look();
            for opcode in [1, 8, 5, 12] {
                io(opcode, self.at(DATA), lba).await;
            }
        }
        // Its own blocks, by way of the victim's memory.
        io(1, self.at(DATA), 16).await;
        for at in [self.target, BusAddr(self.target.0 + 4096), BusAddr(!4095)] {
            io(2, at, 16).await;
            io(1, at, 24).await;
        }
        io(2, self.at(DATA), 24).await;
        self.look();
    }

    /// Writes doorbells of all queues, those of others too, and disables the controller.
    fn write_registers(&self) {
        for queue in 0..16 {
            self.shared.store(0x1000 + 8 * queue, 5);
            self.shared.store(0x1004 + 8 * queue, 9);
        }
        self.shared.store(0x14, 0);
    }

    async fn dcx(&self) {
        let block = (0..1 << 18).step_by(4).find(|at| self.shared.load(*at) == MAGIC);
        let block = block.expect("the register block of DC Express");
        let group = Group::of(block, 0);
        let open = async |commands: BusAddr, reports: BusAddr| {
            self.shared.store(group.control, 0);
            assert!(self.wait(|| self.shared.load(group.status) & 1 == 0).await);
            self.memory.zero(self.at(DCX_COMMANDS), 0x2000).expect("its own memory");
            let registers =
                [(group.commands, commands), (group.reports, reports), (group.notice, reports)];
            for (register, at) in registers {
                self.shared.store(register, at.0 as u32);
                self.shared.store(register + 4, (at.0 >> 32) as u32);
            }
            self.shared.store(group.shape, Shape::new().with_entries_log2(5).into_bits());
            self.shared.store(group.control, Control::new().with_enable(true).into_bits());
            assert!(self.wait(|| self.shared.load(group.status) & 1 == 1).await);
        };
        // Rings in the victim's memory: the queue faults, or takes nothing from there.
        open(self.target, self.at(DCX_REPORTS)).await;
        open(self.at(DCX_COMMANDS), self.target).await;
        open(self.at(DCX_COMMANDS), self.at(DCX_REPORTS)).await;
        let (count, reported) = (Cell::new(0), Cell::new(0));
        let store = |command: Dcx| {
            count.set(count.get() + 1);
            let at = self.at(DCX_COMMANDS + 64 * u64::from((count.get() - 1) % ENTRIES));
            self.memory.write(at, &command.entry(count.get())).expect("its own memory");
        };
        // A read that ends well is not reported, so a fence follows, which is.
        let send = async |command: Dcx| {
            store(command);
            store(Dcx { opcode: FENCE, ..command });
            loop {
                let next = reported.get() + 1;
                let at = self.at(DCX_REPORTS + 16 * u64::from((next - 1) % ENTRIES));
                let word = |offset| self.memory.load_u32(BusAddr(at.0 + offset)).expect("its own");
                assert!(self.wait(|| word(12) == next).await, "no report");
                reported.set(next);
                let done = word(4) >> 16 == 0;
                let counter = if done { &self.tried.done } else { &self.tried.refused };
                counter.set(counter.get() + 1);
                if word(0) == count.get() {
                    return;
                }
            }
        };
        let data = Dcx { opcode: READ, slot: 3, tag_version: 0, lba: 16, at: self.at(DATA) };
        for &lba in &self.victim_blocks {
            send(Dcx { opcode: WRITE, lba, ..data }).await;
            // Versions of the tag that the device has not given, with slots of any number.
            for tag_version in [0, 1, 2, u32::MAX] {
                send(Dcx { lba, tag_version, slot: lba as u16, ..data }).await;
                self.look();
            }
        }
        for at in [self.target, BusAddr(!4095)] {
            send(Dcx { at, ..data }).await;
            send(Dcx { opcode: WRITE, at, ..data }).await;
        }
        send(data).await;
        self.look();
        // Groups of queues that it does not have.
        (1..64).for_each(|queue| self.shared.store(Group::of(block, queue).control, 1));
    }
}

fn content(block: u64) -> Vec<u8> {
    let mut bytes = format!("victim {block:08}").into_bytes();
    bytes.resize(BLOCK, block as u8);
    bytes
}

/// Reads and verifies until `over`, at least 200 times; returns wrong reads and failed operations.
async fn victim(rt: &Rt, disk: &Disk, over: &Cell<bool>) -> (u64, u64) {
    let (mut wrong, mut failed, mut reads) = (0, 0, 0);
    let mut buffer = disk.buffer(BLOCK).expect("memory");
    while reads < 200 || !over.get() {
        let block = reads * 7 % USED;
        let (back, done) = disk.read(Lba(block), buffer).await;
        let mut found = vec![0; BLOCK];
        back.copy_out(0, &mut found);
        failed += u64::from(done.is_err());
        wrong += u64::from(done.is_ok() && found != content(block));
        buffer = back;
        reads += 1;
        if failed > 3 {
            break;
        }
        rt.yield_now().await;
    }
    (wrong, failed)
}

fn opened(plan: &Plan, row: &'static Row) -> (Shared, Shared) {
    let shared = |at| {
        let registers = (row.register_bytes)(plan);
        Shared::between_threads(MEMORY_BYTES, at, registers).expect("memory")
    };
    (shared(VICTIM_AT), shared(HOSTILE_AT))
}

fn attack(row: &'static Row, off: Off) -> (Harm, Tried) {
    let _turn = turn();
    let sets = [
        ("medium.capacity", "4 MiB"),
        ("medium.block", "512 B"),
        ("medium.pace", "immediate"),
        ("host.timeout", "300 ms"),
        ("host.retries", "0"),
    ];
    // Tags of the device's choice are counted by extent: they need extents that do not overlap.
    let name = if off.extent { "dc-express" } else { "live" };
    let plan = plan(name, &sets);
    let rt = Rt::live(&STD_CLOCK, None, Log::Off);
    let (victims, hostile) = opened(&plan, row);
    let whole = Range { from: 0, blocks: 2 * BLOCKS };
    let half = Range { from: BLOCKS, blocks: BLOCKS };
    let ranges = [Range { from: 0, blocks: BLOCKS }, if off.extent { whole } else { half }];
    let state = MediumState::new(&plan).expect("a medium");
    let (device, extents) =
        Device::divide::<LiveDevice>(row, &rt, state, &plan, &ranges).expect("a device");
    let stops: Vec<_> = extents
        .iter()
        .zip([&victims, &hostile])
        .map(|(extent, shared)| (extent.side)(shared.device(&rt), Faults::none()))
        .collect();
    if off.memory {
        hostile.also(&victims.host_memory);
    }
    let host = victims.host(&rt);
    let canary = host.arena().buffer(64 << 10).expect("memory");
    canary.copy_in(0, &[0xca; 64 << 10]);
    let tried = Tried::default();
    let mut blocks = vec![0, 8, BLOCKS, BLOCKS - 4, 2 * BLOCKS - 8, 1 << 32, 1 << 63];
    // Added to the first block of the extent they wrap to the victim's.
    blocks.extend([BLOCKS.wrapping_neg(), BLOCKS.wrapping_neg() + 8, u64::MAX, u64::MAX - 7]);
    let raw = Raw {
        rt: &rt,
        memory: hostile.host_memory.clone(),
        shared: if off.registers { victims.clone() } else { hostile },
        victim_blocks: blocks,
        target: canary.at(),
        tried: &tried,
        disclosed: Cell::new(0),
    };
    let mut harm = rt.block_on(harm(row, &plan, off, host, &raw));
    let mut found = vec![0; 64 << 10];
    canary.copy_out(0, &mut found);
    harm.memory = found.iter().filter(|byte| **byte != 0xca).count() as u64;
    harm.disclosed = raw.disclosed.get();
    stops.into_iter().for_each(|stop| stop());
    let refused = extents[1].part.refused();
    assert!(
        off.extent || off.registers || refused.commands > 0,
        "commands past the end are counted"
    );
    assert_eq!(extents[0].part.refused().commands, 0, "the victim named only its own blocks");
    drop((extents, raw));
    drop(device);
    (harm, tried)
}

async fn harm(row: &'static Row, plan: &Plan, off: Off, host: LiveHost, raw: &Raw<'_>) -> Harm {
    let rt = raw.rt;
    let driver = row.connect(vec![host], plan).await.expect("the victim's driver");
    let disk = driver.disk(0);
    for block in 0..USED {
        let buffer = disk.buffer(BLOCK).expect("memory");
        buffer.copy_in(0, &content(block));
        disk.write(Lba(block), buffer, false).await.1.expect("a write");
    }
    let over = Rc::new(Cell::new(false));
    let result = Rc::new(Cell::new(None));
    let verified = {
        let (rt, over, result) = (rt.clone(), over.clone(), result.clone());
        async move {
            result.set(Some(victim(&rt, &disk, &over).await));
        }
    };
    rt.spawn(verified);
    if !off.registers {
        raw.nvme().await;
        if row.name == "dcx" {
            raw.dcx().await;
        }
    }
    raw.write_registers();
    // In this time the victim's commands meet what the registers say now.
    let seen = rt.now();
    rt.sleep_until(seen + Span::ms(20)).await;
    over.set(true);
    assert!(raw.wait(|| result.get().is_some()).await, "the victim's reads do not end");
    let (blocks, errors) = result.get().expect("just seen");
    Harm { blocks, errors, ..Harm::default() }
}

#[test]
fn hostile_client_harms_nothing_of_another() {
    for row in [NVME, DCX] {
        let (harm, tried) = attack(row, Off::default());
        assert_eq!(harm, Harm::default(), "{}", row.name);
        assert!(tried.refused.get() > 40, "{}: {} refused", row.name, tried.refused.get());
        assert!(tried.done.get() > 10, "{}: {} done", row.name, tried.done.get());
    }
}

#[test]
fn attack_is_seen_where_extents_overlap() {
    for row in [NVME, DCX] {
        let (harm, _) = attack(row, Off { extent: true, ..Off::default() });
        assert!(harm.blocks > 0 && harm.disclosed > 0, "{}: {harm:?}", row.name);
    }
}

/// The check of a DMA address' owner off.
#[test]
fn attack_is_seen_where_a_controller_reaches_memory_of_another_client() {
    for row in [NVME, DCX] {
        let (harm, _) = attack(row, Off { memory: true, ..Off::default() });
        assert!(harm.memory > 0, "{}: {harm:?}", row.name);
    }
}

/// The check of a queue's owner off: both clients write the registers of one controller.
#[test]
fn attack_is_seen_where_clients_share_registers() {
    let (harm, _) = attack(NVME, Off { registers: true, ..Off::default() });
    assert!(harm.errors > 0, "{harm:?}");
}
