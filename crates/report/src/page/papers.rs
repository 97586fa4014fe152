//! The page of papers: verdicts on top, then every exhibit, figures as the paper draws them.

use maud::{Markup, html};

use super::bars::{Bar, Bars, Group, Part};
use super::number::{Unit, digits};
use super::palette::entry;
use super::parts::{Grid, Section, details, figure, number, text};
use super::plot::{Axis, Curve, Plot};
use super::swings;
use crate::model::paper::{
    self, Changed, Check, Exhibit, Figure, Quotation, Rule, Series, Subject, Table, Verdict, Whose,
};
use crate::model::{Document, Paper};

/// A verdict as shown: its class and mark, and the words for one and for several.
struct Shown {
    class: &'static str,
    mark: &'static str,
    one: &'static str,
    several: &'static str,
    about: &'static str,
}

const HOLDS: Shown = Shown {
    class: "holds",
    mark: "✓",
    one: "holds",
    several: "hold",
    about: "as in the paper, by the criterion",
};
const DEPARTS: Shown = Shown {
    class: "departs",
    mark: "≠",
    one: "departs",
    several: "depart",
    about: "not as in the paper, for a known cause",
};
const FAILS: Shown = Shown {
    class: "fails",
    mark: "✗",
    one: "fails",
    several: "fail",
    about: "not the verdict on record: an error of this program",
};
const QUOTED: Shown = Shown {
    class: "quoted",
    mark: "“",
    one: "quoted",
    several: "quoted",
    about: "statements without a verdict of this model",
};

fn shown(check: &Check) -> &'static Shown {
    match (check.is_as_expected(), check.verdict) {
        (false, _) => &FAILS,
        (true, Verdict::Holds) => &HOLDS,
        (true, Verdict::Departs) => &DEPARTS,
    }
}

impl Shown {
    fn badge(&self, word: &str) -> Markup {
        html! { span class={ "badge " (self.class) } { (self.mark) " " (word) } }
    }
}

pub(super) fn sections(document: &Document) -> Vec<Section> {
    if document.papers.is_empty() {
        return Vec::new();
    }
    let mut sections = vec![Section::new("verdicts", "Verdicts", verdicts(&document.papers))];
    for (number, paper) in document.papers.iter().enumerate() {
        let id = format!("paper-{}", number + 1);
        sections.push(Section::new(&id, &paper.name, of_paper(number, paper)));
    }
    sections
}

/// Exhibits of a paper with their places in the document.
fn exhibits(number: usize, paper: &Paper) -> impl Iterator<Item = (&Exhibit, String)> {
    let place = move |place| format!("/papers/{number}/exhibits/{place}");
    paper.exhibits.iter().enumerate().map(move |(at, exhibit)| (exhibit, place(at)))
}

fn verdicts(papers: &[Paper]) -> Markup {
    let all = || papers.iter().flat_map(|paper| &paper.exhibits);
    let count = |verdict: &Shown| {
        let found = all().filter(|exhibit| match exhibit {
            Exhibit::Check(check) => shown(check).class == verdict.class,
            Exhibit::Quotation(_) => verdict.class == QUOTED.class,
            Exhibit::Figure(_) | Exhibit::Table(_) => false,
        });
        found.count()
    };
    html! {
        div.tiles {
            @for verdict in [&FAILS, &DEPARTS, &HOLDS, &QUOTED] {
                @let count = count(verdict);
                @let word = if count == 1 { verdict.one } else { verdict.several };
                @if count > 0 || verdict.class != FAILS.class {
                    div.tile {
                        div.big { (count) " " (verdict.badge(word)) }
                        p { (verdict.about) }
                    }
                }
            }
        }
        @for (number, paper) in papers.iter().enumerate() {
            h3 { a href={ "#paper-" (number + 1) } { (paper.name) } }
            ul.verdicts {
                @for (exhibit, at) in exhibits(number, paper) {
                    @match exhibit {
                        Exhibit::Check(check) => li {
                            (shown(check).badge(shown(check).one))
                            (headline(&check.subject))
                            span.pair {
                                (pair(&check.subject, check.paper, Some(check.ours), &at))
                                (by_shape(check))
                            }
                        },
                        Exhibit::Quotation(quotation) => li {
                            (QUOTED.badge(QUOTED.one))
                            (headline(&quotation.subject))
                            span.pair { (pair(&quotation.subject, quotation.paper, quotation.ours, &at)) }
                        },
                        Exhibit::Figure(_) | Exhibit::Table(_) => {},
                    }
                }
            }
        }
    }
}

fn headline(subject: &Subject) -> Markup {
    html! {
        span.claim {
            @if !subject.row.is_empty() { strong { (subject.row) } " " }
            (subject.title)
        }
    }
}

