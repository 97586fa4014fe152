//! Features: NVMe base 2.0, 5.15 and 5.27.

use runtime::Span;
use wire::Nsid;
use wire::nvme::admin::{self, Command, CreateCq, Request, Select, SetFeatures};
use wire::nvme::entry::DataPointer;
use wire::nvme::features::{
    Arbitration, InterruptCoalescing, InterruptVectorConfig, TemperatureThreshold, fid,
};
use wire::nvme::identify::{oncs, vwc};
use wire::nvme::io;
use wire::nvme::status::Status;

use crate::bench::{Bench, Pair, Settings, cq_of};
use crate::case::{Section, cases};
use crate::verdict::{Verdict, hold, needs};

const BASE: &str = "NVMe base 2.0";

pub(super) const SECTIONS: &[Section] = &[
    Section {
        of: BASE,
        number: "5.15",
        title: "Get Features",
        cases: cases! {
            None mandatory_features_are_there "the features that every I/O controller has can be got";
            None unknown_features "a feature that there is not: Invalid Field";
            None reserved_selections "SEL 100b to 111b: Invalid Field, where SEL counts";
            None defaults_come_back "what a reset leaves is the default value (SEL 001b)";
            None capabilities_of_features "SEL 011b says whether a feature can be changed";
        },
    },
    Section {
        of: BASE,
        number: "5.27",
        title: "Set Features",
        cases: cases! {
            None features_read_back "what was set is what is got";
            None unknown_features_cannot_be_set "a feature that there is not: Invalid Field";
            None features_that_cannot_be_saved
                "SV of one that cannot be saved: Feature Identifier Not Saveable";
            None features_of_no_namespace
                "one of the controller's, set for a namespace: Feature Not Namespace Specific";
            None features_are_reset "a controller reset brings defaults back";
            None power_states_above_the_last "a power state above NPSS: Invalid Field";
            None each_power_state "each power state can be set, and commands are carried out in it";
            None temperature_thresholds_are_two "over and under temperature thresholds are kept apart";
            None a_threshold_of_all_sensors "TMPSEL of 15 sets that of each sensor";
            None error_recovery_reads_back "TLER of a namespace, until a reset";
            None a_sensor_that_is_reserved "a sensor or a threshold that is reserved: Invalid Field";
        },
    },
    Section {
        of: BASE,
        number: "5.27.1.5",
        title: "number of queues",
        cases: cases! {
            None queues_are_granted "it grants one pair at least, and the queues it grants can be made";
            None queues_of_no_sense "65,535 (one more than there are numbers): Invalid Field";
            None queues_asked_for_late "asked after the first was made: Command Sequence Error";
            None number_of_queues_reads_back "Get Features says what was granted";
        },
    },
    Section {
        of: BASE,
        number: "5.27.1.6",
        title: "interrupts",
        cases: cases! {
            None interrupts_come "a completion queue with interrupts raises its vector";
            None no_interrupt_without_ien "one without raises none";
            None vectors_in_any_order "vectors may be used in any order, one by several queues";
            None every_completion_is_told_of "with coalescing no completion stays untold of";
            None coalescing_reads_back "threshold and time are kept";
            None a_vector_that_there_is_not "vector 2,048: Invalid Field, set and got";
            None a_vector_without_coalescing "CD of a vector is kept, of that vector alone";
        },
    },
    Section {
        of: BASE,
        number: "5.27.1.4",
        title: "volatile write cache",
        cases: cases! {
            None cache_can_be_switched "WCE is kept, where VWC has a cache";
            None no_cache_no_feature "without a cache: Invalid Field";
        },
    },
];

async fn get(b: &mut Bench, fid: u8) -> Verdict<u32> {
    let sqe = admin::get_feature(b.cid(), fid);
    b.admin_ok(&sqe).await
}

async fn set(b: &mut Bench, fid: u8, value: u32) -> Verdict<u32> {
    let sqe = admin::set_feature(b.cid(), fid, value);
    b.admin_ok(&sqe).await
}

