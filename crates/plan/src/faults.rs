//! The tables `[[faults]]`: injected faults and their triggers.

use std::ops::RangeInclusive;

use ::device::faults::{FOREVER, Fault, Match, What, When, Which};
use ::flash::chips::DieFault;
use runtime::Span;
use wire::nvme::opcode::io;
use wire::nvme::status::Status;

use super::errors::did_you_mean;
use super::fields::{Fields, Source::Optional};

/// Commands of I/O queues, by their name in a plan.
const COMMANDS: &[(&str, u8)] = &[
    ("read", io::READ),
    ("write", io::WRITE),
    ("flush", io::FLUSH),
    ("compare", io::COMPARE),
    ("write-zeroes", io::WRITE_ZEROES),
    ("dataset-management", io::DATASET_MANAGEMENT),
    ("copy", io::COPY),
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Delay,
    Drop,
    Hang,
    Reorder,
    Status,
    CorruptData,
    CorruptMetadata,
    CorruptMedium,
    StuckMedium,
    StuckDie,
    SlowDie,
    UnreadableDie,
    IgnoreFlush,
    LostInterrupt,
    DuplicateInterrupt,
    CompletionTimeout,
    PoisonedTlp,
    LinkRetrain,
    LinkDown,
    Fatal,
}

const KINDS: &[(&str, Kind)] = &[
    ("delay", Kind::Delay),
    ("drop", Kind::Drop),
    ("hang", Kind::Hang),
    ("reorder", Kind::Reorder),
    ("status", Kind::Status),
    ("corrupt-data", Kind::CorruptData),
    ("corrupt-metadata", Kind::CorruptMetadata),
    ("corrupt-medium", Kind::CorruptMedium),
    ("stuck-medium", Kind::StuckMedium),
    ("stuck-die", Kind::StuckDie),
    ("slow-die", Kind::SlowDie),
    ("unreadable-die", Kind::UnreadableDie),
    ("ignore-flush", Kind::IgnoreFlush),
    ("lost-interrupt", Kind::LostInterrupt),
    ("duplicate-interrupt", Kind::DuplicateInterrupt),
    ("completion-timeout", Kind::CompletionTimeout),
    ("poisoned-tlp", Kind::PoisonedTlp),
    ("link-retrain", Kind::LinkRetrain),
    ("link-down", Kind::LinkDown),
    ("fatal", Kind::Fatal),
];

/// Upper limit of durations and start times.
const LONGEST: Span = Span::s(24 * 3600);

/// Parses all faults. Their names are unique.
pub(super) fn read(root: &Fields<'_>) -> Option<Vec<Fault>> {
    let tables = root.tables("faults");
    let (count, mut faults) = (tables.len(), Vec::<Fault>::new());
    for (number, table) in tables.into_iter().enumerate() {
        let Some(fault) = read_one(table) else { continue };
        if let Some(before) = faults.iter().position(|other| other.name == fault.name) {
            let expected = format!("a unique name: faults.{before} has it");
            root.error(&format!("faults.{number}.name"), format!("{:?}", fault.name), expected);
        }
        faults.push(fault);
    }
    (faults.len() == count).then_some(faults)
}

fn read_one(fields: Fields<'_>) -> Option<Fault> {
    let name = fields.text("name", "the fault's name, under which it is counted");
    let kind = fields.choice("what", KINDS);
    let what = kind.map(|kind| what(&fields, kind));
    let when = kind.map(|kind| when(&fields, kind));
    fields.done();
    Some(Fault { name: name?, what: what??, when: when?? })
}

fn what(fields: &Fields<'_>, kind: Kind) -> Option<What> {
    let span = || fields.span("span", Optional, Span::ps(1)..=LONGEST);
    Some(match kind {
        Kind::Delay => What::Delay(span()?),
        Kind::Drop => What::Drop,
        Kind::Hang => What::Hang,
        Kind::Reorder => {
            let behind = fields.number("behind", Optional, 1..=1024);
            let at_most = span();
            What::Reorder { behind: behind? as u32, at_most: at_most? }
        }
        Kind::Status => What::Status(status(fields)?),
        Kind::CorruptData => What::CorruptData,
        Kind::CorruptMetadata => What::CorruptMetadata,
        Kind::CorruptMedium => What::CorruptMedium,
        Kind::StuckMedium => What::StuckMedium(duration(fields)?),
        Kind::StuckDie | Kind::SlowDie | Kind::UnreadableDie => die(fields, kind)?,
        Kind::IgnoreFlush => What::IgnoreFlush(duration(fields)?),
        Kind::LostInterrupt => What::LostInterrupt,
        Kind::DuplicateInterrupt => What::DuplicateInterrupt,
        Kind::CompletionTimeout => What::CompletionTimeout(span()?),
        Kind::PoisonedTlp => What::PoisonedTlp,
        Kind::LinkRetrain => What::LinkRetrain(span()?),
        Kind::LinkDown => What::LinkDown,
        Kind::Fatal => What::Fatal,
    })
}

/// Duration of a fault; unlimited by default.
fn duration(fields: &Fields<'_>) -> Option<Span> {
    fields.span_or("span", FOREVER, Span::ps(1)..=LONGEST)
}

