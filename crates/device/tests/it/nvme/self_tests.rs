//! Device Self-test and its log: NVMe base 2.0, 5.8 and 5.16.1.7.

use media::MediaError;
use runtime::Span;
use wire::Nsid;
use wire::nvme::admin::{self, FormatNvm, SelfTest};
use wire::nvme::log::{SelfTestLog, lid};
use wire::nvme::status::Status;

use crate::raw::nvme::world::{Setup, World, on_a_bench};
use crate::raw::nvme::{NS, Settings};

async fn log(w: &mut World) -> SelfTestLog {
    w.raw.log(lid::SELF_TEST).await
}

async fn begin(w: &mut World, nsid: Nsid, test: SelfTest) {
    let sqe = admin::self_test(w.raw.cid(), nsid, test);
    w.raw.admin_ok(&sqe).await;
}

async fn ended(w: &mut World) -> SelfTestLog {
    loop {
        let log = log(w).await;
        if log.now == 0 {
            return log;
        }
        w.raw.rt.sleep(Span::us(50)).await;
    }
}

/// The twenty newest results are stored, of all kinds and scopes.
#[test]
fn self_tests_pass_and_log_keeps_20_results() {
    on_a_bench(async |mut w: World| {
        w.raw.up().await;
        let before = log(&mut w).await;
        assert!(before.results.iter().all(|result| result.status == 0xf), "no test yet");
        for (nsid, test, reads) in [
            (NS, SelfTest::Short, 16),
            (Nsid::BROADCAST, SelfTest::Extended, 1024),
            (Nsid::NONE, SelfTest::Short, 0),
        ] {
            w.medium.read.borrow_mut().clear();
            begin(&mut w, nsid, test).await;
            let log = ended(&mut w).await;
            assert_eq!((log.results[0].status, log.percent), ((test as u8) << 4, 0));
            assert_eq!(w.medium.read.borrow().len(), reads, "{test:?}");
        }
        for _ in 0..19 {
            begin(&mut w, Nsid::NONE, SelfTest::Extended).await;
            ended(&mut w).await;
        }
        let log = log(&mut w).await;
        let of = |test: SelfTest| (test as u8) << 4;
        assert!(log.results[..19].iter().all(|one| one.status == of(SelfTest::Extended)));
        assert_eq!(log.results[19].status, of(SelfTest::Short));
    });
}

/// One test at a time; an Abort ends it.
#[test]
fn second_self_test_is_rejected_until_abort() {
    on_a_bench(async |mut w: World| {
        w.raw.up().await;
        w.medium.close();
        begin(&mut w, NS, SelfTest::Extended).await;
        let again = admin::self_test(w.raw.cid(), NS, SelfTest::Short);
        let status = w.raw.admin(&again).await.status();
        assert_eq!(status, Status::SELF_TEST_IN_PROGRESS.with_dnr());
        assert_eq!(log(&mut w).await.now, SelfTest::Extended as u8);
        begin(&mut w, NS, SelfTest::Abort).await;
        let log = log(&mut w).await;
        assert_eq!((log.now, log.results[0].status), (0, 0x21), "aborted by the command");
        begin(&mut w, NS, SelfTest::Abort).await;
        assert_eq!(log.results[1].status, 0xf, "there was nothing to abort");
    });
}

#[test]
fn self_test_reports_failing_lba() {
    on_a_bench(async |mut w: World| {
        w.raw.up().await;
        w.medium.fails_after.set(Some((5, MediaError::Unreadable)));
        begin(&mut w, NS, SelfTest::Short).await;
        let result = ended(&mut w).await.results[0];
        assert_eq!((result.status, result.segment, result.valid), (0x17, 1, 0xf));
        assert_eq!((result.nsid.get(), result.code_type, result.code), (1, 2, 0x81));
        let fifth = w.medium.read.borrow()[5].block;
        assert_eq!(result.failing_lba.get(), fifth);
    });
}

/// A reset ends a short test and not an extended one; a format and a namespace deletion end either.
#[test]
fn reset_format_and_delete_end_self_test() {
    let setup = Setup::default();
    setup.run(async |mut w: World| {
        w.raw.up().await;
        w.medium.witness.replace(None);
        for (test, status) in [(SelfTest::Short, 0x12), (SelfTest::Extended, 0x20)] {
            w.medium.close();
            begin(&mut w, NS, test).await;
            w.raw.disable().await;
            w.raw.enable(Settings::default()).await;
            w.medium.open();
            assert_eq!(ended(&mut w).await.results[0].status, status);
        }
        begin(&mut w, NS, SelfTest::Extended).await;
        w.raw.admin_ok(&admin::format_nvm(w.raw.cid(), NS, FormatNvm::default())).await;
        assert_eq!(ended(&mut w).await.results[0].status, 0x24, "by Format NVM");
        begin(&mut w, Nsid::BROADCAST, SelfTest::Extended).await;
        w.raw.admin_ok(&admin::delete_namespace(w.raw.cid(), NS)).await;
        assert_eq!(ended(&mut w).await.results[0].status, 0x23, "by a namespace's removal");
    });
}
