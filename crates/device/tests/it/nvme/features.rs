//! Set and Get Features: NVMe base 2.0, 5.15 and 5.27.

use wire::Nsid;
use wire::nvme::admin::{Command, Request, Select, SetFeatures};
use wire::nvme::entry::{DataPointer, Sqe};
use wire::nvme::features::{NumberOfQueues, fid};
use wire::nvme::io;
use wire::nvme::status::Status;

use crate::raw::nvme::world::{Setup, World, on_a_bench};
use crate::raw::nvme::{NS, Settings, pattern};

/// Bits of what Get Features says with [`Select::Supported`] (5.15.1).
const SAVEABLE: u32 = 1 << 0;
const PER_NAMESPACE: u32 = 1 << 1;
const CHANGEABLE: u32 = 1 << 2;

fn set(w: &World, nsid: Nsid, fid: u8, cdw11: u32, save: bool) -> Sqe {
    let command = Command::SetFeatures(SetFeatures { fid, save, cdw11, ..SetFeatures::default() });
    Request { cid: w.raw.cid(), nsid, data: DataPointer::NONE, command }.to_sqe()
}

async fn setting(w: &mut World, nsid: Nsid, fid: u8, cdw11: u32) -> Status {
    let sqe = set(w, nsid, fid, cdw11, false);
    w.raw.admin(&sqe).await.status()
}

async fn getting(w: &mut World, fid: u8, select: Select, cdw11: u32) -> Result<u32, Status> {
    let command = Command::GetFeatures { fid, select, cdw11 };
    let (cid, data) = (w.raw.cid(), DataPointer::NONE);
    let cqe = w.raw.admin(&Request { cid, nsid: Nsid::NONE, data, command }.to_sqe()).await;
    cqe.status().ok().map(|()| cqe.dw0.get())
}

async fn current(w: &mut World, fid: u8) -> u32 {
    getting(w, fid, Select::Current, 0).await.unwrap()
}

/// Every feature, a value to set, and whether it is a namespace's.
const KNOWN: [(u8, u32, bool); 10] = [
    (fid::ARBITRATION, 0x0302_0103, false),
    (fid::POWER_MANAGEMENT, 0x0000_0020, false),
    (fid::TEMPERATURE_THRESHOLD, 0x0000_0140, false),
    (fid::ERROR_RECOVERY, 0x0000_000a, true),
    (fid::VOLATILE_WRITE_CACHE, 0, false),
    (fid::INTERRUPT_COALESCING, 0x0000_0203, false),
    (fid::INTERRUPT_VECTOR_CONFIG, 0x0001_0000, false),
    (fid::WRITE_ATOMICITY, 1, false),
    (fid::ASYNC_EVENT_CONFIG, 0x0000_0107, false),
    (fid::KEEP_ALIVE_TIMER, 600_000, false),
];

/// 5.15.1: current, default, saved and supported; and a reset brings the defaults back.
#[test]
fn what_is_set_is_got_until_the_next_reset() {
    on_a_bench(async |mut w: World| {
        w.raw.enable(Settings::default()).await;
        let mut defaults = Vec::new();
        for (fid, value, per_namespace) in KNOWN {
            let default = getting(&mut w, fid, Select::Default, 0).await.unwrap();
            assert_eq!(current(&mut w, fid).await, default, "feature {fid:#x} at first");
            assert_ne!(default, value, "feature {fid:#x}: a test that changes nothing");
            assert_eq!(setting(&mut w, Nsid::NONE, fid, value).await, Status::SUCCESS);
            assert_eq!(current(&mut w, fid).await, value, "feature {fid:#x}");
            assert_eq!(getting(&mut w, fid, Select::Default, 0).await, Ok(default));
            assert_eq!(getting(&mut w, fid, Select::Saved, 0).await, Ok(default));
            let can = getting(&mut w, fid, Select::Supported, 0).await.unwrap();
            let wanted = CHANGEABLE | if per_namespace { PER_NAMESPACE } else { 0 };
            assert_eq!(can & (SAVEABLE | PER_NAMESPACE | CHANGEABLE), wanted, "feature {fid:#x}");
            defaults.push((fid, default));
        }
        w.raw.disable().await;
        w.raw.enable(Settings::default()).await;
        for (fid, default) in defaults {
            assert_eq!(current(&mut w, fid).await, default, "feature {fid:#x} after a reset");
        }
    });
}

