//! A host without a driver: it writes registers, forms entries by hand, rings doorbells and reads
//! completions, so that tests can do what no driver would.

pub mod bench;
pub mod choice;
pub mod flash;
pub mod script;
pub mod several;
pub mod watch;
pub mod world;

use std::cell::Cell;
use std::future::Future;

use bus::{HostPort, Memory};
use runtime::{Either, Rt, Span, race};
use wire::nvme::admin::{self, CreateCq, CreateSq, Priority};
use wire::nvme::entry::{Cqe, DataPointer, Sqe};
use wire::nvme::features::{NumberOfQueues, fid};
use wire::nvme::identify::{IdentifyController, IdentifyNamespace, cns};
use wire::nvme::prp;
use wire::nvme::registers::{
    ACQ, AQA, ASQ, Aqa, CAP, CC, CSTS, Cap, Cc, Csts, VS, cq_head_doorbell, sq_tail_doorbell,
};
use wire::nvme::status::Status;
use wire::{BusAddr, CommandId, Nsid, QueueId};
use zerocopy::{FromBytes, IntoBytes};

/// Timeout for an expected event.
pub const PATIENCE: Span = Span::s(2);
/// Wait before concluding that nothing happens.
pub const SILENCE: Span = Span::ms(5);
pub const NS: Nsid = Nsid(1);

/// Host state of a submission queue.
#[derive(Clone, Copy, Debug)]
pub struct Sq {
    pub qid: QueueId,
    pub at: BusAddr,
    pub entries: u32,
    pub tail: u32,
}

/// Host state of a completion queue.
#[derive(Clone, Copy, Debug)]
pub struct Cq {
    pub qid: QueueId,
    pub at: BusAddr,
    pub entries: u32,
    pub head: u32,
    pub phase: bool,
}

impl Sq {
    pub fn new(qid: QueueId, at: BusAddr, entries: u32) -> Sq {
        Sq { qid, at, entries, tail: 0 }
    }
}

impl Cq {
    pub fn new(qid: QueueId, at: BusAddr, entries: u32) -> Cq {
        Cq { qid, at, entries, head: 0, phase: true }
    }
}

/// A submission queue and the completion queue it completes to.
#[derive(Clone, Copy, Debug)]
pub struct Pair {
    pub sq: Sq,
    pub cq: Cq,
}

/// Register values written before the controller is enabled.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    pub cc: Cc,
    pub aqa: Aqa,
    /// Addresses of the admin queues; `None` to allocate them.
    pub queues: Option<(BusAddr, BusAddr)>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            cc: Cc::new().with_iosqes(6).with_iocqes(4),
            aqa: Aqa::new().with_asqs(31).with_acqs(31),
            queues: None,
        }
    }
}

pub struct Raw<H> {
    pub host: H,
    pub rt: Rt,
    pub memory: Memory,
    pub admin: Pair,
    pub page_bytes: u64,
    /// Doorbell stride, as in CAP.DSTRD: 0 is 4 bytes.
    pub stride: u8,
    /// True if the last completion had M (more in the error log) set.
    pub more: Cell<bool>,
    next_place: Cell<u64>,
    next_cid: Cell<u16>,
}

/// M, in the last byte of a completion (NVMe base 2.0, 3.3.3.2.1).
const MORE: u8 = 1 << 6;

impl<H: HostPort> Raw<H> {
    pub fn new(host: H) -> Raw<H> {
        let (rt, memory) = (host.rt().clone(), host.arena().memory().clone());
        let nowhere = Pair {
            sq: Sq::new(QueueId::ADMIN, BusAddr(0), 2),
            cq: Cq::new(QueueId::ADMIN, BusAddr(0), 2),
        };
        let next_place = Cell::new(memory.base().0);
        let next_cid = Cell::new(1);
        let more = Cell::new(false);
        let (admin, page_bytes, stride) = (nowhere, 4096, 0);
        Raw { host, rt, memory, admin, page_bytes, stride, more, next_place, next_cid }
    }

    /// Allocates host memory, aligned to `align` bytes.
    pub fn place(&self, bytes: u64, align: u64) -> BusAddr {
        let at = self.next_place.get().next_multiple_of(align);
        let end = self.memory.base().0 + self.memory.bytes() as u64;
        assert!(at + bytes <= end, "the test's host memory is too small for {bytes} bytes more");
        self.next_place.set(at + bytes);
        BusAddr(at)
    }

    pub fn forget_places(&self) {
        self.free_from(self.memory.base());
    }

