//! Resets: NVMe base 2.0, 3.7.

use runtime::Span;
use wire::nvme::admin;
use wire::nvme::identify::cns;
use wire::nvme::io;
use wire::nvme::registers::{ACQ, AQA, ASQ, CC, cq_head_doorbell, sq_tail_doorbell};
use wire::{Lba, Nsid, QueueId};

use crate::bench::{Bench, Settings, noise};
use crate::case::{Section, cases};
use crate::verdict::{Verdict, hold, needs};

pub(super) const SECTIONS: &[Section] = &[Section {
    of: "NVMe base 2.0",
    number: "3.7",
    title: "resets",
    cases: cases! {
        None admin_queue_properties_survive "a controller reset leaves AQA, ASQ and ACQ as they are";
        None cc_is_cleared_by_nothing_but_the_host "CC reads zero after the host has written zero";
        None reset_with_io_in_flight "a reset amid I/O comes to its end, and the controller works again";
        None nothing_is_written_after_reset "once RDY is 0, host memory is the host's again";
        None reset_with_event_requests "held event requests are forgotten by a reset";
        None io_queues_are_gone "a reset deletes all I/O queues";
        None doorbells_begin_at_zero "a queue made after a reset begins at its start";
        None same_tail_after_a_reset "a doorbell's value of before a reset counts after it as any other";
        None cut_commands_never_complete "commands cut by a reset have no completion after it";
        None twenty_resets_in_a_row "twenty resets in a row, with a command in each life";
        None reset_before_ready "CC.EN cleared before RDY came: the controller goes off, and comes back";
        Writes data_survive_a_reset "what was written and completed is there after a reset";
        None reset_with_full_completion_queue "a reset while commands wait for room in a full queue";
        None reset_mid_admin_command "a reset amid an admin command comes to its end";
    },
}];

async fn again(b: &mut Bench) -> Verdict {
    b.disable().await?;
    b.enable(Settings::usual()).await
}

async fn admin_queue_properties_survive(b: &mut Bench) -> Verdict {
    let before = (b.reg(AQA).await, b.reg64(ASQ).await, b.reg64(ACQ).await);
    b.disable().await?;
    let after = (b.reg(AQA).await, b.reg64(ASQ).await, b.reg64(ACQ).await);
    hold!(before == after, "{after:#x?} after a reset, {before:#x?} before");
    Ok(())
}

async fn cc_is_cleared_by_nothing_but_the_host(b: &mut Bench) -> Verdict {
    b.disable().await?;
    let cc = b.reg(CC).await;
    hold!(cc == 0, "CC is {cc:#x}");
    Ok(())
}

/// Submits reads of some length into memory of their own, as many as fit the queue; returns the address and
/// length of that memory.
async fn load(b: &mut Bench) -> Verdict<(wire::BusAddr, usize)> {
    let mut pair = b.plain_io().await?;
    let blocks = b.blocks_within(32 << 10).min(b.ns.nsze.get().min(1 << 16) as u32);
    let bytes = u64::from(blocks) * b.block();
    let at = b.place(bytes * 40, b.page_bytes)?;
    for number in 0..40 {
        let to = wire::BusAddr(at.0 + number * bytes);
        let sqe = io::read(b.cid(), b.nsid, Lba(0), blocks, false, b.data(to, bytes)?);
        b.store(&mut pair.sq, &sqe);
    }
    b.ring(&pair.sq);
    Ok((at, (bytes * 40) as usize))
}

async fn reset_with_io_in_flight(b: &mut Bench) -> Verdict {
    for delay in [0, 1, 5, 20, 100] {
        load(b).await?;
        b.pause(Span::us(delay)).await;
        again(b).await?;
        let mut pair = b.plain_io().await?;
        b.read(&mut pair, 0, 1).await?;
        again(b).await?;
    }
    Ok(())
}

async fn nothing_is_written_after_reset(b: &mut Bench) -> Verdict {
    let (at, bytes) = load(b).await?;
    b.pause(Span::us(3)).await;
    b.disable().await?;
    let filled = vec![0xa5; bytes];
    b.store_bytes(at, &filled);
    let queues = (b.admin.cq.at, 16 * b.admin.cq.entries as usize);
    let completions = b.bytes(queues.0, queues.1);
    b.pause(Span::ms(10)).await;
    hold!(b.bytes(at, bytes) == filled, "data arrived while CSTS.RDY was 0");
    hold!(b.bytes(queues.0, queues.1) == completions, "a completion while CSTS.RDY was 0");
    Ok(())
}

