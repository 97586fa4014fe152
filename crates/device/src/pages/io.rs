//! Execution of commands: reads, erases, and the bad-block table.

use bus::{DevicePort, DmaError, Payload, Posting, Segment, Unreadable};
use ftl::{Blocks, Erase, Page, PageRead, Pages, Part, Place};
use media::contents::{Keep, STAMP_BYTES};
use runtime::Time;
use wire::BusAddr;
use wire::pages::{Answer, Operation, PageAt, RowAt, Spare, Status};

use super::{End, Endpoints, Given, Slot};
use crate::scratch_guard::Scratch;
use flash::chips::Chips;

static ZEROS: [u8; 4096] = [0; 4096];

/// An answer without its command identifier.
pub(super) struct Ended {
    status: Status,
    retries: u8,
    detail: u32,
}

impl From<Status> for Ended {
    fn from(status: Status) -> Ended {
        Ended { status, retries: 0, detail: 0 }
    }
}

/// Result for the mask of failed planes; zero means success.
pub(super) fn failed(planes: u32) -> Ended {
    let status = if planes == 0 { Status::Done } else { Status::Failed };
    Ended { status, retries: 0, detail: planes }
}

pub(super) fn of_dma(error: DmaError) -> Ended {
    match error {
        DmaError::Address(_) => Status::BadAddress.into(),
        DmaError::Unreadable => Status::Unreadable.into(),
    }
}

/// Converts a page address of the command set to one of the chips.
pub(super) fn page_of(at: PageAt) -> Page {
    Page { die: at.die, plane: at.plane, block: at.block, page: at.page }
}

pub(super) fn blocks_of(row: RowAt) -> Blocks {
    Blocks { die: row.die, block: row.block, planes: row.planes }
}

impl<P: DevicePort> Endpoints<P> {
    pub(super) async fn carry_out(&self, end: &End, slot: &Slot, given: Given) -> Answer {
        self.port.spend(self.costs.parse).await;
        let (id, ended) = match given.command {
            Err(id) => (id, Status::Refused.into()),
            Ok(command) => {
                // All but reads are boxed, so that they do not enlarge the future of every read.
                let ended = match command.operation {
                    operation if !self.is_own(end, operation) => Status::Refused.into(),
                    Operation::Read { page, units, data, spare, collects, stay } => {
                        let up = Up { units, to: data, spare, collects, stay };
                        self.read(end, slot, given.turn, page, up).await
                    }
                    Operation::Program { row, sequence, erases, list } => {
                        let header = ftl::Header { sequence, erases };
                        Box::pin(self.program(end, slot, row, header, list)).await
                    }
                    Operation::Erase(row) => Box::pin(self.erase(end, row)).await,
                    Operation::MarkBad(page) => self.mark_bad(end, page),
                    Operation::ListBad { die, data } => {
                        Box::pin(self.list_bad(end, given.turn, die, data)).await
                    }
                };
                (command.id, ended)
            }
        };
        Answer { id, status: ended.status, retries: ended.retries, detail: ended.detail, lap: 0 }
    }

    /// Returns true if the command's die belongs to this endpoint.
    fn is_own(&self, end: &End, operation: Operation) -> bool {
        let die = match operation {
            Operation::Read { page, .. } | Operation::MarkBad(page) => page.die,
            Operation::Program { row, .. } | Operation::Erase(row) => row.die,
            Operation::ListBad { die, .. } => die,
        };
        self.owns(end, die)
    }

    pub(super) fn owns(&self, end: &End, die: u32) -> bool {
        die % self.options.endpoints == end.number
    }

    /// A read: chips, then spare bytes and units over the link in one transfer.
    async fn read(&self, end: &End, slot: &Slot, turn: u64, at: PageAt, up: Up) -> Ended {
        let page = page_of(at);
        let mut parts = [Part { page, units: up.units, seen: PageRead::Unreadable }];
        if up.collects {
            self.chips.read_for_collector(&mut parts).await;
        } else {
            self.chips.read(&mut parts).await;
        }
        let (corrected, retries) = match parts[0].seen {
            PageRead::Erased => return Status::Erased.into(),
            PageRead::Unreadable => return Status::Unreadable.into(),
            PageRead::Good { corrected, retries } => (corrected, retries),
        };
        if !end.is_open(turn) {
            return Status::Unreadable.into();
        }
        let spare = Spare::bytes(self.shape.units) as u32;
        let mut to = Scratch::from(&slot.segments);
        to.clear();
        to.push(Segment { at: up.spare, bytes: spare });
        let units = if up.stay { 0 } else { up.units };
        up.places(units, self.shape.unit_bytes, &mut to);
        let sent = Sent { chips: &self.chips, page, units };
        match self.port_of(end).write(&to, &sent, Posting::STRICT, Time::ZERO).await {
            Ok(()) => Ended {
                status: Status::Done,
                retries: retries.min(u8::MAX.into()) as u8,
                detail: corrected,
            },
            Err(error) => of_dma(error),
        }
    }

    /// An erase. Failed blocks are marked bad before the answer: the mark survives a power cut, so that their
    /// remaining contents are not taken for data.
    async fn erase(&self, end: &End, row: RowAt) -> Ended {
        let blocks = blocks_of(row);
        if self.is_busy(end, blocks) || self.planes(blocks).any(|page| self.chips.is_bad(page)) {
            return Status::Refused.into();
        }
        end.erasing.borrow_mut().push(blocks);
        let mut erases = [Erase { blocks, failed: 0 }];
        self.chips.erase(&mut erases).await;
        end.erasing.borrow_mut().retain(|other| *other != blocks);
        let bad = erases[0].failed;
        self.planes(Blocks { planes: bad, ..blocks }).for_each(|page| self.chips.mark_bad(page));
        failed(bad)
    }