    /// Frees all memory allocated from `at` on.
    pub fn free_from(&self, at: BusAddr) {
        self.next_place.set(at.0);
    }

    pub fn cid(&self) -> CommandId {
        let cid = self.next_cid.get();
        self.next_cid.set(if cid == 0xfffe { 1 } else { cid + 1 });
        CommandId(cid)
    }

    pub async fn reg(&self, register: u32) -> u32 {
        self.host.read32(register).await
    }

    pub async fn reg64(&self, register: u32) -> u64 {
        let low = u64::from(self.reg(register).await);
        u64::from(self.reg(register + 4).await) << 32 | low
    }

    pub fn set(&self, register: u32, value: u32) {
        self.host.write32(register, value);
    }

    pub fn set64(&self, register: u32, value: u64) {
        self.set(register, value as u32);
        self.set(register + 4, (value >> 32) as u32);
    }

    pub async fn cap(&self) -> Cap {
        Cap::from_bits(self.reg64(CAP).await)
    }

    pub async fn csts(&self) -> Csts {
        Csts::from_bits(self.reg(CSTS).await)
    }

    /// Waits until `want(CSTS)` is true, for at most CAP.TO.
    pub async fn until_csts(&self, what: &str, want: impl Fn(Csts) -> bool) -> Csts {
        let patience = Span::ms(u64::from(self.cap().await.timeout_ms()));
        let begin = self.rt.now();
        loop {
            let csts = self.csts().await;
            if want(csts) {
                return csts;
            }
            let waited = self.rt.now().since(begin);
            assert!(waited <= patience, "{what}: CSTS is {csts:?} after {waited}, CAP.TO");
            self.rt.sleep(Span::us(1)).await;
        }
    }

    /// Waits until the controller has scanned all its registers: it restores a read-only register that was
    /// written. Done twice, as the first write may fall into a scan that has passed CAP already. The limit of
    /// one minute is never reached in practice.
    pub async fn until_it_looks(&self) {
        let end = self.rt.now() + Span::s(60);
        for _ in 0..2 {
            self.set(VS, 0);
            while self.reg(VS).await == 0 {
                assert!(self.rt.now() < end, "the controller does not look at its registers");
                self.rt.sleep(Span::us(1)).await;
            }
        }
    }

    /// Writes the settings and CC.EN, without waiting.
    pub fn start(&mut self, settings: Settings) {
        let page_bytes = settings.cc.page_bytes();
        let (sq, cq) = (settings.aqa.sq_entries(), settings.aqa.cq_entries());
        let (asq, acq) = settings.queues.unwrap_or_else(|| {
            let sq = self.place(u64::from(sq) * 64, page_bytes);
            (sq, self.place(u64::from(cq) * 16, page_bytes))
        });
        if self.memory.holds(acq, cq as usize * 16) {
            self.memory.zero(acq, cq as usize * 16).expect("it lies inside");
        }
        self.page_bytes = page_bytes;
        self.admin =
            Pair { sq: Sq::new(QueueId::ADMIN, asq, sq), cq: Cq::new(QueueId::ADMIN, acq, cq) };
        self.set(AQA, settings.aqa.into_bits());
        self.set64(ASQ, asq.0);
        self.set64(ACQ, acq.0);
        self.set(CC, settings.cc.with_en(true).into_bits());
    }

    /// Enables the controller as a driver does.
    pub async fn enable(&mut self, settings: Settings) {
        self.start(settings);
        let csts = self.until_csts("enabling", |csts| csts.rdy() || csts.cfs()).await;
        assert!(csts.rdy() && !csts.cfs(), "enabling: {csts:?}");
    }

    /// Clears CC.EN and waits until the controller is disabled. After a failed enable RDY is 0 already, and
    /// only CFS shows that the controller has seen EN cleared.
    pub async fn disable(&self) {
        self.set(CC, 0);
        self.until_csts("disabling", |csts| !csts.rdy() && !csts.cfs()).await;
    }

    /// Stores an entry at the tail, without ringing the doorbell.
    pub fn store(&self, sq: &mut Sq, sqe: &Sqe) {
        let at = BusAddr(sq.at.0 + u64::from(sq.tail) * 64);
        self.memory.write(at, sqe.as_bytes()).expect("the queue lies in host memory");
        sq.tail = (sq.tail + 1) % sq.entries;
    }

    pub fn ring(&self, sq: &Sq) {
        self.set(sq_tail_doorbell(sq.qid, self.stride), sq.tail);
    }

    pub fn submit(&self, sq: &mut Sq, sqe: &Sqe) {
        self.store(sq, sqe);
        self.ring(sq);
    }

