//! Reservations against a model: hosts send random commands, and an independent reference model of the
//! specification predicts their results (NVMe base 2.0, 8.19).

use std::collections::BTreeMap;

use runtime::Rng;
use wire::nvme::entry::Sqe;
use wire::nvme::io;
use wire::nvme::opcode;
use wire::nvme::reservation::{
    Acquire, Acquiring, Kind, Persistence, Register, Registering, Release, Releasing,
};
use wire::nvme::status::Status;
use wire::{Lba, Nsid};

use crate::raw::nvme::NS;
use crate::raw::nvme::several::{Several, with_hosts};
use crate::raw::nvme::world::Setup;

const HOSTS: usize = 3;

/// The reference model: keys by host; the type of the reservation, and its holder if it has a single one.
#[derive(Default)]
struct Book {
    keys: BTreeMap<usize, u64>,
    held: Option<(u8, Option<usize>)>,
    changes: u32,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Register { how: Registering, ignore: bool, old: u64, new: u64 },
    Acquire { how: Acquiring, kind: u8, key: u64, other: u64 },
    Release { kind: u8, key: u64 },
    Clear { key: u64 },
    Read,
    Write,
}

/// Expected result of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Well,
    Conflict,
    Invalid,
}

impl Book {
    fn held_by(&self, host: usize) -> bool {
        match self.held {
            None => false,
            Some((_, None)) => self.keys.contains_key(&host),
            Some((_, Some(holder))) => holder == host,
        }
    }

    fn allows(&self, host: usize, write: bool) -> bool {
        let Some((kind, _)) = self.held else { return true };
        let shuts_out = write || [2, 4, 6].contains(&kind);
        !shuts_out || self.held_by(host) || (kind >= 3 && self.keys.contains_key(&host))
    }

    /// Removes keys; a reservation without a holder ends. Returns the number of removed keys.
    fn strike(&mut self, gone: impl Fn(usize, u64) -> bool) -> usize {
        let before = self.keys.len();
        self.keys.retain(|host, key| !gone(*host, *key));
        self.held = self.held.filter(|(_, holder)| match holder {
            Some(holder) => self.keys.contains_key(holder),
            None => !self.keys.is_empty(),
        });
        before - self.keys.len()
    }

    fn hold(&mut self, kind: u8, host: usize) {
        self.held = Some((kind, (kind < 5).then_some(host)));
    }

    fn step(&mut self, host: usize, step: Step) -> End {
        let mine = self.keys.get(&host).copied();
        match step {
            Step::Read | Step::Write => {
                let may = self.allows(host, matches!(step, Step::Write));
                return if may { End::Well } else { End::Conflict };
            }
            Step::Register { how, ignore, old, new } => {
                if how != Registering::Unregister && new == 0 {
                    return End::Invalid;
                }
                let named = mine.is_some() && (ignore || mine == Some(old));
                let fits = match how {
                    Registering::Register => mine.is_none() || mine == Some(new),
                    Registering::Unregister => named,
                    Registering::Replace => named || (ignore && mine.is_none()),
                };
                if !fits {
                    return End::Conflict;
                }
                self.changes += 1;
                if how == Registering::Unregister {
                    self.strike(|one, _| one == host);
                } else {
                    self.keys.insert(host, new);
                }
                return End::Well;
            }
            Step::Acquire { key, .. } | Step::Release { key, .. } | Step::Clear { key } => {
                if mine != Some(key) {
                    return End::Conflict;
                }
            }
        }
        match step {
            Step::Clear { .. } => {
                self.strike(|_, _| true);
                self.changes += 1;
            }
            Step::Release { kind, .. } => match self.held {
                Some((held, _)) if held != kind => return End::Invalid,
                _ if self.held_by(host) => self.held = None,
                _ => {}
            },
            Step::Acquire { how: Acquiring::Acquire, kind, .. } => match self.held {
                None => self.hold(kind, host),
                Some((held, _)) if held == kind && self.held_by(host) => {}
                Some(_) => return End::Conflict,
            },
            Step::Acquire { kind, other, .. } => return self.preempt(host, kind, other),
            _ => unreachable!("done above"),
        }
        End::Well
    }

