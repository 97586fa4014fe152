//! Horizontal bars in parts, in groups.

use maud::{Markup, html};

use super::number::Unit;
use super::parts::origin;
use super::svg::{Size, cut, picture, px, text_width};
use crate::scale::{Scale, labels};

const THICK: f64 = 22.0;
const ROW: f64 = 28.0;
const HEADING: f64 = 24.0;

/// A part of a bar.
#[derive(Clone)]
pub(super) struct Part {
    pub name: String,
    pub value: f64,
    /// Class of its colour: see `palette`.
    pub class: String,
    /// The number that it draws, by its place in the document.
    pub of: String,
}

#[derive(Clone)]
pub(super) struct Bar {
    pub label: String,
    pub total: String,
    /// The number that the total begins with, by its place in the document.
    pub of: String,
    pub parts: Vec<Part>,
}

pub(super) struct Group {
    /// Empty for none.
    pub heading: String,
    pub bars: Vec<Bar>,
}

pub(super) struct Bars {
    pub groups: Vec<Group>,
    pub axis: String,
    pub unit: Unit,
    /// The value at the end of the axis; absent for that of the longest bar.
    pub to: Option<f64>,
}

struct Frame {
    size: Size,
    scale: Scale,
    /// Values in a unit of the axis.
    unit: f64,
    title: String,
    /// Labels stand above their bars, as they are too long to stand before them.
    above: bool,
    bottom: f64,
}

impl Bars {
    pub fn draw(&self, label: &str) -> Markup {
        html! { @for size in Size::BOTH { (self.picture(size, label)) } }
    }

    fn bars(&self) -> impl Iterator<Item = &Bar> {
        self.groups.iter().flat_map(|group| &group.bars)
    }

    fn frame(&self, size: Size) -> Frame {
        let widest = |text: fn(&Bar) -> &str| {
            self.bars().map(|bar| text_width(text(bar))).fold(0.0, f64::max)
        };
        let before = widest(|bar| &bar.label) + 10.0;
        let above = before > size.width() * 0.3;
        let longest = self.bars().map(Bar::length).fold(0.0, f64::max);
        let (unit, name) = self.unit.scaled(self.to.unwrap_or(longest));
        let start = if above { 1.0 } else { before };
        let end = size.width() - widest(|bar| &bar.total) - 10.0;
        let to = self.to.unwrap_or(longest) / unit;
        let mut scale = Scale::over([to].into_iter(), false, start, end);
        // The longest bar has the whole width; the last tick may be before its end.
        scale.to = if to > 0.0 { to } else { 1.0 };
        let title =
            if name.is_empty() { self.axis.clone() } else { format!("{}, {name}", self.axis) };
        let row = if above { ROW + 16.0 } else { ROW };
        let headings = self.groups.iter().filter(|group| !group.heading.is_empty()).count();
        let bottom = self.bars().count() as f64 * row + headings as f64 * HEADING + 4.0;
        Frame { size, scale, unit, title, above, bottom }
    }

    fn picture(&self, size: Size, label: &str) -> Markup {
        let frame = self.frame(size);
        let (mut top, mut drawn) = (0.0, Vec::new());
        for group in &self.groups {
            if !group.heading.is_empty() {
                let heading = cut(&group.heading, size.width());
                drawn.push(html! { text.heading x="0" y=(px(top + 16.0)) { (heading) } });
                top += HEADING;
            }
            for bar in &group.bars {
                drawn.push(bar.draw(&frame, top));
                top += if frame.above { ROW + 16.0 } else { ROW };
            }
        }
        let content = html! {
            (axis(&frame))
            @for bar in &drawn { (bar) }
        };
        picture(size, frame.bottom + 40.0, label, &content)
    }
}

fn axis(frame: &Frame) -> Markup {
    let ticks = frame.scale.ticks(if frame.size == Size::Wide { 8 } else { 4 });
    let texts = labels(&ticks, false);
    html! {
        @for (tick, text) in ticks.iter().zip(texts) {
            @let at = px(frame.scale.at(*tick));
            path.grid d={ "M" (at) " 0V" (px(frame.bottom)) } {}
            text.middle.x x=(at) y=(px(frame.bottom + 15.0)) data-at=(at) { (text) }
        }
        text.label.end x=(px(frame.scale.end)) y=(px(frame.bottom + 33.0)) { (frame.title) }
    }
}

impl Bar {
    fn length(&self) -> f64 {
        self.parts.iter().map(|part| part.value.max(0.0)).sum()
    }

    fn draw(&self, frame: &Frame, top: f64) -> Markup {
        let bar_top = if frame.above { top + 16.0 } else { top };
        let base = px(bar_top + 15.5);
        let mut sum = 0.0;
        let mut parts = Vec::new();
        for part in self.parts.iter().filter(|part| part.value > 0.0) {
            let from = frame.scale.at(sum / frame.unit);
            sum += part.value;
            let width = frame.scale.at(sum / frame.unit) - from;
            parts.push((part, from, width));
        }
        let end = frame.scale.at(sum / frame.unit);
        let label_top = if frame.above { top + 12.0 } else { bar_top + 15.5 };
        let label_end = if frame.above { 0.0 } else { frame.scale.start - 8.0 };
        html! {
            text class=(if frame.above { "label" } else { "label end" }) x=(px(label_end)) y=(px(label_top)) {
                (cut(&self.label, if frame.above { frame.size.width() } else { frame.scale.start }))
            }
            @for (part, from, width) in &parts {
                rect class={ "part " (part.class) } x=(px(*from)) y=(px(bar_top))
                    width=(format!("{width:.2}")) height=(px(THICK)) data-of=[origin(&part.of)] {
                    title { (part.name) }
                }
                @if text_width(&part.name) + 8.0 < *width {
                    text class={ "within on-" (part.class) } x=(px(from + 5.0)) y=(base) { (part.name) }
                }
            }
            text.total x=(px(end + 6.0)) y=(base) data-of=[origin(&self.of)] { (self.total) }
        }
    }
}
