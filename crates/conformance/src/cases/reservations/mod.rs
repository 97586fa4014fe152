//! Reservations: NVMe base 2.0, 7.2 to 7.5 and 8.19. The hosts of a case use the controller in turn: each
//! resets it and sets its host identifier.

mod hosts;

use wire::BusAddr;
use wire::nvme::admin::{self, SetFeatures};
use wire::nvme::entry::DataPointer;
use wire::nvme::features::fid;
use wire::nvme::io::{self, Command};
use wire::nvme::reservation::{
    Acquire, AcquireKeys, Acquiring, Kind, Persistence, Register, RegisterKeys, Registering,
    Release, Releasing, Report, rescap,
};
use wire::nvme::status::Status;
use zerocopy::IntoBytes;

use crate::bench::Bench;
use crate::case::{Case, Harm, Section};
use crate::verdict::{Verdict, hold, needs};

use hosts::{
    CONFLICT, Here, Host, INVALID, OK, ONE, TWO, alone, as_host, identify_as, register, registered,
};

const BASE: &str = "NVMe base 2.0";

/// A table of cases, each starting and ending without registrations.
macro_rules! among_hosts {
    ($($name:ident $about:literal;)+) => {
        &[$(Case {
            name: stringify!($name),
            about: $about,
            harm: Harm::Erases,
            run: |b| Box::pin(alone(b, $name)),
        }),+]
    };
}

pub(super) const SECTIONS: &[Section] = &[
    Section {
        of: BASE,
        number: "5.27.1.26",
        title: "Host Identifier",
        cases: among_hosts! {
            identified_twice "a second Host Identifier equal to the first: no error";
            identified_as_another "another identifier without a reset: Command Sequence Error";
        },
    },
    Section {
        of: BASE,
        number: "5.27.1.28",
        title: "Reservation Persistence",
        cases: among_hosts! {
            persistence_as_set "what was set is what is got, and what a report says";
            persistence_by_register "CPTPL of a registration sets it, and clears it";
        },
    },
    Section {
        of: BASE,
        number: "7.2",
        title: "Reservation Acquire",
        cases: among_hosts! {
            acquired_without_a_key "by a host that has not registered: Reservation Conflict";
            acquired_by_another_key "with another key than its own: Reservation Conflict";
            acquired_twice "the same kind again, by its holder: no error";
            acquired_as_another_kind "another kind, by its holder: Reservation Conflict";
            acquired_while_held "while another host holds one: Reservation Conflict";
            acquired_of_reserved_kinds "RTYPE of 0, or above 6: Invalid Field";
            acquired_by_reserved_actions "RACQA of 3 to 7: Invalid Field";
            a_holder_preempted "its reservation passes to the other, its registration is gone";
            a_registrant_preempted "its registration is gone, and the reservation is as it was";
            unregistered_key_preempted "an unregistered key: Reservation Conflict";
            preempted_among_all
                "PRKEY of zero, where all registrants hold: only the preempting host remains";
        },
    },
    Section {
        of: BASE,
        number: "7.3",
        title: "Reservation Register",
        cases: among_hosts! {
            registered_again "with the same key: no error";
            registered_with_another_key "by a registrant: Reservation Conflict";
            a_key_replaced "with its own key named; the former is no longer its key";
            a_key_replaced_by_another "with another key named: Reservation Conflict";
            a_key_replaced_unnamed "IEKEY: no key has to be named";
            unregistered "its key is gone; once more: Reservation Conflict";
            unregistered_by_another_key "with another key named: Reservation Conflict";
            unregistered_while_holding "the reservation goes with its holder";
            registered_by_reserved_actions "RREGA of 3 to 7: Invalid Field";
            registered_across_resets "a controller's reset takes no registration away";
        },
    },
    Section {
        of: BASE,
        number: "7.4",
        title: "Reservation Release",
        cases: among_hosts! {
            released_and_open "after it, every host has access";
            released_as_another_kind "with another RTYPE: Invalid Field, and it stays";
            released_by_another_key "with another key than its own: Reservation Conflict";
            released_by_a_registrant "by a host that does not hold it: no error, and it stays";
            released_where_there_is_none "no error";
            cleared "by any registrant: no reservation, and no registration";
            cleared_by_a_stranger "a host that has not registered: Reservation Conflict";
            released_by_reserved_actions "RRELA of 2 to 7: Invalid Field";
        },
    },
    Section {
        of: BASE,
        number: "7.5",
        title: "Reservation Report",
        cases: among_hosts! {
            a_report_of_nothing "neither kind nor registrants";
            a_report_of_two "a registrant behind this controller, and one behind none";
            a_short_report "as much as was asked for, and no byte more";
            a_report_of_the_other_form
                "EDS is not as long as the host's identifier: Host Identifier Inconsistent Format";
            generations "registrations and preemptions are counted, reservations are not";
        },
    },
    Section {
        of: BASE,
        number: "8.19",
        title: "reservations",
        cases: among_hosts! {
            write_exclusive "its holder writes; every host reads";
            exclusive_access "its holder writes and reads";
            write_exclusive_registrants "registrants write; every host reads";
            exclusive_access_registrants "registrants write and read";
            write_exclusive_all "registrants write, each of them a holder; every host reads";
            exclusive_access_all "registrants write and read, each of them a holder";
        },
    },
];

