//! Sanitize and its log: NVMe base 2.0, 5.24, 5.16.1.25 and 8.21.

use media::{Labels, MediaError};
use runtime::Span;
use wire::nvme::admin::{self, FormatNvm, Sanitize, SanitizeAction, SelfTest};
use wire::nvme::event::AsyncEvent;
use wire::nvme::io;
use wire::nvme::log::{SanitizeStatus, lid};
use wire::nvme::status::Status;
use wire::{Lba, Nsid};

use crate::raw::nvme::world::{Setup, World};
use crate::raw::nvme::{NS, PATIENCE, Settings, pattern};

/// Small, so that sixteen overwrite passes are quick.
fn small() -> Setup {
    Setup { blocks: 1024, sanitizes: true, ..Setup::default() }
}

pub(crate) async fn log(w: &mut World) -> SanitizeStatus {
    w.raw.log(lid::SANITIZE).await
}

pub(crate) async fn ask(w: &mut World, sanitize: Sanitize) -> Status {
    let sqe = admin::sanitize(w.raw.cid(), sanitize);
    w.raw.admin(&sqe).await.status().kind()
}

pub(crate) async fn ended(w: &mut World) -> SanitizeStatus {
    loop {
        let log = log(w).await;
        if log.stands() != SanitizeStatus::UNDER_WAY {
            return log;
        }
        w.raw.rt.sleep(Span::us(50)).await;
    }
}

fn overwrite(passes: u8, pattern: u32) -> Sanitize {
    Sanitize { action: SanitizeAction::Overwrite, passes, pattern, ..Sanitize::default() }
}

/// Sanitize command that leaves failure mode.
fn exit() -> Sanitize {
    Sanitize { action: SanitizeAction::ExitFailure, ..Sanitize::default() }
}

/// Inside and outside namespaces; one event; the log reports Global Data Erased until the next write.
#[test]
fn block_erase_zeroes_medium_and_sends_event() {
    Setup { sanitizes: true, ..Setup::default() }.run(async |mut w: World| {
        let mut pair = w.raw.up().await;
        let before = log(&mut w).await;
        assert_eq!((before.status.get(), before.progress.get()), (SanitizeStatus::NEVER, 0xffff));
        for block in [0, 12_345, (1 << 20) - 8] {
            w.medium.poke(block, &pattern(block, 4096));
        }
        let waiting = admin::async_event_request(w.raw.cid());
        w.raw.submit_admin(&waiting);
        w.medium.flushes.set(0);
        w.raw.submit_admin(&admin::sanitize(w.raw.cid(), Sanitize::default()));
        let cqe = w.raw.next_admin(PATIENCE).await.expect("the command's completion");
        assert_eq!(cqe.status(), Status::SUCCESS);
        let event = w.raw.next_admin(PATIENCE).await.expect("the event");
        assert_eq!(
            (event.id(), event.dw0.get()),
            (waiting.id(), AsyncEvent::SANITIZED.into_bits())
        );
        for block in [0, 12_345, (1 << 20) - 8] {
            assert_eq!(w.medium.peek(block, 4096), [0; 4096], "block {block}");
        }
        assert_eq!(w.medium.flushes.get(), 1, "it is durable");
        let log_page = log(&mut w).await;
        assert_eq!(
            log_page.status.get(),
            SanitizeStatus::DONE | SanitizeStatus::GLOBAL_DATA_ERASED
        );
        assert_eq!((log_page.dword10.get(), log_page.progress.get()), (0x12, 0xffff));
        let at = w.raw.place(4096, 4096);
        let sqe = io::write(w.raw.cid(), NS, Lba(0), 1, false, w.raw.data(at, 512));
        assert_eq!(w.raw.run(&mut pair, &sqe).await.status(), Status::SUCCESS);
        assert_eq!(log(&mut w).await.status.get(), SanitizeStatus::DONE, "something was written");
    });
}

/// The last pass writes the pattern; blocks stay allocated if No-Deallocate is set.
#[test]
fn overwrite_writes_pattern_in_given_passes() {
    small().run(async |mut w: World| {
        w.raw.up().await;
        for (passes, invert, keep_allocated) in
            [(1, false, true), (2, true, true), (3, true, false), (16, true, true)]
        {
            w.medium.poke(1000, &pattern(1, 512));
            w.medium.written.borrow_mut().clear();
            let what = Sanitize { invert, keep_allocated, ..overwrite(passes, 0xa55a_1234) };
            assert_eq!(ask(&mut w, what).await, Status::SUCCESS);
            let log = ended(&mut w).await;
            assert_eq!((log.stands(), log.passes()), (SanitizeStatus::DONE, passes));
            // The medium in eight pieces, per pass, and one deallocation unless blocks stay allocated.
            let steps = usize::from(passes) * 8 + usize::from(!keep_allocated);
            assert_eq!(w.medium.written.borrow().len(), steps);
            let left = if keep_allocated { 0xa55a_1234_u32 } else { 0 };
            assert_eq!(w.medium.peek(1000, 512), left.to_le_bytes().repeat(128));
        }
    });
}

