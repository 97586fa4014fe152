//! Keep Alive and Host Behavior Support: NVMe base 2.0, 3.9, 5.18, 5.27.1.12 and 5.27.1.18.

use runtime::{Span, Time};
use wire::Nsid;
use wire::nvme::admin::{self, Command, Request, Select, SetFeatures};
use wire::nvme::entry::{DataPointer, Sqe};
use wire::nvme::features::{HostBehavior, fid};
use wire::nvme::status::Status;
use zerocopy::IntoBytes;

use crate::bench::{Bench, Settings};
use crate::case::{Section, cases};
use crate::verdict::{Verdict, hold, needs};

const BASE: &str = "NVMe base 2.0";

pub(super) const SECTIONS: &[Section] = &[
    Section {
        of: BASE,
        number: "3.9",
        title: "keep alive",
        cases: cases! {
            None keep_alive_without_a_timer "without a timer Keep Alive is done, and nothing expires";
            None keep_alive_timer_reads_back "KATO is kept, rounded up to the granularity of KAS";
            None keep_alive_timer_is_reset "a controller reset stops the timer";
            None keep_alive_expires "a host that is silent for longer is told of it by CSTS.CFS, not before";
            None keep_alive_begins_anew "Keep Alive puts the expiry off";
            None keep_alive_ends_with_a_reset "after it has expired a reset makes the controller work again";
        },
    },
    Section {
        of: BASE,
        number: "5.27.1.18",
        title: "host behavior support",
        cases: cases! {
            None host_behavior_reads_back "what was set is what is got, until a reset";
            None host_behavior_of_no_sense "a field of 2, or what CTRATT does not have: Invalid Field";
        },
    },
];

/// A timeout unlikely to pass between two commands, in milliseconds.
const LONG_MS: u32 = 3_600_000;

/// A timeout short enough to wait for, in milliseconds.
const SHORT_MS: u32 = 500;

async fn set(b: &mut Bench, ms: u32) -> Verdict {
    let sqe = admin::set_feature(b.cid(), fid::KEEP_ALIVE_TIMER, ms);
    b.admin_ok(&sqe).await.map(drop)
}

async fn get(b: &mut Bench) -> Verdict<u32> {
    let sqe = admin::get_feature(b.cid(), fid::KEEP_ALIVE_TIMER);
    b.admin_ok(&sqe).await
}

/// The timeout, rounded up to the controller's granularity (KAS).
fn rounded(b: &Bench, ms: u32) -> u32 {
    ms.next_multiple_of(100 * u32::from(b.id.kas.get()))
}

async fn keep_alive_without_a_timer(b: &mut Bench) -> Verdict {
    needs!(b.id.kas.get() > 0, "a Keep Alive Timer (KAS)");
    let found = get(b).await?;
    hold!(found == 0, "KATO is {found} ms, and no command has set it");
    b.admin_ok(&admin::keep_alive(b.cid())).await?;
    b.pause(Span::ms(5)).await;
    hold!(!b.csts().await.cfs(), "CSTS.CFS is set");
    b.admin_ok(&admin::keep_alive(b.cid())).await.map(drop)
}

async fn keep_alive_timer_reads_back(b: &mut Bench) -> Verdict {
    needs!(b.id.kas.get() > 0, "a Keep Alive Timer (KAS)");
    for ms in [LONG_MS, LONG_MS + 1, 0] {
        set(b, ms).await?;
        let (found, expected) = (get(b).await?, rounded(b, ms));
        hold!(found == expected, "KATO is {found} ms, set to {ms} ms: expected {expected} ms");
    }
    Ok(())
}

async fn keep_alive_timer_is_reset(b: &mut Bench) -> Verdict {
    needs!(b.id.kas.get() > 0, "a Keep Alive Timer (KAS)");
    set(b, SHORT_MS).await?;
    b.disable().await?;
    b.enable(Settings::usual()).await?;
    let found = get(b).await?;
    hold!(found == 0, "KATO is {found} ms after a reset");
    let ms = rounded(b, SHORT_MS);
    b.pause(Span::ms(u64::from(ms) + 100)).await;
    hold!(!b.csts().await.cfs(), "a timer that was set before a reset has expired after it");
    Ok(())
}

/// Waits until the controller has stopped: not before the host was silent for `ms` since `since`.
async fn expires(b: &mut Bench, since: Time, ms: u32) -> Verdict {
    let silent = loop {
        let stopped = b.csts().await.cfs();
        let silent = b.now().since(since);
        if stopped {
            break silent;
        }
        let most = Span::ms(u64::from(ms)) + Span::s(30);
        hold!(silent <= most, "CSTS.CFS is not set after {silent} of silence, KATO is {ms} ms");
        b.pause(Span::ms(1)).await;
    };
    hold!(silent >= Span::ms(ms.into()), "expired after {silent} of silence, KATO is {ms} ms");
    Ok(())
}

