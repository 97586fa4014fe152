//! Timelines: sampled commands, each stage in the lane of the part of the machine that it occupies.

use maud::{Markup, html};

use super::number::Unit;
use super::palette::Palette;
use super::parts::{Grid, figure, text};
use super::svg::{Size, picture, px, text_width};
use crate::model::{Document, Request};
use crate::scale::{Scale, labels};

/// Commands that one picture has at most.
const TOGETHER: usize = 4;
/// Runs with pictures of their own; a picture of more is side by side with the others.
const ALONE: usize = 2;
/// Longest time of a picture, in lengths of its first command.
const LENGTHS: u64 = 3;
const ROW: f64 = 20.0;
const BETWEEN: f64 = 8.0;
const TOP: f64 = 8.0;

/// Lanes from the host's side to the medium's, as in the timing diagrams of the papers. Others come behind.
const LANES: [&str; 5] = ["host", "link down", "link up", "device", "medium"];

/// A span in its row.
struct Placed<'a> {
    number: usize,
    stage: &'a str,
    from_ps: u64,
    to_ps: u64,
    /// Row of the picture, from 0.
    row: usize,
}

struct Lane {
    name: String,
    first_row: usize,
    rows: usize,
}

/// Some commands with their rows.
struct Diagram<'a> {
    from_ps: u64,
    to_ps: u64,
    lanes: Vec<Lane>,
    spans: Vec<Placed<'a>>,
    requests: &'a [&'a Request],
}

