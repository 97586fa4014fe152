//! Device Self-test and its log page: NVMe base 2.0, 5.8 and 5.16.1.7.

use runtime::Span;
use wire::Nsid;
use wire::nvme::admin::{self, SelfTest};
use wire::nvme::identify::oacs;
use wire::nvme::log::{SelfTestLog, lid};
use wire::nvme::status::Status;
use zerocopy::FromBytes;

use crate::bench::Bench;
use crate::case::{Section, cases};
use crate::verdict::{Stop, Verdict, hold, needs};

const BASE: &str = "NVMe base 2.0";

/// Log reads during a short self-test: two minutes (5.8.1), plus a margin for a busy machine.
const LOOKS: u32 = 3_000;
const LOOK: Span = Span::ms(50);

pub(super) const SECTIONS: &[Section] = &[
    Section {
        of: BASE,
        number: "5.8",
        title: "Device Self-test",
        cases: cases! {
            None self_test_of_reserved_code "a reserved STC: Invalid Field";
            None self_test_of_no_namespace "of a namespace above NN: Invalid Namespace or Format";
            None self_test_abort_of_nothing "an abort where no test runs: success";
            None self_test_ends "a short test of the controller ends, and is the newest result";
            None self_test_one_at_a_time "a second test while one runs: Device Self-test In Progress";
            None self_test_aborted "an aborted test is over, and its result says so, or it had ended";
        },
    },
    Section {
        of: BASE,
        number: "5.16.1.7",
        title: "device self-test log",
        cases: cases! {
            None self_test_log_is_of_sense "564 bytes: no operation at rest, results of known codes";
        },
    },
];

fn testing(b: &Bench) -> Verdict {
    needs!(b.id.oacs.get() & oacs::SELF_TEST != 0, "OACS: Device Self-test");
    Ok(())
}

async fn log(b: &mut Bench) -> Verdict<SelfTestLog> {
    let bytes = b.log(lid::SELF_TEST, size_of::<SelfTestLog>() as u64).await?;
    Ok(SelfTestLog::read_from_bytes(&bytes).expect("its length"))
}

async fn begin(b: &mut Bench, test: SelfTest) -> Verdict {
    let sqe = admin::self_test(b.cid(), Nsid::NONE, test);
    b.admin_ok(&sqe).await.map(drop)
}

async fn ended(b: &mut Bench) -> Verdict<SelfTestLog> {
    for _ in 0..LOOKS {
        let log = log(b).await?;
        if log.now & 0xf == 0 {
            return Ok(log);
        }
        b.pause(LOOK).await;
    }
    Stop::failed("a short self-test does not end")
}

async fn self_test_of_reserved_code(b: &mut Bench) -> Verdict {
    testing(b)?;
    for code in [0, 3, 4, 0xd, 0xe] {
        let mut sqe = admin::self_test(b.cid(), Nsid::NONE, SelfTest::Short);
        sqe.cdw10 = code.into();
        b.admin_ends(&sqe, &[Status::INVALID_FIELD]).await?;
    }
    Ok(())
}

async fn self_test_of_no_namespace(b: &mut Bench) -> Verdict {
    testing(b)?;
    let nowhere = b.id.nn.get().saturating_add(1);
    needs!(nowhere < u32::MAX - 1, "a namespace identifier above NN");
    let sqe = admin::self_test(b.cid(), Nsid(nowhere), SelfTest::Short);
    b.admin_ends(&sqe, &[Status::INVALID_NAMESPACE_OR_FORMAT]).await
}

async fn self_test_abort_of_nothing(b: &mut Bench) -> Verdict {
    testing(b)?;
    begin(b, SelfTest::Abort).await?;
    begin(b, SelfTest::Abort).await
}

async fn self_test_ends(b: &mut Bench) -> Verdict {
    testing(b)?;
    begin(b, SelfTest::Abort).await?;
    begin(b, SelfTest::Short).await?;
    let newest = ended(b).await?.results[0].status;
    hold!(newest == 0x10, "the newest result is {newest:#x}, expected a short test without error");
    Ok(())
}

async fn self_test_one_at_a_time(b: &mut Bench) -> Verdict {
    testing(b)?;
    begin(b, SelfTest::Abort).await?;
    // Both with one doorbell: the first may have ended nevertheless.
    let mut pair = b.admin;
    for _ in 0..2 {
        let sqe = admin::self_test(b.cid(), Nsid::BROADCAST, SelfTest::Extended);
        b.store(&mut pair.sq, &sqe);
    }
    b.ring(&pair.sq);
    let mut refused = 0;
    for _ in 0..2 {
        let status = b.next(&mut pair.cq).await?.status();
        let busy = status.kind() == Status::SELF_TEST_IN_PROGRESS;
        hold!(busy || status.is_ok(), "{status}");
        refused += u32::from(busy);
    }
    b.admin = pair;
    begin(b, SelfTest::Abort).await?;
    hold!(refused == 1, "{refused} of two tests at once were refused");
    Ok(())
}

async fn self_test_aborted(b: &mut Bench) -> Verdict {
    testing(b)?;
    begin(b, SelfTest::Abort).await?;
    let sqe = admin::self_test(b.cid(), Nsid::BROADCAST, SelfTest::Extended);
    b.admin_ok(&sqe).await?;
    begin(b, SelfTest::Abort).await?;
    let newest = ended(b).await?.results[0].status;
    hold!([0x21, 0x20].contains(&newest), "the newest result is {newest:#x}");
    Ok(())
}

async fn self_test_log_is_of_sense(b: &mut Bench) -> Verdict {
    testing(b)?;
    begin(b, SelfTest::Abort).await?;
    let log = log(b).await?;
    hold!(log.now & 0xf == 0, "operation {:#x} at rest", log.now);
    for result in &log.results {
        let (code, how) = (result.status >> 4, result.status & 0xf);
        let unused = how == 0xf;
        let known = [1, 2, 0xe].contains(&code) && how <= 9;
        hold!(unused || known, "a result of {:#x}", result.status);
    }
    Ok(())
}
