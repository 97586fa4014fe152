//! Queues: NVMe base 2.0, 3.3, and their creation and deletion, 5.4 to 5.7.

use std::collections::BTreeSet;

use runtime::Span;
use wire::nvme::admin::{self, CreateCq, CreateSq};
use wire::nvme::io;
use wire::nvme::registers::sq_tail_doorbell;
use wire::nvme::status::Status;
use wire::{CommandId, Lba, Nsid, QueueId};

use crate::bench::{Bench, Pair, cq_of, noise, sq_of};
use crate::case::{Section, cases};
use crate::verdict::{Verdict, hold, needs};

const BASE: &str = "NVMe base 2.0";

pub(super) const SECTIONS: &[Section] = &[
    Section {
        of: BASE,
        number: "3.3",
        title: "queues",
        cases: cases! {
            None phases_turn_lap_after_lap "the phase tag of a completion turns with each lap";
            None smallest_io_queues "I/O queues of two entries work, lap after lap";
            None largest_io_queues "a queue of CAP.MQES + 1 entries works, past its end";
            None bursts_up_to_the_brim "a queue of n entries takes n - 1 commands with one doorbell";
            None full_completion_queue_waits
                "a full completion queue makes the controller wait, and loses nothing";
            None full_completion_queue_is_not_overwritten
                "no completion is stored over one that was not consumed";
            None commands_while_completion_queue_is_full
                "commands that come while it is full complete later";
            None submission_head_is_told "SQHD says how far the submission queue was consumed";
            None many_queues_one_completion_queue
                "several submission queues share one, each with its own SQHD";
            None identifiers_come_back_once "every identifier comes back, and comes back once";
            None an_error_in_a_batch "a command that fails amid others takes none of them along";
            None reserved_entry_bytes_of_completions
                "of a read, dwords 0 and 1 of the completion say nothing";
            None same_identifier_in_two_queues "an identifier may be in use in two queues at once";
            None doorbell_read_is_harmless "reading a doorbell changes nothing";
        },
    },
    Section {
        of: BASE,
        number: "5.4",
        title: "Create I/O Completion Queue",
        cases: cases! {
            None cq_number_zero "queue identifier 0: Invalid Queue Identifier";
            None cq_number_too_high "one that there is not: Invalid Queue Identifier";
            None cq_number_in_use "one in use: Invalid Queue Identifier";
            None cq_of_one_entry "a size of zero (one entry): Invalid Queue Size";
            None cq_too_large "more entries than CAP.MQES: Invalid Queue Size";
            None cq_vector_too_high "a vector past all there can be: Invalid Interrupt Vector";
            None cq_in_pieces "not contiguous where CAP.CQR asks for it: Invalid Field";
            None cq_at_an_offset "an address within a page: PRP Offset Invalid or Invalid Field";
        },
    },
    Section {
        of: BASE,
        number: "5.5",
        title: "Create I/O Submission Queue",
        cases: cases! {
            None sq_number_zero "queue identifier 0: Invalid Queue Identifier";
            None sq_number_too_high "one that there is not: Invalid Queue Identifier";
            None sq_number_in_use "one in use: Invalid Queue Identifier";
            None sq_of_one_entry "a size of zero (one entry): Invalid Queue Size";
            None sq_too_large "more entries than CAP.MQES: Invalid Queue Size";
            None sq_completion_queue_not_there "a completion queue not made: Completion Queue Invalid";
            None sq_completion_queue_of_the_admin
                "the admin completion queue: Invalid Queue Identifier, or Completion Queue Invalid";
            None sq_completion_queue_too_high "one that cannot be: either of these";
            None sq_in_pieces "not contiguous where CAP.CQR asks for it: Invalid Field";
            None sq_at_an_offset "an address within a page: PRP Offset Invalid or Invalid Field";
        },
    },
    Section {
        of: BASE,
        number: "5.6",
        title: "Delete I/O Completion Queue",
        cases: cases! {
            None cq_in_use_stays "while a submission queue uses it: Invalid Queue Deletion";
            None cq_deleted_twice "one that there is not: Invalid Queue Identifier";
            None cq_zero_stays "the admin queue's: Invalid Queue Identifier";
        },
    },
    Section {
        of: BASE,
        number: "5.7",
        title: "Delete I/O Submission Queue",
        cases: cases! {
            None sq_deleted_twice "one that there is not: Invalid Queue Identifier";
            None sq_zero_stays "the admin queue's: Invalid Queue Identifier";
            None commands_before_deletion_complete "what was fetched completes before the deletion does";
            None queues_made_again "a pair created again starts from its first entry, without a reset";
            None other_queues_go_on "the other queues go on while one is deleted";
        },
    },
];