async fn selected(b: &mut Bench, fid: u8, select: Select) -> Verdict<u32> {
    let command = Command::GetFeatures { fid, select, cdw11: 0 };
    let (cid, nsid, data) = (b.cid(), Nsid::NONE, DataPointer::NONE);
    b.admin_ok(&Request { cid, nsid, data, command }.to_sqe()).await
}

async fn mandatory_features_are_there(b: &mut Bench) -> Verdict {
    for fid in [
        fid::ARBITRATION,
        fid::POWER_MANAGEMENT,
        fid::TEMPERATURE_THRESHOLD,
        fid::ERROR_RECOVERY,
        fid::NUMBER_OF_QUEUES,
        fid::INTERRUPT_COALESCING,
        fid::INTERRUPT_VECTOR_CONFIG,
        fid::WRITE_ATOMICITY,
        fid::ASYNC_EVENT_CONFIG,
    ] {
        let nsid = if fid == fid::ERROR_RECOVERY { b.nsid } else { Nsid::NONE };
        let command = Command::GetFeatures { fid, select: Select::Current, cdw11: 0 };
        let (cid, data) = (b.cid(), DataPointer::NONE);
        b.admin_ok(&Request { cid, nsid, data, command }.to_sqe()).await?;
    }
    Ok(())
}

async fn unknown_features(b: &mut Bench) -> Verdict {
    for fid in [0x00, 0x7c].into_iter().chain(0x30..=0x77) {
        let sqe = admin::get_feature(b.cid(), fid);
        b.admin_ends(&sqe, &[Status::INVALID_FIELD]).await?;
    }
    Ok(())
}

async fn reserved_selections(b: &mut Bench) -> Verdict {
    needs!(b.id.oncs.get() & oncs::FEATURE_SELECT != 0, "ONCS: SEL of Get Features");
    for select in 4..8 {
        let mut sqe = admin::get_feature(b.cid(), fid::ARBITRATION);
        sqe.cdw10 = (select << 8 | u32::from(fid::ARBITRATION)).into();
        b.admin_ends(&sqe, &[Status::INVALID_FIELD]).await?;
    }
    Ok(())
}

async fn defaults_come_back(b: &mut Bench) -> Verdict {
    needs!(b.id.oncs.get() & oncs::FEATURE_SELECT != 0, "ONCS: SEL of Get Features");
    for fid in [
        fid::ARBITRATION,
        fid::POWER_MANAGEMENT,
        fid::TEMPERATURE_THRESHOLD,
        fid::INTERRUPT_COALESCING,
        fid::WRITE_ATOMICITY,
        fid::ASYNC_EVENT_CONFIG,
    ] {
        let (now, default) = (get(b, fid).await?, selected(b, fid, Select::Default).await?);
        hold!(
            now == default,
            "feature {fid:#04x} is {now:#x} after a reset, its default {default:#x}"
        );
    }
    Ok(())
}

async fn capabilities_of_features(b: &mut Bench) -> Verdict {
    needs!(b.id.oncs.get() & oncs::FEATURE_SELECT != 0, "ONCS: SEL of Get Features");
    for (fid, _) in changed(b) {
        let bits = selected(b, fid, Select::Supported).await?;
        let well = bits & 4 != 0 && bits & !7 == 0;
        hold!(well, "feature {fid:#04x}: {bits:#x}, expected changeable");
    }
    Ok(())
}

async fn features_read_back(b: &mut Bench) -> Verdict {
    let selects = b.id.oncs.get() & oncs::FEATURE_SELECT != 0;
    for (fid, value) in changed(b) {
        let before = get(b, fid).await?;
        set(b, fid, value).await?;
        let found = get(b, fid).await?;
        hold!(found == value, "feature {fid:#04x} is {found:#x}, set to {value:#x}");
        if selects {
            let default = selected(b, fid, Select::Default).await?;
            hold!(default == before, "feature {fid:#04x}: its default is {default:#x} now");
        }
    }
    Ok(())
}