/// Pictures for every run with a timeline.
pub(super) fn timelines(document: &Document, names: &[String], palette: &Palette) -> Markup {
    let runs = document.runs.iter().zip(names).filter(|(run, _)| !run.timeline.is_empty());
    let runs: Vec<(&[Request], &str)> =
        runs.map(|(run, name)| (&run.timeline[..], name.as_str())).collect();
    let pictures: Vec<Markup> = match runs.len() {
        0..=ALONE => runs.iter().map(|(timeline, name)| of_run(timeline, name, palette)).collect(),
        _ => side_by_side(&runs, palette),
    };
    let mut stages: Vec<&str> = Vec::new();
    for span in
        document.runs.iter().flat_map(|run| &run.timeline).flat_map(|request| &request.spans)
    {
        if span.to_ps > span.from_ps {
            stages.push(&span.stage);
        }
    }
    let rest: &[&'static str] =
        if stages.iter().all(|stage| palette.has(stage)) { &[] } else { &[super::palette::OTHER] };
    html! {
        @if !pictures.is_empty() { (palette.legend(stages.into_iter(), rest)) }
        @for picture in &pictures { (picture) }
    }
}

/// A typical command of each run, all on one scale of time.
fn side_by_side(runs: &[(&[Request], &str)], palette: &Palette) -> Vec<Markup> {
    let typical = runs.iter().filter_map(|(timeline, name)| {
        let mut requests: Vec<&Request> =
            timeline.iter().filter(|request| length(request) > 0).collect();
        requests.sort_by_key(|request| length(request));
        Some((*requests.get(requests.len() / 2)?, *name))
    });
    let typical: Vec<(&Request, &str)> = typical.collect();
    let longest = typical.iter().map(|(request, _)| length(request)).max().unwrap_or(0);
    let about = "A sampled command of median latency.";
    typical.iter().map(|(request, name)| draw(name, about, &[request], longest, palette)).collect()
}

fn of_run(timeline: &[Request], name: &str, palette: &Palette) -> Markup {
    let mut requests: Vec<&Request> =
        timeline.iter().filter(|request| length(request) > 0).collect();
    requests.sort_by_key(|request| request.begun_ps);
    let Some(slowest) = requests.iter().max_by_key(|request| length(request)).copied() else {
        return html! {};
    };
    let together = consecutive(&requests);
    let about = match together.len() {
        1 => "One sampled command.".to_owned(),
        many => format!("{many} sampled commands, numbered as they began."),
    };
    let alone = [slowest];
    let further = !together.iter().any(|request| std::ptr::eq(*request, slowest));
    html! {
        (draw(name, &about, together, 0, palette))
        @if further {
            (draw(
                &format!("{name}: the slowest"),
                &format!("The slowest of {} sampled commands.", requests.len()),
                &alone,
                0,
                palette,
            ))
        }
    }
}

fn length(request: &Request) -> u64 {
    end(request).saturating_sub(request.begun_ps)
}

fn end(request: &Request) -> u64 {
    request.spans.iter().map(|span| span.to_ps).max().unwrap_or(request.begun_ps)
}

/// Commands that began one after the other with no long gap, from the first such place on; one command if
/// there is none. Samples may be far apart.
fn consecutive<'a>(requests: &'a [&'a Request]) -> &'a [&'a Request] {
    let mut best: &[&Request] = &requests[..1];
    for first in 0..requests.len() {
        let most = requests[first].begun_ps + LENGTHS * length(requests[first]);
        let mut last = end(requests[first]);
        let mut count = 1;
        for request in &requests[first + 1..] {
            let near = request.begun_ps <= last + length(requests[first]) / 4;
            if count == TOGETHER || !near || end(request) > most {
                break;
            }
            last = last.max(end(request));
            count += 1;
        }
        if count > best.len() {
            best = &requests[first..first + count];
        }
        if best.len() == TOGETHER {
            break;
        }
    }
    best
}

/// Draws commands on a scale of at least a length in picoseconds.
fn draw(
    name: &str,
    about: &str,
    requests: &[&Request],
    least_ps: u64,
    palette: &Palette,
) -> Markup {
    let mut diagram = Diagram::of(requests);
    diagram.to_ps = diagram.to_ps.max(diagram.from_ps + least_ps);
    let label = format!("Timeline of {name}");
    let pictures = html! { @for size in Size::BOTH { (diagram.picture(size, &label, palette)) } };
    figure(name, about, &pictures, Some(&diagram.table()))
}

/// Order of a lane: by the list, then by name and number.
fn order(lane: &str) -> (usize, String, u64) {
    let listed = LANES.iter().position(|name| *name == lane).unwrap_or(LANES.len());
    let (name, number) = lane.rsplit_once(' ').unwrap_or((lane, ""));
    match number.parse() {
        Ok(number) => (listed, name.to_owned(), number),
        Err(_) => (listed, lane.to_owned(), 0),
    }
}

impl<'a> Diagram<'a> {
    fn of(requests: &'a [&'a Request]) -> Diagram<'a> {
        let from_ps = requests.iter().map(|request| request.begun_ps).min().unwrap_or(0);
        let to_ps = requests.iter().map(|request| end(request)).max().unwrap_or(from_ps + 1);
        let mut names: Vec<&str> = requests
            .iter()
            .flat_map(|request| request.spans.iter().map(|span| span.lane.as_str()))
            .collect();
        names.sort_by_key(|lane| order(lane));
        names.dedup();
        let (mut lanes, mut spans, mut row) = (Vec::new(), Vec::new(), 0);
        for name in names {
            // Spans that overlap in a lane have rows of their own: the first that is free.
            let mut free: Vec<u64> = Vec::new();
            let mut in_lane: Vec<_> = requests
                .iter()
                .enumerate()
                .flat_map(|(number, request)| request.spans.iter().map(move |span| (number, span)))
                .filter(|(_, span)| span.lane == name && span.to_ps > span.from_ps)
                .collect();
            in_lane.sort_by_key(|(number, span)| (span.from_ps, *number));
            for (number, span) in in_lane {
                let own =
                    free.iter().position(|until| *until <= span.from_ps).unwrap_or(free.len());
                if own == free.len() {
                    free.push(0);
                }
                free[own] = span.to_ps;
                let (from_ps, to_ps) = (span.from_ps, span.to_ps);
                spans.push(Placed { number, stage: &span.stage, from_ps, to_ps, row: row + own });
            }
            let rows = free.len().max(1);
            lanes.push(Lane { name: name.to_owned(), first_row: row, rows });
            row += rows;
        }
        Diagram { from_ps, to_ps, lanes, spans, requests }
    }

    /// Top of a row: lanes have space between them.
    fn top(&self, row: usize) -> f64 {
        let lane = self.lanes.iter().take_while(|lane| lane.first_row <= row).count().max(1) - 1;
        TOP + row as f64 * ROW + lane as f64 * BETWEEN
    }

    fn picture(&self, size: Size, label: &str, palette: &Palette) -> Markup {
        let widest = self.lanes.iter().map(|lane| text_width(&lane.name)).fold(0.0, f64::max);
        let length = (self.to_ps - self.from_ps).max(1) as f64 / 1e3;
        let (unit, name) = Unit::Nanoseconds.scaled(length);
        let (start, end) = (widest + 10.0, size.width() - 10.0);
        let scale = Scale { from: 0.0, to: length / unit, log: false, start, end };
        let at = |ps: u64| scale.at((ps - self.from_ps) as f64 / 1e3 / unit);
        let rows = self.lanes.last().map_or(0, |lane| lane.first_row + lane.rows);
        let bottom = self.top(rows.max(1) - 1) + ROW + 4.0;
        let ticks = scale.ticks(if size == Size::Wide { 9 } else { 4 });
        let content = html! {
            @for (tick, text) in ticks.iter().zip(labels(&ticks, false)) {
                @let x = px(scale.at(*tick));
                path.grid d={ "M" (x) " " (px(TOP - 4.0)) "V" (px(bottom)) } {}
                text.middle.x x=(x) y=(px(bottom + 15.0)) data-at=(x) { (text) }
            }
            text.label.end x=(px(end)) y=(px(bottom + 32.0)) { "time, " (name) }
            @for lane in &self.lanes {
                @let top = self.top(lane.first_row);
                rect.lane x=(px(start)) y=(px(top - 2.0)) width=(px(end - start))
                    height=(px(lane.rows as f64 * ROW + 2.0)) {}
                text.label.end x=(px(start - 7.0)) y=(px(top + 13.0)) { (lane.name) }
            }
            (self.order(&at))
            @for span in &self.spans { (self.span(span, &at, palette)) }
        };
        picture(size, bottom + 38.0, label, &content)
    }

    /// Lines from the end of each stage to the beginning of the next, which may be in another lane.
    fn order(&self, at: &impl Fn(u64) -> f64) -> Markup {
        let mut lines = Vec::new();
        for number in 0..self.requests.len() {
            let mut own: Vec<&Placed<'_>> =
                self.spans.iter().filter(|span| span.number == number).collect();
            own.sort_by_key(|span| span.from_ps);
            for pair in own.windows(2).filter(|pair| pair[0].row != pair[1].row) {
                let middle = |row| self.top(row) + ROW / 2.0 - 1.0;
                let (from, to) = (px(at(pair[0].to_ps)), px(at(pair[1].from_ps)));
                lines.push(format!(
                    "M{from} {}L{to} {}",
                    px(middle(pair[0].row)),
                    px(middle(pair[1].row))
                ));
            }
        }
        html! { path.order d=(lines.concat()) {} }
    }

    fn span(&self, span: &Placed<'_>, at: &impl Fn(u64) -> f64, palette: &Palette) -> Markup {
        let (from, to) = (at(span.from_ps), at(span.to_ps));
        let (top, width) = (self.top(span.row), (to - from).max(1.0));
        let class = palette.class(span.stage);
        let number = span.number + 1;
        let many = self.requests.len() > 1;
        let full = if many { format!("{number} {}", span.stage) } else { span.stage.to_owned() };
        let short = if many { number.to_string() } else { String::new() };
        let inside = [full, short]
            .into_iter()
            .find(|text| text_width(text) + 7.0 < width)
            .unwrap_or_default();
        let time = Unit::Nanoseconds.text((span.to_ps - span.from_ps) as f64 / 1e3);
        let since = Unit::Nanoseconds.text((span.from_ps - self.from_ps) as f64 / 1e3);
        html! {
            rect class={ "part span " (class) } x=(px(from)) y=(px(top)) width=(px(width))
                height=(px(ROW - 2.0)) rx="1.5" {
                title { "command " (number) ": " (span.stage) ", " (time) " from " (since) }
            }
            @if !inside.is_empty() {
                text class={ "within on-" (class) } x=(px(from + 4.0)) y=(px(top + 13.5)) { (inside) }
            }
        }
    }

    fn table(&self) -> Grid {
        let mut grid = Grid::new(&["command", "stage", "lane", "from", "for"]);
        for (number, request) in self.requests.iter().enumerate() {
            let offset = request
                .offset_bytes
                .map(|offset| format!(" at byte {}", Unit::Count.text(offset as f64)));
            let bytes =
                request.bytes.map(|bytes| format!(", {} bytes", Unit::Count.text(bytes as f64)));
            let head = format!(
                "{}: {}{}{}, queue {}",
                number + 1,
                request.kind.name(),
                offset.unwrap_or_default(),
                bytes.unwrap_or_default(),
                request.queue,
            );
            for (place, span) in request.spans.iter().enumerate() {
                let head = if place == 0 { head.as_str() } else { "" };
                let from =
                    Unit::Nanoseconds.text(span.from_ps.saturating_sub(self.from_ps) as f64 / 1e3);
                let time = Unit::Nanoseconds.text((span.to_ps - span.from_ps) as f64 / 1e3);
                grid.row([head, &span.stage, &span.lane, &from, &time].map(text));
            }
        }
        grid
    }
}
