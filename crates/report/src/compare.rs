//! Interface beside interface: the same work through each.

use crate::model::{Document, Kind, Run, WarningKind, World};
use crate::number::{COLUMNS, cut, heading, mib, rate, short_us, us, wrapped};
use crate::pool::Pool;
use crate::style::Style;
use crate::summary::LINES_MAX;

/// Width of the names of interfaces.
const NAMES: usize = 18;
/// Most lines that say why one interface takes longer.
const REASONS_MAX: usize = 4;
/// Stages that such a line names.
const REASONS: usize = 3;
/// Stages below this are not shown: half a picosecond in a microsecond's third decimal.
const SHOWN_NS: f64 = 0.5;

const WORDS: [(Kind, &str); 4] = [
    (Kind::Read, "reads"),
    (Kind::Write, "writes"),
    (Kind::Flush, "flushes"),
    (Kind::Trim, "trims"),
];

/// An interface in one world.
struct Column<'a> {
    name: &'a str,
    pool: Pool,
}

fn columns<'a>(runs: &[&'a Run], world: World, kind: Kind) -> Vec<Column<'a>> {
    let of_world = runs.iter().filter(|run| run.world == world);
    let column = |run: &&'a Run| Column { name: run.interface.as_str(), pool: Pool::of(run, kind) };
    of_world.map(column).filter(|column| column.pool.count > 0).collect()
}

/// The worlds of the runs, live first.
fn worlds(runs: &[&Run]) -> Vec<World> {
    let is_there = |world: &World| runs.iter().any(|run| run.world == *world);
    [World::Live, World::Simulated].into_iter().filter(is_there).collect()
}

fn word(world: World) -> &'static str {
    if world == World::Live { "live" } else { "simulated" }
}

/// Summary of the runs of one file: one for each interface and world. Ends with a line break.
pub fn of_file(document: &Document, runs: &[&Run], style: Style) -> String {
    let Some(first) = runs.first() else { return String::new() };
    let worlds = worlds(runs);
    let words: Vec<_> = worlds.iter().map(|world| word(*world)).collect();
    let rest = format!(", {}, plan {}", words.join(" and "), first.plan.name);
    let mut page = vec![style.head(&heading(&first.work.file, &rest))];
    for (kind, plural) in WORDS {
        page.extend(block(runs, &worlds, (kind, plural), style));
    }
    let last = *worlds.last().expect("a world of a run");
    let busiest = WORDS.iter().rev().max_by_key(|(kind, _)| {
        columns(runs, last, *kind).iter().map(|column| column.pool.count).sum::<u64>()
    });
    if let Some((kind, plural)) = busiest {
        let columns = columns(runs, last, *kind);
        let mut reasons = reasons(&columns);
        reasons.truncate(REASONS_MAX);
        let fastest = format!("{plural}, {}: {}", word(last), fastest(&columns));
        page.extend(wrapped(&fastest, "  "));
        page.extend(reasons.iter().flat_map(|reason| wrapped(reason, "  ")));
    }
    page.extend(remarks(document, runs, style));
    page.truncate(LINES_MAX);
    page.into_iter().map(|line| line.trim_end().to_owned() + "\n").collect()
}

/// Warnings, each once for all interfaces; errors first.
fn remarks(document: &Document, runs: &[&Run], style: Style) -> Vec<String> {
    let mut lines = Vec::new();
    let mut kinds: Vec<WarningKind> =
        runs.iter().flat_map(|run| &run.warnings).map(|warning| warning.kind).collect();
    kinds.sort_unstable();
    kinds.dedup();
    for kind in kinds {
        let has = |run: &&&Run| run.warnings.iter().any(|warning| warning.kind == kind);
        let with: Vec<&Run> = runs.iter().filter(has).copied().collect();
        let text = with[0].warnings.iter().find(|warning| warning.kind == kind);
        let mut names: Vec<&str> = with.iter().map(|run| run.interface.as_str()).collect();
        names.dedup();
        let text = text.map_or("", |warning| warning.text.as_str());
        let error = kind == WarningKind::Errors;
        let line = match (error, with.len() == runs.len()) {
            (true, _) => format!("error, {}: {text}", names.join(", ")),
            (false, true) => format!("warning: {text}"),
            (false, false) => format!("warning, {}: {text}", names.join(", ")),
        };
        let paint = |line: String| if error { style.error(&line) } else { style.warning(&line) };
        lines.extend(wrapped(&line, "  ").into_iter().map(paint));
    }
    let left_out: Vec<_> =
        document.warnings.iter().filter(|warning| warning.kind == WarningKind::LeftOut).collect();
    if !left_out.is_empty() {
        lines.push(format!("interfaces that the plan lacks: {} (--verbose)", left_out.len()));
    }
    lines
}

/// Rows of one kind: an interface each, the worlds side by side.
fn block(
    runs: &[&Run],
    worlds: &[World],
    (kind, plural): (Kind, &str),
    style: Style,
) -> Vec<String> {
    let each: Vec<_> = worlds.iter().map(|world| columns(runs, *world, kind)).collect();
    let mut names: Vec<&str> = Vec::new();
    for column in each.iter().flatten() {
        if !names.contains(&column.name) {
            names.push(column.name);
        }
    }
    if names.is_empty() {
        return Vec::new();
    }
    let both = worlds.len() > 1;
    let mut lines = Vec::new();
    if both {
        let above: String = worlds.iter().map(|world| format!(" {:^29}", word(*world))).collect();
        lines.push(style.head(&format!("{:<NAMES$}{above}", "")));
    }
    let headings = match both {
        true => row(&["IOPS", "p50 us", "p99 us"], 10).repeat(2),
        false => row(&["IOPS", "MiB/s", "mean us", "p50 us", "p99 us", "p99.9 us"], 10),
    };
    lines.push(style.head(&format!("{plural:<NAMES$}{headings}")));
    for name in names {
        let mut line = format!("{:<NAMES$}", cut(name, NAMES));
        for columns in &each {
            let column = columns.iter().find(|column| column.name == name);
            line += &match (column, both) {
                (Some(column), _) => row(&numbers(&column.pool, both), 10),
                (None, true) => row(&["-"; 3], 10),
                (None, false) => String::new(),
            };
        }
        lines.push(line);
    }
    lines
}