    fn preempt(&mut self, host: usize, kind: u8, other: u64) -> End {
        match self.held {
            Some((_, None)) if other == 0 => {
                self.strike(|one, _| one != host);
                self.hold(kind, host);
            }
            Some((_, Some(_))) if other == 0 => return End::Invalid,
            Some((_, Some(holder))) if self.keys[&holder] == other => {
                self.strike(|one, key| one != host && key == other);
                self.hold(kind, host);
            }
            _ => {
                if self.strike(|_, key| key == other) == 0 {
                    return End::Conflict;
                }
            }
        }
        self.changes += 1;
        End::Well
    }
}

fn draw(rng: &mut Rng) -> Step {
    // Few keys, so that they collide.
    let key = |rng: &mut Rng| rng.below(4);
    let kind = |rng: &mut Rng| rng.below(6) as u8 + 1;
    match rng.below(10) {
        0..=2 => {
            let all = [Registering::Register, Registering::Unregister, Registering::Replace];
            let how = all[[0, 0, 0, 1, 2][rng.below(5) as usize]];
            Step::Register { how, ignore: rng.below(3) == 0, old: key(rng), new: key(rng) }
        }
        3..=5 => {
            let all = [Acquiring::Acquire, Acquiring::Preempt, Acquiring::PreemptAndAbort];
            let how = all[rng.below(3) as usize];
            Step::Acquire { how, kind: kind(rng), key: key(rng), other: key(rng) }
        }
        6 => Step::Release { kind: kind(rng), key: key(rng) },
        7 if rng.below(4) == 0 => Step::Clear { key: key(rng) },
        7 | 8 => Step::Write,
        _ => Step::Read,
    }
}

/// The command of a step, and the keys in its data.
fn command(step: Step) -> (io::Command, [u64; 2]) {
    match step {
        Step::Register { how, ignore, old, new } => {
            let how =
                Register { action: how, ignore_key: ignore, persistence: Persistence::Unchanged };
            (io::Command::ReservationRegister(how), [old, new])
        }
        Step::Acquire { how, kind, key, other } => {
            let how = Acquire { action: how, kind: Kind::of(kind).expect("1 to 6") };
            (io::Command::ReservationAcquire(how), [key, other])
        }
        Step::Release { kind, key } => {
            let how = Release { action: Releasing::Release, kind };
            (io::Command::ReservationRelease(how), [key, 0])
        }
        Step::Clear { key } => {
            let how = Release { action: Releasing::Clear, kind: 0 };
            (io::Command::ReservationRelease(how), [key, 0])
        }
        Step::Read => (io::Command::Read(io::Access::of(Lba(3), 1)), [0; 2]),
        Step::Write => (io::Command::Write(io::Access::of(Lba(3), 1)), [0; 2]),
    }
}