async fn keep_alive_expires(b: &mut Bench) -> Verdict {
    needs!(b.id.kas.get() > 0, "a Keep Alive Timer (KAS)");
    let (since, ms) = (b.now(), rounded(b, SHORT_MS));
    set(b, ms).await?;
    expires(b, since, ms).await
}

async fn keep_alive_begins_anew(b: &mut Bench) -> Verdict {
    needs!(b.id.kas.get() > 0, "a Keep Alive Timer (KAS)");
    let ms = rounded(b, 4 * SHORT_MS);
    let begun = b.now();
    set(b, ms).await?;
    b.pause(Span::ms(u64::from(ms / 2))).await;
    let since = b.now();
    needs!(since.since(begun) < Span::ms(u64::from(ms) * 3 / 4), "a host that keeps its pace");
    b.admin_ok(&admin::keep_alive(b.cid())).await?;
    expires(b, since, ms).await
}

async fn keep_alive_ends_with_a_reset(b: &mut Bench) -> Verdict {
    needs!(b.id.kas.get() > 0, "a Keep Alive Timer (KAS)");
    let (since, ms) = (b.now(), rounded(b, 1));
    set(b, ms).await?;
    expires(b, since, ms).await?;
    b.disable().await?;
    b.enable(Settings::usual()).await?;
    b.pause(Span::ms(u64::from(ms) + 100)).await;
    hold!(!b.csts().await.cfs(), "CSTS.CFS is set again after a reset");
    b.admin_ok(&admin::keep_alive(b.cid())).await.map(drop)
}

fn behavior(b: &Bench, data: DataPointer, set: bool) -> Sqe {
    let fid = fid::HOST_BEHAVIOR;
    let command = match set {
        true => Command::SetFeatures(SetFeatures { fid, ..SetFeatures::default() }),
        false => Command::GetFeatures { fid, select: Select::Current, cdw11: 0 },
    };
    Request { cid: b.cid(), nsid: Nsid::NONE, data, command }.to_sqe()
}

/// True if the controller has the feature: it is optional, and Identify does not report it.
async fn knows_of_behavior(b: &mut Bench) -> Verdict<bool> {
    let to = b.pages(1)?;
    let sqe = behavior(b, b.data(to, 512)?, false);
    Ok(b.admin(&sqe).await?.status().is_ok())
}

async fn host_behavior_reads_back(b: &mut Bench) -> Verdict {
    needs!(knows_of_behavior(b).await?, "Host Behavior Support");
    let (from, to) = (b.pages(1)?, b.pages(1)?);
    for acre in [1, 0, 1] {
        let wanted = HostBehavior { acre, ..HostBehavior::NONE };
        b.store_bytes(from, wanted.as_bytes());
        let sqe = behavior(b, b.data(from, 512)?, true);
        b.admin_ok(&sqe).await?;
        let sqe = behavior(b, b.data(to, 512)?, false);
        b.admin_ok(&sqe).await?;
        let found = b.bytes(to, 512);
        hold!(found == wanted.as_bytes(), "{:02x?}, set to ACRE {acre}", &found[..8]);
    }
    b.disable().await?;
    b.enable(Settings::usual()).await?;
    let sqe = behavior(b, b.data(to, 512)?, false);
    b.admin_ok(&sqe).await?;
    hold!(b.bytes(to, 512) == [0; 512], "ACRE is set after a reset");
    Ok(())
}

async fn host_behavior_of_no_sense(b: &mut Bench) -> Verdict {
    needs!(knows_of_behavior(b).await?, "Host Behavior Support");
    let from = b.pages(1)?;
    let none = HostBehavior::NONE;
    let mut wrong = vec![HostBehavior { acre: 2, ..none }, HostBehavior { etdas: 2, ..none }];
    if b.id.ctratt.get() & 1 << 15 == 0 {
        wrong.push(HostBehavior { lbafee: 1, ..none });
    }
    for said in wrong {
        b.store_bytes(from, said.as_bytes());
        let sqe = behavior(b, b.data(from, 512)?, true);
        b.admin_ends(&sqe, &[Status::INVALID_FIELD]).await?;
    }
    b.store_bytes(from, &[0x55; 512]);
    let sqe = behavior(b, b.data(from, 512)?, false);
    b.admin_ok(&sqe).await?;
    hold!(b.bytes(from, 512) == [0; 512], "something is set after refusals");
    Ok(())
}
