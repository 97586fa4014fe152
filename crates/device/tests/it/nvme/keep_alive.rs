//! Keep Alive, to the millisecond: NVMe base 2.0, 3.9, 5.18 and 5.27.1.12.

use runtime::Span;
use wire::nvme::admin;
use wire::nvme::features::fid;
use wire::nvme::log::{ErrorInformation, lid};
use wire::nvme::registers::{CC, Cc, Csts};
use wire::nvme::status::Status;

use crate::raw::nvme::Settings;
use crate::raw::nvme::world::{World, on_a_bench};

async fn set_timer(w: &mut World, ms: u32) {
    let sqe = admin::set_feature(w.raw.cid(), fid::KEEP_ALIVE_TIMER, ms);
    w.raw.admin_ok(&sqe).await;
}

async fn timer(w: &mut World) -> u32 {
    let sqe = admin::get_feature(w.raw.cid(), fid::KEEP_ALIVE_TIMER);
    w.raw.admin_ok(&sqe).await
}

async fn keep_alive(w: &mut World) {
    let sqe = admin::keep_alive(w.raw.cid());
    w.raw.admin_ok(&sqe).await;
}

/// Checks that the controller still runs 1 ms before `ms`, and has stopped 1 ms after.
async fn expires_after(w: &World, ms: u64) {
    w.raw.rt.sleep(Span::ms(ms - 1)).await;
    assert!(!w.raw.csts().await.cfs(), "{} ms after the host was last heard", ms - 1);
    w.raw.rt.sleep(Span::ms(2)).await;
    assert!(w.raw.csts().await.cfs(), "{} ms after the host was last heard", ms + 1);
}

#[test]
fn keep_alive_timeout_sets_cfs() {
    on_a_bench(async |mut w: World| {
        w.raw.enable(Settings::default()).await;
        // 301 ms rounds up to four units of 100 ms.
        set_timer(&mut w, 301).await;
        assert_eq!(timer(&mut w).await, 400);
        set_timer(&mut w, 400).await;
        expires_after(&w, 400).await;
        w.raw.disable().await;
        assert_eq!(w.raw.csts().await, Csts::new());
        w.raw.enable(Settings::default()).await;
        assert_eq!(timer(&mut w).await, 0, "a reset stops it");
        let entry: ErrorInformation = w.raw.log(lid::ERROR).await;
        assert_eq!(entry.status_and_phase.get() >> 1, Status::KEEP_ALIVE_EXPIRED.bits());
        assert_eq!((entry.sqid.get(), entry.cid.get()), (0xffff, 0xffff));
        w.raw.rt.sleep(Span::s(10)).await;
        assert!(!w.raw.csts().await.cfs());
    });
}

#[test]
fn keep_alive_and_set_features_restart_timer() {
    on_a_bench(async |mut w: World| {
        w.raw.enable(Settings::default()).await;
        keep_alive(&mut w).await;
        set_timer(&mut w, 200).await;
        for _ in 0..10 {
            w.raw.rt.sleep(Span::ms(190)).await;
            keep_alive(&mut w).await;
        }
        set_timer(&mut w, u32::MAX).await;
        assert_eq!(timer(&mut w).await, u32::MAX, "the longest that there is");
        w.raw.rt.sleep(Span::s(1000)).await;
        set_timer(&mut w, 100).await;
        w.raw.rt.sleep(Span::ms(50)).await;
        // Other commands do not restart the timer: TBKAS of CTRATT is clear.
        timer(&mut w).await;
        expires_after(&w, 50).await;
    });
}

#[test]
fn keep_alive_timer_stops_at_zero_and_at_shutdown() {
    on_a_bench(async |mut w: World| {
        w.raw.enable(Settings::default()).await;
        set_timer(&mut w, 100).await;
        set_timer(&mut w, 0).await;
        w.raw.rt.sleep(Span::s(1)).await;
        assert!(!w.raw.csts().await.cfs());
        set_timer(&mut w, 100).await;
        let cc = w.raw.reg(CC).await;
        w.raw.set(CC, Cc::from_bits(cc).with_shn(1).into_bits());
        w.raw.until_csts("shut down", |csts| csts.shst() == Csts::SHST_COMPLETE).await;
        w.raw.rt.sleep(Span::s(1)).await;
        assert!(!w.raw.csts().await.cfs());
    });
}
