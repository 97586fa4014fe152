//! Streams: the operations of one kind in one run, of all its jobs together. Pictures have one curve for
//! each.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::{Bin, Document, Histogram, Job, Kind, Operations, Run, World};

pub(super) struct Stream<'a> {
    /// Number of the run in the document.
    pub run: usize,
    pub kind: Kind,
    /// Name of the run, as far as runs of the file differ.
    pub run_name: String,
    /// Run and kind, as far as they differ within the file.
    pub name: String,
    /// Number of its colour: the same in both worlds.
    pub colour: usize,
    /// Live, where there are simulated runs as well.
    pub dashed: bool,
    pub parts: Vec<Part<'a>>,
    pub latency: Histogram,
}

/// The operations of a job in a stream.
pub(super) struct Part<'a> {
    pub job: &'a Job,
    pub operations: &'a Operations,
    /// Place of the operations in the document, as a JSON pointer.
    pub at: String,
}

impl Stream<'_> {
    /// Sum of a number of the parts.
    pub fn sum(&self, of: impl Fn(&Operations) -> f64) -> f64 {
        self.parts.iter().map(|part| of(part.operations)).sum()
    }

    /// Origin of a sum, by the name of the field.
    pub fn sum_of(&self, field: &str) -> String {
        self.of("sum", &format!("/{field}"))
    }

    /// Origin of a quantile of the latency.
    pub fn quantile_of(&self, quantile: f64) -> String {
        self.of(&format!("at:{quantile}"), "/latency")
    }

    /// Origin of the mean latency.
    pub fn mean_of(&self) -> String {
        self.of("mean", "/latency")
    }

    /// Origin of the least or the largest latency.
    pub fn end_of(&self, operation: &str, field: &str) -> String {
        self.of(operation, &format!("/latency/{field}"))
    }

    fn of(&self, operation: &str, field: &str) -> String {
        let mut text = operation.to_owned();
        for part in &self.parts {
            text.push(' ');
            text.push_str(&part.at);
            text.push_str(field);
        }
        text
    }
}

pub(super) fn world_name(world: World) -> &'static str {
    match world {
        World::Simulated => "simulated",
        World::Live => "live",
    }
}

/// The runs of each file, by their numbers.
pub(super) fn files(document: &Document) -> Vec<(&str, Vec<usize>)> {
    let mut files: Vec<(&str, Vec<usize>)> = Vec::new();
    for (number, run) in document.runs.iter().enumerate() {
        let file = run.work.file.as_str();
        match files.iter_mut().find(|(other, _)| *other == file) {
            Some((_, runs)) => runs.push(number),
            None => files.push((file, vec![number])),
        }
    }
    files
}

pub(super) fn run_names(document: &Document) -> Vec<String> {
    names(&document.runs.iter().collect::<Vec<_>>())
}

/// A name for each run: its interface, and its world unless all are of one, and what else differs.
fn names(runs: &[&Run]) -> Vec<String> {
    let differs = |of: fn(&Run) -> String| {
        runs.iter().map(|run| of(run)).collect::<BTreeSet<String>>().len() > 1
    };
    let file = differs(|run| run.work.file.clone());
    let plan = differs(|run| run.plan.name.clone());
    let threads = differs(|run| format!("{:?}, {}", run.world, run.threads))
        && runs.iter().any(|run| run.threads > 1);
    let one_world = runs.len() > 1 && !differs(|run| world_name(run.world).to_owned());
    let names = runs.iter().map(|run| {
        let mut name = vec![run.interface.clone()];
        name.extend((!one_world).then(|| world_name(run.world).to_owned()));
        let device =
            serde_json::to_value(run.device).ok().and_then(|name| Some(name.as_str()?.to_owned()));
        name.extend(device.filter(|name| !["modelled", "thread"].contains(&name.as_str())));
        name.extend(file.then(|| run.work.file.clone()));
        name.extend(plan.then(|| run.plan.name.clone()));
        name.extend((threads && run.threads > 1).then(|| format!("{} threads", run.threads)));
        name.join(", ")
    });
    let mut names: Vec<String> = names.collect();
    // Settings may differ in ways that have no short name.
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    for name in &mut names {
        let number = seen.entry(name.clone()).or_insert(0);
        *number += 1;
        if *number > 1 {
            *name = format!("{name} ({number})");
        }
    }
    names
}

