//! The findings as text: the answer first, at most a screen of 80 columns.

use std::fmt::Write;

use campaign::explain::{Change, Effect, Explanation, Resource, Swing, utilisation};

/// Width of a screen.
const COLUMNS: usize = 80;
/// Stages and levers on the first screen.
const STAGES: usize = 3;
const LEVERS: usize = 5;
/// Utilisations of fewer operations are mostly of starting the device.
const OPERATIONS_LEAST: u64 = 1000;

pub(super) fn of(found: &Explanation, verbose: bool) -> String {
    let mut out = String::new();
    let write = &mut out;
    line(write, &format!("== {}, plan {}, {}, simulated", found.file, found.plan, found.interface));
    let measured = &found.measured;
    line(
        write,
        &format!(
            "{} IOPS, {:.1} MiB/s; latency: mean {} us, p50 {}, p99 {}",
            rate(measured.rate),
            measured.bytes_per_s / f64::from(1 << 20),
            us(measured.mean_us),
            us(measured.p50_us),
            us(measured.p99_us)
        ),
    );
    paragraph(write, &answer(found));
    paragraph(write, &evidence(found));
    stages(write, found, if verbose { usize::MAX } else { STAGES });
    levers(write, found, if verbose { usize::MAX } else { LEVERS });
    if verbose {
        details(write, found);
    }
    range(write, found, verbose);
    for note in &found.notes {
        paragraph(write, &format!("note: {note}"));
    }
    out
}

fn line(out: &mut String, text: &str) {
    writeln!(out, "{}", text.trim_end()).expect("a string");
}

/// A paragraph, wrapped at the width of the screen.
fn paragraph(out: &mut String, text: &str) {
    // A number and its unit stay in one row.
    let glued = text.replace(" %", "\u{a0}%").replace(" us", "\u{a0}us");
    let mut row = String::new();
    for word in glued.split(' ').filter(|word| !word.is_empty()) {
        if !row.is_empty() && row.chars().count() + 1 + word.chars().count() > COLUMNS {
            line(out, &row.replace('\u{a0}', " "));
            row.clear();
        }
        if !row.is_empty() {
            row.push(' ');
        }
        row.push_str(word);
    }
    if !row.is_empty() {
        line(out, &row.replace('\u{a0}', " "));
    }
}

/// Operations a second: `1.733 M`, `56.2 k`, `812.5`.
fn rate(value: f64) -> String {
    match value {
        value if value >= 1e6 => format!("{:.3} M", value / 1e6),
        value if value >= 1e4 => format!("{:.1} k", value / 1e3),
        value => format!("{value:.1}"),
    }
}

fn us(value: f64) -> String {
    format!("{value:.2}")
}

/// A gain as a percentage with its sign; never a negative zero.
fn percent(gain: f64) -> String {
    let value = (gain * 1000.0).round() / 10.0;
    format!("{:+.1} %", value + 0.0)
}

fn share(value: f64) -> String {
    format!("{:.1} %", 100.0 * value)
}

fn effect(found: &Explanation, resource: Resource) -> Option<&Effect> {
    found.resources.iter().find(|effect| effect.resource == resource)
}

fn answer(found: &Explanation) -> String {
    let bound = &found.bound;
    let [resource] = bound.resources[..] else {
        return match bound.resources[..] {
            [one, other] => format!(
                "No part bounds the rate alone: the {} and the {} do together. Both relaxed, it is {}.",
                one.title(),
                other.title(),
                percent(bound.gain)
            ),
            _ => "Nothing bounds the rate: no change of one part, nor of two, raises it by 5 %."
                .into(),
        };
    };
    let effect = effect(found, resource).expect("the bound is one of them");
    let mut text = format!(
        "Bound by the {}: {} gives {} IOPS, {}.",
        resource.title(),
        effect.title,
        rate(effect.measured.rate),
        percent(effect.gain)
    );
    for other in &bound.also {
        write!(text, " The {} gives nearly as much.", other.title()).expect("a string");
    }
    if resource.is_of_load() {
        text += &shortest(found, resource);
    } else if let Some(next) = found.resources.iter().find(|next| !named(found, next.resource)) {
        let sentence =
            format!(" The next is the {}: {}.", next.resource.title(), percent(next.gain));
        text += &sentence;
    }
    text
}

fn named(found: &Explanation, resource: Resource) -> bool {
    found.bound.resources.contains(&resource) || found.bound.also.contains(&resource)
}

