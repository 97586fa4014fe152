//! Curves over an axis.

use maud::{Markup, html};

use super::number::Unit;
use super::parts::origin;
use super::svg::{self, Size, picture, px, text_width};
use crate::model::paper::Form;
use crate::scale::{Scale, labels};

/// Positions at which a pointer reads values off a picture.
const READINGS: [usize; 2] = [40, 20];
/// Height of slanted text for its length, and the length at which it is cut.
const SLANT: f64 = 0.57;
const LONGEST: f64 = 130.0;
/// An axis with at most this number of places has labels there.
const FEW: usize = 12;
/// Curves with at most this many points have a mark at each.
const MARKED: usize = 40;

/// An axis before its scale is known.
pub(super) struct Axis {
    pub label: String,
    pub unit: Unit,
    pub log: bool,
    /// Names of the values 0, 1, 2, ...
    pub places: Vec<String>,
    /// Ends, instead of those that follow from the values.
    pub ends: Option<[f64; 2]>,
}

impl Axis {
    pub fn new(label: &str, unit: Unit, log: bool) -> Axis {
        Axis { label: label.to_owned(), unit, log, places: Vec::new(), ends: None }
    }
}

#[derive(Clone, Default)]
pub(super) struct Curve {
    pub name: String,
    /// Number of the colour, from 0.
    pub colour: usize,
    pub dashed: bool,
    /// Marks are hollow: the numbers are of a paper.
    pub hollow: bool,
    /// A value stays until the next point.
    pub steps: bool,
    /// Drawn thin, for limits such as a maximum.
    pub thin: bool,
    pub points: Vec<[f64; 2]>,
    /// The numbers that it draws, by their place in the document.
    pub of: String,
}

pub(super) struct Plot {
    pub form: Form,
    pub across: Axis,
    pub up: Axis,
    pub curves: Vec<Curve>,
}

/// An axis with its scale. Linear scales count in the unit of the label.
struct Ruler {
    scale: Scale,
    size: f64,
    title: String,
    ticks: Vec<(f64, String)>,
}

impl Ruler {
    fn new(
        axis: &Axis,
        values: impl Iterator<Item = f64> + Clone,
        ends: [f64; 2],
        wanted: usize,
    ) -> Ruler {
        let [start, end] = ends;
        if !axis.places.is_empty() {
            let to = axis.places.len() as f64 - 0.5;
            let scale = Scale { from: -0.5, to, log: false, start, end };
            let ticks = axis.places.iter().enumerate();
            let ticks = ticks.map(|(at, place)| (scale.at(at as f64), place.clone())).collect();
            return Ruler { scale, size: 1.0, title: axis.label.clone(), ticks };
        }
        let most = values.clone().filter(|value| value.is_finite()).fold(0.0, f64::max);
        let (size, name) = if axis.log { (1.0, "") } else { axis.unit.scaled(most) };
        let mut scale = Scale::over(values.map(|value| value / size), axis.log, start, end);
        if let Some([from, to]) = axis.ends {
            (scale.from, scale.to) = (from / size, to / size);
        }
        let at = scale.ticks(wanted);
        let texts = match axis.unit {
            unit if axis.log && unit != Unit::Plain => {
                at.iter().map(|tick| round(unit, *tick)).collect()
            }
            _ => labels(&at, axis.log),
        };
        let title = match name {
            "" => axis.label.clone(),
            _ => format!("{}, {name}", axis.label),
        };
        let ticks = at.iter().map(|tick| scale.at(*tick)).zip(texts).collect();
        Ruler { scale, size, title, ticks }
    }

