//! A malicious host as a script: one interpreter for choices of a seed or of a fuzzer.
//!
//! Each step does one thing that no driver would do, or not at that time: entries of noise, valid entries
//! with bits flipped, doorbells and registers with any value, memory written behind the controller's back,
//! resets at any moment. [`Script::recover`] then keeps to the protocol, and the controller must work again.

use bus::HostPort;
use media::Extent;
use runtime::Span;
use wire::nvme::admin::{self, CreateCq, CreateSq, FormatNvm};
use wire::nvme::dsm::Attributes;
use wire::nvme::entry::{DataPointer, Sqe};
use wire::nvme::registers::{
    ACQ, AQA, ASQ, Aqa, CC, Cc, DOORBELLS, cq_head_doorbell, sq_tail_doorbell,
};
use wire::nvme::sgl::Descriptor;
use wire::nvme::status::Status;
use wire::nvme::{io, opcode};
use wire::{BusAddr, CommandId, Lba, Nsid, QueueId};
use zerocopy::{FromBytes, IntoBytes};

use super::choice::Choice;
use super::{Cq, NS, Pair, Raw, Settings, Sq, cq_of, pattern, sq_of};

/// Blocks that the script never writes on purpose.
pub const WITH_PI: Lba = Lba(777_000);
/// Number of guarded blocks.
pub const WITH_PI_BLOCKS: u32 = 16;

/// True if any of these writes touched the guarded blocks, which means that a command requested it.
pub fn touches_with_pi(written: &[Extent]) -> bool {
    let end = WITH_PI.0 + u64::from(WITH_PI_BLOCKS);
    written.iter().any(|at| at.block < end && WITH_PI.0 < at.block + u64::from(at.blocks))
}

/// Queues used by a script.
const QUEUES: u16 = 6;
/// Bytes at the start of host memory reserved for [`Script::recover`].
const GOOD_BYTES: u64 = 256 << 10;

/// A malicious host, driven by choices.
pub struct Script<'a, H, C> {
    raw: &'a mut Raw<H>,
    choice: C,
    /// Queues as the script assumes them; the admin queues first.
    sqs: Vec<Sq>,
    cqs: Vec<Cq>,
    block_bytes: u32,
    /// Expected contents of the guarded blocks.
    with_pi: Vec<u8>,
    lap: u64,
}