/// For a bound that is the load's: what shortens the latency.
fn shortest(found: &Explanation, bound: Resource) -> String {
    let why = match bound {
        Resource::QueueDepth => "The machine is not busy: the rate is the depth over the latency.",
        _ => "The machine keeps up.",
    };
    let machine = found.resources.iter().filter(|effect| !effect.resource.is_of_load());
    let best = machine.min_by(|a, b| a.measured.mean_us.total_cmp(&b.measured.mean_us));
    let Some(best) = best else { return format!(" {why}") };
    let change = best.measured.mean_us / found.measured.mean_us - 1.0;
    format!(
        " {why} Of its parts, the {} shortens the mean most: {} makes it {} us, {}.",
        best.resource.title(),
        best.title,
        us(best.measured.mean_us),
        percent(change)
    )
}

/// Utilisations, and the largest share of the mean where it is not the bound.
fn evidence(found: &Explanation) -> String {
    let busy = &found.measured.busy;
    if found.measured.operations < OPERATIONS_LEAST {
        return mismatch(found).trim_start().to_owned();
    }
    let core = busy.cores.iter().copied().max_by(f64::total_cmp).unwrap_or(0.0);
    let mut text = format!(
        "Busy: link to the host {}, to the device {}, busiest host core {}",
        share(busy.link_up),
        share(busy.link_down),
        share(core)
    );
    if let Some(processors) = busy.processors {
        write!(text, ", device processors {}", share(processors)).expect("a string");
    }
    write!(text, "; {:.1} operations in flight.", found.measured.in_flight).expect("a string");
    for pair in &found.pairs {
        let [bound, busy] = pair.resources;
        if found.bound.resources != [bound] || utilisation(&found.measured, busy).is_none() {
            continue;
        }
        let sentence = format!(
            " The {} is busy {} of the time and gains nothing alone: behind the {}, both relaxed give {}.",
            busy.title(),
            share(utilisation(&found.measured, busy).unwrap_or(1.0)),
            bound.title(),
            percent(pair.gain)
        );
        text += &sentence;
    }
    text + &mismatch(found)
}

/// The largest share of the mean, if a part of the machine bounds the rate and it is another.
fn mismatch(found: &Explanation) -> String {
    let Some(largest) = found.largest.as_ref().filter(|largest| !largest.bounds_the_rate) else {
        return String::new();
    };
    let of_load = found.bound.resources.iter().all(|resource| resource.is_of_load());
    if of_load || found.bound.resources.is_empty() {
        return String::new();
    }
    let mut text = format!(
        " The largest share of the mean, {}, is not the bound: it is of the {} (most of it {})",
        share(largest.share),
        largest.resource.title(),
        largest.stage
    );
    match largest.gain {
        Some(gain) => write!(text, ", which relaxed gives {}", percent(gain)).expect("a string"),
        None => text += ", a wait behind the bound",
    }
    match (&largest.moves_to, largest.stage_without_bound_us) {
        (Some((stage, more)), _) => {
            write!(text, "; the wait becomes {stage}, {more:+.2} us").expect("a string");
        }
        (None, Some(without)) => {
            let (of, bound) = (us(largest.stage_us), found.bound.resources[0].title());
            write!(text, "; with the {bound} relaxed, {of} us of it become {}", us(without))
                .expect("a string");
        }
        (None, None) => {}
    }
    text + "."
}

fn stages(out: &mut String, found: &Explanation, most: usize) {
    let mut stages: Vec<_> = found.measured.stages.iter().collect();
    if stages.len() > most {
        stages.sort_by(|a, b| b.us.total_cmp(&a.us));
        stages.truncate(most);
    }
    line(out, "");
    line(out, &format!("{:<30}{:>12}{:>9}   {}", "mean latency", "us", "share", "part of"));
    let mut left = found.measured.mean_us;
    let mut row = |name: &str, value: f64, of: &str| {
        let part = share(value / found.measured.mean_us.max(f64::MIN_POSITIVE));
        line(out, &format!("  {name:<28}{value:>12.3}{part:>9}   {of}"));
    };
    for stage in stages {
        left -= stage.us;
        let of = Resource::of_stage(&stage.name).map_or("", Resource::title);
        row(&stage.name, stage.us, of);
    }
    if left.abs() >= 0.0005 {
        row("all other stages", left, "");
    }
}

/// Each part relaxed alone: those that gain most in rate, or in an open loop in the mean.
fn levers(out: &mut String, found: &Explanation, most: usize) {
    line(out, "");
    line(out, &format!("{:<50}{:>9}{:>10}{:>11}", "one part relaxed", "rate", "mean us", "p99 us"));
    let mut effects: Vec<_> = found.resources.iter().collect();
    if found.paced {
        // The bound first: arrivals that come more often shorten no latency.
        effects.sort_by(|a, b| a.measured.mean_us.total_cmp(&b.measured.mean_us));
        effects.sort_by_key(|effect| !found.bound.resources.contains(&effect.resource));
    }
    for effect in effects.iter().take(most) {
        effect_row(out, &format!("{}: {}", effect.resource.title(), effect.title), effect);
    }
    let rest = effects.iter().skip(most).map(|effect| effect.gain);
    if let Some(least) = rest.max_by(f64::total_cmp) {
        let others = effects.len() - most;
        let text = format!("  {others} others: at most {} in rate (--verbose)", percent(least));
        line(out, &text);
    }
}