    /// Labels an axis at the places that have points, if these are few: lengths are powers of two, and cores
    /// are integers.
    fn measured(&mut self, axis: &Axis, values: impl Iterator<Item = f64>) {
        let mut places: Vec<f64> =
            values.filter(|value| value.is_finite() && *value > 0.0).collect();
        places.sort_by(f64::total_cmp);
        places.dedup();
        let (Some(first), Some(last)) = (places.first(), places.last()) else { return };
        let whole = places.iter().all(|place| place.fract() == 0.0);
        let named = !axis.places.is_empty() || ![Unit::Plain, Unit::Bytes].contains(&axis.unit);
        if named || !(2..=FEW).contains(&places.len()) || !(axis.log || whole) {
            return;
        }
        if axis.log {
            let margin = (last / first).powf(0.03);
            (self.scale.from, self.scale.to) = (first / margin, last * margin);
        }
        let ticks = places.iter().map(|place| self.scale.at(*place));
        let texts = match axis.unit {
            Unit::Plain => labels(&places, axis.log),
            unit => places.iter().map(|place| round(unit, *place)).collect(),
        };
        self.ticks = ticks.zip(texts).collect();
    }

    fn at(&self, value: f64) -> f64 {
        if value.is_finite() && !(self.scale.log && value <= 0.0) {
            self.scale.at(value / self.size)
        } else {
            f64::NAN
        }
    }
}

/// A round value with its unit: "10 us".
fn round(unit: Unit, value: f64) -> String {
    let (size, name) = unit.scaled(value * 1.000_001);
    let number = value / size;
    let text = format!("{}", (number * 1e6).round() / 1e6);
    if name.is_empty() { text } else { format!("{text} {name}") }
}

/// The area of the curves, with its scales.
struct Frame {
    size: Size,
    x: Ruler,
    y: Ruler,
    height: f64,
    /// Names of places are too long to stand side by side.
    slanted: bool,
}

impl Plot {
    /// The legend, and the picture in both sizes.
    pub fn draw(&self, label: &str) -> Markup {
        html! {
            (self.legend())
            @for size in Size::BOTH { (self.picture(size, label)) }
        }
    }

    fn legend(&self) -> Markup {
        let named = self.curves.iter().enumerate().filter(|(_, curve)| !curve.name.is_empty());
        html! {
            ul.legend {
                @for (number, curve) in named {
                    li {
                        @if self.form == Form::Lines {
                            svg.key viewBox="0 0 26 12" aria-hidden="true" {
                                path class=(class(curve)) d="M1 6H25" {}
                                @if self.marked(curve) { (mark(curve, number, [13.0, 6.0])) }
                            }
                        } @else {
                            svg.key.square viewBox="0 0 12 12" aria-hidden="true" {
                                rect class=(column_class(curve)) width="12" height="12" rx="2" {}
                            }
                        }
                        (curve.name)
                    }
                }
            }
        }
    }

    fn marked(&self, curve: &Curve) -> bool {
        !curve.steps && !curve.thin && curve.points.len() <= MARKED
    }

    /// Largest value of a stack at each place; all values if nothing is stacked.
    fn heights(&self) -> Vec<f64> {
        let points = self.curves.iter().flat_map(|curve| &curve.points);
        if self.form != Form::Stacked {
            return points.map(|point| point[1]).collect();
        }
        let sum = |place: usize| {
            let here = points.clone().filter(|point| point[0] == place as f64);
            here.map(|point| point[1]).filter(|value| value.is_finite()).sum()
        };
        (0..self.across.places.len()).map(sum).collect()
    }

    fn frame(&self, size: Size) -> Frame {
        let plain = if size == Size::Wide { 300.0 } else { 240.0 };
        let (top, bottom) = (26.0, plain - 42.0);
        let points = || self.curves.iter().flat_map(|curve| &curve.points);
        let y = Ruler::new(&self.up, self.heights().into_iter(), [bottom, top], 5);
        let widest = y.ticks.iter().map(|(_, text)| text_width(text)).fold(0.0, f64::max);
        let (left, right) = ((widest + 12.0).max(24.0), size.width() - 16.0);
        let wanted = if size == Size::Wide { 8 } else { 4 };
        let mut x = Ruler::new(&self.across, points().map(|point| point[0]), [left, right], wanted);
        x.measured(&self.across, points().map(|point| point[0]));
        let longest = x.ticks.iter().map(|(_, text)| text_width(text)).fold(0.0, f64::max);
        let slot = (right - left) / self.across.places.len().max(1) as f64;
        let slanted = !self.across.places.is_empty() && longest + 6.0 > slot;
        if !slanted {
            spaced(&mut x.ticks, size.width());
        }
        let height = if slanted { plain + SLANT * longest.min(LONGEST) } else { plain };
        Frame { size, x, y, height, slanted }
    }