fn flush(b: &Bench) -> wire::nvme::entry::Sqe {
    io::flush(b.cid(), b.nsid)
}

async fn rounds(b: &mut Bench, entries: u32, commands: u32) -> Verdict {
    needs!(b.nsid != Nsid::NONE, "an active namespace");
    b.ask_for_queues(1).await?;
    let mut pair = b.create_pair(1, entries).await?;
    for _ in 0..commands {
        b.ok(&mut pair, &flush(b)).await?;
    }
    Ok(())
}

async fn phases_turn_lap_after_lap(b: &mut Bench) -> Verdict {
    rounds(b, 5, 23).await
}

async fn smallest_io_queues(b: &mut Bench) -> Verdict {
    rounds(b, 2, 9).await
}

async fn largest_io_queues(b: &mut Bench) -> Verdict {
    let entries = b.cap.queue_entries_max();
    needs!(entries <= 8192, "queues so small that one lap is short: MQES + 1 is {entries}");
    needs!(b.nsid != Nsid::NONE, "an active namespace");
    b.ask_for_queues(1).await?;
    let mut pair = b.create_pair(1, entries).await?;
    // One less than a full turn, with one doorbell; then across the end.
    for commands in [entries - 1, 3] {
        let cids = burst(b, &mut pair, commands);
        collect(b, &mut pair, cids).await?;
    }
    Ok(())
}

/// Submits `commands` flushes with one doorbell; returns their identifiers.
fn burst(b: &Bench, pair: &mut Pair, commands: u32) -> BTreeSet<u16> {
    let cids = (0..commands).map(|_| {
        let sqe = flush(b);
        b.store(&mut pair.sq, &sqe);
        sqe.id().0
    });
    let cids = cids.collect();
    b.ring(&pair.sq);
    cids
}

/// Consumes the completions of these commands, in any order, each once.
async fn collect(b: &Bench, pair: &mut Pair, mut cids: BTreeSet<u16>) -> Verdict {
    while !cids.is_empty() {
        let cqe = b.next(&mut pair.cq).await?;
        hold!(cids.remove(&cqe.id().0), "a completion of {:?}, expected one of {cids:?}", cqe.id());
        hold!(cqe.status().is_ok(), "{:?}: {}", cqe.id(), cqe.status());
    }
    b.nothing(&pair.cq, "a completion beyond the last").await
}

async fn small_pair(b: &mut Bench, sq: u32, cq: u32) -> Verdict<Pair> {
    needs!(b.nsid != Nsid::NONE, "an active namespace");
    b.ask_for_queues(1).await?;
    let cq = b.create_cq(1, cq).await?;
    Ok(Pair { sq: b.create_sq(1, sq, 1).await?, cq })
}

async fn bursts_up_to_the_brim(b: &mut Bench) -> Verdict {
    let mut pair = small_pair(b, 8, 8).await?;
    for _ in 0..5 {
        let cids = burst(b, &mut pair, 7);
        collect(b, &mut pair, cids).await?;
    }
    Ok(())
}

/// Waits until the three usable entries of a completion queue of four are filled, and checks them, without
/// ringing the head doorbell.
async fn look_at_three(b: &mut Bench, pair: &mut Pair, cids: &mut BTreeSet<u16>) -> Verdict {
    for _ in 0..3 {
        let Some(cqe) = b.peek(&pair.cq, Span::s(5)).await else {
            return crate::verdict::Stop::failed("fewer than three completions in a queue of four");
        };
        hold!(cids.remove(&cqe.id().0), "a completion of {:?}", cqe.id());
        b.take(&mut pair.cq);
    }
    Ok(())
}

async fn full_completion_queue_waits(b: &mut Bench) -> Verdict {
    let mut pair = small_pair(b, 16, 4).await?;
    let mut cids = burst(b, &mut pair, 12);
    look_at_three(b, &mut pair, &mut cids).await?;
    b.nothing(&pair.cq, "a completion in a queue that is full").await?;
    let csts = b.csts().await;
    hold!(csts.rdy() && !csts.cfs(), "CSTS is {csts:?} with a full completion queue");
    b.ring_head(&pair.cq);
    collect(b, &mut pair, cids).await
}