/// A die fault. The die number is validated later, against the geometry of the flash.
fn die(fields: &Fields<'_>, kind: Kind) -> Option<What> {
    let die = fields.number("die", Optional, 0..=u64::from(u32::MAX));
    let span = duration(fields);
    let of = match kind {
        Kind::SlowDie => {
            let percent = fields.number("percent", Optional, 100..=100_000);
            DieFault::Slow { percent: percent? as u32, span: span? }
        }
        Kind::UnreadableDie => DieFault::Unreadable(span?),
        _ => DieFault::Stuck(span?),
    };
    Some(What::Die { die: die? as u32, of })
}

/// A status by its name in the specification, or by type and code; with DNR if `dnr` is set.
fn status(fields: &Fields<'_>) -> Option<Status> {
    let dnr = fields.boolean_or("dnr", false);
    let status = if fields.has_table("status") {
        let numbers = fields.table("status")?;
        let sct = numbers.number("sct", Optional, 0..=7);
        let sc = numbers.number("sc", Optional, 0..=255);
        numbers.done();
        let status = Status::from_bits((sct? as u16) << 8 | sc? as u16);
        if status.is_ok() {
            fields.error("status", "success", "an error status");
            return None;
        }
        status
    } else {
        let names = || Status::NAMED.iter().filter(|(status, _)| !status.is_ok());
        let expected = "a name of NVMe base 2.0, 3.3.3.2.1, such as \"Write Fault\", or \
             { sct = ..., sc = ... }";
        let text = fields.text("status", expected)?;
        let Some((status, _)) = names().find(|(_, name)| name.eq_ignore_ascii_case(&text)) else {
            let known: Vec<_> = names().map(|(_, name)| *name).collect();
            let meant = did_you_mean(&text, &known);
            let hint = meant.map_or(String::new(), |meant| format!(": did you mean {meant}?"));
            fields.error("status", format!("{text:?}"), format!("{expected}{hint}"));
            return None;
        };
        *status
    };
    Some(if dnr? { status.with_dnr() } else { status })
}

fn when(fields: &Fields<'_>, kind: Kind) -> Option<When> {
    let of_dies = matches!(kind, Kind::StuckDie | Kind::SlowDie | Kind::UnreadableDie);
    if kind == Kind::IgnoreFlush && !fields.has("at") {
        return Some(When::At(Span::ZERO));
    }
    let needs_no_command = of_dies
        || matches!(kind, Kind::IgnoreFlush | Kind::StuckMedium | Kind::LinkDown | Kind::Fatal)
        || kind == Kind::LinkRetrain;
    if needs_no_command && fields.has("at") {
        return fields.span("at", Optional, Span::ZERO..=LONGEST).map(When::At);
    }
    let queue = fields.given("queue", |key| fields.number(key, Optional, 0..=63));
    let opcode = fields.given("command", |key| opcode(fields, key));
    let lbas = lbas(fields, opcode.flatten(), queue.flatten());
    let time = |key, none| fields.span_or(key, none, Span::ZERO..=LONGEST);
    let (from, until) = (time("from", Span::ZERO), time("until", FOREVER));
    if let (Some(from), Some(until)) = (from, until)
        && from >= until
    {
        fields.error("until", until.to_string(), format!("more than from, which is {from}"));
        return None;
    }
    let which = which(fields);
    let times = fields.number_or("times", u64::MAX, 1..=1 << 40);
    Some(When::Commands(Match {
        opcode: opcode?,
        queue: queue?.map(|queue| queue as u16),
        lbas: lbas?,
        from: from?,
        until: until?,
        which: which?,
        times: times?,
    }))
}

/// A command of an I/O queue by name, or any opcode by number.
fn opcode(fields: &Fields<'_>, key: &'static str) -> Option<u8> {
    if fields.has_number(key) {
        return fields.number(key, Optional, 0..=255).map(|opcode| opcode as u8);
    }
    fields.choice(key, COMMANDS)
}

fn lbas(
    fields: &Fields<'_>,
    opcode: Option<u8>,
    queue: Option<u64>,
) -> Option<Option<RangeInclusive<u64>>> {
    let block = |key, none| fields.number_or(key, none, 0..=i64::MAX as u64);
    let (first, last) = (block("first_lba", 0), block("last_lba", u64::MAX));
    if !fields.has("first_lba") && !fields.has("last_lba") {
        return Some(None);
    }
    let key = if fields.has("first_lba") { "first_lba" } else { "last_lba" };
    let names = [io::READ, io::WRITE, io::COMPARE, io::WRITE_ZEROES];
    if queue == Some(0) || opcode.is_some_and(|opcode| !names.contains(&opcode)) {
        let expected = "no LBA range, or a command that has one: \
             read, write, compare or write-zeroes";
        fields.error(key, "an LBA range", expected);
        return None;
    }
    let (first, last) = (first?, last?);
    if first > last {
        let expected = format!("at least first_lba, which is {first}");
        fields.error("last_lba", last.to_string(), expected);
        return None;
    }
    Some(Some(first..=last))
}

fn which(fields: &Fields<'_>) -> Option<Which> {
    let given: Vec<_> =
        ["nth", "every", "one_in"].into_iter().filter(|key| fields.has(key)).collect();
    if let [_, second, ..] = given[..] {
        fields.error(second, "a second selector", "one of nth, every, one_in");
        return None;
    }
    let count = |key| fields.number(key, Optional, 1..=1 << 40);
    match given.first().copied() {
        None => Some(Which::Each),
        Some("nth") => count("nth").map(Which::Nth),
        Some("every") => count("every").map(Which::Every),
        Some(_) => count("one_in").map(Which::OneIn),
    }
}
