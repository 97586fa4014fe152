//! The report of a plan: its parts, derived quantities, and the sources of its values.

use std::fmt::{self, Write};

use ::device::faults::When;
use media::contents::{Backing, Keep};
use runtime::Span;

use super::units::{rate_text, size_text, span_text};
use super::{ASSUMED, Completion, Doorbell, FITTED, KeepRule, MediumPace, POLICIES, Plan, Sourced};

impl Plan {
    /// The plan as text: its parts, the derived quantities, then all values with a source. Assumed values are
    /// listed separately.
    pub fn report(&self) -> String {
        let mut out = String::new();
        self.write_report(&mut out).expect("formatting into a string cannot fail");
        out
    }

    fn write_report(&self, out: &mut String) -> fmt::Result {
        writeln!(out, "{} ({})\n  {}", self.name, self.origin, self.about)?;
        if let Some(drive) = &self.drive {
            writeln!(out, "  drive: {drive}")?;
        }
        writeln!(out)?;
        self.write_link(out)?;
        self.write_host(out)?;
        self.write_device(out)?;
        self.write_medium(out)?;
        self.write_faults(out)?;
        let (guessed, known): (Vec<_>, Vec<_>) = self.sources.iter().partition(|s| s.assumed);
        let (fitted, assumed): (Vec<_>, Vec<_>) = guessed.iter().partition(|s| s.is_fitted());
        write_sources(out, "from a source", &known)?;
        write_sources(out, FITTED, &fitted)?;
        write_sources(out, ASSUMED, &assumed)
    }

    fn write_link(&self, out: &mut String) -> fmt::Result {
        let (link, figures) = (&self.link, self.figures());
        let (payload, raw) = (figures.payload_bytes_per_s, figures.link_bytes_per_s);
        let per_mille = payload * 1000 / raw;
        let (mps, mrrs) = (size_text(link.mps.into()), size_text(link.mrrs.into()));
        let ordering = if self.relaxed_ordering { "relaxed" } else { "strict" };
        writeln!(out, "link: {:?} x{}, {ordering} ordering", link.generation, link.lanes)?;
        line(out, "payload, read request", format_args!("{mps}, {mrrs} at most"))?;
        line(out, "each way", rate_text(raw))?;
        let efficiency = format_args!(
            "{} ({}.{} %: {} bytes around each payload)",
            rate_text(payload),
            per_mille / 10,
            per_mille % 10,
            figures.overhead_bytes
        );
        line(out, "in full packets", efficiency)?;
        line(out, "4 KiB to the host", span_text(figures.write_4k))?;
        line(out, "64 B from the host", span_text(figures.read_64))?;
        line(out, "register read", span_text(figures.read_register))?;
        writeln!(out)
    }

    fn write_faults(&self, out: &mut String) -> fmt::Result {
        if self.faults.is_empty() {
            return Ok(());
        }
        writeln!(out, "faults: {}", self.faults.len())?;
        for fault in &self.faults {
            let when = match &fault.when {
                When::At(after) => format!("after {}", span_text(*after)),
                When::Commands(_) => "at commands".to_owned(),
            };
            line(out, &fault.name, format_args!("{} {when}", fault.what.word()))?;
        }
        writeln!(out)
    }

    fn write_host(&self, out: &mut String) -> fmt::Result {
        let host = &self.host;
        let completion = match host.completion {
            Completion::Polled => "polled",
            Completion::Hybrid => "hybrid",
            Completion::Interrupt => "interrupt",
        };
        let doorbell = match host.doorbell {
            Doorbell::Each => "for each command",
            Doorbell::Batched => "for a batch",
        };
        writeln!(out, "host: {} cores", host.cores)?;
        let depth = host.queue_depth;
        line(out, "queues", format_args!("{} of {depth} commands", host.queues))?;
        if let Some(sharing) = &host.sharing {
            let (cores, queues) = (host.cores as u16, host.queues as u16);
            let shape = sharing.policy.shape(cores, queues, depth as u16);
            let word = POLICIES.iter().find(|(_, policy)| *policy == sharing.policy);
            let (word, most) = (word.map_or("", |(word, _)| *word), shape.outstanding());
            let text = format_args!("{word}, behind SCSI: {most} commands in {}", shape.queues);
            line(out, "policy", text)?;
        }
        line(out, "completions", completion)?;
        line(out, "doorbell", doorbell)?;
        let (base, bytes) = (host.memory_base, size_text(host.memory_bytes));
        let needed = size_text(self.figures().memory_needed_bytes);
        line(out, "memory", format_args!("{bytes} from {base}, {needed} needed at most"))?;
        costs(out, host.costs.iter().map(|cost| (cost.name, cost.span)))
    }