/// Features of this controller, each with a value that is not its default.
fn changed(b: &Bench) -> Vec<(u8, u32)> {
    let mut values = vec![
        (fid::ARBITRATION, Arbitration::weighted(9, 5, 3).with_burst(Some(4)).into_bits()),
        (fid::TEMPERATURE_THRESHOLD, 320),
        (fid::INTERRUPT_COALESCING, 0x0305),
        (fid::WRITE_ATOMICITY, 1),
        (fid::ASYNC_EVENT_CONFIG, 0x0001),
    ];
    if b.id.vwc & vwc::PRESENT != 0 {
        values.push((fid::VOLATILE_WRITE_CACHE, 0));
    }
    values
}

async fn unknown_features_cannot_be_set(b: &mut Bench) -> Verdict {
    for fid in [0x00, 0x7c].into_iter().chain(0x30..=0x77) {
        let sqe = admin::set_feature(b.cid(), fid, 0);
        b.admin_ends(&sqe, &[Status::INVALID_FIELD]).await?;
    }
    Ok(())
}

async fn features_that_cannot_be_saved(b: &mut Bench) -> Verdict {
    needs!(b.id.oncs.get() & oncs::FEATURE_SELECT != 0, "ONCS: SV of Set Features");
    let mut tried = 0;
    for (fid, value) in changed(b) {
        if selected(b, fid, Select::Supported).await? & 1 != 0 {
            continue;
        }
        let (before, set) = (
            get(b, fid).await?,
            SetFeatures { fid, save: true, cdw11: value, ..SetFeatures::default() },
        );
        let (cid, nsid, data) = (b.cid(), Nsid::NONE, DataPointer::NONE);
        let sqe = Request { cid, nsid, data, command: Command::SetFeatures(set) }.to_sqe();
        b.admin_ends(&sqe, &[Status::FEATURE_NOT_SAVEABLE]).await?;
        let after = get(b, fid).await?;
        hold!(
            after == before,
            "feature {fid:#04x} is {after:#x} after a refusal, {before:#x} before"
        );
        tried += 1;
    }
    needs!(tried > 0, "a feature that cannot be saved");
    Ok(())
}

async fn features_of_no_namespace(b: &mut Bench) -> Verdict {
    needs!(b.id.oncs.get() & oncs::FEATURE_SELECT != 0, "ONCS: SEL of Get Features");
    needs!(b.nsid != Nsid::NONE, "an active namespace");
    for (fid, cdw11) in changed(b) {
        if selected(b, fid, Select::Supported).await? & 2 != 0 {
            continue;
        }
        let of = |b: &Bench, nsid| {
            let set = SetFeatures { fid, cdw11, ..SetFeatures::default() };
            let (cid, data) = (b.cid(), DataPointer::NONE);
            Request { cid, nsid, data, command: Command::SetFeatures(set) }.to_sqe()
        };
        b.admin_ends(&of(b, b.nsid), &[Status::FEATURE_NOT_NAMESPACE_SPECIFIC]).await?;
        b.admin_ok(&of(b, Nsid::BROADCAST)).await?;
    }
    Ok(())
}

async fn a_vector_that_there_is_not(b: &mut Bench) -> Verdict {
    // MSI-X has 2,048 vectors at most (PCI).
    let value = InterruptVectorConfig::new().with_iv(2048).into_bits();
    let set = admin::set_feature(b.cid(), fid::INTERRUPT_VECTOR_CONFIG, value);
    b.admin_ends(&set, &[Status::INVALID_FIELD]).await?;
    let mut get = admin::get_feature(b.cid(), fid::INTERRUPT_VECTOR_CONFIG);
    get.cdw11 = value.into();
    b.admin_ends(&get, &[Status::INVALID_FIELD]).await
}