/// The streams of these runs, in their order.
pub(super) fn streams<'a>(document: &'a Document, numbers: &[usize]) -> Vec<Stream<'a>> {
    let runs: Vec<&Run> = numbers.iter().map(|number| &document.runs[*number]).collect();
    let names = names(&runs);
    let kinds: BTreeSet<Kind> = runs
        .iter()
        .flat_map(|run| run.jobs.iter().flat_map(|job| job.operations.keys().copied()))
        .collect();
    let has = |world| runs.iter().any(|run| run.world == world);
    let both_worlds = has(World::Live) && has(World::Simulated);
    let mut colours: Vec<(String, Kind)> = Vec::new();
    let mut streams = Vec::new();
    for (number, (run, run_name)) in numbers.iter().copied().zip(runs.iter().copied().zip(&names)) {
        for kind in Kind::ALL {
            let parts = parts(run, number, kind);
            if parts.is_empty() {
                continue;
            }
            let without_world = run_name.replacen(world_name(run.world), "", 1);
            let key = (without_world, kind);
            let colour = colours.iter().position(|other| *other == key).unwrap_or(colours.len());
            if colour == colours.len() {
                colours.push(key);
            }
            let run_name = run_name.clone();
            let name = match kinds.len() {
                1 => run_name.clone(),
                _ => format!("{run_name}, {}", kind.name()),
            };
            let dashed = both_worlds && run.world == World::Live;
            let latency = merged(parts.iter().map(|part| &part.operations.latency));
            streams.push(Stream {
                run: number,
                kind,
                run_name,
                name,
                colour,
                dashed,
                parts,
                latency,
            });
        }
    }
    streams
}

fn parts(run: &Run, number: usize, kind: Kind) -> Vec<Part<'_>> {
    let jobs = run.jobs.iter().enumerate();
    let parts = jobs.filter_map(|(place, job)| {
        let operations = job.operations.get(&kind)?;
        let at = format!("/runs/{number}/jobs/{place}/operations/{}", kind.name());
        Some(Part { job, operations, at })
    });
    parts.collect()
}

pub(super) fn merged<'a>(parts: impl Iterator<Item = &'a Histogram>) -> Histogram {
    let (mut bins, mut all) = (BTreeMap::new(), Histogram::default());
    let mut sum = 0.0;
    for part in parts.filter(|part| part.count > 0) {
        all.min_ns = if all.count == 0 { part.min_ns } else { all.min_ns.min(part.min_ns) };
        all.max_ns = all.max_ns.max(part.max_ns);
        all.count += part.count;
        sum += part.mean_ns * part.count as f64;
        for Bin(bound, count) in &part.bins {
            *bins.entry(*bound).or_insert(0) += count;
        }
    }
    all.mean_ns = sum / all.count.max(1) as f64;
    all.bins = bins.into_iter().map(|(bound, count)| Bin(bound, count)).collect();
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distributions_of_jobs_are_merged() {
        let part = |bins: &[Bin], min_ns, max_ns, mean_ns| Histogram {
            count: bins.iter().map(|bin| bin.1).sum(),
            bins: bins.to_vec(),
            min_ns,
            max_ns,
            mean_ns,
            ..Histogram::default()
        };
        let [first, second] = [
            part(&[Bin(10, 3), Bin(20, 1)], 9, 20, 12.0),
            part(&[Bin(20, 2), Bin(90, 2)], 19, 88, 54.0),
        ];
        let all = merged([&first, &Histogram::default(), &second].into_iter());
        assert_eq!(all.bins, [Bin(10, 3), Bin(20, 3), Bin(90, 2)]);
        assert_eq!((all.count, all.min_ns, all.max_ns), (8, 9, 88));
        assert_eq!((all.mean_ns, all.at(0.5)), (33.0, 20));
    }
}