    fn write_device(&self, out: &mut String) -> fmt::Result {
        let device = &self.device;
        match device.processors {
            0 => writeln!(out, "device: pipelined hardware")?,
            n => writeln!(out, "device: {n} processors")?,
        }
        let entries = device.queue_entries;
        line(out, "queues", format_args!("{} of {entries} entries at most", device.queues))?;
        line(out, "at once", format_args!("{} commands", device.command_slots))?;
        let (fetchers, fetch_max) = (device.fetchers, device.fetch_max);
        line(out, "fetches", format_args!("{fetchers} at once, {fetch_max} entries each"))?;
        line(out, "longest transfer", size_text(device.mdts_bytes))?;
        costs(out, device.costs.iter().map(|cost| (cost.name, cost.span)))
    }

    fn write_medium(&self, out: &mut String) -> fmt::Result {
        let (medium, contents) = (&self.medium, &self.medium.contents);
        let kept = match (contents.keep, medium.keep) {
            (Keep::Everything, _) => "every byte stored",
            (Keep::Stamps, KeepRule::Auto) => {
                "the stamp of each block stored (every byte when served)"
            }
            (Keep::Stamps, _) => "the stamp of each block stored",
        };
        let place = match &contents.backing {
            Backing::Memory => "in memory".to_owned(),
            Backing::Random(seed) => format!("in memory, over random contents of seed {seed}"),
            Backing::File(path) | Backing::Bounded { path, .. } => format!("in {}", path.display()),
        };
        let pace = match medium.pace {
            MediumPace::Modelled => "modelled",
            MediumPace::Immediate => "no delays",
        };
        writeln!(out, "medium: {}, {}", medium.kind.title, size_text(contents.capacity_bytes))?;
        let block = size_text(contents.block_bytes.into());
        line(out, "blocks", format_args!("{block}, {kept} {place}"))?;
        if let Some(bytes) = medium.resident_bytes {
            line(out, "contents in memory", format_args!("at most {}", size_text(bytes)))?;
        }
        line(out, "time in a live world", pace)?;
        medium.report(out)?;
        if let Some(span) = self.figures().medium_4k {
            line(out, "4 KiB, first byte", span_text(span))?;
        }
        writeln!(out)
    }
}

/// Writes one line: a label and a value.
pub(super) fn line(out: &mut String, what: &str, value: impl fmt::Display) -> fmt::Result {
    writeln!(out, "  {what:<24}{value}")
}

fn costs<'c>(out: &mut String, costs: impl Iterator<Item = (&'c str, Span)>) -> fmt::Result {
    for (name, span) in costs {
        line(out, &format!("cost of {name}"), span_text(span))?;
    }
    writeln!(out)
}

fn write_sources(out: &mut String, what: &str, sources: &[&Sourced]) -> fmt::Result {
    if sources.is_empty() {
        return Ok(());
    }
    writeln!(out, "{what}: {}", sources.len())?;
    let key_width = sources.iter().map(|s| s.key.chars().count()).max().unwrap_or(0);
    let value_width = sources.iter().map(|s| s.value.chars().count()).max().unwrap_or(0);
    for Sourced { key, value, source, .. } in sources {
        // The heading of the list already contains `assumed` or `fitted`.
        let why = source.strip_prefix(what).unwrap_or(source);
        let why = why.trim_start_matches(':').trim_start();
        let row = format!("  {key:<key_width$}  {value:<value_width$}  {why}");
        writeln!(out, "{}", row.trim_end())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_lists_figures_and_assumed_values() {
        let plan = Plan::open("dc-express", &[("host.poll", "25 ns")]).unwrap();
        let report = plan.report();
        for line in [
            "link: Gen2 x4, relaxed ordering",
            "  each way                2 GB/s",
            "  in full packets         1.684210526 GB/s (84.2 %: 24 bytes around each payload)",
            "  4 KiB to the host       2.432 us",
            "  64 B from the host      604 ns",
            "  4 KiB, first byte       367.999 ns",
            "medium: PCM, 640 MiB",
        ] {
            assert!(report.lines().any(|l| l == line), "{line:?} in\n{report}");
        }
        let (known, assumed) = report.split_once("\nassumed: ").unwrap();
        for sourced in &plan.sources {
            let part = if sourced.assumed { assumed } else { known };
            let row = part.lines().find(|l| l.starts_with(&format!("  {} ", sourced.key)));
            let row = row.unwrap_or_else(|| panic!("{} in\n{report}", sourced.key));
            assert!(row.contains(&sourced.value), "{row}");
        }
        assert!(assumed.contains("25 ns") && assumed.contains("given by --set"), "{assumed}");
    }

    #[test]
    fn report_of_built_in_plans_has_no_trailing_blanks() {
        for (name, _) in crate::built_in() {
            let report = Plan::open(name, &[]).unwrap().report();
            assert!(report.lines().all(|line| line.trim_end() == line), "{report}");
        }
    }
}
