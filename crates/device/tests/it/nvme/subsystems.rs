//! State shared by the controllers of a subsystem, except reservations: NVMe base 2.0, 2.4.1 and 3.2.

use runtime::Span;
use wire::nvme::admin::{self, Identify, Sanitize, SanitizeAction};
use wire::nvme::entry::Sqe;
use wire::nvme::event::AsyncEvent;
use wire::nvme::identify::{IdentifyController, IdentifyNamespace, cns};
use wire::nvme::io;
use wire::nvme::opcode;
use wire::nvme::status::Status;
use wire::{BusAddr, Lba, Nsid};
use zerocopy::FromBytes;

use crate::raw::nvme::several::{Party, Several, with_hosts};
use crate::raw::nvme::world::Setup;
use crate::raw::nvme::{NS, PATIENCE, SILENCE};

const OK: Status = Status::SUCCESS;

fn small() -> Setup {
    Setup { blocks: 4096, ..Setup::default() }
}

async fn identify(party: &mut Party, nsid: Nsid, cns: u8) -> Vec<u8> {
    let data = party.raw.data(party.at, 4096);
    let sqe = admin::identify(party.raw.cid(), nsid, cns, data);
    party.raw.admin_ok(&sqe).await;
    party.raw.bytes(party.at, 4096)
}

/// Parses a controller list as Identify returns it.
fn list(page: &[u8]) -> Vec<u16> {
    let words = page.chunks_exact(2).map(|two| u16::from_le_bytes([two[0], two[1]]));
    let words: Vec<u16> = words.collect();
    words[1..=usize::from(words[0])].to_vec()
}

/// CMIC, CNTLID, NMIC, and the lists of controllers.
#[test]
fn identify_lists_controllers_of_subsystem() {
    with_hosts(3, small(), async |mut w: Several| {
        for (number, party) in (1..).zip(&mut w.hosts) {
            let page = identify(party, Nsid::NONE, cns::CONTROLLER).await;
            let c = IdentifyController::read_from_bytes(&page).unwrap();
            assert_eq!((c.cntlid.get(), c.cmic), (number, 3));
            let page = identify(party, NS, cns::NAMESPACE).await;
            assert_eq!(IdentifyNamespace::read_from_bytes(&page).unwrap().nmic, 1);
            let page = identify(party, NS, cns::CONTROLLERS_OF_NAMESPACE).await;
            assert_eq!(list(&page), [1, 2, 3]);
        }
        let data = w.hosts[0].raw.data(w.hosts[0].at, 4096);
        let ask = Identify { cns: cns::CONTROLLERS, cntid: 2, ..Identify::default() };
        let command = admin::Command::Identify(ask);
        let cid = w.hosts[0].raw.cid();
        let sqe = admin::Request { cid, nsid: Nsid::NONE, data, command }.to_sqe();
        w.hosts[0].raw.admin_ok(&sqe).await;
        assert_eq!(list(&w.hosts[0].raw.bytes(w.hosts[0].at, 4096)), [2, 3]);
        w.controllers[1].stop();
        let page = identify(&mut w.hosts[0], Nsid::NONE, cns::CONTROLLERS).await;
        assert_eq!(list(&page), [1, 3], "one has been stopped");
    });
}

/// Attaches the namespace to, or detaches it from, these controllers.
async fn attach(party: &mut Party, detach: bool, controllers: &[u16]) -> Status {
    let count = controllers.len() as u16;
    let words: Vec<u8> =
        std::iter::once(&count).chain(controllers).flat_map(|word| word.to_le_bytes()).collect();
    party.raw.memory.write(party.at, &words).unwrap();
    let (prp1, _) = party.raw.data(party.at, 4096).prps().expect("PRPs");
    let sqe = Sqe {
        opcode: opcode::admin::NAMESPACE_ATTACHMENT,
        cdw10: u32::from(detach).into(),
        prp1: prp1.0.into(),
        ..io::flush(party.raw.cid(), NS)
    };
    party.raw.admin(&sqe).await.status().kind()
}

async fn read(party: &mut Party) -> Status {
    let data = party.raw.data(party.at, 512);
    let sqe = io::read(party.raw.cid(), NS, Lba(1), 1, false, data);
    party.io(&sqe).await.kind()
}

