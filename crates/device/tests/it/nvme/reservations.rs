//! Reservations: NVMe base 2.0, 7.2 to 7.5 and 8.19, with several hosts, each on its own controller of the
//! subsystem.

use runtime::Span;
use wire::nvme::admin::{self, FormatNvm};
use wire::nvme::dsm::Attributes;
use wire::nvme::entry::Sqe;
use wire::nvme::event::AsyncEvent;
use wire::nvme::features::fid;
use wire::nvme::io;
use wire::nvme::ranges::{CopyRange, DsmRange};
use wire::nvme::reservation::{
    Acquire, Acquiring, Kind, Persistence, Register, RegisteredController,
    RegisteredControllerExtended, Registering, ReservationStatus, StatusExtended,
};
use wire::nvme::status::Status;
use wire::{Lba, Nsid};
use zerocopy::{FromBytes, IntoBytes};

use crate::raw::nvme::several::{Party, Several, plainly, with_hosts};
use crate::raw::nvme::world::Setup;
use crate::raw::nvme::{NS, PATIENCE, SILENCE, Settings};

const OK: Status = Status::SUCCESS;

fn conflict() -> Status {
    Status::RESERVATION_CONFLICT.with_dnr()
}

fn invalid() -> Status {
    Status::INVALID_FIELD.with_dnr()
}

/// Small, so that a Format is quick.
fn small() -> Setup {
    Setup { blocks: 4096, ..Setup::default() }
}

/// Each command that accesses blocks, by name: reads first, the admin command last.
const COMMANDS: [&str; 11] = [
    "read",
    "compare",
    "verify",
    "write",
    "zeroes",
    "uncorrectable",
    "dsm",
    "flush",
    "copy",
    "fused",
    "format",
];
const READS: usize = 3;

async fn try_it(party: &mut Party, what: &str) -> Status {
    let (cid, data) = (party.raw.cid(), party.raw.data(party.at, 512));
    party.raw.memory.write(party.at, &[0; 512]).unwrap();
    let sqe = match what {
        "read" => io::read(cid, NS, Lba(1), 1, false, data),
        "compare" => io::compare(cid, NS, Lba(1), 1, data),
        "verify" => io::verify(cid, NS, Lba(1), 1),
        "write" => io::write(cid, NS, Lba(1), 1, false, data),
        "zeroes" => io::write_zeroes(cid, NS, Lba(1), 1, false, false),
        "uncorrectable" => io::write_uncorrectable(cid, NS, Lba(99), 1),
        "dsm" => {
            party.raw.memory.write(party.at, DsmRange::new(Lba(5), 1).as_bytes()).unwrap();
            io::dataset_management(cid, NS, 1, Attributes::DEALLOCATE, data)
        }
        "flush" => io::flush(cid, NS),
        "copy" => {
            party.raw.memory.write(party.at, CopyRange::new(Lba(8), 1).as_bytes()).unwrap();
            io::copy(cid, NS, Lba(16), 1, data)
        }
        "fused" => return fused(party).await,
        "format" => {
            let sqe = admin::format_nvm(cid, NS, FormatNvm::default());
            return party.raw.admin(&sqe).await.status();
        }
        other => panic!("{other}?"),
    };
    party.io(&sqe).await
}

/// Runs a fused Compare and Write; returns the pair's status.
async fn fused(party: &mut Party) -> Status {
    let data = party.raw.data(party.at, 512);
    let first = io::compare(party.raw.cid(), NS, Lba(1), 1, data);
    let second = io::write(party.raw.cid(), NS, Lba(1), 1, false, data);
    let flags = |sqe: &Sqe, fuse| Sqe { flags: sqe.flags.with_fuse(fuse), ..*sqe };
    let mut sq = party.pair.sq;
    party.raw.store(&mut sq, &flags(&first, 1));
    party.raw.submit(&mut sq, &flags(&second, 2));
    party.pair.sq = sq;
    let (_, compared) = party.next(PATIENCE).await.expect("the compare's end");
    let (_, written) = party.next(PATIENCE).await.expect("the write's end");
    if written == Status::ABORTED_FAILED_FUSED { compared } else { written }
}

