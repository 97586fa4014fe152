//! Abort and asynchronous events: NVMe base 2.0, 5.1 and 5.2.

use runtime::Span;
use wire::nvme::admin;
use wire::nvme::event::AsyncEvent;
use wire::nvme::io;
use wire::nvme::log::lid;
use wire::nvme::registers::sq_tail_doorbell;
use wire::nvme::status::Status;
use wire::{CommandId, Lba, QueueId};

use crate::bench::Bench;
use crate::case::{Section, cases};
use crate::verdict::{Stop, Verdict, hold, needs};

const BASE: &str = "NVMe base 2.0";

pub(super) const SECTIONS: &[Section] = &[
    Section {
        of: BASE,
        number: "5.1",
        title: "Abort",
        cases: cases! {
            None abort_of_nothing "of a command that there is not: success, and bit 0 of dword 0 is 1";
            None abort_of_another_queue
                "of a queue that there is not: success or Invalid Field, not aborted";
            None abort_completes_both
                "the command and the Abort both complete, the command first if it was aborted";
            None aborts_up_to_the_limit "ACL + 1 Aborts at once all complete";
            None aborts_beyond_the_limit
                "more than that: each completes, the rest with Abort Command Limit Exceeded";
            None abort_of_an_event_request
                "of a held event request: both complete, or it is not aborted";
        },
    },
    Section {
        of: BASE,
        number: "5.2",
        title: "Asynchronous Event Request",
        cases: cases! {
            None event_requests_are_held "a request without an event is held, and holds nothing else up";
            None event_requests_up_to_the_limit "AERL + 1 requests are held at once";
            None event_requests_beyond_the_limit "one more: Asynchronous Event Request Limit Exceeded";
            None bad_doorbell_is_an_event "a tail past the queue's end: Invalid Doorbell Write Value";
            None one_event_one_request "one event completes one request";
            None event_is_silent_until_its_log_is_read
                "the next event of its kind waits until the log page was read";
            None event_before_its_request "what happened while no request was held is told to the next one";
            None event_is_kept_silent "a log page read with RAE set leaves its event silent";
            None queue_works_after_a_bad_doorbell "a tail of sense after one of none: the queue works";
        },
    },
];

async fn abort_of_nothing(b: &mut Bench) -> Verdict {
    b.io().await?;
    let sqe = admin::abort(b.cid(), QueueId(1), CommandId(0x7777));
    let result = b.admin_ok(&sqe).await?;
    hold!(result & 1 == 1, "dword 0 is {result:#x}: aborted");
    Ok(())
}

async fn abort_of_another_queue(b: &mut Bench) -> Verdict {
    let sqe = admin::abort(b.cid(), QueueId(0x7777), CommandId(1));
    let cqe = b.admin(&sqe).await?;
    let not_aborted = cqe.status().is_ok() && cqe.dw0.get() & 1 == 1;
    let refused = cqe.status().kind() == Status::INVALID_FIELD;
    hold!(not_aborted || refused, "{}, dword 0 {:#x}", cqe.status(), cqe.dw0.get());
    Ok(())
}

async fn abort_completes_both(b: &mut Bench) -> Verdict {
    let mut pair = b.plain_io().await?;
    let blocks = b.blocks_within(1 << 20).min(b.ns.nsze.get().min(1 << 16) as u32);
    let bytes = u64::from(blocks) * b.block();
    let at = b.place(bytes, b.page_bytes)?;
    for delay in [0, 1, 3, 10, 50] {
        let read = io::read(b.cid(), b.nsid, Lba(0), blocks, false, b.data(at, bytes)?);
        b.submit(&mut pair.sq, &read);
        b.pause(Span::us(delay)).await;
        let abort = admin::abort(b.cid(), QueueId(1), read.id());
        let result = b.admin_ok(&abort).await?;
        let aborted = result & 1 == 0;
        // Aborted or not, it completes.
        let cqe = b.next(&mut pair.cq).await?;
        hold!(cqe.id() == read.id(), "a completion of {:?}, expected {:?}", cqe.id(), read.id());
        let status = cqe.status().kind();
        let well = [Status::SUCCESS, Status::ABORT_REQUESTED].contains(&status);
        hold!(well, "an aborted command ends with {status}");
        hold!(aborted || status == Status::SUCCESS, "not aborted, and ends with {status}");
    }
    Ok(())
}