fn effect_row(out: &mut String, title: &str, effect: &Effect) {
    let of = &effect.measured;
    let text =
        format!("  {title:<48}{:>9}{:>10.3}{:>11.3}", percent(effect.gain), of.mean_us, of.p99_us);
    line(out, &text);
}

/// Single keys, the arguments that repeat each lever, levers without effect.
fn details(out: &mut String, found: &Explanation) {
    line(out, "");
    line(out, &format!("{:<50}{:>9}{:>10}{:>11}", "one key relaxed", "rate", "mean us", "p99 us"));
    for effect in &found.details {
        effect_row(out, &effect.title, effect);
    }
    if !found.no_effect.is_empty() {
        paragraph(out, &format!("Without effect: {}.", found.no_effect.join("; ")));
    }
    for skipped in &found.skipped {
        paragraph(out, &format!("Not simulated: {}: {}", skipped.title, skipped.why));
    }
    line(out, "");
    line(out, "arguments that relax a part");
    for effect in &found.resources {
        if let Some(arguments) = arguments(&effect.change, &effect.title) {
            line(out, &format!("  {}:{arguments}", effect.resource.title()));
        }
    }
}

/// Arguments of `doorbell run`; none if no argument expresses the change.
fn arguments(change: &Change, title: &str) -> Option<String> {
    let set = |(key, value): &(String, String)| {
        format!(" --set {}", crate::quoted(&format!("{key}={value}")))
    };
    let sets: String = change.sets.iter().map(set).collect();
    match change.job {
        None => Some(sets),
        // The title is `iodepth 32 -> 64` if all jobs have the same depth.
        Some(_) => {
            let (_, depth) = title.strip_prefix("iodepth ")?.split_once(" -> ")?;
            Some(format!("{sets} --job iodepth={depth}"))
        }
    }
}

/// The range of the answer, and what was simulated.
fn range(out: &mut String, found: &Explanation, verbose: bool) {
    line(out, "");
    if let Some(range) = &found.range {
        let (low, high) = (rate(range.rate.0), rate(range.rate.1));
        let mut text = format!(
            "{} assumed costs, each at half and at one and a half: {low} to {high} IOPS, gain {} to {}",
            found.swings.len(),
            percent(range.gain.0),
            percent(range.gain.1)
        );
        let asked = found.swings.iter().any(|swing| !swing.half.bound.is_empty());
        match &range.flips[..] {
            [] if asked => text += "; the bound stays",
            [] => {}
            keys => write!(text, "; another bound with {}", keys.join(", ")).expect("a string"),
        }
        paragraph(out, &(text + "."));
    }
    let length = match found.length.excerpt_us {
        None => "the whole job".to_owned(),
        Some(us) => format!("an excerpt of {:.3} ms, the first fifth to warm up", us / 1e3),
    };
    let operations = found.measured.operations;
    let simulations = found.simulations;
    paragraph(
        out,
        &format!("{simulations} simulations, each of {length}: {operations} operations."),
    );
    if verbose && !found.swings.is_empty() {
        swings(out, &found.swings);
    }
}

fn swings(out: &mut String, swings: &[Swing]) {
    line(out, "");
    line(
        out,
        &format!("{:<40}{:>20}{:>20}", "assumed cost", "half: mean us, gain", "1.5: mean us, gain"),
    );
    for swing in swings {
        let of = |answer: &campaign::explain::Answer| {
            let gain = answer.gain.map_or("-".to_owned(), percent);
            format!("{:.3} {gain:>9}", answer.mean_us)
        };
        let key = format!("{} {}", swing.key, swing.value);
        line(out, &format!("  {key:<38}{:>20}{:>20}", of(&swing.half), of(&swing.one_and_a_half)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paragraphs_fit_the_screen_and_keep_numbers_with_their_units() {
        let mut out = String::new();
        paragraph(&mut out, &"0123456 12.5 % 3.25 us ".repeat(20));
        assert!(out.lines().count() > 4);
        for row in out.lines() {
            assert!(row.chars().count() <= COLUMNS, "{row}");
            assert!(!row.starts_with(['%', 'u']) && !row.ends_with("12.5"), "{row}");
        }
    }

    #[test]
    fn gains_have_a_sign_and_no_negative_zero() {
        assert_eq!(
            [percent(-0.0001), percent(0.5), percent(-0.25)],
            ["+0.0 %", "+50.0 %", "-25.0 %"]
        );
        assert_eq!(
            [rate(1_733_204.0), rate(56_200.0), rate(812.5)],
            ["1.733 M", "56.2 k", "812.5"]
        );
    }
}