/// 8.19, "Command Behavior in the Presence of a Reservation": for each type, read and write rights of the
/// holder, a registrant and another host.
#[test]
fn reservation_types_permit_reads_and_writes_by_role() {
    let table = [
        (Kind::WriteExclusive, "rw r- r-"),
        (Kind::ExclusiveAccess, "rw -- --"),
        (Kind::WriteExclusiveRegistrants, "rw rw r-"),
        (Kind::ExclusiveAccessRegistrants, "rw rw --"),
        (Kind::WriteExclusiveAll, "rw rw r-"),
        (Kind::ExclusiveAccessAll, "rw rw --"),
    ];
    with_hosts(3, small(), async |mut w: Several| {
        for (kind, row) in table {
            assert_eq!(w.hosts[0].register(10).await, OK);
            assert_eq!(w.hosts[1].register(11).await, OK);
            assert_eq!(w.hosts[0].acquire(10, kind).await, OK);
            for (party, may) in w.hosts.iter_mut().zip(row.split(' ')) {
                for (number, what) in COMMANDS.into_iter().enumerate() {
                    let allowed = may.contains(if number < READS { 'r' } else { 'w' });
                    let wanted = if allowed { OK } else { conflict() };
                    assert_eq!(try_it(party, what).await, wanted, "{kind:?}: {what} by {may}");
                }
            }
            let all = kind.is_all_registrants();
            let second = w.hosts[1].acquire(11, kind).await;
            assert_eq!(second, if all { OK } else { conflict() }, "{kind:?}: acquired again");
            assert_eq!(w.hosts[2].acquire(12, kind).await, conflict(), "no registrant");
            assert_eq!(w.hosts[2].release(12, kind as u8).await, conflict());
            assert!(w.hosts[2].report(false).await.is_ok(), "anybody may ask");
            assert_eq!(w.hosts[0].clear(10).await, OK);
            for party in &mut w.hosts {
                assert_eq!(try_it(party, "write").await, OK, "nothing is left of {kind:?}");
            }
        }
    });
}

/// Broadcast commands and namespace management count as writes to each namespace.
#[test]
fn broadcast_and_management_commands_conflict() {
    with_hosts(2, small(), async |mut w: Several| {
        w.hosts[0].register(1).await;
        w.hosts[0].acquire(1, Kind::WriteExclusive).await;
        let other = &mut w.hosts[1];
        let sqe = io::flush(other.raw.cid(), Nsid::BROADCAST);
        assert_eq!(other.io(&sqe).await, Status::RESERVATION_CONFLICT.with_dnr());
        for sqe in [
            admin::delete_namespace(other.raw.cid(), NS),
            admin::delete_namespace(other.raw.cid(), Nsid::BROADCAST),
            admin::format_nvm(other.raw.cid(), Nsid::BROADCAST, FormatNvm::default()),
        ] {
            assert_eq!(other.raw.admin(&sqe).await.status(), conflict(), "{sqe:?}");
        }
        let own = &mut w.hosts[0];
        let sqe = admin::delete_namespace(own.raw.cid(), NS);
        own.raw.admin_ok(&sqe).await;
    });
}

/// 7.5: with short and with long identifiers, and with a host that no controller is behind any more.
#[test]
fn reservation_report_short_and_extended() {
    with_hosts(3, small(), async |mut w: Several| {
        for (party, id) in w.hosts.iter_mut().zip([7_u64, 7, 9]) {
            assert_eq!(party.expect_holder(&id.to_le_bytes()).await, OK);
        }
        w.hosts[0].register(0x77).await;
        w.hosts[2].register(0x99).await;
        w.hosts[2].acquire(0x99, Kind::WriteExclusiveRegistrants).await;
        let wrong = Status::HOST_ID_INCONSISTENT_FORMAT.with_dnr();
        assert_eq!(w.hosts[1].report(true).await, Err(wrong));
        let entries = |page: &[u8], from: usize| -> Vec<_> {
            let entry = |at: &[u8]| RegisteredController::read_from_bytes(at).expect("24 bytes");
            let all = page[from..].chunks_exact(24).map(entry);
            all.map(|one| (one.controller.get(), one.status, one.host.get(), one.key.get()))
                .collect()
        };
        let page = w.hosts[1].report(false).await.unwrap();
        let (head, _) = ReservationStatus::read_from_prefix(&page).unwrap();
        assert_eq!((head.generation.get(), head.rtype, head.controllers.get()), (2, 3, 3));
        let wanted = [(1, 0, 7, 0x77), (2, 0, 7, 0x77), (3, 1, 9, 0x99), (0, 0, 0, 0)];
        assert_eq!(entries(&page, 24)[..4], wanted, "a host is behind two");
        w.hosts[2].raw.disable().await;
        let page = w.hosts[0].report(false).await.unwrap();
        assert_eq!(entries(&page, 24)[2], (0xffff, 1, 9, 0x99), "and is behind none");
        assert_eq!(try_it(&mut w.hosts[1], "write").await, OK, "the same host as the first");
    });
    with_hosts(1, small(), async |mut w: Several| {
        let party = &mut w.hosts[0];
        let id = *b"sixteen bytes id";
        assert_eq!(party.expect_holder(&[0; 16]).await, invalid());
        assert_eq!(party.expect_holder(&id).await, OK);
        assert_eq!(party.get(fid::HOST_IDENTIFIER, Nsid::NONE, 1).await, Ok(0));
        assert_eq!(party.raw.bytes(party.at, 16), id);
        party.register(3).await;
        let page = party.report(true).await.unwrap();
        let (head, rest) = StatusExtended::read_from_prefix(&page).unwrap();
        assert_eq!((head.status.rtype, head.status.controllers.get()), (0, 1));
        let (one, _) = RegisteredControllerExtended::read_from_prefix(rest).unwrap();
        assert_eq!((one.controller.get(), one.status, one.key.get(), one.host), (1, 0, 3, id));
    });
}