/// Submits `aborts` Aborts of an absent command with one doorbell; returns how many ended with the limit
/// exceeded.
async fn aborts_at_once(b: &mut Bench, aborts: u32) -> Verdict<u32> {
    let mut pair = b.admin;
    for _ in 0..aborts {
        let sqe = admin::abort(b.cid(), QueueId(0), CommandId(0x7777));
        b.store(&mut pair.sq, &sqe);
    }
    b.ring(&pair.sq);
    let mut exceeded = 0;
    for _ in 0..aborts {
        let cqe = b.next(&mut pair.cq).await?;
        let limit = cqe.status().kind() == Status::ABORT_LIMIT_EXCEEDED;
        hold!(limit || cqe.status().is_ok(), "an Abort of nothing ends with {}", cqe.status());
        exceeded += u32::from(limit);
    }
    b.admin = pair;
    Ok(exceeded)
}

async fn aborts_up_to_the_limit(b: &mut Bench) -> Verdict {
    let exceeded = aborts_at_once(b, u32::from(b.id.acl).min(29) + 1).await?;
    hold!(exceeded == 0, "{exceeded} Aborts exceed the limit that ACL states");
    Ok(())
}

async fn aborts_beyond_the_limit(b: &mut Bench) -> Verdict {
    let most = u32::from(b.id.acl) + 1;
    needs!(most <= 15, "an admin queue twice as long as ACL");
    // The controller decides how many it executes at once: each of them ends in either way.
    aborts_at_once(b, 2 * most).await?;
    b.ask_what_it_is().await
}

/// Submits `number` event requests one by one; returns their identifiers.
fn requests(b: &mut Bench, number: u32) -> Vec<CommandId> {
    let mut sq = b.admin.sq;
    let cids: Vec<CommandId> = (0..number)
        .map(|_| {
            let sqe = admin::async_event_request(b.cid());
            b.submit(&mut sq, &sqe);
            sqe.id()
        })
        .collect();
    b.admin.sq = sq;
    cids
}

fn limit(b: &Bench) -> u32 {
    u32::from(b.id.aerl) + 1
}

async fn abort_of_an_event_request(b: &mut Bench) -> Verdict {
    let cids = requests(b, 1);
    let abort = admin::abort(b.cid(), QueueId(0), cids[0]);
    let mut pair = b.admin;
    b.submit(&mut pair.sq, &abort);
    let first = b.next(&mut pair.cq).await?;
    if first.id() == abort.id() && first.dw0.get() & 1 == 1 {
        b.admin = pair;
        return b.identify_beside(1).await;
    }
    let second = b.next(&mut pair.cq).await?;
    b.admin = pair;
    let both = [first.id(), second.id()];
    hold!(both.contains(&abort.id()) && both.contains(&cids[0]), "completions of {both:?}");
    Ok(())
}

async fn event_requests_are_held(b: &mut Bench) -> Verdict {
    requests(b, 1);
    for _ in 0..5 {
        b.identify_beside(1).await?;
    }
    b.nothing(&b.admin.cq, "an event request completes, and nothing has happened").await
}

async fn event_requests_up_to_the_limit(b: &mut Bench) -> Verdict {
    let most = limit(b);
    needs!(most <= 28, "an admin queue longer than AERL");
    requests(b, most);
    b.identify_beside(most).await?;
    b.nothing(&b.admin.cq, "an event request completes, and nothing has happened").await
}

async fn event_requests_beyond_the_limit(b: &mut Bench) -> Verdict {
    let most = limit(b);
    needs!(most <= 28, "an admin queue longer than AERL");
    requests(b, most);
    b.identify_beside(most).await?;
    let sqe = admin::async_event_request(b.cid());
    let mut pair = b.admin;
    b.submit(&mut pair.sq, &sqe);
    let cqe = b.next(&mut pair.cq).await?;
    b.admin = pair;
    hold!(cqe.status().kind() == Status::AER_LIMIT_EXCEEDED, "{}", cqe.status());
    Ok(())
}

/// Writes a value past the end of the first I/O queue to its tail doorbell.
fn bad_doorbell(b: &Bench, value: u32) {
    b.set(sq_tail_doorbell(QueueId(1), b.cap.dstrd()), value);
}

/// The event of a bad doorbell, if this controller reports it.
async fn told(b: &mut Bench) -> Verdict<AsyncEvent> {
    let Some(cqe) = b.peek(&b.admin.cq, Span::s(1)).await else {
        // 5.2.1: these events are optional, as a controller need not check.
        return Stop::lacks("an event for a doorbell value of no sense");
    };
    let mut cq = b.admin.cq;
    b.take(&mut cq);
    b.ring_head(&cq);
    b.admin.cq = cq;
    hold!(cqe.status().is_ok(), "an event request ends with {}", cqe.status());
    Ok(AsyncEvent::from_bits(cqe.dw0.get()))
}

