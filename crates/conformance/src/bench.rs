//! The host of the cases: registers, memory allocation, queues, and waits with limits.

use std::cell::Cell;
use std::future::Future;
use std::rc::Rc;

use bus::Memory;
use runtime::{Either, Rng, Rt, Span, Time, race};
use wire::nvme::admin::{self, CreateCq, CreateSq, Priority};
use wire::nvme::entry::{Cqe, DataPointer, Sqe};
use wire::nvme::features::{NumberOfQueues, fid};
use wire::nvme::identify::{IdentifyController, IdentifyNamespace, NamespaceList, cns};
use wire::nvme::io;
use wire::nvme::prp;
use wire::nvme::registers::{
    ACQ, AQA, ASQ, Aqa, CAP, CC, CSTS, Cap, Cc, Csts, cq_head_doorbell, sq_tail_doorbell,
};
use wire::nvme::status::Status;
use wire::{BusAddr, CommandId, Lba, Nsid, QueueId};
use zerocopy::{FromBytes, IntoBytes};

use crate::reach::Reach;
use crate::verdict::{Stop, Verdict, hold, needs};

/// Timeout for a completion that must arrive.
pub(crate) const PATIENCE: Span = Span::s(20);
/// Wait before concluding that nothing happens.
const SILENCE: Span = Span::ms(5);
/// Interval between reads of a register.
pub(crate) const LOOK: Span = Span::us(20);
/// Default memory page size, in bytes.
const PAGE: u64 = 4096;

/// Host state of a submission queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sq {
    pub qid: QueueId,
    pub at: BusAddr,
    pub entries: u32,
    pub tail: u32,
}

/// Host state of a completion queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cq {
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

/// A submission queue and the completion queue that it completes to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pair {
    pub sq: Sq,
    pub cq: Cq,
}

/// Register values written before a controller is enabled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub cc: Cc,
    pub admin_entries: (u32, u32),
}

impl Settings {
    pub fn usual() -> Settings {
        Settings { cc: Cc::new().with_iosqes(6).with_iocqes(4), admin_entries: (32, 32) }
    }
}

/// A host without a driver, and a controller that was just reset.
pub struct Bench {
    reach: Rc<dyn Reach>,
    rt: Rt,
    memory: Memory,
    pub(crate) cap: Cap,
    /// Identify Controller data at the start of the case.
    pub(crate) id: IdentifyController,
    /// The first active namespace, and its Identify data.
    pub(crate) nsid: Nsid,
    pub(crate) ns: IdentifyNamespace,
    pub(crate) admin: Pair,
    pub(crate) page_bytes: u64,
    next_place: Cell<u64>,
    next_cid: Cell<u16>,
}

impl Bench {
    /// A host that has not accessed the controller yet.
    pub(crate) async fn of(reach: &Rc<dyn Reach>) -> Verdict<Bench> {
        let (rt, memory) = (reach.rt().clone(), reach.memory());
        let nowhere = Pair {
            sq: Sq::new(QueueId::ADMIN, BusAddr(0), 2),
            cq: Cq::new(QueueId::ADMIN, BusAddr(0), 2),
        };
        let mut bench = Bench {
            reach: reach.clone(),
            rt,
            cap: Cap::new(),
            id: IdentifyController::default(),
            nsid: Nsid(1),
            ns: IdentifyNamespace::default(),
            admin: nowhere,
            page_bytes: PAGE,
            next_place: Cell::new(memory.base().0),
            next_cid: Cell::new(1),
            memory,
        };
        let cap = bench.reg64(CAP).await;
        if cap == u64::MAX {
            return Stop::failed("CAP reads all ones: no device responds");
        }
        bench.cap = Cap::from_bits(cap);
        Ok(bench)
    }