async fn identified_twice(b: &mut Bench) -> Verdict {
    as_host(b, ONE).await?;
    identify_as(b, ONE.id, OK).await
}

async fn identified_as_another(b: &mut Bench) -> Verdict {
    as_host(b, ONE).await?;
    identify_as(b, TWO.id, &[Status::COMMAND_SEQUENCE_ERROR]).await
}

/// Checks persistence (PTPL) by Get Features and by a report.
async fn persists(b: &mut Bench, here: &mut Here, expected: u32) -> Verdict {
    let (cid, data) = (b.cid(), DataPointer::Prp { prp1: BusAddr(0), prp2: BusAddr(0) });
    let (fid, select) = (fid::RESERVATION_PERSISTENCE, admin::Select::Current);
    let command = admin::Command::GetFeatures { fid, select, cdw11: 0 };
    let sqe = admin::Request { cid, nsid: b.nsid, data, command }.to_sqe();
    let got = b.admin_ok(&sqe).await?;
    let reported = u32::from(here.standing(b).await?.status.persists);
    hold!(
        (got, reported) == (expected, expected),
        "PTPL is {got} by Get Features and {reported} in the report, expected {expected}"
    );
    Ok(())
}

fn keeping(b: &Bench) -> Verdict {
    needs!(b.ns.rescap & rescap::PERSIST != 0, "RESCAP: persist through power loss");
    Ok(())
}

async fn persistence_as_set(b: &mut Bench) -> Verdict {
    keeping(b)?;
    let mut here = registered(b, ONE).await?;
    for ptpl in [1, 0] {
        let set = SetFeatures {
            fid: fid::RESERVATION_PERSISTENCE,
            cdw11: ptpl,
            ..SetFeatures::default()
        };
        let (cid, data) = (b.cid(), DataPointer::Prp { prp1: BusAddr(0), prp2: BusAddr(0) });
        let command = admin::Command::SetFeatures(set);
        b.admin_ok(&admin::Request { cid, nsid: b.nsid, data, command }.to_sqe()).await?;
        persists(b, &mut here, ptpl).await?;
    }
    Ok(())
}

async fn persistence_by_register(b: &mut Bench) -> Verdict {
    keeping(b)?;
    let mut here = registered(b, ONE).await?;
    for (persistence, ptpl) in [(Persistence::Kept, 1), (Persistence::Lost, 0)] {
        let how = Register { persistence, ..register(Registering::Replace) };
        here.register(b, how, ONE.key, ONE.key, OK).await?;
        persists(b, &mut here, ptpl).await?;
    }
    Ok(())
}