async fn full_completion_queue_is_not_overwritten(b: &mut Bench) -> Verdict {
    let mut pair = small_pair(b, 16, 4).await?;
    let mut cids = burst(b, &mut pair, 15);
    look_at_three(b, &mut pair, &mut cids).await?;
    let first = b.bytes(pair.cq.at, 3 * 16);
    b.pause(Span::ms(5)).await;
    hold!(b.bytes(pair.cq.at, 3 * 16) == first, "a completion was overwritten");
    b.ring_head(&pair.cq);
    collect(b, &mut pair, cids).await
}

async fn commands_while_completion_queue_is_full(b: &mut Bench) -> Verdict {
    let mut pair = small_pair(b, 32, 3).await?;
    let mut cids = burst(b, &mut pair, 2);
    b.pause(Span::ms(1)).await;
    for _ in 0..9 {
        cids.extend(burst(b, &mut pair, 3));
    }
    collect(b, &mut pair, cids).await
}

async fn submission_head_is_told(b: &mut Bench) -> Verdict {
    // The bench compares SQHD with the tail after every single command.
    rounds(b, 3, 10).await
}

async fn many_queues_one_completion_queue(b: &mut Bench) -> Verdict {
    needs!(b.nsid != Nsid::NONE, "an active namespace");
    let granted = b.ask_for_queues(3).await?;
    needs!(granted.sqs() >= 3, "three submission queues: it grants {}", granted.sqs());
    let mut cq = b.create_cq(1, 32).await?;
    let mut sqs = Vec::new();
    for (qid, entries) in [(1, 4), (2, 5), (3, 7)] {
        sqs.push(b.create_sq(qid, entries, 1).await?);
    }
    for round in 0..8 {
        for sq in &mut sqs {
            b.submit(sq, &flush(b));
        }
        for _ in 0..sqs.len() {
            let cqe = b.next(&mut cq).await?;
            let Some(sq) = sqs.iter().find(|sq| sq.qid == cqe.queue()) else {
                return crate::verdict::Stop::failed(format!("SQID is {:?}", cqe.queue()));
            };
            let head = u32::from(cqe.sq_head.get());
            hold!(
                head == sq.tail,
                "round {round}: SQHD of {:?} is {head}, not {}",
                sq.qid,
                sq.tail
            );
        }
    }
    Ok(())
}

async fn identifiers_come_back_once(b: &mut Bench) -> Verdict {
    let mut pair = small_pair(b, 40, 40).await?;
    for _ in 0..6 {
        let cids = burst(b, &mut pair, 39);
        collect(b, &mut pair, cids).await?;
    }
    Ok(())
}

async fn an_error_in_a_batch(b: &mut Bench) -> Verdict {
    let mut pair = b.plain_io().await?;
    let at = b.pages(1)?;
    let (block, size) = (b.block(), b.ns.nsze.get());
    let mut expected = std::collections::BTreeMap::new();
    for number in 0..16 {
        let fails = number % 5 == 3;
        let lba = Lba(if fails { size } else { number });
        let sqe = io::read(b.cid(), b.nsid, lba, 1, false, b.data(at, block)?);
        expected.insert(sqe.id(), fails);
        b.store(&mut pair.sq, &sqe);
    }
    b.ring(&pair.sq);
    for _ in 0..16 {
        let cqe = b.next(&mut pair.cq).await?;
        let Some(fails) = expected.remove(&cqe.id()) else {
            return crate::verdict::Stop::failed(format!("a second completion of {:?}", cqe.id()));
        };
        let wanted = if fails { Status::LBA_OUT_OF_RANGE } else { Status::SUCCESS };
        hold!(cqe.status().kind() == wanted, "{}, expected {wanted}", cqe.status());
    }
    Ok(())
}

async fn reserved_entry_bytes_of_completions(b: &mut Bench) -> Verdict {
    let mut pair = b.io().await?;
    let cqe = b.run(&mut pair, &flush(b)).await?;
    // A flush has no result: dword 0 is reserved, and so is dword 1.
    let found = (cqe.dw0.get(), cqe.dw1.get());
    hold!(found == (0, 0), "dwords 0 and 1 are {found:#x?}");
    Ok(())
}