/// 5.22: a controller may detach a namespace from another, whose commands end; a third is not affected.
#[test]
fn namespace_detach_affects_named_controllers_only() {
    with_hosts(3, small(), async |mut w: Several| {
        w.medium.close();
        for party in &mut w.hosts[1..] {
            let data = party.raw.data(party.at, 512);
            let sqe = io::read(party.raw.cid(), NS, Lba(1), 1, false, data);
            party.begin(&sqe);
        }
        w.medium.until_waiting(2).await;
        assert_eq!(attach(&mut w.hosts[0], true, &[2]).await, OK);
        let (_, status) = w.hosts[1].next(PATIENCE).await.expect("an end");
        assert_eq!(status.kind(), Status::ABORT_REQUESTED);
        assert_eq!(w.hosts[2].next(SILENCE).await, None);
        w.medium.open();
        assert_eq!(w.hosts[2].next(PATIENCE).await.expect("an end").1, OK);
        assert_eq!(read(&mut w.hosts[1]).await, Status::INVALID_FIELD);
        assert_eq!(read(&mut w.hosts[0]).await, OK);
        let party = &mut w.hosts[0];
        assert_eq!(attach(party, true, &[2]).await, Status::NAMESPACE_NOT_ATTACHED);
        assert_eq!(attach(party, false, &[2, 3]).await, Status::NAMESPACE_ALREADY_ATTACHED);
        for wrong in [&[][..], &[4], &[2, 2], &[3, 2], &[0]] {
            let status = attach(party, false, wrong).await;
            assert_eq!(status, Status::CONTROLLER_LIST_INVALID, "{wrong:?}");
        }
        assert_eq!(attach(party, false, &[2]).await, OK);
        assert_eq!(read(&mut w.hosts[1]).await, OK);
    });
}

/// Two tenants, a namespace each. Commands for the other's are aborted as for an inactive namespace (NVMe
/// base 2.0, 3.2.1.2), and commands that reach all namespaces are not offered.
#[test]
fn own_namespaces_keep_each_controller_to_its_own() {
    let mut setup = Setup { label: Some(Vec::new()), ..small() };
    (setup.options.namespaces, setup.options.own_namespaces) = (2, true);
    with_hosts(2, setup, async |mut w: Several| {
        let nsids = [Nsid(1), Nsid(2)];
        for (party, nsid) in w.hosts.iter_mut().zip(nsids) {
            let page = identify(party, Nsid::NONE, cns::ACTIVE_NAMESPACES).await;
            assert_eq!(page[..8], [nsid.0.to_le_bytes(), [0; 4]].concat());
            let page = identify(party, nsid, cns::NAMESPACE).await;
            let own = IdentifyNamespace::read_from_bytes(&page).unwrap();
            assert_eq!((own.nsze.get(), own.nmic), (2048, 0));
            party.raw.memory.write(party.at, &[nsid.0 as u8; 512]).unwrap();
            let data = party.raw.data(party.at, 512);
            let sqe = io::write(party.raw.cid(), nsid, Lba(5), 1, false, data);
            assert_eq!(party.io(&sqe).await, OK);
        }
        for (party, other) in w.hosts.iter_mut().zip([Nsid(2), Nsid(1)]) {
            foreign_commands_are_refused(party, other).await;
        }
        for (party, nsid) in w.hosts.iter_mut().zip(nsids) {
            let data = party.raw.data(party.at, 512);
            let sqe = io::read(party.raw.cid(), nsid, Lba(5), 1, false, data);
            assert_eq!(party.io(&sqe).await, OK);
            assert_eq!(party.raw.bytes(party.at, 512), [nsid.0 as u8; 512]);
        }
        // A format of all namespaces is one of all that are the controller's.
        let party = &mut w.hosts[1];
        let sqe = Sqe {
            opcode: opcode::admin::FORMAT_NVM,
            ..io::flush(party.raw.cid(), Nsid::BROADCAST)
        };
        party.raw.admin_ok(&sqe).await;
        let party = &mut w.hosts[0];
        let data = party.raw.data(party.at, 512);
        let sqe = io::read(party.raw.cid(), Nsid(1), Lba(5), 1, false, data);
        assert_eq!(party.io(&sqe).await, OK);
        assert_eq!(party.raw.bytes(party.at, 512), [1; 512]);
    });
}