    /// Resets the controller, enables it, and identifies it.
    pub(crate) async fn fresh(reach: &Rc<dyn Reach>) -> Verdict<Bench> {
        let mut bench = Bench::of(reach).await?;
        bench.disable().await?;
        bench.enable(Settings::usual()).await?;
        bench.ask_what_it_is().await?;
        Ok(bench)
    }

    /// Identifies the controller and its first namespace.
    pub(crate) async fn ask_what_it_is(&mut self) -> Verdict {
        let page = self.identify(Nsid::NONE, cns::CONTROLLER).await?;
        self.id = IdentifyController::read_from_bytes(&page).expect("its length");
        let page = self.identify(Nsid::NONE, cns::ACTIVE_NAMESPACES).await?;
        let first = page.first_chunk().map_or(0, |word| u32::from_le_bytes(*word));
        self.nsid = Nsid(first);
        if first != 0 {
            let page = self.identify(self.nsid, cns::NAMESPACE).await?;
            self.ns = IdentifyNamespace::read_from_bytes(&page).expect("its length");
        }
        Ok(())
    }

    // Memory.

    /// Allocates zeroed host memory for the case.
    pub(crate) fn place(&self, bytes: u64, align: u64) -> Verdict<BusAddr> {
        let at = self.next_place.get().next_multiple_of(align);
        let end = self.memory.base().0 + self.memory.bytes() as u64;
        needs!(at + bytes <= end, "{bytes} bytes more of host memory: --set host.memory=...");
        self.next_place.set(at + bytes);
        self.memory.zero(BusAddr(at), bytes as usize).expect("it lies inside");
        Ok(BusAddr(at))
    }

    /// Allocates whole memory pages.
    pub(crate) fn pages(&self, pages: u64) -> Verdict<BusAddr> {
        self.place(pages * self.page_bytes, self.page_bytes)
    }

    pub(crate) fn store_bytes(&self, at: BusAddr, bytes: &[u8]) {
        self.memory.write(at, bytes).expect("a place of the case");
    }

    pub(crate) fn bytes(&self, at: BusAddr, bytes: usize) -> Vec<u8> {
        let mut copy = vec![0; bytes];
        self.memory.read(at, &mut copy).expect("a place of the case");
        copy
    }

    pub(crate) fn past_memory(&self) -> BusAddr {
        BusAddr(self.memory.base().0 + self.memory.bytes() as u64)
    }

    /// The data pointer of a contiguous buffer; allocates its PRP list if it needs one.
    pub(crate) fn data(&self, at: BusAddr, bytes: u64) -> Verdict<DataPointer> {
        let pages = prp::contiguous(at, self.page_bytes);
        let entries = prp::list_entries(at.page_offset(self.page_bytes), bytes, self.page_bytes);
        let lists = prp::list_pages(entries, 0, self.page_bytes);
        let lists: Verdict<Vec<BusAddr>> = (0..lists).map(|_| self.pages(1)).collect();
        let put = |at, entry: u64| self.store_bytes(at, &entry.to_le_bytes());
        Ok(prp::build(pages, bytes, self.page_bytes, lists?, put).expect("a buffer of sense"))
    }

    // Registers.

    pub(crate) async fn reg(&self, register: u32) -> u32 {
        self.reach.read32(register).await
    }

    pub(crate) async fn reg64(&self, register: u32) -> u64 {
        let low = u64::from(self.reg(register).await);
        u64::from(self.reg(register + 4).await) << 32 | low
    }

    pub(crate) fn set(&self, register: u32, value: u32) {
        self.reach.write32(register, value);
    }

    pub(crate) fn set64(&self, register: u32, value: u64) {
        self.set(register, value as u32);
        self.set(register + 4, (value >> 32) as u32);
    }

    pub(crate) async fn csts(&self) -> Csts {
        Csts::from_bits(self.reg(CSTS).await)
    }