async fn same_identifier_in_two_queues(b: &mut Bench) -> Verdict {
    needs!(b.nsid != Nsid::NONE, "an active namespace");
    let granted = b.ask_for_queues(2).await?;
    needs!(granted.sqs() >= 2 && granted.cqs() >= 2, "two pairs of I/O queues");
    let mut pairs = [b.create_pair(1, 8).await?, b.create_pair(2, 8).await?];
    let sqe = io::flush(CommandId(77), b.nsid);
    for pair in &mut pairs {
        b.submit(&mut pair.sq, &sqe);
    }
    for pair in &mut pairs {
        let cqe = b.next(&mut pair.cq).await?;
        hold!((cqe.id().0, cqe.queue()) == (77, pair.sq.qid), "{cqe:?}");
        hold!(cqe.status().is_ok(), "{}", cqe.status());
    }
    Ok(())
}

async fn doorbell_read_is_harmless(b: &mut Bench) -> Verdict {
    let mut pair = b.io().await?;
    for _ in 0..3 {
        b.reg(sq_tail_doorbell(pair.sq.qid, b.cap.dstrd())).await;
        b.ok(&mut pair, &flush(b)).await?;
    }
    Ok(())
}

const NO_ID: &[Status] = &[Status::INVALID_QUEUE_IDENTIFIER];
const NO_SIZE: &[Status] = &[Status::INVALID_QUEUE_SIZE];
const NO_PLACE: &[Status] = &[Status::INVALID_PRP_OFFSET, Status::INVALID_FIELD];

async fn cq_refused(b: &mut Bench, create: CreateCq, offset: u64, with: &[Status]) -> Verdict {
    let at = b.pages(2)?;
    let sqe = admin::create_cq(b.cid(), wire::BusAddr(at.0 + offset), create);
    b.admin_ends(&sqe, with).await
}

async fn sq_refused(b: &mut Bench, create: CreateSq, offset: u64, with: &[Status]) -> Verdict {
    let at = b.pages(2)?;
    let sqe = admin::create_sq(b.cid(), wire::BusAddr(at.0 + offset), create);
    b.admin_ends(&sqe, with).await
}

async fn cq_number_zero(b: &mut Bench) -> Verdict {
    b.ask_for_queues(1).await?;
    let at = b.pages(1)?;
    let mut sqe = admin::create_cq(b.cid(), at, cq_of(1, 8));
    sqe.cdw10 = (7 << 16).into();
    b.admin_ends(&sqe, NO_ID).await
}

async fn cq_number_too_high(b: &mut Bench) -> Verdict {
    let granted = b.ask_for_queues(1).await?.cqs();
    for qid in [granted as u16 + 1, u16::MAX] {
        cq_refused(b, cq_of(qid, 8), 0, NO_ID).await?;
    }
    Ok(())
}

async fn cq_number_in_use(b: &mut Bench) -> Verdict {
    b.ask_for_queues(1).await?;
    b.create_cq(1, 8).await?;
    cq_refused(b, cq_of(1, 8), 0, NO_ID).await
}

async fn cq_of_one_entry(b: &mut Bench) -> Verdict {
    b.ask_for_queues(1).await?;
    let at = b.pages(1)?;
    let mut sqe = admin::create_cq(b.cid(), at, cq_of(1, 8));
    sqe.cdw10 = 1.into();
    b.admin_ends(&sqe, NO_SIZE).await
}

async fn cq_too_large(b: &mut Bench) -> Verdict {
    let most = b.cap.queue_entries_max();
    needs!(most < 1 << 16, "a limit below 65,536 entries");
    b.ask_for_queues(1).await?;
    cq_refused(b, cq_of(1, most + 1), 0, NO_SIZE).await
}

async fn cq_vector_too_high(b: &mut Bench) -> Verdict {
    b.ask_for_queues(1).await?;
    // MSI-X has 2,048 vectors at most (PCI).
    let create = CreateCq { vector: 2048, irq_enabled: true, ..cq_of(1, 8) };
    cq_refused(b, create, 0, &[Status::INVALID_INTERRUPT_VECTOR]).await
}

async fn cq_in_pieces(b: &mut Bench) -> Verdict {
    needs!(b.cap.cqr(), "CAP.CQR is 0: queues may lie in pieces");
    b.ask_for_queues(1).await?;
    let create = CreateCq { contiguous: false, ..cq_of(1, 8) };
    cq_refused(b, create, 0, &[Status::INVALID_FIELD]).await
}