async fn features_are_reset(b: &mut Bench) -> Verdict {
    let mut before = Vec::new();
    for (fid, value) in changed(b) {
        before.push((fid, get(b, fid).await?));
        set(b, fid, value).await?;
    }
    b.disable().await?;
    b.enable(Settings::usual()).await?;
    let selects = b.id.oncs.get() & oncs::FEATURE_SELECT != 0;
    for (fid, mut before) in before {
        let after = get(b, fid).await?;
        // An earlier case may have left a value behind if resets are broken.
        if selects {
            before = selected(b, fid, Select::Default).await?;
        }
        hold!(
            after == before,
            "feature {fid:#04x} is {after:#x} after a reset, {before:#x} before"
        );
    }
    Ok(())
}

async fn power_states_above_the_last(b: &mut Bench) -> Verdict {
    needs!(b.id.npss < 31, "a power state that there is not");
    let sqe = admin::set_feature(b.cid(), fid::POWER_MANAGEMENT, u32::from(b.id.npss) + 1);
    b.admin_ends(&sqe, &[Status::INVALID_FIELD]).await
}

async fn each_power_state(b: &mut Bench) -> Verdict {
    let mut pair = b.io().await?;
    for state in (0..=u32::from(b.id.npss)).rev() {
        set(b, fid::POWER_MANAGEMENT, state).await?;
        let found = get(b, fid::POWER_MANAGEMENT).await?;
        hold!(found & 0x1f == state, "power state {found:#x}, set to {state}");
        // A command brings the controller back from a non-operational state to an operational one.
        b.ok(&mut pair, &io::flush(b.cid(), b.nsid)).await?;
    }
    Ok(())
}

async fn temperature_thresholds_are_two(b: &mut Bench) -> Verdict {
    let threshold = |kind, kelvin| TemperatureThreshold::new().with_thsel(kind).with_tmpth(kelvin);
    for (kind, kelvin) in [(0, 350), (1, 260)] {
        set(b, fid::TEMPERATURE_THRESHOLD, threshold(kind, kelvin).into_bits()).await?;
    }
    for (kind, kelvin) in [(0, 350), (1, 260)] {
        let mut sqe = admin::get_feature(b.cid(), fid::TEMPERATURE_THRESHOLD);
        sqe.cdw11 = threshold(kind, 0).into_bits().into();
        let found = b.admin_ok(&sqe).await? & 0xffff;
        hold!(found == kelvin, "threshold {kind} is {found} K, set to {kelvin} K");
    }
    Ok(())
}

async fn a_threshold_of_all_sensors(b: &mut Bench) -> Verdict {
    let value = TemperatureThreshold::new().with_tmpsel(15).with_tmpth(345);
    set(b, fid::TEMPERATURE_THRESHOLD, value.into_bits()).await?;
    let found = get(b, fid::TEMPERATURE_THRESHOLD).await? & 0xffff;
    hold!(found == 345, "the composite threshold is {found} K, set to 345 K");
    Ok(())
}

async fn error_recovery_reads_back(b: &mut Bench) -> Verdict {
    needs!(b.nsid != Nsid::NONE, "an active namespace");
    let set = SetFeatures { fid: fid::ERROR_RECOVERY, cdw11: 10, ..SetFeatures::default() };
    let get = Command::GetFeatures { fid: fid::ERROR_RECOVERY, select: Select::Current, cdw11: 0 };
    let of = |b: &Bench, command| {
        let (cid, nsid, data) = (b.cid(), b.nsid, DataPointer::NONE);
        Request { cid, nsid, data, command }.to_sqe()
    };
    let before = b.admin_ok(&of(b, get)).await?;
    b.admin_ok(&of(b, Command::SetFeatures(set))).await?;
    let found = b.admin_ok(&of(b, get)).await?;
    hold!(found == 10, "{found:#x}, set to 10");
    b.disable().await?;
    b.enable(Settings::usual()).await?;
    let after = b.admin_ok(&of(b, get)).await?;
    hold!(after == before, "{after:#x} after a reset, {before:#x} before");
    Ok(())
}