/// Commands in flight end, new ones fail with a status that permits a retry, and commands that access no user
/// data are executed.
#[test]
fn io_fails_while_sanitize_in_progress() {
    small().run(async |mut w: World| {
        let mut pair = w.raw.up().await;
        let at = w.raw.place(4096, 4096);
        let data = w.raw.data(at, 512);
        w.medium.close();
        let write = io::write(w.raw.cid(), NS, Lba(0), 1, false, data);
        w.raw.submit(&mut pair.sq, &write);
        w.medium.until_waiting(1).await;
        assert_eq!(ask(&mut w, overwrite(2, 7)).await, Status::SUCCESS);
        let cqe = w.raw.next(&mut pair.cq).await;
        assert_eq!((cqe.id(), cqe.status().kind()), (write.id(), Status::SANITIZE_IN_PROGRESS));
        for sqe in [
            io::read(w.raw.cid(), NS, Lba(0), 1, false, data),
            io::write(w.raw.cid(), NS, Lba(0), 1, false, data),
            io::compare(w.raw.cid(), NS, Lba(0), 1, data),
            io::verify(w.raw.cid(), NS, Lba(0), 1),
            io::write_zeroes(w.raw.cid(), NS, Lba(0), 1, true, false),
            io::write_uncorrectable(w.raw.cid(), NS, Lba(0), 1),
        ] {
            let status = w.raw.run(&mut pair, &sqe).await.status();
            assert_eq!(status, Status::SANITIZE_IN_PROGRESS, "{sqe:?}");
        }
        for nsid in [NS, Nsid::BROADCAST] {
            let sqe = io::flush(w.raw.cid(), nsid);
            assert_eq!(w.raw.run(&mut pair, &sqe).await.status(), Status::SUCCESS);
        }
        for sqe in [
            admin::format_nvm(w.raw.cid(), NS, FormatNvm::default()),
            admin::self_test(w.raw.cid(), NS, SelfTest::Short),
            admin::delete_namespace(w.raw.cid(), NS),
            admin::sanitize(w.raw.cid(), Sanitize::default()),
            admin::sanitize(w.raw.cid(), exit()),
            admin::get_log_page(w.raw.cid(), lid::FIRMWARE_SLOTS, 512, data),
        ] {
            let status = w.raw.admin(&sqe).await.status().kind();
            assert_eq!(status, Status::SANITIZE_IN_PROGRESS, "{sqe:?}");
        }
        for sqe in [
            admin::get_log_page(w.raw.cid(), lid::SMART_HEALTH, 512, data),
            admin::get_feature(w.raw.cid(), wire::nvme::features::fid::ARBITRATION),
        ] {
            w.raw.admin_ok(&sqe).await;
        }
        assert_eq!(log(&mut w).await.stands(), SanitizeStatus::UNDER_WAY);
        w.medium.open();
        assert_eq!(ended(&mut w).await.stands(), SanitizeStatus::DONE);
        let sqe = io::read(w.raw.cid(), NS, Lba(0), 1, false, data);
        assert_eq!(w.raw.run(&mut pair, &sqe).await.status(), Status::SUCCESS);
    });
}