    /// Waits until `want(CSTS)` is true, for at most CAP.TO, plus one second for a slow machine.
    pub(crate) async fn until_csts(
        &self,
        what: &str,
        want: impl Fn(Csts) -> bool,
    ) -> Verdict<Csts> {
        let patience = Span::ms(u64::from(self.cap.timeout_ms()) + 1000);
        let begin = self.rt.now();
        loop {
            let csts = self.csts().await;
            if want(csts) {
                return Ok(csts);
            }
            let waited = self.rt.now().since(begin);
            hold!(waited <= patience, "{what}: CSTS is {csts:?} after CAP.TO, {waited}");
            self.rt.sleep(LOOK).await;
        }
    }

    /// Clears CC.EN, and waits until RDY is 0.
    pub(crate) async fn disable(&self) -> Verdict {
        self.set(CC, 0);
        self.until_csts("disabling", |csts| !csts.rdy()).await.map(drop)
    }

    /// Writes the settings and CC.EN, without waiting.
    pub(crate) fn start(&mut self, settings: Settings) -> Verdict {
        let (sq, cq) = settings.admin_entries;
        self.page_bytes = settings.cc.page_bytes();
        let asq = self.place(u64::from(sq) * 64, self.page_bytes)?;
        let acq = self.place(u64::from(cq) * 16, self.page_bytes)?;
        self.admin =
            Pair { sq: Sq::new(QueueId::ADMIN, asq, sq), cq: Cq::new(QueueId::ADMIN, acq, cq) };
        let aqa = Aqa::new().with_asqs((sq - 1) as u16).with_acqs((cq - 1) as u16);
        self.set(AQA, aqa.into_bits());
        self.set64(ASQ, asq.0);
        self.set64(ACQ, acq.0);
        self.set(CC, settings.cc.with_en(true).into_bits());
        Ok(())
    }

    /// Enables the controller as a driver does.
    pub(crate) async fn enable(&mut self, settings: Settings) -> Verdict {
        let cc = settings.cc.with_mps(settings.cc.mps().max(self.cap.mpsmin()));
        self.start(Settings { cc, ..settings })?;
        let csts = self.until_csts("enabling", |csts| csts.rdy() || csts.cfs()).await?;
        hold!(csts.rdy() && !csts.cfs(), "enabling: CSTS is {csts:?}");
        Ok(())
    }

    // Queues.

    pub(crate) fn cid(&self) -> CommandId {
        let cid = self.next_cid.get();
        self.next_cid.set(if cid == 0xfffe { 1 } else { cid + 1 });
        CommandId(cid)
    }

    /// Stores an entry at the tail, without ringing the doorbell.
    pub(crate) fn store(&self, sq: &mut Sq, sqe: &Sqe) {
        self.store_bytes(BusAddr(sq.at.0 + u64::from(sq.tail) * 64), sqe.as_bytes());
        sq.tail = (sq.tail + 1) % sq.entries;
    }

    pub(crate) fn ring(&self, sq: &Sq) {
        self.set(sq_tail_doorbell(sq.qid, self.cap.dstrd()), sq.tail);
    }

    pub(crate) fn submit(&self, sq: &mut Sq, sqe: &Sqe) {
        self.store(sq, sqe);
        self.ring(sq);
    }

    /// Rings the head doorbell: completions before the head have been consumed.
    pub(crate) fn ring_head(&self, cq: &Cq) {
        self.set(cq_head_doorbell(cq.qid, self.cap.dstrd()), cq.head);
    }

    /// The result of `wait`, or `None` if it takes longer than `span`.
    pub(crate) async fn within<T>(&self, span: Span, wait: impl Future<Output = T>) -> Option<T> {
        match race(wait, self.rt.sleep(span)).await {
            Either::First(come) => Some(come),
            Either::Second(()) => None,
        }
    }

    pub(crate) fn now(&self) -> Time {
        self.rt.now()
    }

    pub(crate) async fn pause(&self, span: Span) {
        self.rt.sleep(span).await;
    }