/// 5.27.1.26: a host identifier is set once; all have the same length; a host without one is a new host after
/// a reset.
#[test]
fn host_identifier_is_set_once_and_of_one_length() {
    with_hosts(2, small(), async |mut w: Several| {
        assert_eq!(w.hosts[0].expect_holder(&5_u64.to_le_bytes()).await, OK);
        assert_eq!(w.hosts[0].expect_holder(&5_u64.to_le_bytes()).await, OK, "the same");
        let late = Status::COMMAND_SEQUENCE_ERROR.with_dnr();
        assert_eq!(w.hosts[0].expect_holder(&6_u64.to_le_bytes()).await, late);
        let mixed = Status::HOST_ID_INCONSISTENT_FORMAT.with_dnr();
        assert_eq!(w.hosts[1].expect_holder(&[1; 16]).await, mixed);
        w.hosts[0].register(50).await;
        w.hosts[1].register(60).await;
        w.hosts[1].acquire(60, Kind::WriteExclusive).await;
        assert_eq!(try_it(&mut w.hosts[0], "write").await, conflict());
        w.hosts[1].raw.disable().await;
        assert_eq!(try_it(&mut w.hosts[0], "write").await, OK, "its holder is nobody now");
        w.hosts[0].acquire(50, Kind::WriteExclusive).await;
        w.hosts[0].raw.disable().await;
        w.hosts[1].pair = w.hosts[1].raw.up().await;
        assert_eq!(try_it(&mut w.hosts[1], "write").await, conflict(), "a named one's stays");
        assert_eq!(w.hosts[1].expect_holder(&5_u64.to_le_bytes()).await, OK);
        assert_eq!(try_it(&mut w.hosts[1], "write").await, OK, "by whichever controller");
    });
}

fn ask(party: &mut Party) {
    let sqe = admin::async_event_request(party.raw.cid());
    party.raw.submit_admin(&sqe);
}

async fn is_told(party: &mut Party, span: Span) -> bool {
    let Some(cqe) = party.raw.next_admin(span).await else { return false };
    assert_eq!(AsyncEvent::from_bits(cqe.dw0.get()), AsyncEvent::RESERVATION);
    true
}