    fn picture(&self, size: Size, label: &str) -> Markup {
        let frame = self.frame(size);
        let content = html! {
            (axes(&frame))
            @for (number, curve) in self.curves.iter().enumerate().rev() {
                @match self.form {
                    Form::Lines => (self.curve(&frame, curve, number)),
                    Form::Bars | Form::Stacked => (self.columns(&frame, curve, number)),
                }
            }
            (self.readings(&frame))
        };
        picture(size, frame.height, label, &content)
    }

    fn curve(&self, frame: &Frame, curve: &Curve, number: usize) -> Markup {
        let place = |point: &[f64; 2]| [frame.x.at(point[0]), frame.y.at(point[1])];
        let points: Vec<[f64; 2]> = curve.points.iter().map(place).collect();
        let drawn = match curve.steps {
            true => svg::thinned(&svg::steps(&points)),
            false => svg::thinned(&points),
        };
        let above = self.above(frame, number);
        // A curve below others of the same values is wider, so that it is seen on both sides of them.
        let width = (above > 0).then(|| format!("stroke-width:{}", 2 + 4 * above));
        html! {
            path class=(class(curve)) style=[width] d=(svg::path(&drawn)) data-of=[origin(&curve.of)] {}
            @if self.marked(curve) {
                @for point in points.iter().filter(|point| point.iter().all(|place| place.is_finite())) {
                    (mark(curve, number, *point))
                }
            }
        }
    }

    /// Number of earlier curves, which are drawn above this one, that hide most of its points.
    fn above(&self, frame: &Frame, number: usize) -> usize {
        let curve = &self.curves[number];
        if !self.marked(curve) {
            return 0;
        }
        let near = |a: &[f64; 2], b: &[f64; 2]| {
            let apart = [frame.x.at(a[0]) - frame.x.at(b[0]), frame.y.at(a[1]) - frame.y.at(b[1])];
            apart.iter().all(|apart| apart.abs() < 2.0)
        };
        let hides = |other: &&Curve| {
            let hidden = |point: &&[f64; 2]| other.points.iter().any(|one| near(point, one));
            curve.points.iter().filter(hidden).count() * 2 > curve.points.len()
        };
        self.curves[..number].iter().filter(hides).count()
    }

    /// Least distance of two places.
    fn slot(&self, frame: &Frame) -> f64 {
        let points = self.curves.iter().flat_map(|curve| &curve.points);
        let mut places: Vec<f64> = points.map(|point| frame.x.at(point[0])).collect();
        places.retain(|place| place.is_finite());
        places.sort_by(f64::total_cmp);
        places.dedup();
        let apart = places.windows(2).map(|pair| pair[1] - pair[0]);
        let whole =
            (frame.x.scale.end - frame.x.scale.start) / self.across.places.len().max(1) as f64;
        apart.fold(whole, f64::min)
    }