    /// The next completion, left in its queue; `None` after `span`.
    pub(crate) async fn peek(&self, cq: &Cq, span: Span) -> Option<Cqe> {
        let at = BusAddr(cq.at.0 + u64::from(cq.head) * 16);
        let phase = cq.phase;
        let come = move |word: u32| (word >> 16 & 1 == 1) == phase;
        self.within(span, self.reach.until_word(BusAddr(at.0 + 12), &come)).await?;
        Some(Cqe::read_from_bytes(&self.bytes(at, 16)).expect("sixteen bytes"))
    }

    /// Consumes the entry at the head, without ringing the doorbell.
    pub(crate) fn take(&self, cq: &mut Cq) {
        cq.head = (cq.head + 1) % cq.entries;
        cq.phase ^= cq.head == 0;
    }

    /// Waits for the next completion, consumes it and rings the doorbell.
    pub(crate) async fn next(&self, cq: &mut Cq) -> Verdict<Cqe> {
        let Some(cqe) = self.peek(cq, PATIENCE).await else {
            let queue = cq.qid.0;
            return Stop::failed(format!("no completion in queue {queue} within {PATIENCE}"));
        };
        self.take(cq);
        self.ring_head(cq);
        Ok(cqe)
    }

    /// Checks that no further completion arrives within [`SILENCE`].
    pub(crate) async fn nothing(&self, cq: &Cq, what: &str) -> Verdict {
        match self.peek(cq, SILENCE).await {
            None => Ok(()),
            Some(cqe) => Stop::failed(format!("{what}: {cqe:?}")),
        }
    }

    /// Runs one command in an otherwise empty queue, from its entry to its completion.
    pub(crate) async fn run(&self, pair: &mut Pair, sqe: &Sqe) -> Verdict<Cqe> {
        self.submit(&mut pair.sq, sqe);
        let cqe = self.next(&mut pair.cq).await?;
        let (found, expected) = ((cqe.id(), cqe.queue()), (sqe.id(), pair.sq.qid));
        hold!(found == expected, "a completion of {found:?}, expected {expected:?}");
        let (head, tail) = (u32::from(cqe.sq_head.get()), pair.sq.tail);
        hold!(head == tail, "SQHD is {head} after the command at {tail}");
        Ok(cqe)
    }

    /// Runs a command that must succeed; returns dword 0.
    pub(crate) async fn ok(&self, pair: &mut Pair, sqe: &Sqe) -> Verdict<u32> {
        let cqe = self.run(pair, sqe).await?;
        let (opcode, status) = (sqe.opcode, cqe.status());
        hold!(status.is_ok(), "command {opcode:#04x}: {status}, expected success");
        Ok(cqe.dw0.get())
    }

    /// Runs a command that must end with one of these statuses.
    pub(crate) async fn ends(&self, pair: &mut Pair, sqe: &Sqe, with: &[Status]) -> Verdict {
        let status = self.run(pair, sqe).await?.status();
        let opcode = sqe.opcode;
        hold!(
            with.contains(&status.kind()),
            "command {opcode:#04x}: {status}, expected {}",
            words(with)
        );
        Ok(())
    }

    pub(crate) async fn admin(&mut self, sqe: &Sqe) -> Verdict<Cqe> {
        let mut pair = self.admin;
        let cqe = self.run(&mut pair, sqe).await;
        self.admin = pair;
        cqe
    }

    /// Runs an admin command that must succeed; returns dword 0.
    pub(crate) async fn admin_ok(&mut self, sqe: &Sqe) -> Verdict<u32> {
        let mut pair = self.admin;
        let result = self.ok(&mut pair, sqe).await;
        self.admin = pair;
        result
    }

    /// Runs an admin command that must end with one of these statuses.
    pub(crate) async fn admin_ends(&mut self, sqe: &Sqe, with: &[Status]) -> Verdict {
        let mut pair = self.admin;
        let done = self.ends(&mut pair, sqe, with).await;
        self.admin = pair;
        done
    }

