//! Doorbell Buffer Config: NVMe base 2.0, 5.11.

use wire::BusAddr;
use wire::nvme::identify::oacs;
use wire::nvme::registers::{cq_head_doorbell, sq_tail_doorbell};
use wire::nvme::status::Status;
use wire::nvme::{admin, io};

use crate::bench::{Bench, Pair, Settings};
use crate::case::{Section, cases};
use crate::verdict::{Stop, Verdict, hold, needs};

pub(super) const SECTIONS: &[Section] = &[Section {
    of: "NVMe base 2.0",
    number: "5.11",
    title: "Doorbell Buffer Config",
    cases: cases! {
        None shadows_in_the_middle_of_pages "pages with an offset: Invalid Field";
        None shadows_are_seen "commands are fetched that their shadow tells of, as the host is asked to ring";
        None shadows_and_real_doorbells "a host that rings each time and keeps the shadows too is served";
        None shadows_not_of_the_admin_queue "admin commands by the doorbell alone are carried out";
        None shadows_end_with_a_reset "after a reset nothing is written to the pages";
    },
}];

struct Pages {
    told: BusAddr,
    asked: BusAddr,
}

/// Configures shadow doorbells, and creates a pair of queues.
async fn configured(b: &mut Bench) -> Verdict<(Pages, Pair)> {
    needs!(b.id.oacs.get() & oacs::DOORBELL_BUFFER != 0, "OACS: Doorbell Buffer Config");
    let (told, asked) = (b.pages(1)?, b.pages(1)?);
    for page in [told, asked] {
        b.store_bytes(page, &vec![0; b.page_bytes as usize]);
    }
    let sqe = admin::doorbell_buffers(b.cid(), told, asked);
    b.admin_ok(&sqe).await?;
    Ok((Pages { told, asked }, b.io().await?))
}

impl Pages {
    fn word(&self, b: &Bench, page: BusAddr, doorbell: u32) -> (BusAddr, u32) {
        let at = BusAddr(page.0 + u64::from(doorbell - 0x1000));
        let bytes = b.bytes(at, 4);
        (at, u32::from_le_bytes(bytes.try_into().expect("four bytes")))
    }

    /// Writes a doorbell's shadow, and the doorbell itself if EventIdx demands it or if `always` is true.
    fn tell(&self, b: &Bench, doorbell: u32, new: u32, always: bool) {
        let (at, old) = self.word(b, self.told, doorbell);
        b.store_bytes(at, &new.to_le_bytes());
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        let (_, asked) = self.word(b, self.asked, doorbell);
        let behind = |value: u32| (new as u16).wrapping_sub(value as u16);
        if always || behind(asked).wrapping_sub(1) < behind(old) {
            b.set(doorbell, new);
        }
    }
}

/// Runs flushes through the shadows, several at a time.
async fn through(b: &Bench, pages: &Pages, pair: &mut Pair, always: bool) -> Verdict {
    let stride = b.cap.dstrd();
    for at_once in [1, pair.sq.entries - 1, 2] {
        for _ in 0..20 {
            for _ in 0..at_once {
                b.store(&mut pair.sq, &io::flush(b.cid(), b.nsid));
                pages.tell(b, sq_tail_doorbell(pair.sq.qid, stride), pair.sq.tail, always);
            }
            for _ in 0..at_once {
                let Some(cqe) = b.peek(&pair.cq, crate::bench::PATIENCE).await else {
                    return Stop::failed("a command that its shadow told of does not complete");
                };
                b.take(&mut pair.cq);
                pages.tell(b, cq_head_doorbell(pair.cq.qid, stride), pair.cq.head, always);
                hold!(cqe.status().is_ok(), "{}", cqe.status());
            }
        }
    }
    Ok(())
}

async fn shadows_in_the_middle_of_pages(b: &mut Bench) -> Verdict {
    needs!(b.id.oacs.get() & oacs::DOORBELL_BUFFER != 0, "OACS: Doorbell Buffer Config");
    let page = b.pages(2)?;
    let inside = BusAddr(page.0 + 8);
    for (told, asked) in [(inside, page), (page, inside)] {
        let sqe = admin::doorbell_buffers(b.cid(), told, asked);
        b.admin_ends(&sqe, &[Status::INVALID_FIELD, Status::INVALID_PRP_OFFSET]).await?;
    }
    Ok(())
}

async fn shadows_are_seen(b: &mut Bench) -> Verdict {
    let (pages, mut pair) = configured(b).await?;
    through(b, &pages, &mut pair, false).await
}

async fn shadows_and_real_doorbells(b: &mut Bench) -> Verdict {
    let (pages, mut pair) = configured(b).await?;
    through(b, &pages, &mut pair, true).await
}

async fn shadows_not_of_the_admin_queue(b: &mut Bench) -> Verdict {
    let (pages, mut pair) = configured(b).await?;
    for _ in 0..70 {
        let sqe = admin::get_feature(b.cid(), 1);
        b.admin_ok(&sqe).await?;
    }
    through(b, &pages, &mut pair, false).await
}

async fn shadows_end_with_a_reset(b: &mut Bench) -> Verdict {
    let (pages, mut pair) = configured(b).await?;
    through(b, &pages, &mut pair, false).await?;
    b.disable().await?;
    let mark = vec![0x5a; b.page_bytes as usize];
    for page in [pages.told, pages.asked] {
        b.store_bytes(page, &mark);
    }
    b.enable(Settings::usual()).await?;
    let mut pair = b.io().await?;
    for _ in 0..40 {
        b.ok(&mut pair, &io::flush(b.cid(), b.nsid)).await?;
    }
    for page in [pages.told, pages.asked] {
        hold!(b.bytes(page, mark.len()) == mark, "a page of before the reset was written");
    }
    Ok(())
}