/// 5.16.1.24 and 8.19: recipients of each notification, their order, and the masks.
#[test]
fn reservation_notifications_and_masks() {
    with_hosts(3, small(), async |mut w: Several| {
        for number in 0..3 {
            w.hosts[number].register(number as u64 + 1).await;
            ask(&mut w.hosts[number]);
        }
        let kind = Kind::WriteExclusiveRegistrants;
        w.hosts[0].acquire(1, kind).await;
        w.hosts[0].release(1, kind as u8).await;
        assert!(is_told(&mut w.hosts[1], PATIENCE).await);
        assert!(is_told(&mut w.hosts[2], PATIENCE).await);
        assert!(!is_told(&mut w.hosts[0], SILENCE).await, "not who did it");
        assert_eq!(w.hosts[2].notification().await, (1, 2, 0, 1), "released");
        assert_eq!(w.hosts[2].notification().await, (0, 0, 0, 0), "and read");
        // The second host does not read its log and gets no further event; the log page keeps its entry.
        w.hosts[0].acquire(1, Kind::ExclusiveAccess).await;
        assert_eq!(w.hosts[2].preempt(3, 2, kind).await, OK, "not the holder's key");
        assert_eq!(w.hosts[2].preempt(3, 1, kind).await, OK);
        assert!(is_told(&mut w.hosts[0], PATIENCE).await, "its registration is gone");
        assert_eq!(w.hosts[0].notification().await, (1, 1, 0, 1));
        assert_eq!(w.hosts[1].notification().await, (1, 2, 1, 1));
        ask(&mut w.hosts[1]);
        assert!(is_told(&mut w.hosts[1], PATIENCE).await, "of what it has not read");
        assert_eq!(w.hosts[1].notification().await, (2, 1, 0, 1));
        // A mask keeps the log page empty.
        w.hosts[0].register(1).await;
        assert_eq!(w.hosts[0].set(0x82, NS, 8).await, OK);
        assert_eq!(w.hosts[0].get(0x82, NS, 0).await, Ok(8));
        w.hosts[2].clear(3).await;
        assert_eq!(w.hosts[0].notification().await, (0, 0, 0, 0), "masked");
        assert_eq!(w.hosts[0].set(0x82, Nsid::BROADCAST, 0).await, OK);
        w.hosts[0].register(1).await;
        w.hosts[2].register(3).await;
        w.hosts[2].clear(3).await;
        assert_eq!(w.hosts[0].notification().await, (2, 3, 0, 1), "preempted");
    });
}

/// A host that reads no notification loses the oldest, and can see that from their numbers.
#[test]
fn reservation_notification_log_drops_oldest() {
    with_hosts(2, small(), async |mut w: Several| {
        for _ in 0..70 {
            w.hosts[0].register(1).await;
            w.hosts[1].register(2).await;
            w.hosts[1].clear(2).await;
        }
        assert_eq!(w.hosts[0].notification().await, (7, 3, 63, 1));
        w.hosts[0].raw.disable().await;
        w.hosts[0].pair = w.hosts[0].raw.up().await;
        assert_eq!(w.hosts[0].notification().await, (0, 0, 0, 0), "a reset forgets them");
    });
}

/// 8.19.7: the preempted host's commands in flight to the namespace are aborted before the command completes;
/// other hosts' are not.
#[test]
fn preempt_and_abort_aborts_only_preempted_host() {
    for seed in 0..8 {
        let setup = Setup { shuffle: Some(seed), ..small() };
        with_hosts(3, setup, async |mut w: Several| {
            for (number, party) in w.hosts.iter_mut().enumerate() {
                party.register(number as u64 + 1).await;
            }
            let kind = Kind::WriteExclusiveRegistrants;
            w.hosts[0].acquire(1, kind).await;
            w.medium.close();
            for party in &mut w.hosts[..2] {
                for lba in 0..4 {
                    let data = party.raw.data(party.at, 512);
                    let sqe = io::write(party.raw.cid(), NS, Lba(lba), 1, false, data);
                    party.begin(&sqe);
                }
            }
            w.medium.until_waiting(8).await;
            let how = Acquire { action: Acquiring::PreemptAndAbort, kind };
            let command = io::Command::ReservationAcquire(how);
            let sqe = w.hosts[2].form(NS, command, &[3, 1]);
            assert_eq!(w.hosts[2].io(&sqe).await, OK);
            assert_eq!(w.medium.waiting.get(), 4, "the first host's are gone");
            for _ in 0..4 {
                let (_, status) = w.hosts[0].next(PATIENCE).await.expect("an end");
                assert_eq!(status.kind(), Status::ABORTED_PREEMPT);
            }
            w.medium.open();
            for _ in 0..4 {
                let (_, status) = w.hosts[1].next(PATIENCE).await.expect("an end");
                assert_eq!(status, OK);
            }
            assert_eq!(try_it(&mut w.hosts[0], "write").await, conflict());
        });
    }
}