async fn a_sensor_that_is_reserved(b: &mut Bench) -> Verdict {
    let before = get(b, fid::TEMPERATURE_THRESHOLD).await?;
    let threshold = TemperatureThreshold::new().with_tmpth(300);
    for value in [threshold.with_tmpsel(12), threshold.with_thsel(2)] {
        let sqe = admin::set_feature(b.cid(), fid::TEMPERATURE_THRESHOLD, value.into_bits());
        b.admin_ends(&sqe, &[Status::INVALID_FIELD]).await?;
    }
    let after = get(b, fid::TEMPERATURE_THRESHOLD).await?;
    hold!(after == before, "the threshold is {after:#x} after refusals, {before:#x} before");
    Ok(())
}

async fn queues_are_granted(b: &mut Bench) -> Verdict {
    let granted = b.ask_for_queues(0xffff).await?;
    let pairs = granted.sqs().min(granted.cqs()).min(64) as u16;
    for qid in 1..=pairs {
        b.create_pair(qid, 4).await?;
    }
    Ok(())
}

async fn queues_of_no_sense(b: &mut Bench) -> Verdict {
    for value in [0x0000_ffff, 0xffff_0000] {
        let sqe = admin::set_feature(b.cid(), fid::NUMBER_OF_QUEUES, value);
        b.admin_ends(&sqe, &[Status::INVALID_FIELD]).await?;
    }
    Ok(())
}

async fn queues_asked_for_late(b: &mut Bench) -> Verdict {
    b.ask_for_queues(1).await?;
    b.create_cq(1, 8).await?;
    let sqe = admin::set_feature(b.cid(), fid::NUMBER_OF_QUEUES, 0);
    b.admin_ends(&sqe, &[Status::COMMAND_SEQUENCE_ERROR]).await
}

async fn number_of_queues_reads_back(b: &mut Bench) -> Verdict {
    let granted = b.ask_for_queues(2).await?.into_bits();
    let found = get(b, fid::NUMBER_OF_QUEUES).await?;
    hold!(found == granted, "{found:#x}, granted {granted:#x}");
    Ok(())
}

/// A pair whose completion queue signals this vector.
async fn interrupting(b: &mut Bench, qid: u16, vector: u16) -> Verdict<Pair> {
    let at = b.place(64 * 16, b.page_bytes)?;
    let create = CreateCq { vector, irq_enabled: true, ..cq_of(qid, 64) };
    b.admin_ok(&admin::create_cq(b.cid(), at, create)).await?;
    let cq = crate::bench::Cq::new(wire::QueueId(qid), at, 64);
    Ok(Pair { sq: b.create_sq(qid, 64, qid).await?, cq })
}

/// Current interrupt count of a vector.
async fn count(b: &Bench, vector: u16) -> u32 {
    let mut seen = 0;
    while let Some(count) = b.interrupt(vector, seen, Span::ms(2)).await {
        seen = count;
    }
    seen
}

async fn raises(b: &mut Bench, pair: &mut Pair, vector: u16) -> Verdict {
    let seen = count(b, vector).await;
    b.submit(&mut pair.sq, &io::flush(b.cid(), b.nsid));
    let come = b.interrupt(vector, seen, Span::s(5)).await;
    hold!(come.is_some(), "no interrupt at vector {vector} within 5 s of a command");
    let cqe = b.next(&mut pair.cq).await?;
    hold!(cqe.status().is_ok(), "{}", cqe.status());
    Ok(())
}

async fn interrupts_come(b: &mut Bench) -> Verdict {
    needs!(b.nsid != Nsid::NONE, "an active namespace");
    b.ask_for_queues(1).await?;
    let mut pair = interrupting(b, 1, 1).await?;
    for _ in 0..3 {
        raises(b, &mut pair, 1).await?;
    }
    Ok(())
}

async fn no_interrupt_without_ien(b: &mut Bench) -> Verdict {
    let mut pair = b.io().await?;
    let seen = count(b, 0).await;
    // The admin queue has vector 0, and is idle meanwhile.
    b.ok(&mut pair, &io::flush(b.cid(), b.nsid)).await?;
    let come = b.interrupt(0, seen, Span::ms(5)).await;
    hold!(come.is_none(), "an interrupt of a queue that has none");
    Ok(())
}