async fn cq_at_an_offset(b: &mut Bench) -> Verdict {
    b.ask_for_queues(1).await?;
    for offset in [64, 2048] {
        cq_refused(b, cq_of(1, 8), offset, NO_PLACE).await?;
    }
    Ok(())
}

async fn sq_number_zero(b: &mut Bench) -> Verdict {
    b.ask_for_queues(1).await?;
    b.create_cq(1, 8).await?;
    let at = b.pages(1)?;
    let mut sqe = admin::create_sq(b.cid(), at, sq_of(1, 8, 1));
    sqe.cdw10 = (7 << 16).into();
    b.admin_ends(&sqe, NO_ID).await
}

async fn sq_number_too_high(b: &mut Bench) -> Verdict {
    let granted = b.ask_for_queues(1).await?.sqs();
    b.create_cq(1, 8).await?;
    for qid in [granted as u16 + 1, u16::MAX] {
        sq_refused(b, sq_of(qid, 8, 1), 0, NO_ID).await?;
    }
    Ok(())
}

async fn sq_number_in_use(b: &mut Bench) -> Verdict {
    b.ask_for_queues(1).await?;
    b.create_pair(1, 8).await?;
    sq_refused(b, sq_of(1, 8, 1), 0, NO_ID).await
}

async fn sq_of_one_entry(b: &mut Bench) -> Verdict {
    b.ask_for_queues(1).await?;
    b.create_cq(1, 8).await?;
    let at = b.pages(1)?;
    let mut sqe = admin::create_sq(b.cid(), at, sq_of(1, 8, 1));
    sqe.cdw10 = 1.into();
    b.admin_ends(&sqe, NO_SIZE).await
}

async fn sq_too_large(b: &mut Bench) -> Verdict {
    let most = b.cap.queue_entries_max();
    needs!(most < 1 << 16, "a limit below 65,536 entries");
    b.ask_for_queues(1).await?;
    b.create_cq(1, 8).await?;
    sq_refused(b, sq_of(1, most + 1, 1), 0, NO_SIZE).await
}

async fn sq_completion_queue_not_there(b: &mut Bench) -> Verdict {
    b.ask_for_queues(1).await?;
    sq_refused(b, sq_of(1, 8, 1), 0, &[Status::COMPLETION_QUEUE_INVALID]).await
}

/// The status depends on the reading of the valid range, and controllers in the field differ.
const NO_QUEUE: &[Status] = &[Status::INVALID_QUEUE_IDENTIFIER, Status::COMPLETION_QUEUE_INVALID];

async fn sq_completion_queue_of_the_admin(b: &mut Bench) -> Verdict {
    b.ask_for_queues(1).await?;
    let at = b.pages(1)?;
    // The builders cannot form it: CQID is the upper half of CDW11.
    let mut sqe = admin::create_sq(b.cid(), at, sq_of(1, 8, 1));
    sqe.cdw11 = (sqe.cdw11.get() & 0xffff).into();
    b.admin_ends(&sqe, NO_QUEUE).await
}

async fn sq_completion_queue_too_high(b: &mut Bench) -> Verdict {
    let granted = b.ask_for_queues(1).await?.cqs();
    sq_refused(b, sq_of(1, 8, granted as u16 + 1), 0, NO_QUEUE).await
}

async fn sq_in_pieces(b: &mut Bench) -> Verdict {
    needs!(b.cap.cqr(), "CAP.CQR is 0: queues may lie in pieces");
    b.ask_for_queues(1).await?;
    b.create_cq(1, 8).await?;
    let create = CreateSq { contiguous: false, ..sq_of(1, 8, 1) };
    sq_refused(b, create, 0, &[Status::INVALID_FIELD]).await
}

async fn sq_at_an_offset(b: &mut Bench) -> Verdict {
    b.ask_for_queues(1).await?;
    b.create_cq(1, 8).await?;
    for offset in [64, 2048] {
        sq_refused(b, sq_of(1, 8, 1), offset, NO_PLACE).await?;
    }
    Ok(())
}