async fn acquired_without_a_key(b: &mut Bench) -> Verdict {
    let mut here = as_host(b, ONE).await?;
    here.acquire(b, Kind::WriteExclusive, CONFLICT).await?;
    here.may(b, true, true).await
}

async fn acquired_by_another_key(b: &mut Bench) -> Verdict {
    let mut here = registered(b, ONE).await?;
    here.key = TWO.key;
    here.acquire(b, Kind::WriteExclusive, CONFLICT).await
}

async fn acquired_twice(b: &mut Bench) -> Verdict {
    let mut here = registered(b, ONE).await?;
    here.acquire(b, Kind::WriteExclusive, OK).await?;
    here.acquire(b, Kind::WriteExclusive, OK).await?;
    here.are(b, &[(ONE, true)]).await
}

async fn acquired_as_another_kind(b: &mut Bench) -> Verdict {
    let mut here = registered(b, ONE).await?;
    here.acquire(b, Kind::WriteExclusive, OK).await?;
    here.acquire(b, Kind::ExclusiveAccess, CONFLICT).await?;
    let kind = here.standing(b).await?.status.rtype;
    hold!(kind == Kind::WriteExclusive as u8, "RTYPE is {kind} after that, expected 1");
    Ok(())
}

async fn acquired_while_held(b: &mut Bench) -> Verdict {
    registered(b, ONE).await?.acquire(b, Kind::WriteExclusive, OK).await?;
    let mut here = registered(b, TWO).await?;
    here.acquire(b, Kind::WriteExclusive, CONFLICT).await?;
    here.are(b, &[(ONE, true), (TWO, false)]).await
}

async fn acquired_of_reserved_kinds(b: &mut Bench) -> Verdict {
    let mut here = registered(b, ONE).await?;
    let keys = AcquireKeys { current: ONE.key.into(), preempt: 0.into() };
    for reserved in [0, 7, 8, 0xff] {
        let how = Acquire { action: Acquiring::Acquire, kind: Kind::WriteExclusive };
        let bits = (reserved ^ Kind::WriteExclusive as u32) << 8;
        let command = (Command::ReservationAcquire(how), bits);
        here.reserve(b, command, keys.as_bytes(), INVALID).await?;
    }
    here.are(b, &[(ONE, false)]).await
}

async fn acquired_by_reserved_actions(b: &mut Bench) -> Verdict {
    let mut here = registered(b, ONE).await?;
    let keys = AcquireKeys { current: ONE.key.into(), preempt: ONE.key.into() };
    for reserved in 3..8 {
        let how = Acquire { action: Acquiring::Acquire, kind: Kind::WriteExclusive };
        let command = (Command::ReservationAcquire(how), reserved);
        here.reserve(b, command, keys.as_bytes(), INVALID).await?;
    }
    here.are(b, &[(ONE, false)]).await
}

async fn a_holder_preempted(b: &mut Bench) -> Verdict {
    registered(b, ONE).await?.acquire(b, Kind::WriteExclusive, OK).await?;
    let mut here = registered(b, TWO).await?;
    here.preempt(b, ONE.key, Kind::ExclusiveAccess, OK).await?;
    here.are(b, &[(TWO, true)]).await?;
    let kind = here.standing(b).await?.status.rtype;
    hold!(kind == Kind::ExclusiveAccess as u8, "RTYPE is {kind}, expected 2, as preempted");
    here.may(b, true, true).await?;
    as_host(b, ONE).await?.may(b, false, false).await
}

async fn a_registrant_preempted(b: &mut Bench) -> Verdict {
    registered(b, ONE).await?;
    let mut here = registered(b, TWO).await?;
    let kind = Kind::WriteExclusiveRegistrants;
    here.acquire(b, kind, OK).await?;
    here.preempt(b, ONE.key, kind, OK).await?;
    here.are(b, &[(TWO, true)]).await?;
    as_host(b, ONE).await?.may(b, true, false).await
}