    pub(crate) async fn identify(&mut self, nsid: Nsid, cns: u8) -> Verdict<Vec<u8>> {
        let at = self.pages(1)?;
        let sqe = admin::identify(self.cid(), nsid, cns, self.data(at, 4096)?);
        self.admin_ok(&sqe).await?;
        Ok(self.bytes(at, 4096))
    }

    /// Identify, with `held` earlier commands outstanding. SQHD counts them too: the controller has consumed
    /// their entries, although they have no completions.
    pub(crate) async fn identify_beside(&mut self, held: u32) -> Verdict {
        let at = self.pages(1)?;
        let sqe = admin::identify(self.cid(), Nsid::NONE, cns::CONTROLLER, self.data(at, 4096)?);
        let mut pair = self.admin;
        self.submit(&mut pair.sq, &sqe);
        let cqe = self.next(&mut pair.cq).await?;
        self.admin = pair;
        hold!(cqe.id() == sqe.id(), "a completion of {:?}, one of {held} held commands", cqe.id());
        let (head, tail) = (u32::from(cqe.sq_head.get()), pair.sq.tail);
        hold!(head == tail, "SQHD is {head} after the command at {tail}, {held} held before it");
        hold!(cqe.status().is_ok(), "Identify: {}", cqe.status());
        Ok(())
    }

    pub(crate) async fn active(&mut self) -> Verdict<Vec<Nsid>> {
        let page = self.identify(Nsid::NONE, cns::ACTIVE_NAMESPACES).await?;
        let list = NamespaceList::read_from_bytes(&page).expect("its length");
        Ok(list.iter().collect())
    }

    /// Returns the first `bytes` bytes of a log page; clears its event, as RAE is not set.
    pub(crate) async fn log(&mut self, lid: u8, bytes: u64) -> Verdict<Vec<u8>> {
        let at = self.place(bytes, self.page_bytes)?;
        let sqe = admin::get_log_page(self.cid(), lid, bytes, self.data(at, bytes)?);
        self.admin_ok(&sqe).await?;
        Ok(self.bytes(at, bytes as usize))
    }

    /// Sets Number of Queues, required before the first queue is created.
    pub(crate) async fn ask_for_queues(&mut self, wanted: u32) -> Verdict<NumberOfQueues> {
        let wanted = NumberOfQueues::of(wanted, wanted).into_bits();
        let sqe = admin::set_feature(self.cid(), fid::NUMBER_OF_QUEUES, wanted);
        Ok(NumberOfQueues::from_bits(self.admin_ok(&sqe).await?))
    }

    /// Creates a completion queue without interrupts.
    pub(crate) async fn create_cq(&mut self, qid: u16, entries: u32) -> Verdict<Cq> {
        let at = self.place(u64::from(entries) * 16, self.page_bytes)?;
        let sqe = admin::create_cq(self.cid(), at, cq_of(qid, entries));
        self.admin_ok(&sqe).await?;
        Ok(Cq::new(QueueId(qid), at, entries))
    }

    pub(crate) async fn create_sq(&mut self, qid: u16, entries: u32, cqid: u16) -> Verdict<Sq> {
        let at = self.place(u64::from(entries) * 64, self.page_bytes)?;
        let sqe = admin::create_sq(self.cid(), at, sq_of(qid, entries, cqid));
        self.admin_ok(&sqe).await?;
        Ok(Sq::new(QueueId(qid), at, entries))
    }

    /// Creates a pair of queues with this number.
    pub(crate) async fn create_pair(&mut self, qid: u16, entries: u32) -> Verdict<Pair> {
        let cq = self.create_cq(qid, entries).await?;
        Ok(Pair { sq: self.create_sq(qid, entries, qid).await?, cq })
    }

    /// Creates the usual pair of I/O queues.
    pub(crate) async fn io(&mut self) -> Verdict<Pair> {
        needs!(self.nsid != Nsid::NONE, "an active namespace");
        self.ask_for_queues(1).await?;
        self.create_pair(1, self.cap.queue_entries_max().min(64)).await
    }