    fn columns(&self, frame: &Frame, curve: &Curve, number: usize) -> Markup {
        let stacked = self.form == Form::Stacked;
        let side_by_side = if stacked { 1 } else { self.curves.len() };
        let width = (self.slot(frame) * 0.8 / side_by_side as f64).min(46.0);
        let ground = if frame.y.scale.log { frame.y.scale.start } else { frame.y.at(0.0) };
        let columns = curve.points.iter().map(|[place, value]| {
            let below = if stacked { self.below(*place, number) } else { 0.0 };
            let from = if below == 0.0 { ground } else { frame.y.at(below) };
            let to = frame.y.at(below + value);
            let shift = if stacked { -0.5 } else { number as f64 - side_by_side as f64 / 2.0 };
            let left = frame.x.at(*place) + width * shift;
            [left, from.min(to), (width - 1.0).max(0.5), (from - to).abs().max(0.5)]
        });
        let shapes = columns.filter(|shape| shape.iter().all(|value| value.is_finite()));
        html! {
            @for [x, y, width, height] in shapes {
                rect class=(column_class(curve)) x=(px(x)) y=(px(y)) width=(px(width)) height=(px(height)) {}
            }
        }
    }

    /// Sum of the series before one at a place, which a stack has below it.
    fn below(&self, place: f64, number: usize) -> f64 {
        let earlier = self.curves[..number].iter().flat_map(|curve| &curve.points);
        let here = earlier.filter(|point| point[0] == place).map(|point| point[1]);
        here.filter(|value| value.is_finite()).sum()
    }

    /// Bands in which a pointer shows the values of all curves.
    fn readings(&self, frame: &Frame) -> Markup {
        let most = READINGS[usize::from(frame.size == Size::Narrow)];
        let (start, end) = (frame.x.scale.start, frame.x.scale.end);
        let mut places: Vec<f64> = Vec::new();
        for curve in &self.curves {
            places.extend(curve.points.iter().map(|point| frame.x.at(point[0])));
        }
        places.retain(|place| place.is_finite());
        places.sort_by(f64::total_cmp);
        places.dedup_by(|a, b| (*a - *b).abs() < 0.5);
        if places.len() > most {
            let width = (end - start) / most as f64;
            places = (0..most).map(|band| start + (band as f64 + 0.5) * width).collect();
        }
        let edges: Vec<f64> = std::iter::once(start)
            .chain(places.windows(2).map(|pair| (pair[0] + pair[1]) / 2.0))
            .chain([end])
            .collect();
        html! {
            @for (place, edges) in places.iter().zip(edges.windows(2)) {
                (self.reading(frame, *place, [edges[0], edges[1]]))
            }
        }
    }

    fn reading(&self, frame: &Frame, place: f64, [from, to]: [f64; 2]) -> Markup {
        let value = frame.x.scale.value(place) * frame.x.size;
        let head = match self.across.places.get(value.round().max(0.0) as usize) {
            Some(name) => name.clone(),
            None => self.across.unit.text(value),
        };
        let near = (to - from) / 2.0 + 0.6;
        let lines = self.curves.iter().filter_map(|curve| {
            let value = curve.value_at(frame, place, near)?;
            let name = svg::cut(or(&curve.name, &self.up.label), frame.size.width() * 0.55);
            Some(format!("{name}: {}", self.up.unit.text(value)))
        });
        let lines: Vec<String> =
            [format!("{} {head}", self.across.label)].into_iter().chain(lines).collect();
        let width = lines.iter().map(|line| text_width(line)).fold(0.0, f64::max) + 12.0;
        let (top, bottom) = (frame.y.scale.end, frame.y.scale.start);
        let right = place + 8.0 + width <= frame.size.width();
        let left = if right { place + 8.0 } else { (place - 8.0 - width).max(0.0) };
        html! {
            g.reading {
                rect x=(px(from)) y=(px(top)) width=(px(to - from)) height=(px(bottom - top)) {}
                path d={ "M" (px(place)) " " (px(top)) "V" (px(bottom)) } {}
                g transform={ "translate(" (px(left)) " " (px(top)) ")" } {
                    rect width=(px(width)) height=(lines.len() * 15 + 7) rx="3" {}
                    @for (number, line) in lines.iter().enumerate() {
                        text x="6" y=(number * 15 + 15) { (line) }
                    }
                }
            }
        }
    }
}