fn row(cells: &[impl AsRef<str>], width: usize) -> String {
    cells.iter().map(|cell| format!(" {:>1$}", cell.as_ref(), width - 1)).collect()
}

fn numbers(pool: &Pool, short: bool) -> Vec<String> {
    let at = |quantile| short_us(pool.latency.at(quantile) as f64);
    match short {
        true => vec![rate(pool.iops()), at(0.5), at(0.99)],
        false => vec![
            rate(pool.iops()),
            mib(pool.bytes_per_second()),
            short_us(pool.latency.mean_ns),
            at(0.5),
            at(0.99),
            at(0.999),
        ],
    }
}

fn fastest(columns: &[Column]) -> String {
    let most = columns.iter().max_by(|a, b| a.pool.iops().total_cmp(&b.pool.iops()));
    let (Some(most), Some(quickest)) = (most, quickest(columns)) else { return String::new() };
    // Work that comes at its own times is done at its own rate by all that keep up with it.
    let alike = columns.iter().all(|column| column.pool.iops() >= 0.99 * most.pool.iops());
    let most = match alike && columns.len() > 1 {
        true => "operations a second: alike, to 1 %".to_owned(),
        false => format!("most operations a second: {}", most.name),
    };
    format!("{most}; shortest in the mean: {}", quickest.name)
}

fn quickest<'a, 'b>(columns: &'b [Column<'a>]) -> Option<&'b Column<'a>> {
    columns.iter().min_by(|a, b| a.pool.latency.mean_ns.total_cmp(&b.pool.latency.mean_ns))
}

/// For each interface but the quickest: the stages that add most to its latency.
fn reasons(columns: &[Column]) -> Vec<String> {
    let Some(quick) = quickest(columns) else { return Vec::new() };
    let reason = |column: &Column| {
        let mut more: Vec<_> = column
            .pool
            .stages
            .iter()
            .map(|(name, ns)| (name, ns - quick.pool.stage_ns(name).unwrap_or(0.0)))
            .collect();
        more.sort_by(|a, b| b.1.total_cmp(&a.1));
        let parts = more.iter().take(REASONS).filter(|(_, ns)| *ns >= SHOWN_NS);
        let parts: Vec<_> = parts.map(|(name, ns)| format!("{name} {:+.3}", ns / 1e3)).collect();
        let longer = (column.pool.latency.mean_ns - quick.pool.latency.mean_ns) / 1e3;
        let why = match parts.is_empty() {
            true => String::new(),
            false => format!(", most of it {}", parts.join(", ")),
        };
        format!("{} over {}: {longer:+.3} us{why}", column.name, quick.name)
    };
    columns.iter().filter(|column| column.name != quick.name).map(reason).collect()
}

/// Means by stage, of every kind and world, in tables of at most 80 columns. Ends with a line break.
pub fn details(document: &Document, runs: &[&Run]) -> String {
    let mut page: Vec<String> = Vec::new();
    let left_out = document.warnings.iter().filter(|one| one.kind == WarningKind::LeftOut);
    page.extend(left_out.flat_map(|one| wrapped(&format!("note: {}", one.text), "  ")));
    for world in worlds(runs) {
        for (kind, plural) in WORDS {
            let columns = columns(runs, world, kind);
            if columns.is_empty() {
                continue;
            }
            page.push(String::new());
            page.push(format!("{plural}, {}: means in us by stage", word(world)));
            // As many interfaces as fit beside the names of stages.
            for part in columns.chunks((COLUMNS - STAGES) / WIDTH) {
                page.extend(by_stage(part));
            }
            page.extend(wrapped(&fastest(&columns), "  "));
            page.extend(reasons(&columns).iter().flat_map(|reason| wrapped(reason, "  ")));
        }
    }
    page.into_iter().map(|line| line.trim_end().to_owned() + "\n").collect()
}

/// Width of the names of stages, and of a column.
const STAGES: usize = 26;
const WIDTH: usize = 18;

fn by_stage(columns: &[Column]) -> Vec<String> {
    let mut names: Vec<&str> = Vec::new();
    for (name, ns) in columns.iter().flat_map(|column| &column.pool.stages) {
        if ns.abs() >= SHOWN_NS && !names.contains(&name.as_str()) {
            names.push(name);
        }
    }
    let line = |name: &str, cells: Vec<String>| {
        let cells: String =
            cells.iter().map(|cell| format!("{:>WIDTH$}", cut(cell, WIDTH - 1))).collect();
        format!("{name:<STAGES$}{cells}")
    };
    let all = |of: &dyn Fn(&Column) -> String| columns.iter().map(of).collect::<Vec<_>>();
    let mut lines = vec![
        line("", all(&|column| column.name.to_owned())),
        line("  IOPS", all(&|column| rate(column.pool.iops()))),
        line("  mean", all(&|column| us(column.pool.latency.mean_ns))),
        line("  p50", all(&|column| us(column.pool.latency.at(0.5) as f64))),
        line("  p99", all(&|column| us(column.pool.latency.at(0.99) as f64))),
    ];
    for name in names {
        let cell = |column: &Column| column.pool.stage_ns(name).map_or("-".to_owned(), us);
        lines.push(line(&format!("    {name}"), all(&cell)));
    }
    lines
}