/// 5.15, 5.27: what there is not.
#[test]
fn unknown_features_and_selects_are_an_invalid_field() {
    on_a_bench(async |mut w: World| {
        w.raw.enable(Settings::default()).await;
        let bad = Status::INVALID_FIELD.with_dnr();
        // What the host makes use of has data; those of reservations have, too, or are of one namespace alone.
        let known = |fid| {
            [fid::NUMBER_OF_QUEUES, fid::HOST_BEHAVIOR, 0x81, 0x82, 0x83].contains(&fid)
                || KNOWN.iter().any(|(known, ..)| *known == fid)
        };
        for fid in 0..=u8::MAX {
            if known(fid) {
                continue;
            }
            assert_eq!(setting(&mut w, Nsid::NONE, fid, 0).await, bad, "feature {fid:#x}");
            for select in [Select::Current, Select::Default, Select::Saved, Select::Supported] {
                assert_eq!(getting(&mut w, fid, select, 0).await, Err(bad), "feature {fid:#x}");
            }
        }
        let mut sqe = set(&w, Nsid::NONE, 0, 0, false);
        sqe.opcode = wire::nvme::opcode::admin::GET_FEATURES;
        for select in 4..8 {
            sqe.cdw10 = (select << 8 | u32::from(fid::ARBITRATION)).into();
            assert_eq!(w.raw.admin(&sqe).await.status(), bad, "SEL {select}");
        }
    });
}

/// 5.27: nothing survives a reset here, and a controller's feature is no namespace's.
#[test]
fn saving_and_setting_for_a_namespace() {
    on_a_bench(async |mut w: World| {
        w.raw.enable(Settings::default()).await;
        for (fid, value, per_namespace) in KNOWN {
            let before = current(&mut w, fid).await;
            let sqe = set(&w, Nsid::NONE, fid, value, true);
            let saved = w.raw.admin(&sqe).await.status();
            assert_eq!(saved, Status::FEATURE_NOT_SAVEABLE.with_dnr(), "feature {fid:#x}");
            for (nsid, wanted) in [
                (2, Status::INVALID_FIELD),
                (17, Status::INVALID_NAMESPACE_OR_FORMAT),
                (0xffff_fffe, Status::INVALID_NAMESPACE_OR_FORMAT),
            ] {
                let status = setting(&mut w, Nsid(nsid), fid, value).await;
                assert_eq!(status, wanted.with_dnr());
            }
            if !per_namespace {
                let status = setting(&mut w, NS, fid, value).await;
                assert_eq!(status, Status::FEATURE_NOT_NAMESPACE_SPECIFIC.with_dnr());
            }
            assert_eq!(current(&mut w, fid).await, before, "feature {fid:#x} is as it was");
            for nsid in [Nsid::NONE, Nsid::BROADCAST] {
                assert_eq!(setting(&mut w, nsid, fid, value).await, Status::SUCCESS);
            }
        }
        assert_eq!(setting(&mut w, NS, fid::ERROR_RECOVERY, 7).await, Status::SUCCESS);
        assert_eq!(current(&mut w, fid::ERROR_RECOVERY).await, 7);
    });
}

/// Values that a feature forbids: 5.27.1.2 (states above NPSS), 5.27.1.3, 5.27.1.5, 5.27.1.7.
#[test]
fn forbidden_values_change_nothing() {
    on_a_bench(async |mut w: World| {
        w.raw.enable(Settings::default()).await;
        for (fid, value) in [
            (fid::POWER_MANAGEMENT, 1),
            (fid::POWER_MANAGEMENT, 31),
            (fid::TEMPERATURE_THRESHOLD, 2 << 20 | 300),
            (fid::TEMPERATURE_THRESHOLD, 1 << 16 | 300),
            (fid::NUMBER_OF_QUEUES, 0xffff),
            (fid::NUMBER_OF_QUEUES, 0xffff_0000),
            (fid::INTERRUPT_VECTOR_CONFIG, 1 << 16 | 64),
        ] {
            let before = current(&mut w, fid).await;
            let status = setting(&mut w, Nsid::NONE, fid, value).await;
            assert_eq!(status, Status::INVALID_FIELD.with_dnr(), "feature {fid:#x} {value:#x}");
            assert_eq!(current(&mut w, fid).await, before);
        }
    });
}

/// 5.27.1.3: there is a threshold not to exceed and one not to fall below, each its own.
#[test]
fn temperature_has_two_thresholds() {
    on_a_bench(async |mut w: World| {
        w.raw.enable(Settings::default()).await;
        let (over, under) = (0, 1 << 20);
        let fid = fid::TEMPERATURE_THRESHOLD;
        for (which, kelvin) in [(over, 350), (under, 280)] {
            assert_eq!(setting(&mut w, Nsid::NONE, fid, which | kelvin).await, Status::SUCCESS);
        }
        for (which, kelvin) in [(over, 350), (under, 280)] {
            let got = getting(&mut w, fid, Select::Current, which).await.unwrap();
            assert_eq!(got & 0xffff, kelvin);
        }
        // Sensor 1 does not exist; 15 means all of them, for setting only.
        let bad = Status::INVALID_FIELD.with_dnr();
        assert_eq!(getting(&mut w, fid, Select::Current, 1 << 16).await, Err(bad));
        assert_eq!(setting(&mut w, Nsid::NONE, fid, 15 << 16 | 345).await, Status::SUCCESS);
        assert_eq!(getting(&mut w, fid, Select::Current, 0).await.unwrap() & 0xffff, 345);
    });
}