impl<'a, H: HostPort, C: Choice> Script<'a, H, C> {
    pub fn new(raw: &'a mut Raw<H>, choice: C, block_bytes: u32) -> Script<'a, H, C> {
        let with_pi = vec![0; (WITH_PI_BLOCKS * block_bytes) as usize];
        Script { raw, choice, sqs: Vec::new(), cqs: Vec::new(), block_bytes, with_pi, lap: 0 }
    }

    pub fn is_over(&self) -> bool {
        self.choice.is_over()
    }

    /// One action that a host should not do, or not now.
    pub async fn step(&mut self) {
        match self.choice.below(16) {
            0..=2 => self.submit_io(),
            3..=5 => self.submit_admin(),
            6 => self.submit_noise(),
            7 => self.ring_any(),
            8 => self.ring_some(),
            9 => self.scribble(),
            10 => self.lay_out_a_list(),
            11 | 12 => self.consume(),
            13 | 14 => self.pass_time().await,
            _ => match self.choice.below(16) {
                0..=2 => self.write_a_register(),
                3 => self.switch().await,
                4 => self.say_heads(),
                _ => self.pass_time().await,
            },
        }
    }

    /// An address: mostly in host memory, mostly aligned.
    fn address(&mut self) -> u64 {
        let (base, bytes) = (self.raw.memory.base().0, self.raw.memory.bytes() as u64);
        let page = base + GOOD_BYTES + self.choice.below((bytes - GOOD_BYTES) / 4096) * 4096;
        match self.choice.below(16) {
            0..=9 => page,
            10 => page + self.choice.below(1024) * 4,
            11 => page + self.choice.below(4096),
            12 => base + bytes - 4096 * self.choice.below(2),
            13 => base.wrapping_sub(self.choice.below(8192)),
            14 => u64::MAX - self.choice.below(8192),
            _ => self.choice.word(),
        }
    }

    fn data(&mut self) -> DataPointer {
        let (prp1, prp2) = (BusAddr(self.address()), BusAddr(self.address()));
        DataPointer::Prp { prp1, prp2 }
    }

    /// Data pointer of an I/O command: PRPs or an SGL.
    fn io_data(&mut self) -> DataPointer {
        if self.choice.one_in(3) { DataPointer::Sgl(self.descriptor()) } else { self.data() }
    }

    /// An SGL descriptor: mostly of a known type, mostly about as long as the data or as a short segment.
    fn descriptor(&mut self) -> Descriptor {
        let at = BusAddr(self.address());
        let bytes = match self.choice.below(8) {
            0 => self.choice.word() as u32,
            1 => 0,
            2 => self.choice.below(512) as u32,
            _ => self.block_bytes * self.choice.below(17) as u32,
        };
        let most = if self.choice.one_in(8) { 1 << 20 } else { 20 };
        let descriptors = self.choice.below(most) as u32;
        let one = match self.choice.below(8) {
            0..=2 => Descriptor::data(at, bytes),
            3 => Descriptor::bit_bucket(bytes),
            4 | 5 => Descriptor::segment(BusAddr(at.0 & !7), descriptors),
            _ => Descriptor::last_segment(BusAddr(at.0 & !7), descriptors),
        };
        let identifier = self.choice.word() as u8;
        if self.choice.one_in(16) { Descriptor { identifier, ..one } } else { one }
    }

    fn qid(&mut self) -> QueueId {
        match self.choice.below(12) {
            0 => QueueId(self.choice.word() as u16),
            qid => QueueId((qid % u64::from(QUEUES)) as u16),
        }
    }

    fn cid(&mut self) -> CommandId {
        // Few numbers: some are in use twice.
        CommandId(self.choice.below(64) as u16)
    }

    /// Flips some bits of an entry, sometimes.
    fn mutate(&mut self, sqe: Sqe) -> Sqe {
        let mut bytes: [u8; 64] = sqe.as_bytes().try_into().expect("sixty-four bytes");
        if self.choice.one_in(3) {
            for _ in 0..=self.choice.below(3) {
                let bit = self.choice.below(512) as usize;
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
        }
        if self.choice.one_in(8) {
            let dword = self.choice.below(16) as usize * 4;
            bytes[dword..dword + 4].copy_from_slice(&(self.choice.word() as u32).to_le_bytes());
        }
        Sqe::read_from_bytes(&bytes).expect("sixty-four bytes")
    }

    /// Stores an entry in a queue that is assumed to exist, and mostly rings.
    fn put(&mut self, queue: usize, sqe: Sqe) {
        let Some(mut sq) = self.sqs.get(queue).copied() else { return };
        let at = BusAddr(sq.at.0.wrapping_add(u64::from(sq.tail) * 64));
        // The queue may be outside host memory: the write is dropped.
        let _ = self.raw.memory.write(at, sqe.as_bytes());
        sq.tail = (sq.tail + 1) % sq.entries;
        if !self.choice.one_in(6) {
            self.raw.ring(&sq);
        }
        self.sqs[queue] = sq;
    }

    fn some_io_queue(&mut self) -> usize {
        let queues = self.sqs.len().max(2) as u64 - 1;
        1 + self.choice.below(queues) as usize
    }

    fn submit_io(&mut self) {
        let lba = match self.choice.below(8) {
            0 => self.choice.word(),
            1 => u64::MAX - self.choice.below(16),
            _ => self.choice.below(64),
        };
        let blocks = match self.choice.below(8) {
            0 => 1 + self.choice.below(65_536) as u32,
            1 | 2 => 1 + self.choice.below(256) as u32,
            _ => 1 + self.choice.below(16) as u32,
        };
        let (cid, data, fua) = (self.cid(), self.io_data(), self.choice.one_in(8));
        let sqe = match self.choice.below(10) {
            0..=2 => io::read(cid, NS, Lba(lba), blocks, fua, data),
            3..=5 => io::write(cid, NS, Lba(lba), blocks, fua, data),
            6 => match self.choice.one_in(2) {
                true => io::compare(cid, NS, Lba(lba), blocks, data),
                false if fua => io::write_uncorrectable(cid, NS, Lba(lba), blocks),
                false => io::verify(cid, NS, Lba(lba), blocks),
            },
            7 => io::write_zeroes(cid, NS, Lba(lba), blocks, fua, self.choice.one_in(2)),
            8 => {
                let ranges = 1 + (blocks % 256) as u16;
                match self.choice.one_in(2) {
                    true => io::dataset_management(
                        cid,
                        NS,
                        ranges,
                        Attributes::new().with_deallocate(fua),
                        data,
                    ),
                    false => io::copy(cid, NS, Lba(lba), ranges, data),
                }
            }
            _ => io::flush(cid, NS),
        };
        let (queue, mut sqe) = (self.some_io_queue(), self.mutate(sqe));
        if self.choice.one_in(6) {
            sqe.flags = sqe.flags.with_fuse(self.choice.below(4) as u8);
        }
        self.put(queue, sqe);
    }

    fn submit_admin(&mut self) {
        let (cid, qid) = (self.cid(), self.qid());
        let sqe = match self.choice.below(12) {
            0..=2 => self.create_cq(cid, qid),
            3..=5 => self.create_sq(cid, qid),
            6 => Sqe { opcode: opcode::admin::DELETE_SQ, ..admin::delete_cq(cid, qid) },
            7 => admin::delete_cq(cid, qid),
            8 => {
                let victim = self.cid();
                admin::abort(cid, qid, victim)
            }
            9 => {
                let (fid, value) = (self.choice.below(14) as u8, self.choice.word() as u32);
                let sqe = admin::set_feature(cid, fid, value >> self.choice.below(32));
                let get = self.choice.one_in(2);
                Sqe { opcode: if get { opcode::admin::GET_FEATURES } else { sqe.opcode }, ..sqe }
            }
            10 if self.choice.one_in(8) => {
                let format = (self.choice.below(4) as u8 & 1, self.choice.below(4) as u8);
                let format = FormatNvm { format: format.0, erase: format.1, ..Default::default() };
                admin::format_nvm(cid, NS, format)
            }
            10 if self.choice.one_in(6) => {
                let (told, asked) = (BusAddr(self.address()), BusAddr(self.address()));
                admin::doorbell_buffers(cid, told, asked)
            }
            10 => admin::async_event_request(cid),
            _ => {
                let (number, data) = (self.choice.below(20) as u8, self.data());
                if self.choice.one_in(2) {
                    admin::identify(cid, NS, number, data)
                } else {
                    let bytes = 4 + 4 * self.choice.below(1 << 12);
                    admin::get_log_page(cid, number % 5, bytes, data)
                }
            }
        };
        let sqe = self.mutate(sqe);
        self.put(0, sqe);
    }

    fn entries(&mut self) -> u32 {
        let few = 2 + self.choice.below(30) as u32;
        if self.choice.one_in(6) { 2 + self.choice.below(65_535) as u32 } else { few }
    }

    fn create_cq(&mut self, cid: CommandId, qid: QueueId) -> Sqe {
        let (size, at) = (self.entries(), BusAddr(self.address()));
        let vector = self.choice.below(70) as u16;
        let create = CreateCq { vector, ..cq_of(qid.0.max(1), size) };
        if let Some(known) = self.cqs.get_mut(usize::from(create.qid.0)) {
            *known = Cq::new(create.qid, at, size);
            let _ = self.raw.memory.zero(at, size as usize * 16);
        }
        admin::create_cq(cid, at, create)
    }

    fn create_sq(&mut self, cid: CommandId, qid: QueueId) -> Sqe {
        let (size, at) = (self.entries(), BusAddr(self.address()));
        let cqid = if self.choice.one_in(3) { self.qid() } else { qid };
        let create = CreateSq { ..sq_of(qid.0.max(1), size, cqid.0.max(1)) };
        let queue = usize::from(qid.0.max(1));
        if let Some(known) = self.sqs.get_mut(queue) {
            *known = Sq::new(QueueId(queue as u16), at, size);
        }
        admin::create_sq(cid, at, create)
    }

    fn submit_noise(&mut self) {
        let mut bytes = [0; 64];
        for dword in bytes.chunks_exact_mut(8) {
            dword.copy_from_slice(&self.choice.word().to_le_bytes());
        }
        let queue = self.choice.below(u64::from(QUEUES)) as usize;
        self.put(queue, Sqe::read_from_bytes(&bytes).expect("sixty-four bytes"));
    }

    /// Any register of the window and a little beyond, any value.
    fn ring_any(&mut self) {
        let register = DOORBELLS + self.choice.below(1 << 10) as u32 * 4;
        let value = self.choice.word() as u32;
        self.raw.set(register, value >> self.choice.below(32));
    }

    /// A plausible doorbell with a plausible value.
    fn ring_some(&mut self) {
        let (qid, value) = (self.qid(), self.choice.below(40) as u32);
        let tail = self.choice.one_in(2);
        let stride = self.raw.stride;
        let register =
            if tail { sq_tail_doorbell(qid, stride) } else { cq_head_doorbell(qid, stride) };
        self.raw.set(register, value);
    }

    fn write_a_register(&mut self) {
        let value = self.choice.word() as u32;
        let register = match self.choice.below(8) {
            0 => self.choice.below(0x40) as u32 & !3,
            1 => AQA,
            2 => ASQ,
            3 => ASQ + 4,
            4 => ACQ,
            5 => ACQ + 4,
            6 => {
                // A shutdown notification, or another setting while enabled.
                let cc = Settings::default().cc.with_en(true).with_shn((value & 3) as u8);
                return self.raw.set(CC, cc.with_mps((value >> 2 & 7) as u8).into_bits());
            }
            _ => CC,
        };
        self.raw.set(register, value);
    }

    fn scribble(&mut self) {
        let at = BusAddr(self.address());
        for word in 0..=self.choice.below(8) {
            let noise = self.choice.word();
            let _ =
                self.raw.memory.write(BusAddr(at.0.wrapping_add(8 * word)), &noise.to_le_bytes());
        }
    }

    /// Writes entries of a PRP list or of a queue, or SGL descriptors.
    fn lay_out_a_list(&mut self) {
        let at = self.address() & !7;
        if self.choice.one_in(2) {
            for place in 0..=self.choice.below(20) {
                let descriptor = self.descriptor();
                let place = BusAddr(at.wrapping_add(16 * place));
                let _ = self.raw.memory.write(place, descriptor.as_bytes());
            }
            return;
        }
        for slot in 0..=self.choice.below(20) {
            let entry = self.address();
            let place = BusAddr(at.wrapping_add(8 * slot));
            let _ = self.raw.memory.write(place, &entry.to_le_bytes());
        }
    }

    /// Consumes all completions, and rings the head doorbells.
    fn consume(&mut self) {
        for queue in 0..self.cqs.len() {
            let (mut cq, mut taken) = (self.cqs[queue], 0);
            while taken < cq.entries {
                let at = BusAddr(cq.at.0.wrapping_add(u64::from(cq.head) * 16));
                let mut entry = [0; 16];
                let is_new = |entry: &[u8; 16]| (entry[14] & 1 == 1) == cq.phase;
                if self.raw.memory.read(at, &mut entry).is_err() || !is_new(&entry) {
                    break;
                }
                self.raw.take(&mut cq);
                taken += 1;
            }
            if taken > 0 {
                self.raw.set(cq_head_doorbell(cq.qid, self.raw.stride), cq.head);
            }
            self.cqs[queue] = cq;
        }
    }

    /// Writes random values to the head doorbells.
    fn say_heads(&mut self) {
        for qid in 0..QUEUES {
            let head = self.choice.below(32) as u32;
            self.raw.set(cq_head_doorbell(QueueId(qid), self.raw.stride), head);
        }
    }

    async fn pass_time(&mut self) {
        let span = Span::ns(self.choice.below(200) * self.choice.below(200));
        self.raw.rt.sleep(span).await;
    }

    /// Disables or enables, with or without waiting, with valid or invalid settings.
    async fn switch(&mut self) {
        match self.choice.below(6) {
            0 => self.raw.set(CC, 0),
            1 => self.raw.set(CC, Settings::default().cc.with_en(true).into_bits()),
            2 => {
                let cc = Cc::from_bits(self.choice.word() as u32).with_en(true);
                let aqa = Aqa::from_bits(self.choice.word() as u32);
                self.start(Settings { cc, aqa, queues: None });
            }
            3 => {
                self.raw.set(CC, 0);
                self.pass_time().await;
                let mps = self.choice.below(5) as u8;
                let cc = Settings::default().cc.with_mps(mps);
                self.start(Settings { cc, ..Settings::default() });
            }
            _ => {
                self.raw.set(CC, 0);
                self.pass_time().await;
                self.start(Settings::default());
            }
        }
    }

    /// Enables with admin queues at random addresses, and assumes that there are I/O queues too.
    fn start(&mut self, settings: Settings) {
        let (asq, acq) = (BusAddr(self.address()), BusAddr(self.address()));
        self.raw.start(Settings { queues: Some((asq, acq)), ..settings });
        let nowhere = |qid| Sq::new(QueueId(qid), asq, 16);
        self.sqs = std::iter::once(self.raw.admin.sq).chain((1..QUEUES).map(nowhere)).collect();
        self.cqs = vec![self.raw.admin.cq; usize::from(QUEUES)];
        if self.choice.one_in(2) {
            let grant =
                admin::set_feature(CommandId(1), wire::nvme::features::fid::NUMBER_OF_QUEUES, 0);
            self.put(0, grant);
        }
    }

    /// True if the controller accepts commands.
    pub async fn is_alive(&self) -> bool {
        let csts = self.raw.csts().await;
        csts.rdy() && !csts.cfs()
    }

    /// Disables the controller for good. The script may have cleared CC.EN before RDY followed its last 1;
    /// then a controller that is about to become ready looks disabled (NVMe base 2.0, 3.1.3.5, does not allow
    /// that): check again after a while. CAP and CSTS may have been overwritten: they are valid once the
    /// controller has scanned its registers, however long its thread was delayed.
    async fn settle(&self) {
        self.raw.until_it_looks().await;
        loop {
            self.raw.disable().await;
            self.raw.rt.sleep(Span::ms(10)).await;
            self.raw.until_it_looks().await;
            let csts = self.raw.csts().await;
            if !csts.rdy() && !csts.cfs() {
                return;
            }
        }
    }

    /// Keeps to the protocol: a reset, after which memory must not change; then the controller is enabled,
    /// and the guarded blocks must hold their data unless a command has `rewritten` them, which a replayed
    /// entry may do. Leaves queues that the script can use.
    pub async fn recover(&mut self, rewritten: impl FnOnce() -> bool, watch_memory: bool) {
        self.settle().await;
        let rewritten = rewritten();
        if watch_memory {
            let before = self.raw.everything();
            self.raw.rt.sleep(Span::us(200)).await;
            let after = self.raw.everything();
            if after != before {
                let offset = before.iter().zip(&after).position(|(a, b)| a != b);
                let at = self.raw.memory.base().0 + offset.expect("they differ") as u64;
                panic!("host memory has changed at {at:#x} while CSTS.RDY is 0");
            }
        }
        self.raw.forget_places();
        let settings =
            Settings { aqa: Aqa::new().with_asqs(15).with_acqs(15), ..Settings::default() };
        self.raw.enable(settings).await;
        self.raw.ask_for_queues().await;
        let entries = self.raw.cap().await.queue_entries_max().min(32);
        let mut pair = self.raw.create_pair(1, entries).await;
        let bytes = self.with_pi.len();
        let at = self.raw.place(bytes as u64, 4096);
        if self.lap > 0 && !rewritten {
            self.raw.memory.zero(at, bytes).expect("a place");
            self.with_pi_io(&mut pair, at, false).await;
            assert!(self.raw.bytes(at, bytes) == self.with_pi, "guarded blocks have changed");
        }
        self.lap += 1;
        self.with_pi = pattern(self.lap, bytes);
        self.raw.memory.write(at, &self.with_pi).expect("a place");
        self.with_pi_io(&mut pair, at, true).await;
        self.raw.memory.zero(at, bytes).expect("a place");
        self.with_pi_io(&mut pair, at, false).await;
        assert!(self.raw.bytes(at, bytes) == self.with_pi, "what was written is not read");
        self.sqs = vec![self.raw.admin.sq, pair.sq];
        self.sqs.extend((2..QUEUES).map(|qid| Sq::new(QueueId(qid), at, 8)));
        self.cqs = vec![self.raw.admin.cq, pair.cq];
        self.cqs.extend((2..QUEUES).map(|qid| Cq::new(QueueId(qid), at, 8)));
    }

    /// Accesses the guarded blocks in pieces of 4096 bytes, which the smallest controller can transfer.
    async fn with_pi_io(&self, pair: &mut Pair, at: BusAddr, write: bool) {
        let make = if write { io::write } else { io::read };
        let most = 4096 / self.block_bytes;
        for first in (0..WITH_PI_BLOCKS).step_by(most as usize) {
            let place = BusAddr(at.0 + u64::from(first * self.block_bytes));
            let data = self.raw.data(place, 4096);
            let lba = Lba(WITH_PI.0 + u64::from(first));
            let sqe = make(self.raw.cid(), Nsid(1), lba, most, false, data);
            assert_eq!(self.raw.run(pair, &sqe).await.status(), Status::SUCCESS, "{sqe:?}");
        }
    }
}