async fn unregistered_key_preempted(b: &mut Bench) -> Verdict {
    let mut here = registered(b, ONE).await?;
    here.acquire(b, Kind::WriteExclusive, OK).await?;
    here.preempt(b, 0x7777, Kind::WriteExclusive, CONFLICT).await?;
    here.are(b, &[(ONE, true)]).await
}

async fn preempted_among_all(b: &mut Bench) -> Verdict {
    registered(b, ONE).await?.acquire(b, Kind::WriteExclusiveAll, OK).await?;
    let mut here = registered(b, TWO).await?;
    here.are(b, &[(ONE, true), (TWO, true)]).await?;
    here.preempt(b, 0, Kind::WriteExclusive, OK).await?;
    here.are(b, &[(TWO, true)]).await
}

async fn registered_again(b: &mut Bench) -> Verdict {
    let mut here = registered(b, ONE).await?;
    here.register(b, register(Registering::Register), 0, ONE.key, OK).await?;
    here.are(b, &[(ONE, false)]).await
}

async fn registered_with_another_key(b: &mut Bench) -> Verdict {
    let mut here = registered(b, ONE).await?;
    here.register(b, register(Registering::Register), 0, TWO.key, CONFLICT).await?;
    here.are(b, &[(ONE, false)]).await
}

async fn a_key_replaced(b: &mut Bench) -> Verdict {
    let mut here = registered(b, ONE).await?;
    here.register(b, register(Registering::Replace), ONE.key, 0xa2, OK).await?;
    here.are(b, &[(Host { key: 0xa2, ..ONE }, false)]).await?;
    here.acquire(b, Kind::WriteExclusive, CONFLICT).await?;
    here.key = 0xa2;
    here.acquire(b, Kind::WriteExclusive, OK).await
}

async fn a_key_replaced_by_another(b: &mut Bench) -> Verdict {
    let mut here = registered(b, ONE).await?;
    here.register(b, register(Registering::Replace), TWO.key, 0xa2, CONFLICT).await?;
    here.are(b, &[(ONE, false)]).await
}

async fn a_key_replaced_unnamed(b: &mut Bench) -> Verdict {
    let mut here = registered(b, ONE).await?;
    let how = Register { ignore_key: true, ..register(Registering::Replace) };
    here.register(b, how, 0, 0xa2, OK).await?;
    here.are(b, &[(Host { key: 0xa2, ..ONE }, false)]).await
}

async fn unregistered(b: &mut Bench) -> Verdict {
    let mut here = registered(b, ONE).await?;
    here.register(b, register(Registering::Unregister), ONE.key, 0, OK).await?;
    here.are(b, &[]).await?;
    here.register(b, register(Registering::Unregister), ONE.key, 0, CONFLICT).await
}

async fn unregistered_by_another_key(b: &mut Bench) -> Verdict {
    let mut here = registered(b, ONE).await?;
    here.register(b, register(Registering::Unregister), TWO.key, 0, CONFLICT).await?;
    here.are(b, &[(ONE, false)]).await
}

async fn unregistered_while_holding(b: &mut Bench) -> Verdict {
    let mut here = registered(b, ONE).await?;
    here.acquire(b, Kind::ExclusiveAccess, OK).await?;
    here.register(b, register(Registering::Unregister), ONE.key, 0, OK).await?;
    as_host(b, TWO).await?.may(b, true, true).await
}

async fn registered_by_reserved_actions(b: &mut Bench) -> Verdict {
    let mut here = as_host(b, ONE).await?;
    let keys = RegisterKeys { current: 0.into(), new: ONE.key.into() };
    for reserved in 3..8 {
        let command = Command::ReservationRegister(register(Registering::Register));
        here.reserve(b, (command, reserved), keys.as_bytes(), INVALID).await?;
    }
    here.are(b, &[]).await
}

async fn registered_across_resets(b: &mut Bench) -> Verdict {
    registered(b, ONE).await?.acquire(b, Kind::WriteExclusive, OK).await?;
    as_host(b, ONE).await?.are(b, &[(ONE, true)]).await
}

