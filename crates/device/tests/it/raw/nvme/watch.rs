//! Observer of the controller's DMA: it may access only memory that the host has given since the controller
//! was enabled, and none while CSTS.RDY is 0.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use wire::nvme::entry::{Cqe, Sqe, SqeFlags};
use wire::nvme::io::{Access, Command};
use wire::nvme::opcode;
use wire::nvme::ranges::DsmRange;
use wire::nvme::registers::{ACQ, AQA, Aqa, CC, CSTS, Cc, Csts};
use wire::nvme::sgl::Descriptor;
use wire::nvme::status::Status;
use wire::{BusAddr, Lba};
use zerocopy::FromBytes;

use crate::raw::watched::Watch;

/// The unit in which host memory is named: the smallest memory page.
const PAGE: u64 = 4096;
const ACQ_HIGH: u32 = ACQ + 4;
/// More blocks than any bench has, and more than any copy copies.
const BLOCKS_MAX: u64 = 1 << 24;
const COPY_BLOCKS_MAX: u32 = 1 << 18;

/// State of the checks, and counts of accesses.
pub struct Witness {
    base: u64,
    /// Pages of host memory that the host has named as a destination.
    named: RefCell<Vec<bool>>,
    /// Block ranges of the fetched write commands.
    writes: RefCell<Vec<Access>>,
    /// True if any block may be written, because of a sanitize.
    pub sanitizes: Cell<bool>,
    /// A command with a list of block ranges has been fetched.
    lists: Cell<bool>,
    /// A command with an SGL has been fetched.
    sgls: Cell<bool>,
    disabled: Cell<bool>,
    reading: Cell<u32>,
    acq: Cell<(u32, u32)>,
    aqa: Cell<u32>,
    cc: Cell<Cc>,
    /// The memory page size when the controller was enabled.
    page_bytes: Cell<u64>,
    /// Transfers to or from addresses outside host memory, all rejected by the bus.
    pub refused: Cell<u64>,
    /// Transfers that the bus accepted.
    pub transfers: Cell<u64>,
    /// Completions posted, by queue kind (true for I/O queues) and status, including DNR.
    pub completions: RefCell<BTreeMap<(bool, Status), u64>>,
    /// Number of times that the controller became ready.
    pub lives: Cell<u64>,
    /// Number of times that it set CFS.
    pub fatal: Cell<u64>,
}

impl Witness {
    pub fn new(base: BusAddr, bytes: usize) -> Witness {
        Witness {
            base: base.0,
            named: RefCell::new(vec![false; bytes / PAGE as usize]),
            writes: RefCell::default(),
            sanitizes: Cell::new(false),
            lists: Cell::new(false),
            sgls: Cell::new(false),
            disabled: Cell::new(true),
            reading: Cell::new(0),
            acq: Cell::new((0, 0)),
            aqa: Cell::new(0),
            cc: Cell::new(Cc::new()),
            page_bytes: Cell::new(PAGE),
            refused: Cell::new(0),
            transfers: Cell::new(0),
            completions: RefCell::default(),
            lives: Cell::new(0),
            fatal: Cell::new(0),
        }
    }

    fn end(&self) -> u64 {
        self.base + self.named.borrow().len() as u64 * PAGE
    }

    fn page(&self, at: u64) -> Option<usize> {
        let page = at.checked_sub(self.base)? / PAGE;
        (page < self.named.borrow().len() as u64).then_some(page as usize)
    }

    fn name(&self, at: u64) {
        if let Some(page) = self.page(at) {
            self.named.borrow_mut()[page] = true;
        }
    }

    /// Names all pages of `bytes` bytes from `at` on.
    fn name_run(&self, at: u64, bytes: u64) {
        let first = at / PAGE * PAGE;
        let mut page = first;
        while page < at.saturating_add(bytes) {
            self.name(page);
            let Some(next) = page.checked_add(PAGE) else { return };
            page = next;
        }
    }

    fn learn_writes(&self, sqe: &Sqe) {
        // One of a pair asks for as much as one that stands alone.
        let sqe = Sqe { flags: sqe.flags.with_fuse(0), ..*sqe };
        match wire::nvme::io::parse(&sqe).map(|request| request.command) {
            Ok(Command::Write(access)) => self.asks_for(access.lba, access.blocks),
            Ok(Command::WriteZeroes(zeroes)) => {
                self.asks_for(zeroes.access.lba, zeroes.access.blocks);
            }
            // The number of blocks of a copy is in its range list.
            Ok(Command::Copy(copy)) => self.asks_for(copy.to, COPY_BLOCKS_MAX),
            Ok(Command::DatasetManagement(_)) => self.lists.set(true),
            _ => {}
        }
    }

    fn asks_for(&self, lba: Lba, blocks: u32) {
        let access = Access::of(lba, blocks);
        self.writes.borrow_mut().push(access);
    }

    /// Whether a fetched write command asks for these blocks.
    pub fn asked_to_write(&self, block: u64, blocks: u32) -> bool {
        let end = block + u64::from(blocks);
        let covers = |access: &Access| {
            access.lba.0 <= block && end <= access.lba.0.saturating_add(u64::from(access.blocks))
        };
        self.sanitizes.get() || self.writes.borrow().iter().rev().any(covers)
    }

