//! Hosts that use one controller in turn, and their reservation commands.

use wire::nvme::admin::{self, SetFeatures};
use wire::nvme::features::fid;
use wire::nvme::identify::oncs;
use wire::nvme::io::{self, Command};
use wire::nvme::reservation::{
    Acquire, AcquireKeys, Acquiring, Kind, Persistence, Register, RegisterKeys,
    RegisteredController, Registering, Release, Releasing, Report, ReservationStatus, rescap,
};
use wire::nvme::status::Status;
use wire::{Lba, Nsid};
use zerocopy::{FromBytes, IntoBytes};

use crate::bench::{Bench, Pair, Settings};
use crate::verdict::{Verdict, hold, needs};

pub(super) const OK: &[Status] = &[Status::SUCCESS];
pub(super) const CONFLICT: &[Status] = &[Status::RESERVATION_CONFLICT];
pub(super) const INVALID: &[Status] = &[Status::INVALID_FIELD];

/// Two hosts with their keys.
pub(super) const ONE: Host = Host { id: 0x1111, key: 0xa1 };
pub(super) const TWO: Host = Host { id: 0x2222, key: 0xb2 };

#[derive(Clone, Copy)]
pub(super) struct Host {
    /// Host identifier, of eight bytes.
    pub(super) id: u64,
    /// The key that it registers.
    pub(super) key: u64,
}

/// The host that uses the controller now.
pub(super) struct Here {
    pub(super) pair: Pair,
    pub(super) key: u64,
}

/// Runs a reservation case, starting and ending without registrations.
pub(super) async fn alone(b: &mut Bench, case: impl AsyncFnOnce(&mut Bench) -> Verdict) -> Verdict {
    needs!(b.id.oncs.get() & oncs::RESERVATIONS != 0, "ONCS: reservations");
    needs!(b.nsid != Nsid::NONE, "an active namespace");
    let kinds = b.ns.rescap & rescap::KINDS;
    needs!(kinds == rescap::KINDS, "all six kinds: RESCAP is {:#04x}", b.ns.rescap);
    no_host(b).await?;
    let verdict = case(b).await;
    no_host(b).await?;
    verdict
}

/// Removes all registrations and reservations.
pub(super) async fn no_host(b: &mut Bench) -> Verdict {
    let mut here = as_host(b, Host { id: 0x9999, key: 0x99 }).await?;
    let how = Register { ignore_key: true, ..register(Registering::Replace) };
    here.register(b, how, 0, here.key, OK).await?;
    here.clear(b, OK).await
}

/// Resets the controller, and sets the host identifier.
pub(super) async fn as_host(b: &mut Bench, host: Host) -> Verdict<Here> {
    b.disable().await?;
    b.enable(Settings::usual()).await?;
    identify_as(b, host.id, OK).await?;
    Ok(Here { pair: b.plain_io().await?, key: host.key })
}

/// As [`as_host`], and registers.
pub(super) async fn registered(b: &mut Bench, host: Host) -> Verdict<Here> {
    let mut here = as_host(b, host).await?;
    here.register(b, register(Registering::Register), 0, host.key, OK).await?;
    Ok(here)
}

pub(super) async fn identify_as(b: &mut Bench, id: u64, with: &[Status]) -> Verdict {
    let at = b.pages(1)?;
    b.store_bytes(at, &id.to_le_bytes());
    let (cid, data) = (b.cid(), b.data(at, 8)?);
    let set = SetFeatures { fid: fid::HOST_IDENTIFIER, ..SetFeatures::default() };
    let command = admin::Command::SetFeatures(set);
    let sqe = admin::Request { cid, nsid: Nsid::NONE, data, command }.to_sqe();
    b.admin_ends(&sqe, with).await
}

/// With IEKEY clear and CPTPL unchanged.
pub(super) fn register(action: Registering) -> Register {
    Register { action, ignore_key: false, persistence: Persistence::Unchanged }
}

impl Here {
    /// Runs one command with these keys, and with `bits` added to its dword 10.
    pub(super) async fn reserve(
        &mut self,
        b: &Bench,
        (command, bits): (Command, u32),
        keys: &[u8],
        with: &[Status],
    ) -> Verdict {
        let at = b.pages(1)?;
        b.store_bytes(at, keys);
        let (cid, data) = (b.cid(), b.data(at, keys.len() as u64)?);
        let mut sqe = io::Request { cid, nsid: b.nsid, data, command }.to_sqe();
        sqe.cdw10 = (sqe.cdw10.get() ^ bits).into();
        b.ends(&mut self.pair, &sqe, with).await
    }