async fn released_and_open(b: &mut Bench) -> Verdict {
    let mut here = registered(b, ONE).await?;
    here.acquire(b, Kind::ExclusiveAccess, OK).await?;
    here.release(b, Kind::ExclusiveAccess, OK).await?;
    here.are(b, &[(ONE, false)]).await?;
    as_host(b, TWO).await?.may(b, true, true).await
}

async fn released_as_another_kind(b: &mut Bench) -> Verdict {
    let mut here = registered(b, ONE).await?;
    here.acquire(b, Kind::WriteExclusive, OK).await?;
    here.release(b, Kind::ExclusiveAccess, INVALID).await?;
    here.are(b, &[(ONE, true)]).await
}

async fn released_by_another_key(b: &mut Bench) -> Verdict {
    let mut here = registered(b, ONE).await?;
    here.acquire(b, Kind::WriteExclusive, OK).await?;
    here.key = TWO.key;
    here.release(b, Kind::WriteExclusive, CONFLICT).await?;
    here.are(b, &[(ONE, true)]).await
}

async fn released_by_a_registrant(b: &mut Bench) -> Verdict {
    registered(b, ONE).await?.acquire(b, Kind::WriteExclusive, OK).await?;
    let mut here = registered(b, TWO).await?;
    here.release(b, Kind::WriteExclusive, OK).await?;
    here.are(b, &[(ONE, true), (TWO, false)]).await
}

async fn released_where_there_is_none(b: &mut Bench) -> Verdict {
    registered(b, ONE).await?.release(b, Kind::WriteExclusive, OK).await
}

async fn cleared(b: &mut Bench) -> Verdict {
    registered(b, ONE).await?.acquire(b, Kind::WriteExclusive, OK).await?;
    let mut here = registered(b, TWO).await?;
    here.clear(b, OK).await?;
    here.are(b, &[]).await?;
    here.may(b, true, true).await
}

async fn cleared_by_a_stranger(b: &mut Bench) -> Verdict {
    registered(b, ONE).await?.acquire(b, Kind::WriteExclusive, OK).await?;
    let mut here = as_host(b, TWO).await?;
    here.clear(b, CONFLICT).await?;
    here.are(b, &[(ONE, true)]).await
}

async fn released_by_reserved_actions(b: &mut Bench) -> Verdict {
    let mut here = registered(b, ONE).await?;
    here.acquire(b, Kind::WriteExclusive, OK).await?;
    for reserved in 2..8 {
        let kind = Kind::WriteExclusive as u8;
        let how = Release { action: Releasing::Release, kind };
        let command = (Command::ReservationRelease(how), reserved);
        here.reserve(b, command, &ONE.key.to_le_bytes(), INVALID).await?;
    }
    here.are(b, &[(ONE, true)]).await
}

async fn a_report_of_nothing(b: &mut Bench) -> Verdict {
    let found = as_host(b, ONE).await?.standing(b).await?.status;
    let (kind, registered) = (found.rtype, found.controllers.get());
    hold!((kind, registered) == (0, 0), "RTYPE {kind}, REGCTL {registered}, expected none");
    Ok(())
}

async fn a_report_of_two(b: &mut Bench) -> Verdict {
    registered(b, ONE).await?.acquire(b, Kind::ExclusiveAccessRegistrants, OK).await?;
    let mut here = registered(b, TWO).await?;
    here.are(b, &[(ONE, true), (TWO, false)]).await?;
    let found = here.standing(b).await?;
    let kind = found.status.rtype;
    hold!(kind == Kind::ExclusiveAccessRegistrants as u8, "RTYPE is {kind}, expected 4");
    let own = b.id.cntlid.get();
    for one in &found.registrants {
        let (host, controller) = (one.host.get(), one.controller.get());
        let expected = if host == TWO.id { own } else { 0xffff };
        hold!(controller == expected, "CNTLID {controller:#x} of host {host:#x}");
    }
    Ok(())
}