async fn bad_doorbell_is_an_event(b: &mut Bench) -> Verdict {
    let pair = b.io().await?;
    requests(b, 1);
    bad_doorbell(b, pair.sq.entries + 5);
    let event = told(b).await?;
    let expected = AsyncEvent::INVALID_DOORBELL_VALUE;
    hold!(event == expected, "{event:?}, expected {expected:?}");
    Ok(())
}

async fn one_event_one_request(b: &mut Bench) -> Verdict {
    needs!(limit(b) >= 2, "two event requests at once");
    let pair = b.io().await?;
    requests(b, 2);
    bad_doorbell(b, pair.sq.entries + 5);
    told(b).await?;
    b.nothing(&b.admin.cq, "a second request completes for one event").await
}

async fn event_is_silent_until_its_log_is_read(b: &mut Bench) -> Verdict {
    needs!(limit(b) >= 2, "two event requests at once");
    let pair = b.io().await?;
    requests(b, 1);
    bad_doorbell(b, pair.sq.entries + 5);
    told(b).await?;
    requests(b, 1);
    bad_doorbell(b, pair.sq.tail);
    b.pause(Span::ms(1)).await;
    bad_doorbell(b, pair.sq.entries + 9);
    b.nothing(&b.admin.cq, "a second event before the log page was read").await?;
    // The first completion must be the log page command's, not the event request's.
    let at = b.pages(1)?;
    let sqe = admin::get_log_page(b.cid(), lid::ERROR, 64, b.data(at, 64)?);
    let mut admin = b.admin;
    b.submit(&mut admin.sq, &sqe);
    let cqe = b.next(&mut admin.cq).await?;
    b.admin = admin;
    hold!(cqe.id() == sqe.id() && cqe.status().is_ok(), "{cqe:?}");
    bad_doorbell(b, pair.sq.tail);
    b.pause(Span::ms(1)).await;
    bad_doorbell(b, pair.sq.entries + 13);
    let Some(cqe) = b.peek(&b.admin.cq, Span::s(1)).await else {
        return Stop::failed("no event after the log page was read");
    };
    hold!(cqe.status().is_ok(), "{}", cqe.status());
    Ok(())
}

async fn event_before_its_request(b: &mut Bench) -> Verdict {
    let pair = b.io().await?;
    bad_doorbell(b, pair.sq.entries + 5);
    b.pause(Span::ms(1)).await;
    let asked = requests(b, 1);
    let Some(cqe) = b.peek(&b.admin.cq, Span::s(1)).await else {
        return Stop::lacks("an event for a doorbell value of no sense");
    };
    hold!(cqe.id() == asked[0], "a completion of {:?}", cqe.id());
    let event = told(b).await?;
    hold!(event == AsyncEvent::INVALID_DOORBELL_VALUE, "{event:?}");
    Ok(())
}

async fn event_is_kept_silent(b: &mut Bench) -> Verdict {
    needs!(limit(b) >= 2, "two event requests at once");
    let pair = b.io().await?;
    requests(b, 1);
    bad_doorbell(b, pair.sq.entries + 5);
    told(b).await?;
    requests(b, 1);
    let at = b.pages(1)?;
    let mut sqe = admin::get_log_page(b.cid(), lid::ERROR, 64, b.data(at, 64)?);
    sqe.cdw10 = (sqe.cdw10.get() | 1 << 15).into();
    let mut admin = b.admin;
    b.submit(&mut admin.sq, &sqe);
    let cqe = b.next(&mut admin.cq).await?;
    b.admin = admin;
    hold!(cqe.id() == sqe.id() && cqe.status().is_ok(), "{cqe:?}");
    bad_doorbell(b, pair.sq.tail);
    b.pause(Span::ms(1)).await;
    bad_doorbell(b, pair.sq.entries + 9);
    b.nothing(&b.admin.cq, "an event after its page was read with RAE").await
}

async fn queue_works_after_a_bad_doorbell(b: &mut Bench) -> Verdict {
    let mut pair = b.io().await?;
    bad_doorbell(b, pair.sq.entries);
    b.pause(Span::us(100)).await;
    bad_doorbell(b, u32::MAX);
    b.pause(Span::us(100)).await;
    needs!(b.csts().await.rdy(), "a controller that ignores bad doorbells");
    b.ok(&mut pair, &io::flush(b.cid(), b.nsid)).await.map(drop)
}