async fn vectors_in_any_order(b: &mut Bench) -> Verdict {
    needs!(b.nsid != Nsid::NONE, "an active namespace");
    let granted = b.ask_for_queues(3).await?;
    needs!(granted.sqs() >= 3 && granted.cqs() >= 3, "three pairs of I/O queues");
    let mut pairs = Vec::new();
    for (qid, vector) in [(1, 3), (2, 1), (3, 3)] {
        pairs.push((interrupting(b, qid, vector).await?, vector));
    }
    for (pair, vector) in &mut pairs {
        raises(b, pair, *vector).await?;
    }
    Ok(())
}

async fn every_completion_is_told_of(b: &mut Bench) -> Verdict {
    needs!(b.nsid != Nsid::NONE, "an active namespace");
    b.ask_for_queues(1).await?;
    let limits = InterruptCoalescing::new().with_thr(3).with_time(2).into_bits();
    set(b, fid::INTERRUPT_COALESCING, limits).await?;
    let mut pair = interrupting(b, 1, 1).await?;
    for commands in [1, 3, 4, 5, 9] {
        let seen = count(b, 1).await;
        for _ in 0..commands {
            b.store(&mut pair.sq, &io::flush(b.cid(), b.nsid));
        }
        b.ring(&pair.sq);
        let come = b.interrupt(1, seen, Span::s(5)).await;
        hold!(come.is_some(), "no interrupt for {commands} completions");
        for _ in 0..commands {
            b.next(&mut pair.cq).await?;
        }
    }
    Ok(())
}

async fn coalescing_reads_back(b: &mut Bench) -> Verdict {
    for value in [0x0507, 0xffff, 0] {
        set(b, fid::INTERRUPT_COALESCING, value).await?;
        let found = get(b, fid::INTERRUPT_COALESCING).await?;
        hold!(found == value, "{found:#x}, set to {value:#x}");
    }
    Ok(())
}

async fn a_vector_without_coalescing(b: &mut Bench) -> Verdict {
    b.ask_for_queues(2).await?;
    interrupting(b, 1, 1).await?;
    let config = |vector, alone| InterruptVectorConfig::new().with_iv(vector).with_cd(alone);
    set(b, fid::INTERRUPT_VECTOR_CONFIG, config(1, true).into_bits()).await?;
    for (vector, alone) in [(1, true), (0, false)] {
        let mut sqe = admin::get_feature(b.cid(), fid::INTERRUPT_VECTOR_CONFIG);
        sqe.cdw11 = u32::from(vector).into();
        let result = InterruptVectorConfig::from_bits(b.admin_ok(&sqe).await?);
        // Coalescing of the admin queue's vector is left open.
        let well = result.iv() == vector && (result.cd() == alone || vector == 0);
        hold!(well, "vector {vector}: {result:?}");
    }
    Ok(())
}

async fn cache_can_be_switched(b: &mut Bench) -> Verdict {
    needs!(b.id.vwc & vwc::PRESENT != 0, "VWC: a volatile write cache");
    let mut pair = b.io().await?;
    for on in [0, 1, 0] {
        set(b, fid::VOLATILE_WRITE_CACHE, on).await?;
        let found = get(b, fid::VOLATILE_WRITE_CACHE).await?;
        hold!(found & 1 == on, "WCE is {found:#x}, set to {on}");
        b.ok(&mut pair, &io::flush(b.cid(), b.nsid)).await?;
    }
    Ok(())
}

async fn no_cache_no_feature(b: &mut Bench) -> Verdict {
    needs!(b.id.vwc & vwc::PRESENT == 0, "it has a volatile write cache (VWC)");
    let sqe = admin::get_feature(b.cid(), fid::VOLATILE_WRITE_CACHE);
    b.admin_ends(&sqe, &[Status::INVALID_FIELD]).await
}
