//! Swings: a number with each assumed cost at half and at one and a half.

use maud::{Markup, html};

use super::number::digits;
use super::palette::entry;
use super::parts::{Grid, details, text};
use super::svg::{Size, cut, picture, px, text_width};
use crate::model::paper::{Check, Swing};
use crate::scale::{Scale, labels};

const ROW: f64 = 26.0;
const BAR: f64 = 8.0;

pub(super) fn swings(check: &Check) -> Markup {
    let (mut moving, still) = check.swings_by_effect();
    let width = |swing: &Swing| (swing.high - swing.low).abs();
    moving.sort_by(|a, b| width(b).total_cmp(&width(a)));
    let mut grid = Grid::new(&["assumed cost", "value", "at half", "at one and a half"]);
    for swing in check.swings.iter() {
        let cells = [&swing.key, &swing.value, &digits(swing.low), &digits(swing.high)];
        grid.row(cells.map(|cell| text(cell)));
    }
    html! {
        p.note { "With one assumed cost changed:" }
        @if !moving.is_empty() {
            ul.legend {
                (entry("s1", "the cost at half"))
                (entry("s8", "the cost at one and a half"))
                @if check.paper.is_some() {
                    li {
                        svg.key viewBox="0 0 26 12" aria-hidden="true" { path.theirs d="M13 0V12" {} }
                        "the paper"
                    }
                }
            }
            @for size in Size::BOTH { (draw(size, check, &moving)) }
        }
        @if !still.is_empty() {
            p.note {
                "No effect: "
                @for (place, swing) in still.iter().enumerate() {
                    @if place > 0 { ", " }
                    code { (swing.key) }
                }
                "."
            }
        }
        (details("The swings", &grid))
    }
}

fn draw(size: Size, check: &Check, moving: &[&Swing]) -> Markup {
    let widest = moving.iter().map(|swing| text_width(&swing.key)).fold(0.0, f64::max);
    // Names without room before the bars stand above them.
    let above = widest > size.width() * 0.4;
    let (start, end) = (if above { 6.0 } else { widest + 12.0 }, size.width() - 12.0);
    let row = if above { ROW + 16.0 } else { ROW };
    let values = moving.iter().flat_map(|swing| [swing.low, swing.high]);
    let values: Vec<f64> = values.chain([check.ours]).chain(check.paper).collect();
    let (least, most) = values
        .iter()
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(*v), high.max(*v)));
    let margin = (most - least).max(f64::MIN_POSITIVE) * 0.06;
    let scale = Scale { from: least - margin, to: most + margin, log: false, start, end };
    let ticks = scale.ticks(if size == Size::Wide { 7 } else { 4 });
    let bottom = 4.0 + row * moving.len() as f64;
    let title = if check.subject.unit.is_empty() {
        "the number".to_owned()
    } else {
        check.subject.unit.clone()
    };
    let content = html! {
        @for (tick, text) in ticks.iter().zip(labels(&ticks, false)) {
            @let x = px(scale.at(*tick));
            path.grid d={ "M" (x) " 0V" (px(bottom)) } {}
            text.middle.x x=(x) y=(px(bottom + 15.0)) data-at=(x) { (text) }
        }
        @for (place, swing) in moving.iter().enumerate() {
            @let top = row * place as f64 + if above { 16.0 } else { 0.0 };
            @if above {
                text.label x="0" y=(px(top - 2.0)) { (cut(&swing.key, size.width())) }
            } @else {
                text.label.end x=(px(start - 8.0)) y=(px(top + 15.0)) { (swing.key) }
            }
            (bar(&scale, check.ours, swing.low, top + 3.0, "s1", &swing.key))
            (bar(&scale, check.ours, swing.high, top + 3.0 + BAR + 1.0, "s8", &swing.key))
        }
        @let ours = px(scale.at(check.ours));
        path.ours d={ "M" (ours) " 0V" (px(bottom)) } {}
        @if let Some(paper) = check.paper {
            path.theirs d={ "M" (px(scale.at(paper))) " 0V" (px(bottom)) } {}
        }
        text.label.end x=(px(end)) y=(px(bottom + 32.0)) { (title) }
    };
    picture(size, bottom + 38.0, &format!("Swings of: {}", check.subject.title), &content)
}

fn bar(scale: &Scale, ours: f64, value: f64, top: f64, class: &str, key: &str) -> Markup {
    let (a, b) = (scale.at(ours), scale.at(value));
    let width = (a - b).abs().max(1.0);
    html! {
        rect class={ "part " (class) } x=(px(a.min(b))) y=(px(top)) width=(px(width)) height=(px(BAR)) {
            title { (key) ": " (digits(value)) }
        }
    }
}