async fn reset_with_event_requests(b: &mut Bench) -> Verdict {
    let mut sq = b.admin.sq;
    b.submit(&mut sq, &admin::async_event_request(b.cid()));
    b.admin.sq = sq;
    b.identify_beside(1).await?;
    again(b).await?;
    b.nothing(&b.admin.cq, "a completion of a request made before the reset").await?;
    b.identify(Nsid::NONE, cns::CONTROLLER).await.map(drop)
}

async fn io_queues_are_gone(b: &mut Bench) -> Verdict {
    b.io().await?;
    again(b).await?;
    // If they still existed, their numbers would be in use.
    b.io().await.map(drop)
}

async fn doorbells_begin_at_zero(b: &mut Bench) -> Verdict {
    let mut pair = b.io().await?;
    for _ in 0..5 {
        b.ok(&mut pair, &io::flush(b.cid(), b.nsid)).await?;
    }
    b.disable().await?;
    for register in [sq_tail_doorbell, cq_head_doorbell] {
        b.set(register(QueueId(1), b.cap.dstrd()), 7);
    }
    b.enable(Settings::usual()).await?;
    let mut pair = b.io().await?;
    b.nothing(&pair.cq, "a completion before any command").await?;
    b.ok(&mut pair, &io::flush(b.cid(), b.nsid)).await.map(drop)
}

/// A controller that detects changed doorbell words sees no change here, unless it forgets them at a reset.
async fn same_tail_after_a_reset(b: &mut Bench) -> Verdict {
    for _ in 0..3 {
        let mut pair = b.io().await?;
        for _ in 0..5 {
            b.store(&mut pair.sq, &io::flush(b.cid(), b.nsid));
        }
        b.ring(&pair.sq);
        for _ in 0..5 {
            let status = b.next(&mut pair.cq).await?.status();
            hold!(status.is_ok(), "a flush: {status}, expected success");
        }
        again(b).await?;
    }
    Ok(())
}

async fn cut_commands_never_complete(b: &mut Bench) -> Verdict {
    for delay in [0, 3, 20] {
        load(b).await?;
        b.pause(Span::us(delay)).await;
        again(b).await?;
        let mut pair = b.plain_io().await?;
        b.nothing(&pair.cq, "a completion of a command from before the reset").await?;
        b.ok(&mut pair, &io::flush(b.cid(), b.nsid)).await?;
        b.nothing(&pair.cq, "a completion of a command from before the reset").await?;
        again(b).await?;
    }
    Ok(())
}

async fn twenty_resets_in_a_row(b: &mut Bench) -> Verdict {
    for _ in 0..20 {
        again(b).await?;
        b.identify(Nsid::NONE, cns::CONTROLLER).await?;
    }
    Ok(())
}

async fn reset_before_ready(b: &mut Bench) -> Verdict {
    for _ in 0..5 {
        b.disable().await?;
        b.start(Settings::usual())?;
        b.disable().await?;
    }
    b.enable(Settings::usual()).await?;
    b.identify(Nsid::NONE, cns::CONTROLLER).await.map(drop)
}

async fn data_survive_a_reset(b: &mut Bench) -> Verdict {
    let mut pair = b.plain_io().await?;
    let data = noise(2, 16 * b.block());
    b.write(&mut pair, 11, &data).await?;
    again(b).await?;
    let mut pair = b.plain_io().await?;
    b.holds(&mut pair, 11, &data).await
}

async fn reset_with_full_completion_queue(b: &mut Bench) -> Verdict {
    needs!(b.nsid != Nsid::NONE, "an active namespace");
    b.ask_for_queues(1).await?;
    b.create_cq(1, 2).await?;
    let mut sq = b.create_sq(1, 16, 1).await?;
    for _ in 0..15 {
        b.store(&mut sq, &io::flush(b.cid(), b.nsid));
    }
    b.ring(&sq);
    b.pause(Span::ms(1)).await;
    again(b).await?;
    let mut pair = b.io().await?;
    b.ok(&mut pair, &io::flush(b.cid(), b.nsid)).await.map(drop)
}

async fn reset_mid_admin_command(b: &mut Bench) -> Verdict {
    for delay in [0, 1, 2, 5] {
        let at = b.pages(1)?;
        let mut sq = b.admin.sq;
        for _ in 0..8 {
            let data = b.data(at, 4096)?;
            b.store(&mut sq, &admin::identify(b.cid(), Nsid::NONE, cns::CONTROLLER, data));
        }
        b.ring(&sq);
        b.pause(Span::us(delay)).await;
        again(b).await?;
    }
    b.identify(Nsid::NONE, cns::CONTROLLER).await.map(drop)
}