    /// Waits for the next completion, and leaves it in its queue.
    pub async fn peek(&self, cq: &Cq) -> Cqe {
        let at = BusAddr(cq.at.0 + u64::from(cq.head) * 16);
        let flag = BusAddr(at.0 + 12);
        let memory = &self.memory;
        let check = || {
            let word = memory.load_u32(flag).expect("the queue lies in host memory");
            ((word >> 16 & 1 == 1) == cq.phase).then_some(())
        };
        self.host.on_memory(at, 16, check).await;
        let mut bytes = [0; 16];
        memory.read(at, &mut bytes).expect("the queue lies in host memory");
        let cqe = Cqe::read_from_bytes(&bytes).expect("sixteen bytes");
        // Only the error log test checks M; all others read the status.
        self.more.set(cqe.status().more());
        assert!(!(cqe.status().is_ok() && self.more.get()), "{cqe:?} has nothing to tell of");
        bytes[15] &= !MORE;
        Cqe::read_from_bytes(&bytes).expect("sixteen bytes")
    }

    /// Consumes the entry at the head, without ringing the doorbell.
    pub fn take(&self, cq: &mut Cq) {
        cq.head = (cq.head + 1) % cq.entries;
        cq.phase ^= cq.head == 0;
    }

    /// Waits for the next completion, consumes it and rings the doorbell; `None` after `span`.
    pub async fn next_within(&self, cq: &mut Cq, span: Span) -> Option<Cqe> {
        let cqe = self.within(span, self.peek(cq)).await?;
        self.take(cq);
        self.set(cq_head_doorbell(cq.qid, self.stride), cq.head);
        Some(cqe)
    }

    /// As [`next_within`](Self::next_within), for an expected completion.
    pub async fn next(&self, cq: &mut Cq) -> Cqe {
        let cqe = self.next_within(cq, PATIENCE).await;
        cqe.unwrap_or_else(|| panic!("no completion in {:?} within {PATIENCE}", cq.qid))
    }

    /// The result of `wait`, or `None` if it takes longer than `span`.
    pub async fn within<T>(&self, span: Span, wait: impl Future<Output = T>) -> Option<T> {
        match race(wait, self.rt.sleep(span)).await {
            Either::First(come) => Some(come),
            Either::Second(()) => None,
        }
    }

    /// Runs one command, from its entry to its completion.
    pub async fn run(&self, pair: &mut Pair, sqe: &Sqe) -> Cqe {
        self.submit(&mut pair.sq, sqe);
        let cqe = self.next(&mut pair.cq).await;
        assert_eq!((cqe.id(), cqe.queue()), (sqe.id(), pair.sq.qid), "another's completion");
        assert_eq!(u32::from(cqe.sq_head.get()), pair.sq.tail, "SQHD after the only command");
        cqe
    }

    pub async fn admin(&mut self, sqe: &Sqe) -> Cqe {
        let mut pair = self.admin;
        let cqe = self.run(&mut pair, sqe).await;
        self.admin = pair;
        cqe
    }

    /// Runs an admin command that must succeed; returns dword 0.
    pub async fn admin_ok(&mut self, sqe: &Sqe) -> u32 {
        let cqe = self.admin(sqe).await;
        assert_eq!(cqe.status(), Status::SUCCESS, "{sqe:?}");
        cqe.dw0.get()
    }

    /// Submits an admin command without waiting.
    pub fn submit_admin(&mut self, sqe: &Sqe) {
        let mut sq = self.admin.sq;
        self.submit(&mut sq, sqe);
        self.admin.sq = sq;
    }

    /// The next admin completion, or `None` after `span`.
    pub async fn next_admin(&mut self, span: Span) -> Option<Cqe> {
        let mut cq = self.admin.cq;
        let cqe = self.next_within(&mut cq, span).await;
        self.admin.cq = cq;
        cqe
    }

    /// Sets Number of Queues, required before the first queue is created.
    pub async fn ask_for_queues(&mut self) -> NumberOfQueues {
        let wanted = NumberOfQueues::of(1, 1).into_bits();
        let sqe = admin::set_feature(self.cid(), fid::NUMBER_OF_QUEUES, wanted);
        NumberOfQueues::from_bits(self.admin_ok(&sqe).await)
    }

    /// Creates a completion queue; its vector is its number.
    pub async fn create_cq(&mut self, qid: u16, entries: u32) -> Cq {
        let at = self.place(u64::from(entries) * 16, self.page_bytes);
        self.memory.zero(at, entries as usize * 16).expect("a place");
        let sqe = admin::create_cq(self.cid(), at, cq_of(qid, entries));
        self.admin_ok(&sqe).await;
        Cq::new(QueueId(qid), at, entries)
    }