    fn status(&self, csts: Csts) {
        self.fatal.set(self.fatal.get() + u64::from(csts.cfs()));
        let was = self.disabled.replace(!csts.rdy());
        if !csts.rdy() {
            let reading = self.reading.get();
            assert_eq!(reading, 0, "reads of host memory under way when CSTS.RDY becomes 0");
        }
        if csts.rdy() && was {
            self.lives.set(self.lives.get() + 1);
            // A new life: what an earlier one was told counts no more.
            self.page_bytes.set(self.cc.get().page_bytes());
            self.named.borrow_mut().fill(false);
            self.writes.borrow_mut().clear();
            self.lists.set(false);
            self.sgls.set(false);
            let (low, high) = self.acq.get();
            let acq = u64::from(high) << 32 | u64::from(low);
            self.name_run(acq, 16 * u64::from(Aqa::from_bits(self.aqa.get()).cq_entries()));
        }
    }
}

impl Watch for Witness {
    fn loaded(&self, register: u32, value: u32) {
        match register {
            ACQ => self.acq.set((value, self.acq.get().1)),
            ACQ_HIGH => self.acq.set((self.acq.get().0, value)),
            AQA => self.aqa.set(value),
            CC => self.cc.set(Cc::from_bits(value)),
            _ => {}
        }
    }

    fn stored(&self, register: u32, value: u32) {
        if register == CSTS {
            self.status(Csts::from_bits(value));
        }
    }

    fn reads(&self) {
        assert!(!self.disabled.get(), "host memory is read while CSTS.RDY is 0");
        self.reading.set(self.reading.get() + 1);
    }

    fn has_read(&self) {
        self.reading.set(self.reading.get() - 1);
    }

    /// Every word that was read may be an address: of a data page, of a queue.
    fn learn(&self, bytes: &[u8]) {
        for word in bytes.chunks_exact(8) {
            let at = u64::from_le_bytes(word.try_into().expect("eight bytes"));
            if self.page(at).is_some() {
                self.name_run(at, self.page_bytes.get());
            }
        }
        for entry in bytes.chunks_exact(64) {
            let flags = SqeFlags::from_bits(entry[1]);
            self.sgls.set(self.sgls.get() || flags.psdt() > 0);
        }
        // With SGLs in use, any two words may be a descriptor.
        if self.sgls.get() {
            for words in bytes.chunks_exact(8).zip(bytes.chunks_exact(8).skip(1)) {
                let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight"));
                let descriptor = Descriptor::from_words(word(words.0), word(words.1));
                let at = descriptor.address.get();
                if descriptor.identifier == 0 && at < self.end() {
                    let bytes = u64::from(descriptor.length.get()).min(self.end() - at);
                    self.name_run(at.max(self.base), bytes);
                }
            }
        }
        for entry in bytes.chunks_exact(64) {
            let sqe = Sqe::read_from_bytes(entry).expect("sixty-four bytes");
            match sqe.opcode {
                opcode::admin::CREATE_CQ => {
                    let entries = u64::from(sqe.cdw10.get() >> 16) + 1;
                    self.name_run(sqe.prp1.get(), 16 * entries);
                }
                // Admin commands that may write every block.
                opcode::admin::FORMAT_NVM | opcode::admin::NAMESPACE_MANAGEMENT => {
                    self.asks_for(Lba(0), u32::MAX);
                }
                _ => self.learn_writes(&sqe),
            }
        }
        // Once a command with a range list was fetched, any data read may be one.
        if self.lists.get() {
            for range in bytes.chunks_exact(size_of::<DsmRange>()) {
                let range = DsmRange::read_from_bytes(range).expect("sixteen bytes");
                if range.lba.get() < BLOCKS_MAX {
                    self.asks_for(Lba(range.lba.get()), range.blocks.get());
                }
            }
        }
    }

    fn validate(&self, at: BusAddr, bytes: u32) {
        assert!(!self.disabled.get(), "host memory is written at {at} while CSTS.RDY is 0");
        let mut page = at.0 / PAGE * PAGE;
        while page < at.0.saturating_add(u64::from(bytes)) {
            let named = self.page(page).is_none_or(|index| self.named.borrow()[index]);
            assert!(named, "{bytes} bytes are written at {at}, which the host has not named");
            let Some(next) = page.checked_add(PAGE) else { return };
            page = next;
        }
    }

    fn posts(&self, entry: &[u8]) {
        // A shorter entry is a doorbell request.
        if let Ok(cqe) = Cqe::read_from_bytes(entry) {
            let status = cqe.status();
            let kind = if status.dnr() { status.kind().with_dnr() } else { status.kind() };
            let mut completions = self.completions.borrow_mut();
            *completions.entry((cqe.sq_id.get() > 0, kind)).or_insert(0) += 1;
        }
    }

    fn interrupts(&self) {
        assert!(!self.disabled.get(), "an interrupt while CSTS.RDY is 0");
    }

    fn ends(&self, went_through: bool) {
        let counter = if went_through { &self.transfers } else { &self.refused };
        counter.set(counter.get() + 1);
    }
}