    pub(super) async fn register(
        &mut self,
        b: &Bench,
        how: Register,
        current: u64,
        new: u64,
        with: &[Status],
    ) -> Verdict {
        let keys = RegisterKeys { current: current.into(), new: new.into() };
        self.reserve(b, (Command::ReservationRegister(how), 0), keys.as_bytes(), with).await
    }

    pub(super) async fn acquire(&mut self, b: &Bench, kind: Kind, with: &[Status]) -> Verdict {
        self.acquire_how(b, Acquire { action: Acquiring::Acquire, kind }, 0, with).await
    }

    pub(super) async fn preempt(
        &mut self,
        b: &Bench,
        other: u64,
        kind: Kind,
        with: &[Status],
    ) -> Verdict {
        self.acquire_how(b, Acquire { action: Acquiring::Preempt, kind }, other, with).await
    }

    pub(super) async fn acquire_how(
        &mut self,
        b: &Bench,
        how: Acquire,
        other: u64,
        with: &[Status],
    ) -> Verdict {
        let keys = AcquireKeys { current: self.key.into(), preempt: other.into() };
        self.reserve(b, (Command::ReservationAcquire(how), 0), keys.as_bytes(), with).await
    }

    pub(super) async fn release(&mut self, b: &Bench, kind: Kind, with: &[Status]) -> Verdict {
        let how = Release { action: Releasing::Release, kind: kind as u8 };
        let key = self.key.to_le_bytes();
        self.reserve(b, (Command::ReservationRelease(how), 0), &key, with).await
    }

    pub(super) async fn clear(&mut self, b: &Bench, with: &[Status]) -> Verdict {
        let how = Release { action: Releasing::Clear, kind: 0 };
        let key = self.key.to_le_bytes();
        self.reserve(b, (Command::ReservationRelease(how), 0), &key, with).await
    }

    /// The first `bytes` bytes of a report, in a page that was filled with 0xee.
    pub(super) async fn report(&mut self, b: &Bench, bytes: u64) -> Verdict<Vec<u8>> {
        let at = b.pages(1)?;
        b.store_bytes(at, &[0xee; 4096]);
        let command = Command::ReservationReport(Report { bytes, extended: false });
        let (cid, data) = (b.cid(), b.data(at, bytes)?);
        b.ok(&mut self.pair, &io::Request { cid, nsid: b.nsid, data, command }.to_sqe()).await?;
        Ok(b.bytes(at, 4096))
    }

    /// The reservation status and all registrants, by a report.
    pub(super) async fn standing(&mut self, b: &Bench) -> Verdict<Standing> {
        let page = self.report(b, 4096).await?;
        let (status, rest) = ReservationStatus::read_from_prefix(&page).expect("its length");
        let all = rest.chunks_exact(24).take(usize::from(status.controllers.get()));
        let entry = |bytes| RegisteredController::read_from_bytes(bytes).expect("24 bytes");
        Ok(Standing { status, registrants: all.map(entry).collect() })
    }

    /// Checks the registrants by host and key, and whether each holds a reservation.
    pub(super) async fn are(&mut self, b: &Bench, expected: &[(Host, bool)]) -> Verdict {
        let standing = self.standing(b).await?;
        let mut found: Vec<_> = standing
            .registrants
            .iter()
            .map(|one| (one.host.get(), one.key.get(), one.status & 1 != 0))
            .collect();
        found.sort_unstable();
        let expected: Vec<_> =
            expected.iter().map(|(host, holds)| (host.id, host.key, *holds)).collect();
        hold!(
            found == expected,
            "registered (host, key, whether it holds): {found:x?}, expected {expected:x?}"
        );
        Ok(())
    }

    /// A read and a write: each must succeed or conflict as given.
    pub(super) async fn may(&mut self, b: &Bench, reads: bool, writes: bool) -> Verdict {
        let at = b.place(b.block(), b.page_bytes)?;
        let data = b.data(at, b.block())?;
        let expected = |may: bool| if may { OK } else { CONFLICT };
        let read = io::read(b.cid(), b.nsid, Lba(0), 1, false, data);
        b.ends(&mut self.pair, &read, expected(reads)).await?;
        let write = io::write(b.cid(), b.nsid, Lba(0), 1, false, data);
        b.ends(&mut self.pair, &write, expected(writes)).await
    }
}

pub(super) struct Standing {
    pub(super) status: ReservationStatus,
    pub(super) registrants: Vec<RegisteredController>,
}
