//! NVMe by hand, over a client's messages: an admin queue and one pair of I/O queues.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use wire::nvme::admin::{self, CreateCq, CreateSq, Priority};
use wire::nvme::entry::{Cqe, DataPointer, Sqe};
use wire::nvme::features::{NumberOfQueues, fid};
use wire::nvme::registers::{
    ACQ, AQA, ASQ, CC, CSTS, Cc, Csts, cq_head_doorbell, sq_tail_doorbell,
};
use wire::nvme::status::Status;
use wire::{BusAddr, CommandId, QueueId};
use zerocopy::{FromBytes, IntoBytes};

use crate::vfio_user::raw::Raw;

const ENTRIES: u32 = 16;
const PAGE: u64 = 4096;

/// A host's memory in pages: for each, its bus address, its file, and its offset there.
pub struct Pages(pub Vec<(u64, File, u64)>);

impl Pages {
    fn place(&self, at: u64) -> (&File, u64) {
        let page = self.0.iter().find(|page| page.0 == at / PAGE * PAGE);
        let (_, file, offset) = page.expect("a page of ours");
        (file, offset + at % PAGE)
    }

    /// The parts of a range that do not cross a page: file and offset of each, and its range of the bytes.
    fn parts(&self, at: u64, bytes: usize) -> impl Iterator<Item = (&File, u64, Range<usize>)> {
        let mut done = 0;
        std::iter::from_fn(move || {
            let here = at + done as u64;
            let part = (bytes - done).min((PAGE - here % PAGE) as usize);
            let range = done..done + part;
            done += part;
            (part > 0).then(|| {
                let (file, place) = self.place(here);
                (file, place, range)
            })
        })
    }

    pub fn write(&self, at: u64, bytes: &[u8]) {
        for (file, place, range) in self.parts(at, bytes.len()) {
            file.write_all_at(&bytes[range], place).expect("our own file");
        }
    }

    pub fn read(&self, at: u64, to: &mut [u8]) {
        for (file, place, range) in self.parts(at, to.len()) {
            file.read_exact_at(&mut to[range], place).expect("our own file");
        }
    }
}

pub struct Pair {
    qid: QueueId,
    sq: u64,
    cq: u64,
    tail: u32,
    head: u32,
    phase: bool,
}

impl Pair {
    fn new(qid: u16, sq: u64, cq: u64) -> Pair {
        Pair { qid: QueueId(qid), sq, cq, tail: 0, head: 0, phase: true }
    }
}

/// Sets the registers and waits until the controller is ready; returns whether it is.
pub fn enable(raw: &mut Raw, pages: &Pages, sq: u64, cq: u64) -> (Pair, bool) {
    pages.write(cq, &[0; 16 * ENTRIES as usize]);
    raw.write32(AQA, (ENTRIES - 1) << 16 | (ENTRIES - 1));
    for (register, value) in [(ASQ, sq), (ACQ, cq)] {
        raw.write(0, register.into(), &value.to_le_bytes()).expect("an address register");
    }
    let cc = Cc::new().with_en(true).with_iosqes(6).with_iocqes(4);
    raw.write32(CC, cc.into_bits());
    loop {
        let csts = Csts::from_bits(raw.read32(CSTS));
        if csts.rdy() || csts.cfs() {
            return (Pair::new(0, sq, cq), csts.rdy());
        }
    }
}

/// Waits until the controller is off.
pub fn disable(raw: &mut Raw) {
    raw.write32(CC, 0);
    while Csts::from_bits(raw.read32(CSTS)).rdy() {}
}

/// Submits an entry without waiting.
pub fn submit(raw: &mut Raw, pages: &Pages, pair: &mut Pair, sqe: &Sqe) {
    pages.write(pair.sq + 64 * u64::from(pair.tail), sqe.as_bytes());
    pair.tail = (pair.tail + 1) % ENTRIES;
    raw.write32(sq_tail_doorbell(pair.qid, 0), pair.tail);
}

/// A completion, if there is one.
pub fn completion(pages: &Pages, pair: &mut Pair) -> Option<Cqe> {
    let mut bytes = [0; 16];
    pages.read(pair.cq + 16 * u64::from(pair.head), &mut bytes);
    let cqe = |bytes: &[u8]| Cqe::read_from_bytes(bytes).expect("an entry's length");
    if cqe(&bytes).phase() != pair.phase {
        return None;
    }
    // The entry is read after its phase bit.
    pages.read(pair.cq + 16 * u64::from(pair.head), &mut bytes);
    let cqe = cqe(&bytes);
    pair.head = (pair.head + 1) % ENTRIES;
    pair.phase ^= pair.head == 0;
    Some(cqe)
}

/// Executes one command, and answers the server's messages meanwhile.
pub fn perform(raw: &mut Raw, pages: &Pages, pair: &mut Pair, sqe: &Sqe) -> Status {
    submit(raw, pages, pair, sqe);
    loop {
        if let Some(cqe) = completion(pages, pair) {
            raw.write32(cq_head_doorbell(pair.qid, 0), pair.head);
            return cqe.status();
        }
        // A message to and fro, so that the server's are answered.
        assert!(!Csts::from_bits(raw.read32(CSTS)).cfs(), "a fatal status");
    }
}

/// Creates a pair of I/O queues whose completions signal this vector.
pub fn create_pair(
    raw: &mut Raw,
    pages: &Pages,
    admin: &mut Pair,
    (sq, cq): (u64, u64),
    vector: Option<u16>,
) -> Pair {
    pages.write(cq, &[0; 16 * ENTRIES as usize]);
    let wanted = NumberOfQueues::of(1, 1).into_bits();
    let sqe = admin::set_feature(CommandId(3), fid::NUMBER_OF_QUEUES, wanted);
    assert!(perform(raw, pages, admin, &sqe).is_ok());
    let qid = QueueId(1);
    let create = CreateCq {
        qid,
        size: ENTRIES,
        vector: vector.unwrap_or(0),
        irq_enabled: vector.is_some(),
        contiguous: true,
    };
    let sqe = admin::create_cq(CommandId(1), BusAddr(cq), create);
    let status = perform(raw, pages, admin, &sqe);
    assert!(status.is_ok(), "{status:?}");
    let priority = Priority::Urgent;
    let create = CreateSq { qid, size: ENTRIES, cqid: qid, priority, contiguous: true };
    let sqe = admin::create_sq(CommandId(2), BusAddr(sq), create);
    let status = perform(raw, pages, admin, &sqe);
    assert!(status.is_ok(), "{status:?}");
    Pair::new(1, sq, cq)
}

/// A data pointer to up to two pages.
pub fn data(prp1: u64, prp2: u64) -> DataPointer {
    DataPointer::Prp { prp1: BusAddr(prp1), prp2: BusAddr(prp2) }
}