    /// Returns true if an erase is in progress in one of these blocks.
    pub(super) fn is_busy(&self, end: &End, blocks: Blocks) -> bool {
        end.erasing.borrow().iter().any(|other| {
            let same = other.die == blocks.die && other.block == blocks.block;
            same && other.planes & blocks.planes != 0
        })
    }

    /// The first page of each block.
    pub(super) fn planes(&self, blocks: Blocks) -> impl Iterator<Item = Page> {
        let Blocks { die, block, planes } = blocks;
        (0..32).filter(move |plane| planes >> plane & 1 != 0).map(move |plane| Page {
            die,
            plane,
            block,
            page: 0,
        })
    }

    fn mark_bad(&self, end: &End, at: PageAt) -> Ended {
        let blocks = Blocks { die: at.die, block: at.block, planes: 1 << at.plane };
        if self.is_busy(end, blocks) {
            return Status::Refused.into();
        }
        self.chips.mark_bad(Page { page: 0, ..page_of(at) });
        Status::Done.into()
    }

    /// Sends the bitmap of a die's bad blocks, plane by plane.
    async fn list_bad(&self, end: &End, turn: u64, die: u32, data: BusAddr) -> Ended {
        let (planes, blocks) = (self.shape.planes, self.shape.blocks);
        let mut bits = vec![0_u8; (planes * blocks).div_ceil(8).next_multiple_of(4) as usize];
        for at in 0..planes * blocks {
            let page = Page { die, plane: at / blocks, block: at % blocks, page: 0 };
            if self.chips.is_bad(page) {
                bits[(at / 8) as usize] |= 1 << (at % 8);
            }
        }
        if !end.is_open(turn) {
            return Status::Unreadable.into();
        }
        let to = [Segment { at: data, bytes: bits.len() as u32 }];
        match self.port_of(end).write(&to, &bits[..], Posting::STRICT, Time::ZERO).await {
            Ok(()) => Status::Done.into(),
            Err(error) => of_dma(error),
        }
    }
}

/// Parameters of a read's transfer to the host.
struct Up {
    units: u32,
    to: BusAddr,
    spare: BusAddr,
    collects: bool,
    stay: bool,
}

impl Up {
    /// Host memory segments of the units in the mask; adjacent units are merged.
    fn places(&self, units: u32, unit_bytes: u32, to: &mut Vec<Segment>) {
        let mut at = 0;
        while at < 32 {
            let run = (units >> at).trailing_ones();
            if run == 0 {
                at += 1;
                continue;
            }
            let begin = self.to.0.wrapping_add(u64::from(at) * u64::from(unit_bytes));
            to.push(Segment { at: BusAddr(begin), bytes: run * unit_bytes });
            at += run;
        }
    }
}

/// Payload: the spare bytes of a page, followed by its units.
struct Sent<'a> {
    chips: &'a Chips,
    page: Page,
    units: u32,
}

impl Payload for Sent<'_> {
    fn runs(&self, put: &mut dyn FnMut(u32, &[u8])) -> Result<(), Unreadable> {
        let header = self.chips.header(self.page).ok_or(Unreadable)?;
        let ftl::Shape { units, unit_bytes, .. } = self.chips.shape();
        let mut spare =
            Spare { sequence: header.sequence, erases: header.erases, logicals: [0; 32] };
        for unit in 0..units {
            spare.logicals[unit as usize] = self.chips.logical(Place { page: self.page, unit });
        }
        let spare_bytes = Spare::bytes(units);
        put(0, &spare.to_bytes()[..spare_bytes]);
        let mut base = spare_bytes as u32;
        for unit in (0..units).filter(|unit| self.units >> unit & 1 != 0) {
            let mut seen = 0;
            let place = Place { page: self.page, unit };
            let meta = spare.logicals[unit as usize] & ftl::META != 0;
            let scratch_guard = self.chips.lend(place, &mut |offset, run| {
                self.zeros(base + seen..base + offset, base, meta, put);
                put(base + offset, run);
                seen = offset + run.len() as u32;
            });
            if !scratch_guard {
                return Err(Unreadable);
            }
            self.zeros(base + seen..base + unit_bytes, base, meta, put);
            base += unit_bytes;
        }
        Ok(())
    }
}

impl Sent<'_> {
    /// Sends zeros for the gap between two runs, because the host buffer may hold other bytes. If only stamps
    /// are kept, zeros cover one stamp at the beginning of each block.
    fn zeros(
        &self,
        gap: std::ops::Range<u32>,
        base: u32,
        meta: bool,
        put: &mut dyn FnMut(u32, &[u8]),
    ) {
        let (keep, block) =
            self.chips.with_nand(|nand| (nand.spec().keep, nand.spec().block_bytes));
        let stamps = keep == Keep::Stamps && !meta;
        let (most, step) =
            if stamps { (STAMP_BYTES as u32, block) } else { (ZEROS.len() as u32, 4096) };
        let mut at = gap.start;
        if stamps {
            at = base + (gap.start - base).next_multiple_of(step);
        }
        while at < gap.end {
            put(at, &ZEROS[..most.min(gap.end - at) as usize]);
            at += step;
        }
    }
}