impl Curve {
    /// The value at a position: the one that stays, or that of a point near it.
    fn value_at(&self, frame: &Frame, place: f64, near: f64) -> Option<f64> {
        let at = |point: &[f64; 2]| frame.x.at(point[0]);
        if self.steps {
            let last = self.points.iter().rev().find(|point| at(point) <= place + 0.05)?;
            return Some(last[1]).filter(|value| value.is_finite());
        }
        let finite = self.points.iter().filter(|point| point[1].is_finite());
        let distance = |point: &[f64; 2]| (at(point) - place).abs();
        let nearest = finite.min_by(|a, b| distance(a).total_cmp(&distance(b)))?;
        (distance(nearest) <= near).then_some(nearest[1])
    }
}

fn or<'a>(first: &'a str, second: &'a str) -> &'a str {
    if first.is_empty() { second } else { first }
}

/// Drops labels that would touch the one before, and moves those at the edges inwards.
fn spaced(ticks: &mut [(f64, String)], width: f64) {
    let mut free = f64::NEG_INFINITY;
    for (at, text) in ticks {
        let half = text_width(text) / 2.0;
        let middle = at.clamp(half, (width - half).max(half));
        if middle - half < free {
            text.clear();
        } else {
            free = middle + half + 6.0;
        }
    }
}

fn axes(frame: &Frame) -> Markup {
    let (left, right) = (frame.x.scale.start, frame.x.scale.end);
    let (top, bottom) = (frame.y.scale.end, frame.y.scale.start);
    let width = frame.size.width();
    let middle = |text: &str, at: f64| {
        let half = text_width(text) / 2.0;
        at.clamp(half, (width - half).max(half))
    };
    html! {
        @for (at, text) in &frame.y.ticks {
            path.grid d={ "M" (px(left)) " " (px(*at)) "H" (px(right)) } {}
            text.end.y x=(px(left - 7.0)) y=(px(*at + 4.0)) { (text) }
        }
        @for (at, text) in &frame.x.ticks {
            path.tick d={ "M" (px(*at)) " " (px(bottom)) "v4" } {}
            @if frame.slanted {
                text.end.x transform={ "translate(" (px(*at + 4.0)) " " (px(bottom + 14.0)) ")rotate(-35)" } {
                    (svg::cut(text, LONGEST))
                }
            } @else if !text.is_empty() {
                text.middle.x x=(px(middle(text, *at))) y=(px(bottom + 17.0)) data-at=(px(*at)) { (text) }
            }
        }
        path.axis d={ "M" (px(left)) " " (px(top)) "V" (px(bottom)) "H" (px(right)) } {}
        text.label x="0" y="12" { (frame.y.title) }
        text.label.end x=(px(right)) y=(px(frame.height - 7.0)) { (frame.x.title) }
    }
}

/// Classes of a curve: its colour, and how its line is drawn.
fn class(curve: &Curve) -> String {
    let dashed = if curve.dashed { " dashed" } else { "" };
    let thin = if curve.thin { " thin" } else { "" };
    format!("curve c{}{dashed}{thin}", curve.colour % 8 + 1)
}

fn column_class(curve: &Curve) -> String {
    let hollow = if curve.hollow { " theirs" } else { "" };
    format!("column c{}{hollow}", curve.colour % 8 + 1)
}

/// A mark at a point, of another shape for each of four curves.
fn mark(curve: &Curve, number: usize, [x, y]: [f64; 2]) -> Markup {
    let hollow = if curve.hollow { " hollow" } else { "" };
    let class = format!("mark c{}{hollow}", curve.colour % 8 + 1);
    let (x, y) = (px(x), px(y));
    let shape = match number % 4 {
        0 => "m-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z",
        1 => "m-3.5 -3.5h7v7h-7z",
        2 => "m0 -5l5 5l-5 5l-5 -5z",
        _ => "m0 -4.5l4.5 8h-9z",
    };
    html! { path class=(class) d={ "M" (x) " " (y) (shape) } {} }
}