/// Every status, and after every step the reservation report, equal the model's. `DOORBELL_STEPS` is the
/// number of steps per seed.
#[test]
fn reservations_match_reference_model() {
    let steps = std::env::var("DOORBELL_STEPS").map_or(250, |steps| steps.parse().unwrap());
    for seed in 0..4 {
        with_hosts(HOSTS, Setup { blocks: 4096, ..Setup::default() }, async |mut w: Several| {
            w.medium.span.set(runtime::Span::ZERO);
            let (mut rng, mut book) = (Rng::new(seed), Book::default());
            let (mut ends, mut held) = ([0; 3], 0);
            for number in 0..steps {
                let host = rng.below(HOSTS as u64) as usize;
                let step = draw(&mut rng);
                let wanted = book.step(host, step);
                ends[wanted as usize] += 1;
                held += u32::from(book.held.is_some());
                let (command, keys) = command(step);
                let sqe = w.hosts[host].form(NS, command, &keys);
                let found = match w.hosts[host].io(&sqe).await.kind() {
                    Status::SUCCESS => End::Well,
                    Status::RESERVATION_CONFLICT => End::Conflict,
                    Status::INVALID_FIELD => End::Invalid,
                    other => panic!("seed {seed}, step {number}: {other}"),
                };
                assert_eq!(found, wanted, "seed {seed}, step {number}: {step:?} by host {host}");
                let page = w.hosts[host].report(false).await.expect("anybody may ask");
                let what = format!("seed {seed}, after step {number}: {step:?} by host {host}");
                assert_eq!(page[..4], book.changes.to_le_bytes(), "{what}");
                assert_eq!(page[4], book.held.map_or(0, |(kind, _)| kind), "{what}");
                let count = usize::from(u16::from_le_bytes([page[5], page[6]]));
                let found: BTreeMap<usize, (u64, bool)> = page[24..]
                    .chunks_exact(24)
                    .take(count)
                    .map(|one| {
                        let key = u64::from_le_bytes(one[16..].try_into().unwrap());
                        (usize::from(one[0]) - 1, (key, one[2] == 1))
                    })
                    .collect();
                let keys = book.keys.iter();
                let wanted = keys.map(|(host, key)| (*host, (*key, book.held_by(*host))));
                assert_eq!(found, wanted.collect(), "{what}");
            }
            assert!(ends.iter().all(|times| *times > 5) && held > steps / 8, "{ends:?}, {held}");
        });
    }
}

/// Random reservation commands, from hosts with random identifiers: each ends, and the controllers keep
/// working. `DOORBELL_STEPS` is the number of commands.
#[test]
fn random_reservation_commands_all_end() {
    let steps = std::env::var("DOORBELL_STEPS").map_or(400, |steps| steps.parse().unwrap());
    with_hosts(HOSTS, Setup { blocks: 4096, ..Setup::default() }, async |mut w: Several| {
        w.medium.span.set(runtime::Span::ZERO);
        let mut rng = Rng::new(9);
        let all = [
            opcode::io::RESERVATION_REGISTER,
            opcode::io::RESERVATION_REPORT,
            opcode::io::RESERVATION_ACQUIRE,
            opcode::io::RESERVATION_RELEASE,
        ];
        for _ in 0..steps {
            let party = &mut w.hosts[rng.below(HOSTS as u64) as usize];
            let bytes: Vec<u8> = (0..32).map(|_| rng.below(3) as u8).collect();
            party.raw.memory.write(party.at, &bytes).unwrap();
            if rng.below(20) == 0 {
                let long = 8 << rng.below(2);
                party.expect_holder(&bytes[..long]).await;
            }
            let wild = |rng: &mut Rng, bits: u32| {
                let few = rng.next_u64() as u32 & rng.next_u64() as u32;
                if rng.below(8) == 0 { rng.next_u64() as u32 } else { few & bits }
            };
            let data = party.raw.data(party.at, 4096);
            let form = io::flush(party.raw.cid(), NS);
            let (prp1, prp2) = data.prps().expect("PRPs");
            let nsid = if rng.below(16) == 0 { Nsid(rng.next_u64() as u32) } else { NS };
            let sqe = Sqe {
                opcode: all[rng.below(4) as usize],
                nsid: nsid.0.into(),
                prp1: prp1.0.into(),
                prp2: prp2.0.into(),
                cdw10: wild(&mut rng, 0xc000_070f).into(),
                cdw11: wild(&mut rng, 1).into(),
                ..form
            };
            party.io(&sqe).await;
        }
        for party in &mut w.hosts {
            let known = party.report(false).await.is_ok() || party.report(true).await.is_ok();
            assert!(known, "it answers");
        }
    });
}