async fn a_short_report(b: &mut Bench) -> Verdict {
    let mut here = registered(b, ONE).await?;
    let whole = here.report(b, 4096).await?;
    for bytes in [4, 24, 28, 48, 52] {
        let part = here.report(b, bytes).await?;
        let (given, beyond) = part.split_at(bytes as usize);
        hold!(given == &whole[..bytes as usize], "{bytes} bytes of it are others");
        hold!(beyond.iter().all(|byte| *byte == 0xee), "more than {bytes} bytes are written");
    }
    Ok(())
}

async fn a_report_of_the_other_form(b: &mut Bench) -> Verdict {
    let mut here = as_host(b, ONE).await?;
    let at = b.pages(1)?;
    let command = Command::ReservationReport(Report { bytes: 4096, extended: true });
    let (cid, data) = (b.cid(), b.data(at, 4096)?);
    let sqe = io::Request { cid, nsid: b.nsid, data, command }.to_sqe();
    b.ends(&mut here.pair, &sqe, &[Status::HOST_ID_INCONSISTENT_FORMAT]).await
}

async fn generations(b: &mut Bench) -> Verdict {
    let mut here = registered(b, ONE).await?;
    let mut last = here.standing(b).await?.status.generation.get();
    here.register(b, register(Registering::Replace), ONE.key, ONE.key, OK).await?;
    let mut counts = async |here: &mut Here, b: &Bench, what: &str, steps: u32| {
        let now = here.standing(b).await?.status.generation.get();
        let expected = last.wrapping_add(steps);
        hold!(now == expected, "GEN is {now} after {what}, expected {expected}");
        last = now;
        Ok(())
    };
    counts(&mut here, b, "a registration", 1).await?;
    here.acquire(b, Kind::WriteExclusive, OK).await?;
    counts(&mut here, b, "an acquisition", 0).await?;
    here.release(b, Kind::WriteExclusive, OK).await?;
    counts(&mut here, b, "a release", 0).await?;
    let mut here = registered(b, TWO).await?;
    counts(&mut here, b, "another's registration", 1).await?;
    here.preempt(b, ONE.key, Kind::WriteExclusive, OK).await?;
    counts(&mut here, b, "a preemption", 1).await
}

/// One host holds a reservation: checks the rights of the holder, a registrant, and another host.
async fn kept_out(
    b: &mut Bench,
    kind: Kind,
    registrants: (bool, bool),
    others: (bool, bool),
) -> Verdict {
    let mut here = registered(b, ONE).await?;
    here.acquire(b, kind, OK).await?;
    here.may(b, true, true).await?;
    let mut here = as_host(b, TWO).await?;
    here.may(b, others.0, others.1).await?;
    here.register(b, register(Registering::Register), 0, TWO.key, OK).await?;
    here.may(b, registrants.0, registrants.1).await?;
    here.are(b, &[(ONE, true), (TWO, kind.is_all_registrants())]).await
}

async fn write_exclusive(b: &mut Bench) -> Verdict {
    kept_out(b, Kind::WriteExclusive, (true, false), (true, false)).await
}

async fn exclusive_access(b: &mut Bench) -> Verdict {
    kept_out(b, Kind::ExclusiveAccess, (false, false), (false, false)).await
}

async fn write_exclusive_registrants(b: &mut Bench) -> Verdict {
    kept_out(b, Kind::WriteExclusiveRegistrants, (true, true), (true, false)).await
}

async fn exclusive_access_registrants(b: &mut Bench) -> Verdict {
    kept_out(b, Kind::ExclusiveAccessRegistrants, (true, true), (false, false)).await
}

async fn write_exclusive_all(b: &mut Bench) -> Verdict {
    kept_out(b, Kind::WriteExclusiveAll, (true, true), (true, false)).await
}

async fn exclusive_access_all(b: &mut Bench) -> Verdict {
    kept_out(b, Kind::ExclusiveAccessAll, (true, true), (false, false)).await
}
