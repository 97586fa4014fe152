//! Times of flash chips, with the table `[medium.flash.times]`: a time that it lacks is the profile's.

use std::ops::RangeInclusive;

use media::nand::{Cell, Geometry, Timing};
use runtime::Span;

use crate::fields::{Fields, Source::Required};
use crate::units::{rate_text, span_text};

const TABLE: &str = "medium.flash.times";

/// The longest time of a chip's operation.
const LONGEST: RangeInclusive<Span> = Span::ZERO..=Span::s(10);

/// A time, as a field of the timing.
type Single = (&'static str, fn(&mut Timing) -> Option<&mut Span>);

/// Times of the page types of a cell, each of which replaces what follows from the mean.
const READ_TYPES: [&str; 4] = ["read_lower", "read_middle", "read_upper", "read_top"];
const PROGRAM_TYPES: [&str; 4] =
    ["program_lower", "program_middle", "program_upper", "program_top"];

const SINGLE: [Single; 6] = [
    ("erase", |timing| Some(&mut timing.erase)),
    ("command", |timing| Some(&mut timing.command)),
    ("decode", |timing| Some(&mut timing.decode)),
    ("suspend_program", |timing| timing.suspend.as_mut().map(|suspend| &mut suspend.program)),
    ("suspend_erase", |timing| timing.suspend.as_mut().map(|suspend| &mut suspend.erase)),
    ("resume", |timing| timing.suspend.as_mut().map(|suspend| &mut suspend.resume)),
];

/// Parses the table, if there is one, over the times of a profile.
pub(super) fn read(fields: &Fields<'_>, geometry: &Geometry, profile: &Timing) -> Option<Timing> {
    let mut timing = profile.clone();
    if !fields.has("times") {
        return Some(timing);
    }
    let table = fields.table("times")?;
    let bits = geometry.cell.bits() as usize;
    let mut good = true;
    for (key, types, pages) in
        [("read", READ_TYPES, &mut timing.read), ("program", PROGRAM_TYPES, &mut timing.program)]
    {
        if table.has(key) {
            let mean = table.span(key, Required, LONGEST);
            good &= mean.is_some();
            scale(&mut pages[..bits], mean.unwrap_or_default());
        }
        // A cell has as many types as bits, and no key for others.
        for (key, page) in types[..bits].iter().zip(pages).filter(|(key, _)| table.has(key)) {
            let span = table.span(key, Required, LONGEST);
            good &= span.is_some();
            *page = span.unwrap_or_default();
        }
    }
    if table.has("read_unit") {
        let mean = table.span("read_unit", Required, LONGEST);
        good &= mean.is_some();
        let mut of_unit = timing.read;
        scale(&mut of_unit[..bits], mean.unwrap_or_default());
        timing.read_unit = Some(of_unit);
    }
    for (key, field) in SINGLE {
        // A chip without suspension has no such key.
        let Some(place) = field(&mut timing).filter(|_| table.has(key)) else { continue };
        let span = table.span(key, Required, LONGEST);
        good &= span.is_some();
        *place = span.unwrap_or_default();
    }
    if table.has("bus") {
        let rate = table.rate("bus", Required);
        good &= rate.is_some();
        timing.bytes_per_s = rate.unwrap_or(timing.bytes_per_s);
    }
    table.done();
    good.then_some(timing)
}

/// Difference that the rounding of a mean makes at most.
const ROUNDING_PS: u64 = 10;

/// Gives the page types of a cell this mean, in the proportions that they have.
fn scale(pages: &mut [Span], mean: Span) {
    let sum: u128 = pages.iter().map(|span| u128::from(span.0)).sum();
    let count = pages.len() as u128;
    for span in pages {
        *span = match sum {
            0 => mean,
            _ => Span((u128::from(span.0) * u128::from(mean.0) * count / sum) as u64),
        };
    }
}

fn mean(pages: &[Span]) -> Span {
    Span(pages.iter().map(|span| span.0).sum::<u64>() / pages.len().max(1) as u64)
}

/// Times of chips of these cells as keys of a plan and their values, those of zero left out. A plan that sets
/// one has the chips with that time.
/// Page types have their mean, unless they have other proportions than the profile's: then each has its own.
pub(super) fn listed(timing: &Timing, profile: &Timing, cell: Cell) -> Vec<(String, String)> {
    let mut timing = timing.clone();
    let bits = cell.bits() as usize;
    let mut times = Vec::new();
    for (key, types, own, usual) in [
        ("read", READ_TYPES, timing.read, profile.read),
        ("program", PROGRAM_TYPES, timing.program, profile.program),
    ] {
        let (own, mut usual) = (&own[..bits], usual);
        scale(&mut usual[..bits], mean(own));
        match own.iter().zip(&usual).all(|(own, usual)| own.0.abs_diff(usual.0) <= ROUNDING_PS) {
            true => times.push((key, mean(own))),
            false => times.extend(types.into_iter().zip(own.iter().copied())),
        }
    }
    times.extend(timing.read_unit.map(|types| ("read_unit", mean(&types[..bits]))));
    for (key, field) in SINGLE {
        times.extend(field(&mut timing).map(|span| (key, *span)));
    }
    let times = times.into_iter().filter(|(_, span)| *span > Span::ZERO);
    let times = times.map(|(key, span)| (format!("{TABLE}.{key}"), span_text(span)));
    times.chain([(format!("{TABLE}.bus"), rate_text(timing.bytes_per_s))]).collect()
}

#[cfg(test)]
mod tests {
    use media::nand::Profile;

    use super::*;
    use crate::Plan;

    fn timing(sets: &[(&str, &str)]) -> Timing {
        let plan = Plan::open("small-flash", sets).unwrap_or_else(|errors| panic!("{errors}"));
        plan.medium.flash.expect("flash").timing
    }

    #[test]
    fn page_types_keep_their_proportions() {
        let profile = Profile::tlc().timing;
        assert_eq!(timing(&[]), profile);
        let fast = timing(&[("medium.flash.times.read", "45.5 us")]);
        let us = Span::us;
        assert_eq!(profile.read, [us(78), us(117), us(78), us(0)], "a mean of 91 us");
        assert_eq!(fast.read, [us(39), Span::ns(58_500), us(39), us(0)]);
        assert_eq!(fast, Timing { read: fast.read, ..profile });
    }

    #[test]
    fn page_type_key_overrides_mean() {
        let us = Span::us;
        let set =
            [("medium.flash.times.read", "91 us"), ("medium.flash.times.read_upper", "30 us")];
        assert_eq!(timing(&set).read, [us(78), us(117), us(30), us(0)]);
        let set = [("medium.flash.times.program_middle", "2 ms")];
        assert_eq!(timing(&set).program, [us(700), us(2000), us(700), us(0)]);
        // A read of one unit has the proportions of the whole pages.
        let plan = Plan::open("small-flash", &set).expect("a plan");
        let times = plan.medium.flash.expect("flash").chip_times();
        let keys: Vec<_> =
            times.iter().map(|(key, _)| &key[key.rfind('.').unwrap() + 1..]).collect();
        assert_eq!(keys[..4], ["read", "program_lower", "program_middle", "program_upper"]);
        let set = [("medium.flash.times.read_unit", "45.5 us")];
        assert_eq!(timing(&set).read_unit, Some([us(39), Span::ns(58_500), us(39), us(0)]));
        let top = Plan::open("small-flash", &[("medium.flash.times.read_top", "1 us")]);
        let errors = top.expect_err("three bits a cell").to_string();
        assert!(errors.contains("medium.flash.times.read_top: found an unknown key"), "{errors}");
    }

    /// Each key changes its time alone, and the value that is listed changes nothing.
    #[test]
    fn listed_times_are_those_of_the_plan() {
        let plan = Plan::open("small-flash", &[]).expect("a plan");
        let flash = plan.medium.flash.expect("flash");
        let times = flash.chip_times();
        assert_eq!(times.len(), 9, "{times:?}");
        for (key, value) in &times {
            assert_eq!(timing(&[(key, value)]), flash.timing, "{key} = {value}");
            let other = crate::units::scaled(value, 1, 2).expect("a span or a rate");
            let half = timing(&[(key, &other)]);
            assert_ne!(half, flash.timing, "{key} = {other}");
        }
    }
}