/// The number of the paper and ours, and how far they are apart.
fn pair(subject: &Subject, paper: Option<f64>, ours: Option<f64>, at: &str) -> Markup {
    let value = |name: &str, value: f64, field: &str| {
        html! {
            span {
                (name) " " (number(Unit::Plain, value, &format!("sum {at}/{field}")))
                @if !subject.unit.is_empty() { " " (subject.unit) }
            }
        }
    };
    let apart = paper.zip(ours).filter(|(paper, _)| *paper != 0.0);
    html! {
        @if let Some(paper) = paper { (value("paper", paper, "paper")) }
        @if paper.is_some() && ours.is_some() { ", " }
        @if let Some(ours) = ours { (value("ours", ours, "ours")) }
        @if let Some((paper, ours)) = apart {
            " " span.difference { "(" (difference(paper, ours)) ")" }
        }
    }
}

/// Of a check whose verdict is not by the difference of its numbers.
fn by_shape(check: &Check) -> &'static str {
    match check.criterion.rule {
        Rule::Shape if check.paper.is_some() => ", by shape",
        Rule::Below => ", a bound",
        _ => "",
    }
}

/// The difference of a number from the paper's.
fn difference(paper: f64, ours: f64) -> String {
    let percent = 100.0 * (ours - paper) / paper.abs();
    if percent.abs() < 0.05 { "equal".to_owned() } else { format!("{percent:+.1} %") }
}

/// Figures come first, then the other exhibits in their order.
fn of_paper(number: usize, paper: &Paper) -> Markup {
    html! {
        p.paper { strong { (paper.title) } br; (paper.authors) }
        @for (exhibit, _) in exhibits(number, paper) {
            @if let Exhibit::Figure(drawn) = exhibit { (of_figure(drawn)) }
        }
        @for (exhibit, at) in exhibits(number, paper) {
            @match exhibit {
                Exhibit::Check(check) => (of_check(check, &at)),
                Exhibit::Table(table) => (of_table(table)),
                Exhibit::Quotation(quotation) => (of_quotation(quotation, &at)),
                Exhibit::Figure(_) => {},
            }
        }
    }
}

fn of_table(table: &Table) -> Markup {
    let (columns, caption) = (table.columns.clone(), table.caption.clone());
    let mut grid = Grid { columns, caption, ..Grid::default() };
    for line in &table.lines {
        grid.row(line.iter().map(|cell| text(cell)));
    }
    html! {
        (grid)
        @for note in &table.notes { p.note { (note) } }
    }
}

fn of_quotation(quotation: &Quotation, at: &str) -> Markup {
    html! {
        div.check {
            p { (QUOTED.badge(QUOTED.one)) " " (headline(&quotation.subject)) }
            p.numbers { (pair(&quotation.subject, quotation.paper, quotation.ours, at)) }
            blockquote { (quotation.subject.claim) }
            @if !quotation.why.is_empty() { dl { dt { "No check" } dd { (quotation.why) } } }
        }
    }
}

fn of_check(check: &Check, at: &str) -> Markup {
    html! {
        div.check {
            p { (shown(check).badge(shown(check).one)) " " (headline(&check.subject)) }
            p.numbers { (pair(&check.subject, check.paper, Some(check.ours), at)) (by_shape(check)) }
            dl {
                @if !check.subject.claim.is_empty() { dt { "The paper" } dd { (check.subject.claim) } }
                dt { "Criterion" }
                dd {
                    @if check.criterion.rule == Rule::Shape { "by shape: " }
                    (check.criterion)
                }
                @if !check.mechanism.is_empty() { dt { "Mechanism" } dd { (check.mechanism) } }
                @if !check.mutations.is_empty() {
                    dt { "Fails with" }
                    dd { (check.mutations.join("; ")) }
                }
                @if let Some(cause) = &check.cause { dt { "Cause" } dd { (cause.text) } }
                @for line in &check.details { dt {} dd { (line) } }
            }
            @if let Some(cause) = check.cause.as_ref().filter(|cause| !cause.swaps.is_empty()) {
                (swaps(&cause.swaps, &check.subject.unit))
            }
            @if check.parts.iter().any(|part| part.value > 0.0) { (parts(check, at)) }
            @if !check.swings.is_empty() { (swings::swings(check)) }
        }
    }
}