/// After a restricted sanitize fails, only another restricted one helps; after an unrestricted one, Exit
/// Failure Mode does too.
#[test]
fn sanitize_failure_recovery_depends_on_ause() {
    small().run(async |mut w: World| {
        let mut pair = w.raw.up().await;
        let at = w.raw.place(4096, 4096);
        let read = |w: &World| io::read(w.raw.cid(), NS, Lba(0), 1, false, w.raw.data(at, 512));
        let with_leave = Sanitize { unrestricted: true, ..Sanitize::default() };
        assert_eq!(ask(&mut w, exit()).await, Status::SUCCESS, "there is nothing to leave");

        w.medium.fails.set(Some(MediaError::WriteFault));
        assert_eq!(ask(&mut w, Sanitize::default()).await, Status::SUCCESS);
        assert_eq!(ended(&mut w).await.status.get(), SanitizeStatus::FAILED);
        let sqe = read(&w);
        assert_eq!(w.raw.run(&mut pair, &sqe).await.status().kind(), Status::SANITIZE_FAILED);
        let sqe = io::flush(w.raw.cid(), NS);
        assert_eq!(w.raw.run(&mut pair, &sqe).await.status().kind(), Status::SANITIZE_FAILED);
        assert_eq!(ask(&mut w, exit()).await, Status::SANITIZE_FAILED);
        assert_eq!(ask(&mut w, with_leave).await, Status::SANITIZE_FAILED);
        assert_eq!(ask(&mut w, overwrite(1, 0)).await, Status::SUCCESS);
        assert_eq!(ended(&mut w).await.stands(), SanitizeStatus::DONE);

        w.medium.fails_after.set(Some((5, MediaError::WriteFault)));
        let what = Sanitize { unrestricted: true, ..overwrite(2, 0) };
        assert_eq!(ask(&mut w, what).await, Status::SUCCESS);
        assert_eq!(ended(&mut w).await.stands(), SanitizeStatus::FAILED);
        assert_eq!(ask(&mut w, exit()).await, Status::SUCCESS);
        let after = log(&mut w).await;
        assert_eq!((after.stands(), after.dword10.get()), (SanitizeStatus::FAILED, 0x2b));
        let sqe = read(&w);
        assert_eq!(w.raw.run(&mut pair, &sqe).await.status(), Status::SUCCESS);
    });
}

/// Neither a controller reset nor a power cut ends it: it continues with the interrupted pass.
#[test]
fn sanitize_survives_reset_and_power_cut() {
    let label = small().run(async |mut w: World| {
        w.raw.up().await;
        assert_eq!(ask(&mut w, overwrite(3, 0x77)).await, Status::SUCCESS);
        while log(&mut w).await.passes() == 0 {
            w.raw.rt.sleep(Span::us(1)).await;
        }
        w.medium.close();
        w.raw.disable().await;
        w.raw.enable(Settings::default()).await;
        assert_eq!(log(&mut w).await.stands(), SanitizeStatus::UNDER_WAY);
        let label = Some(w.medium.label());
        w.medium.open();
        assert_eq!(ended(&mut w).await.stands(), SanitizeStatus::DONE);
        label
    });
    Setup { label, ..small() }.run(async |mut w: World| {
        w.raw.up().await;
        let log = ended(&mut w).await;
        assert_eq!((log.stands(), log.passes()), (SanitizeStatus::DONE, 3));
        assert_eq!(w.medium.written.borrow().len(), 2 * 8 + 1, "two passes more, and taken back");
    });
}

/// A stored failure is found by the next controller.
#[test]
fn sanitize_failure_survives_power_cycle() {
    let label = small().run(async |mut w: World| {
        w.raw.up().await;
        w.medium.fails.set(Some(MediaError::WriteFault));
        ask(&mut w, Sanitize::default()).await;
        ended(&mut w).await;
        Some(w.medium.label())
    });
    Setup { label, ..small() }.run(async |mut w: World| {
        let mut pair = w.raw.up().await;
        assert_eq!(log(&mut w).await.status.get(), SanitizeStatus::FAILED);
        let at = w.raw.place(4096, 4096);
        let sqe = io::read(w.raw.cid(), NS, Lba(0), 1, false, w.raw.data(at, 512));
        assert_eq!(w.raw.run(&mut pair, &sqe).await.status().kind(), Status::SANITIZE_FAILED);
    });
}

/// No crypto erase, as there are no keys; no Sanitize without a label, as its state could not persist.
#[test]
fn unsupported_sanitize_actions_are_rejected() {
    small().run(async |mut w: World| {
        w.raw.up().await;
        let what = Sanitize { action: SanitizeAction::CryptoErase, ..Sanitize::default() };
        assert_eq!(ask(&mut w, what).await, Status::INVALID_FIELD);
        let mut sqe = admin::sanitize(w.raw.cid(), Sanitize::default());
        sqe.cdw10 = 7.into();
        assert_eq!(w.raw.admin(&sqe).await.status().kind(), Status::INVALID_FIELD);
    });
    Setup { label: None, ..small() }.run(async |mut w: World| {
        w.raw.up().await;
        assert_eq!(ask(&mut w, Sanitize::default()).await, Status::INVALID_OPCODE);
        let (_, data) = w.raw.page();
        let sqe = admin::get_log_page(w.raw.cid(), lid::SANITIZE, 512, data);
        assert_eq!(w.raw.admin(&sqe).await.status().kind(), Status::INVALID_LOG_PAGE);
        assert_eq!(w.raw.identify_controller().await.sanicap.get(), 0);
    });
}