/// CPTPL: registrations and reservations survive a power loss if, and only if, PTPL is set.
#[test]
fn reservations_survive_power_loss_only_with_ptpl() {
    let keep = |persistence| Register { persistence, ..plainly(Registering::Register) };
    let label = with_hosts(2, small(), async |mut w: Several| {
        for (party, id) in w.hosts.iter_mut().zip([7_u64, 9]) {
            party.expect_holder(&id.to_le_bytes()).await;
        }
        assert_eq!(w.hosts[0].get(0x83, NS, 0).await, Ok(0));
        assert_eq!(w.hosts[0].register_how(keep(Persistence::Kept), 0, 1).await, OK);
        assert_eq!(w.hosts[0].get(0x83, NS, 0).await, Ok(1));
        w.hosts[1].register(2).await;
        w.hosts[0].acquire(1, Kind::WriteExclusive).await;
        media::Labels::label(&*w.medium)
    });
    let after = |label: Vec<u8>, lasts: bool| {
        let setup = Setup { label: Some(label), ..small() };
        with_hosts(2, setup, async |mut w: Several| {
            for (party, id) in w.hosts.iter_mut().zip([7_u64, 9]) {
                party.expect_holder(&id.to_le_bytes()).await;
            }
            let wanted = if lasts { conflict() } else { OK };
            assert_eq!(try_it(&mut w.hosts[1], "write").await, wanted);
            assert_eq!(w.hosts[0].get(0x83, NS, 0).await, Ok(lasts.into()));
            assert_eq!(w.hosts[1].register(2).await, OK, "the same key");
            assert_eq!(try_it(&mut w.hosts[0], "write").await, OK);
            assert_eq!(w.hosts[0].set(0x83, NS, 0).await, OK);
            media::Labels::label(&*w.medium)
        })
    };
    let label = after(label, true);
    after(label, false);
    // A medium without labels rejects PTPL.
    with_hosts(1, Setup { label: None, ..small() }, async |mut w: Several| {
        assert_eq!(w.hosts[0].register_how(keep(Persistence::Kept), 0, 1).await, invalid());
        assert_eq!(w.hosts[0].set(0x83, NS, 1).await, invalid());
        assert_eq!(w.hosts[0].register(1).await, OK, "which changes nothing else");
    });
}

/// A change that cannot be made persistent has no effect.
#[test]
fn reservation_change_fails_if_label_write_fails() {
    with_hosts(1, small(), async |mut w: Several| {
        let party = &mut w.hosts[0];
        let kept = Persistence::Kept;
        let how = Register { persistence: kept, ..plainly(Registering::Register) };
        assert_eq!(party.register_how(how, 0, 1).await, OK);
        w.medium.label_fails.set(true);
        assert_eq!(party.acquire(1, Kind::WriteExclusive).await.kind(), Status::WRITE_FAULT);
        w.medium.label_fails.set(false);
        let page = party.report(false).await.unwrap();
        assert_eq!(page[4], 0, "no reservation");
    });
}

/// A host that registers repeatedly under new identifiers: the number of registrants is bounded.
#[test]
fn register_fails_beyond_16_registrants() {
    with_hosts(1, small(), async |mut w: Several| {
        for id in 1..=17_u64 {
            let party = &mut w.hosts[0];
            party.expect_holder(&id.to_le_bytes()).await;
            let wanted = if id <= 16 { OK } else { Status::INTERNAL_ERROR.with_dnr() };
            assert_eq!(party.register(id).await, wanted);
            party.raw.disable().await;
            party.raw.free_from(wire::BusAddr(party.at.0 + 8192));
            party.pair = party.raw.up().await;
        }
        w.hosts[0].expect_holder(&3_u64.to_le_bytes()).await;
        assert_eq!(w.hosts[0].clear(3).await, OK);
        assert_eq!(w.hosts[0].register(4).await, OK);
    });
}

/// Absent and broadcast namespaces, and a reservation across a controller reset.
#[test]
fn reservation_commands_reject_absent_namespaces() {
    with_hosts(2, small(), async |mut w: Several| {
        let party = &mut w.hosts[0];
        let how = io::Command::ReservationRegister(plainly(Registering::Register));
        let sqe = party.form(Nsid(2), how, &[0, 1]);
        assert_eq!(party.io(&sqe).await, invalid());
        let sqe = party.form(Nsid::BROADCAST, how, &[0, 1]);
        assert_eq!(party.io(&sqe).await, Status::INVALID_NAMESPACE_OR_FORMAT.with_dnr());
        party.register(1).await;
        party.acquire(1, Kind::ExclusiveAccess).await;
        party.raw.disable().await;
        party.raw.enable(Settings::default()).await;
        assert_eq!(try_it(&mut w.hosts[1], "read").await, OK);
    });
}