    pub async fn create_sq(&mut self, qid: u16, entries: u32, cqid: u16) -> Sq {
        let at = self.place(u64::from(entries) * 64, self.page_bytes);
        let sqe = admin::create_sq(self.cid(), at, sq_of(qid, entries, cqid));
        self.admin_ok(&sqe).await;
        Sq::new(QueueId(qid), at, entries)
    }

    /// Creates a pair of queues with this number.
    pub async fn create_pair(&mut self, qid: u16, entries: u32) -> Pair {
        let cq = self.create_cq(qid, entries).await;
        Pair { sq: self.create_sq(qid, entries, qid).await, cq }
    }

    /// Enables the controller with one pair of I/O queues.
    pub async fn up(&mut self) -> Pair {
        self.enable(Settings::default()).await;
        self.ask_for_queues().await;
        self.create_pair(1, 64).await
    }

    /// The data pointer of a contiguous buffer; allocates its PRP list if it needs one.
    pub fn data(&self, at: BusAddr, bytes: u64) -> DataPointer {
        let pages = prp::contiguous(at, self.page_bytes);
        let entries = prp::list_entries(at.page_offset(self.page_bytes), bytes, self.page_bytes);
        let lists = prp::list_pages(entries, 0, self.page_bytes);
        let lists: Vec<BusAddr> =
            (0..lists).map(|_| self.place(self.page_bytes, self.page_bytes)).collect();
        let put = |at, entry: u64| self.memory.write(at, &entry.to_le_bytes()).expect("placed");
        prp::build(pages, bytes, self.page_bytes, lists, put).expect("a buffer of sense")
    }

    /// An unused page of host memory, and its data pointer.
    pub fn page(&self) -> (BusAddr, DataPointer) {
        let at = self.place(4096, 4096);
        (at, self.data(at, 4096))
    }

    /// A structure that Identify gives.
    pub async fn identify<T: FromBytes>(&mut self, nsid: Nsid, cns: u8) -> T {
        let (at, data) = self.page();
        self.admin_ok(&admin::identify(self.cid(), nsid, cns, data)).await;
        T::read_from_bytes(&self.bytes(at, 4096)).expect("a page")
    }

    pub async fn identify_controller(&mut self) -> IdentifyController {
        self.identify(Nsid::NONE, cns::CONTROLLER).await
    }

    pub async fn identify_namespace(&mut self) -> IdentifyNamespace {
        self.identify(NS, cns::NAMESPACE).await
    }

    /// The first bytes of a log page.
    pub async fn log<T: FromBytes>(&mut self, lid: u8) -> T {
        let bytes = size_of::<T>();
        let at = self.place(bytes as u64, 4096);
        let sqe = admin::get_log_page(self.cid(), lid, bytes as u64, self.data(at, bytes as u64));
        self.admin_ok(&sqe).await;
        T::read_from_bytes(&self.bytes(at, bytes)).expect("so many bytes")
    }

    /// Bytes of host memory.
    pub fn bytes(&self, at: BusAddr, bytes: usize) -> Vec<u8> {
        let mut copy = vec![0; bytes];
        self.memory.read(at, &mut copy).expect("it lies in host memory");
        copy
    }

    pub fn everything(&self) -> Vec<u8> {
        self.bytes(self.memory.base(), self.memory.bytes())
    }
}

/// Create command for a completion queue.
pub fn cq_of(qid: u16, size: u32) -> CreateCq {
    CreateCq { qid: QueueId(qid), size, vector: qid, irq_enabled: true, contiguous: true }
}

/// Create command for a submission queue.
pub fn sq_of(qid: u16, size: u32, cqid: u16) -> CreateSq {
    let (qid, cqid) = (QueueId(qid), QueueId(cqid));
    CreateSq { qid, size, cqid, priority: Priority::Medium, contiguous: true }
}

/// Bytes that differ from block to block and from seed to seed.
pub fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    let mut rng = runtime::Rng::new(seed);
    let page: Vec<u8> = (0..512).flat_map(|_| rng.next_u64().to_le_bytes()).collect();
    let mut data = page.repeat(bytes.div_ceil(4096));
    // Number every 512-byte block in its first bytes, so that all pages differ.
    for (number, block) in data.chunks_exact_mut(512).enumerate() {
        block[..4].copy_from_slice(&(number as u32).to_le_bytes());
    }
    data.truncate(bytes);
    data
}