    /// Creates the usual pair, on a namespace whose blocks have neither metadata nor PI.
    pub(crate) async fn plain_io(&mut self) -> Verdict<Pair> {
        let ms = self.ns.format().map_or(0, |format| format.ms.get());
        needs!(ms == 0, "a namespace without metadata: its blocks have {ms} bytes");
        self.io().await
    }

    // Blocks.

    /// Block size in bytes.
    pub(crate) fn block(&self) -> u64 {
        self.ns.format().and_then(|format| format.block_bytes()).unwrap_or(512)
    }

    /// Maximum number of blocks per command, within `bytes`.
    pub(crate) fn blocks_within(&self, bytes: u64) -> u32 {
        let most = self.id.transfer_bytes_max(4096 << self.cap.mpsmin()).unwrap_or(u64::MAX);
        (most.min(bytes) / self.block()).min(u64::from(io::BLOCKS_MAX)) as u32
    }

    pub(crate) async fn write(&self, pair: &mut Pair, lba: u64, data: &[u8]) -> Verdict {
        let at = self.place(data.len() as u64, self.page_bytes)?;
        self.store_bytes(at, data);
        let blocks = (data.len() as u64 / self.block()) as u32;
        let prp = self.data(at, data.len() as u64)?;
        self.ok(pair, &io::write(self.cid(), self.nsid, Lba(lba), blocks, false, prp))
            .await
            .map(drop)
    }

    pub(crate) async fn read(&self, pair: &mut Pair, lba: u64, blocks: u32) -> Verdict<Vec<u8>> {
        let bytes = u64::from(blocks) * self.block();
        let at = self.place(bytes, self.page_bytes)?;
        let prp = self.data(at, bytes)?;
        self.ok(pair, &io::read(self.cid(), self.nsid, Lba(lba), blocks, false, prp)).await?;
        Ok(self.bytes(at, bytes as usize))
    }

    /// Checks that the blocks hold `data`.
    pub(crate) async fn holds(&self, pair: &mut Pair, lba: u64, data: &[u8]) -> Verdict {
        let blocks = (data.len() as u64 / self.block()) as u32;
        let found = self.read(pair, lba, blocks).await?;
        match found.iter().zip(data).position(|(found, expected)| found != expected) {
            None => Ok(()),
            Some(byte) => Stop::failed(format!(
                "byte {byte} from block {lba} on is {:#04x}, expected {:#04x}",
                found[byte], data[byte]
            )),
        }
    }

    /// Waits for an interrupt beyond the first `seen`; returns the count, or `None` after `span`.
    pub(crate) async fn interrupt(&self, vector: u16, seen: u32, span: Span) -> Option<u32> {
        self.within(span, self.reach.interrupt(vector, seen)).await
    }
}

/// Names of the statuses, joined by "or".
pub(crate) fn words(statuses: &[Status]) -> String {
    let names: Vec<String> = statuses.iter().map(|status| status.to_string()).collect();
    names.join(" or ")
}

/// Create command for a completion queue without interrupts.
pub(crate) fn cq_of(qid: u16, size: u32) -> CreateCq {
    CreateCq { qid: QueueId(qid), size, vector: 0, irq_enabled: false, contiguous: true }
}

/// Create command for a submission queue.
pub(crate) fn sq_of(qid: u16, size: u32, cqid: u16) -> CreateSq {
    let (qid, cqid) = (QueueId(qid), QueueId(cqid));
    CreateSq { qid, size, cqid, priority: Priority::Medium, contiguous: true }
}

/// Random bytes, the same for the same seed.
pub(crate) fn noise(seed: u64, bytes: u64) -> Vec<u8> {
    let mut rng = Rng::for_part(seed, "conformance");
    (0..bytes.div_ceil(8)).flat_map(|_| rng.next_u64().to_le_bytes()).take(bytes as usize).collect()
}