async fn cq_in_use_stays(b: &mut Bench) -> Verdict {
    let mut pair = b.io().await?;
    let sqe = admin::delete_cq(b.cid(), QueueId(1));
    b.admin_ends(&sqe, &[Status::INVALID_QUEUE_DELETION]).await?;
    b.ok(&mut pair, &flush(b)).await.map(drop)
}

async fn cq_deleted_twice(b: &mut Bench) -> Verdict {
    b.ask_for_queues(1).await?;
    b.create_cq(1, 8).await?;
    b.admin_ok(&admin::delete_cq(b.cid(), QueueId(1))).await?;
    for qid in [1, u16::MAX] {
        b.admin_ends(&admin::delete_cq(b.cid(), QueueId(qid)), NO_ID).await?;
    }
    Ok(())
}

async fn cq_zero_stays(b: &mut Bench) -> Verdict {
    let sqe = admin::delete_cq(b.cid(), QueueId(0));
    b.admin_ends(&sqe, NO_ID).await
}

async fn sq_deleted_twice(b: &mut Bench) -> Verdict {
    b.io().await?;
    b.admin_ok(&admin::delete_sq(b.cid(), QueueId(1))).await?;
    for qid in [1, u16::MAX] {
        b.admin_ends(&admin::delete_sq(b.cid(), QueueId(qid)), NO_ID).await?;
    }
    Ok(())
}

async fn sq_zero_stays(b: &mut Bench) -> Verdict {
    let sqe = admin::delete_sq(b.cid(), QueueId(0));
    b.admin_ends(&sqe, NO_ID).await
}

async fn commands_before_deletion_complete(b: &mut Bench) -> Verdict {
    let mut pair = b.plain_io().await?;
    let blocks = b.blocks_within(64 << 10);
    let at = b.place(u64::from(blocks) * b.block(), b.page_bytes)?;
    for number in 0..20 {
        let data = b.data(at, u64::from(blocks) * b.block())?;
        let lba = Lba(number * u64::from(blocks));
        b.store(&mut pair.sq, &io::read(b.cid(), b.nsid, lba, blocks, false, data));
    }
    b.ring(&pair.sq);
    b.admin_ok(&admin::delete_sq(b.cid(), QueueId(1))).await?;
    // Fetched commands have completed, successfully or as aborted; unfetched ones never will.
    let mut cids = BTreeSet::new();
    while let Some(cqe) = b.peek(&pair.cq, Span::us(100)).await {
        hold!(cids.insert(cqe.id().0), "a second completion of {:?}", cqe.id());
        let status = cqe.status().kind();
        let well = [Status::SUCCESS, Status::ABORTED_SQ_DELETION, Status::ABORT_REQUESTED];
        hold!(well.contains(&status), "{status} as the queue was deleted");
        b.take(&mut pair.cq);
        b.ring_head(&pair.cq);
    }
    b.nothing(&pair.cq, "a completion of a queue that was deleted").await?;
    b.admin_ok(&admin::delete_cq(b.cid(), QueueId(1))).await.map(drop)
}

async fn queues_made_again(b: &mut Bench) -> Verdict {
    needs!(b.nsid != Nsid::NONE, "an active namespace");
    b.ask_for_queues(1).await?;
    for round in 0..6 {
        // Sizes and counts vary, so that stale entries are noticed.
        let mut pair = b.create_pair(1, 6 + round).await?;
        for _ in 0..=2 * round {
            b.ok(&mut pair, &flush(b)).await?;
        }
        b.admin_ok(&admin::delete_sq(b.cid(), QueueId(1))).await?;
        b.admin_ok(&admin::delete_cq(b.cid(), QueueId(1))).await?;
    }
    Ok(())
}

async fn other_queues_go_on(b: &mut Bench) -> Verdict {
    needs!(b.nsid != Nsid::NONE, "an active namespace");
    let granted = b.ask_for_queues(2).await?;
    needs!(granted.sqs() >= 2 && granted.cqs() >= 2, "two pairs of I/O queues");
    let (mut one, mut other) = (b.create_pair(1, 16).await?, b.create_pair(2, 16).await?);
    burst(b, &mut one, 12);
    let cids = burst(b, &mut other, 12);
    b.admin_ok(&admin::delete_sq(b.cid(), QueueId(1))).await?;
    collect(b, &mut other, cids).await?;
    let data = noise(3, 8);
    b.store_bytes(b.pages(1)?, &data);
    let cids = burst(b, &mut other, 12);
    collect(b, &mut other, cids).await
}