/// The check with single changes of the model.
fn swaps(changes: &[Changed], unit: &str) -> Grid {
    let ours = if unit.is_empty() { "ours".to_owned() } else { format!("ours, {unit}") };
    let mut grid = Grid::new(&["with", &ours, "verdict"]);
    for change in changes {
        let (value, verdict) = match (change.ours, change.verdict) {
            (Some(ours), Verdict::Holds) => (number(Unit::Plain, ours, ""), HOLDS.badge(HOLDS.one)),
            (Some(ours), Verdict::Departs) => {
                (number(Unit::Plain, ours, ""), DEPARTS.badge(DEPARTS.one))
            }
            (None, _) => (text("the run fails"), text("")),
        };
        grid.row([text(&change.change), value, verdict]);
    }
    grid
}

/// The number in parts, beside the paper's.
fn parts(check: &Check, at: &str) -> Markup {
    let class = |place: usize| format!("s{}", place % 16 + 1);
    let shown = check.parts.iter().enumerate().filter(|(_, part)| part.value > 0.0);
    let shown: Vec<_> =
        shown.enumerate().map(|(colour, (place, part))| (colour, place, part)).collect();
    let ours = shown.iter().map(|(colour, place, part)| Part {
        name: part.stage.clone(),
        value: part.value,
        class: class(*colour),
        of: format!("sum {at}/parts/{place}/value"),
    });
    let unit = &check.subject.unit;
    let total = |value: f64| format!("{} {unit}", digits(value)).trim_end().to_owned();
    let sum: f64 = shown.iter().map(|(_, _, part)| part.value).sum();
    let bar = |label: &str, value, parts| Bar {
        label: label.to_owned(),
        total: total(value),
        of: String::new(),
        parts,
    };
    let mut bars = vec![bar("ours", sum, ours.collect())];
    if let Some(paper) = check.paper {
        let of = format!("sum {at}/paper");
        let part = Part { name: "the paper".into(), value: paper, class: "other".into(), of };
        bars.push(bar("paper", paper, vec![part]));
    }
    let axis = if unit.is_empty() { "parts".to_owned() } else { format!("parts, {unit}") };
    let groups = vec![Group { heading: String::new(), bars }];
    let bars = Bars { groups, axis, unit: Unit::Plain, to: None };
    let mut grid = Grid::new(&["part", unit]);
    for (_, place, part) in &shown {
        let of = format!("sum {at}/parts/{place}/value");
        grid.row([text(&part.stage), number(Unit::Plain, part.value, &of)]);
    }
    html! {
        ul.legend { @for (colour, _, part) in &shown { (entry(&class(*colour), &part.stage)) } }
        (bars.draw(&format!("Parts of: {}", check.subject.title)))
        (details("The parts", &grid))
    }
}

fn axis(axis: &paper::Axis) -> Axis {
    if axis.unit == "B" && axis.logarithmic {
        return Axis::new(&axis.label, Unit::Bytes, true);
    }
    Axis { places: axis.places.clone(), ..Axis::new(&axis.title(), Unit::Plain, axis.logarithmic) }
}

fn of_figure(drawn: &Figure) -> Markup {
    let mut names: Vec<&str> = Vec::new();
    let curves = drawn.series.iter().map(|series| {
        // A series of the paper has the colour of ours with the same name.
        let colour = names.iter().position(|name| *name == series.name).unwrap_or(names.len());
        if colour == names.len() {
            names.push(&series.name);
        }
        Curve {
            name: series.title(),
            colour,
            dashed: series.whose == Whose::Paper,
            hollow: series.whose == Whose::Paper,
            points: series.points.clone(),
            ..Curve::default()
        }
    });
    let plot = Plot {
        form: drawn.form,
        curves: curves.collect(),
        across: axis(&drawn.x),
        up: axis(&drawn.y),
    };
    let caption = drawn.caption_alone();
    let (title, about) = match drawn.number.as_str() {
        "" => (caption, ""),
        number => (number, caption),
    };
    let label = format!("{title} {about}");
    figure(title, about, &plot.draw(label.trim()), Some(&points(drawn)))
}

/// The points of a figure: a row for each place, a column for each series.
fn points(drawn: &Figure) -> Grid {
    let mut places: Vec<f64> =
        drawn.series.iter().flat_map(|series| series.points.iter().map(|point| point[0])).collect();
    places.sort_by(f64::total_cmp);
    places.dedup();
    let mut grid = Grid::new(&[&drawn.x.label]);
    grid.columns.extend(drawn.series.iter().map(Series::title));
    for place in places {
        let head = match drawn.x.places.get(place.max(0.0) as usize) {
            Some(name) => name.clone(),
            None => format!("{place}"),
        };
        let cells = drawn.series.iter().map(|series| {
            let found = series.points.iter().find(|point| point[0] == place);
            text(&found.map(|point| digits(point[1])).unwrap_or_default())
        });
        grid.row([text(&head)].into_iter().chain(cells));
    }
    grid
}