/// 5.27.1.7: each vector has its own setting.
#[test]
fn vectors_are_configured_one_by_one() {
    on_a_bench(async |mut w: World| {
        w.raw.enable(Settings::default()).await;
        let fid = fid::INTERRUPT_VECTOR_CONFIG;
        assert_eq!(setting(&mut w, Nsid::NONE, fid, 1 << 16 | 3).await, Status::SUCCESS);
        for (vector, wanted) in [(0, 0), (3, 1 << 16 | 3), (63, 63)] {
            assert_eq!(getting(&mut w, fid, Select::Current, vector).await, Ok(wanted));
        }
        let bad = Status::INVALID_FIELD.with_dnr();
        assert_eq!(getting(&mut w, fid, Select::Current, 64).await, Err(bad));
    });
}

/// 5.27.1.5: all that there are, whatever is asked for; not after the first queue.
#[test]
fn queues_are_granted_before_the_first_is_made_and_not_after() {
    let options = device::nvme::Options { io_queues: 5, ..Default::default() };
    Setup { options, ..Setup::default() }.run(async |mut w: World| {
        w.raw.enable(Settings::default()).await;
        let five = NumberOfQueues::of(5, 5);
        assert_eq!(current(&mut w, fid::NUMBER_OF_QUEUES).await, five.into_bits());
        let at = w.raw.place(4096, 4096);
        // Firmware does not ask before it makes its queue.
        let early = wire::nvme::admin::create_cq(w.raw.cid(), at, crate::raw::nvme::cq_of(1, 16));
        w.raw.admin_ok(&early).await;
        let sqe = set(&w, Nsid::NONE, fid::NUMBER_OF_QUEUES, five.into_bits(), false);
        let late = w.raw.admin(&sqe).await.status();
        assert_eq!(late, Status::COMMAND_SEQUENCE_ERROR.with_dnr(), "with a queue that is there");
        w.raw.admin_ok(&wire::nvme::admin::delete_cq(w.raw.cid(), wire::QueueId(1))).await;
        for wanted in [NumberOfQueues::of(1, 1), five, NumberOfQueues::of(65535, 2)] {
            let sqe = set(&w, Nsid::NONE, fid::NUMBER_OF_QUEUES, wanted.into_bits(), false);
            assert_eq!(w.raw.admin_ok(&sqe).await, five.into_bits());
        }
        for qid in 1..=5 {
            w.raw.create_pair(qid, 8).await;
        }
        let sqe = set(&w, Nsid::NONE, fid::NUMBER_OF_QUEUES, five.into_bits(), false);
        let late = w.raw.admin(&sqe).await.status();
        assert_eq!(late, Status::COMMAND_SEQUENCE_ERROR.with_dnr());
    });
}

/// 5.27.1.4: without a cache every write that has completed is durable, and so is what came before.
#[test]
fn without_the_cache_writes_are_durable_when_they_complete() {
    on_a_bench(async |mut w: World| {
        let mut pair = w.raw.up().await;
        let at = w.raw.place(4096, 4096);
        w.raw.memory.write(at, &pattern(3, 4096)).unwrap();
        let data = w.raw.data(at, 4096);
        let write = |w: &World, fua| io::write(w.raw.cid(), NS, wire::Lba(0), 8, fua, data);
        let read = |w: &World, fua| io::read(w.raw.cid(), NS, wire::Lba(0), 8, fua, data);
        let steps: [(Sqe, u32); 4] = [
            (write(&w, false), 0),
            (write(&w, true), 1),
            (read(&w, false), 1),
            (read(&w, true), 2),
        ];
        for (sqe, flushes) in steps {
            assert_eq!(w.raw.run(&mut pair, &sqe).await.status(), Status::SUCCESS);
            assert_eq!(w.medium.flushes.get(), flushes, "with the cache: {sqe:?}");
        }
        let off = setting(&mut w, Nsid::NONE, fid::VOLATILE_WRITE_CACHE, 0).await;
        assert_eq!((off, w.medium.flushes.get()), (Status::SUCCESS, 3), "what came before");
        let sqe = write(&w, false);
        assert_eq!(w.raw.run(&mut pair, &sqe).await.status(), Status::SUCCESS);
        assert_eq!(w.medium.flushes.get(), 4, "without the cache");
        let on = setting(&mut w, Nsid::NONE, fid::VOLATILE_WRITE_CACHE, 1).await;
        assert_eq!(on, Status::SUCCESS);
        let sqe = write(&w, false);
        assert_eq!(w.raw.run(&mut pair, &sqe).await.status(), Status::SUCCESS);
        assert_eq!(w.medium.flushes.get(), 4, "with the cache again");
    });
}