async fn foreign_commands_are_refused(party: &mut Party, other: Nsid) {
    use opcode::io as of;
    for opcode in [
        of::FLUSH,
        of::WRITE,
        of::READ,
        of::WRITE_UNCORRECTABLE,
        of::COMPARE,
        of::WRITE_ZEROES,
        of::DATASET_MANAGEMENT,
        of::VERIFY,
        of::COPY,
        of::RESERVATION_REGISTER,
        of::RESERVATION_REPORT,
        of::RESERVATION_ACQUIRE,
        of::RESERVATION_RELEASE,
    ] {
        for (nsid, expected) in
            [(other, Status::INVALID_FIELD), (Nsid(17), Status::INVALID_NAMESPACE_OR_FORMAT)]
        {
            let data = party.raw.data(party.at, 512);
            // For reservations LBA 100h is the type 1, and a valid action.
            let sqe = Sqe { opcode, ..io::read(party.raw.cid(), nsid, Lba(0x100), 1, false, data) };
            assert_eq!(party.io(&sqe).await.kind(), expected, "opcode {opcode:#x}, {nsid:?}");
        }
    }
    let page = identify(party, other, cns::NAMESPACE).await;
    assert!(page.iter().all(|byte| *byte == 0), "an inactive namespace reads as zeros");
    let format = Sqe { opcode: opcode::admin::FORMAT_NVM, ..io::flush(party.raw.cid(), other) };
    assert_eq!(party.raw.admin(&format).await.status().kind(), Status::INVALID_FIELD);
    for opcode in [
        opcode::admin::NAMESPACE_ATTACHMENT,
        opcode::admin::NAMESPACE_MANAGEMENT,
        opcode::admin::SANITIZE,
    ] {
        let sqe = Sqe { opcode, ..io::flush(party.raw.cid(), other) };
        assert_eq!(
            party.raw.admin(&sqe).await.status().kind(),
            Status::INVALID_OPCODE,
            "{opcode:#x}"
        );
    }
}

/// NVMe base 2.0, 3.4.2: no write comes between a Compare and its Write, not even another controller's: of
/// hosts that increment the same number at the same time exactly one succeeds.
#[test]
fn fused_pair_is_atomic_across_controllers() {
    for seed in 0..4 {
        let setup = Setup { shuffle: Some(seed), ..small() };
        with_hosts(3, setup, async |mut w: Several| {
            w.medium.span.set(Span::us(3));
            for now in 0..15 {
                for party in &mut w.hosts {
                    begin_exchange(party, now, now + 1);
                }
                let mut won = 0;
                for party in &mut w.hosts {
                    let (_, compared) = party.next(PATIENCE).await.expect("the compare's end");
                    let (_, written) = party.next(PATIENCE).await.expect("the write's end");
                    assert_eq!(compared.is_ok(), written.is_ok());
                    won += u32::from(written.is_ok());
                }
                assert_eq!(won, 1, "seed {seed}: all of them found {now}");
                assert_eq!(w.medium.peek(7, 512)[..8], (now + 1).to_le_bytes());
            }
        });
    }
}

fn begin_exchange(party: &mut Party, old: u64, new: u64) {
    let (from, to) = (party.at, BusAddr(party.at.0 + 4096));
    for (at, word) in [(from, old), (to, new)] {
        let mut block = [0; 512];
        block[..8].copy_from_slice(&word.to_le_bytes());
        party.raw.memory.write(at, &block).unwrap();
    }
    let first = io::compare(party.raw.cid(), NS, Lba(7), 1, party.raw.data(from, 512));
    let second = io::write(party.raw.cid(), NS, Lba(7), 1, false, party.raw.data(to, 512));
    let fused = |sqe: &Sqe, fuse| Sqe { flags: sqe.flags.with_fuse(fuse), ..*sqe };
    let mut sq = party.pair.sq;
    party.raw.store(&mut sq, &fused(&first, 1));
    party.raw.submit(&mut sq, &fused(&second, 2));
    party.pair.sq = sq;
}

/// 5.24: a Sanitize locks out all hosts, continues when the controller that started it is stopped, and every
/// controller reports its end.
#[test]
fn sanitize_applies_to_whole_subsystem() {
    with_hosts(3, small(), async |mut w: Several| {
        for party in &mut w.hosts[1..] {
            let sqe = admin::async_event_request(party.raw.cid());
            party.raw.submit_admin(&sqe);
        }
        w.medium.close();
        let what = Sanitize { action: SanitizeAction::BlockErase, ..Sanitize::default() };
        let sqe = admin::sanitize(w.hosts[0].raw.cid(), what);
        w.hosts[0].raw.admin_ok(&sqe).await;
        assert_eq!(read(&mut w.hosts[1]).await, Status::SANITIZE_IN_PROGRESS);
        w.controllers[0].stop();
        w.medium.open();
        for party in &mut w.hosts[1..] {
            let cqe = party.raw.next_admin(PATIENCE).await.expect("its end");
            assert_eq!(AsyncEvent::from_bits(cqe.dw0.get()), AsyncEvent::SANITIZED);
            assert_eq!(read(party).await, OK);
        }
    });
}
