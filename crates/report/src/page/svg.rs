//! Parts of pictures: positions, paths, widths of text.
//!
//! Every picture is drawn twice, for wide and for narrow pages, as text in a picture that is scaled down to a
//! phone could not be read. The style sheet shows one of them.

use std::fmt::Write;

use maud::{Markup, html};

/// A size at which a picture is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Size {
    Wide,
    Narrow,
}

impl Size {
    pub const BOTH: [Size; 2] = [Size::Wide, Size::Narrow];

    /// Units of the picture, which are CSS pixels where it is not scaled. A phone of 390 pixels has 358 for
    /// it.
    pub const fn width(self) -> f64 {
        match self {
            Size::Wide => 800.0,
            Size::Narrow => 358.0,
        }
    }

    pub const fn class(self) -> &'static str {
        match self {
            Size::Wide => "wide",
            Size::Narrow => "narrow",
        }
    }
}

/// A picture with its name for those that do not see it.
pub(super) fn picture(size: Size, height: f64, label: &str, content: &Markup) -> Markup {
    let class = size.class();
    let view = format!("0 0 {} {}", px(size.width()), px(height));
    html! {
        svg class=(class) viewBox=(view) role="img" aria-label=(label) { (content) }
    }
}

/// A position: to a tenth of a pixel.
pub(super) fn px(position: f64) -> String {
    let text = format!("{position:.1}");
    match text.strip_suffix(".0") {
        Some("-0") => "0".to_owned(),
        Some(whole) => whole.to_owned(),
        None => text,
    }
}

/// Width of text of 12 pixels in the page's font, from above.
pub(super) fn text_width(text: &str) -> f64 {
    text.chars()
        .map(|letter| match letter {
            'i' | 'j' | 'l' | 't' | 'f' | 'I' | '.' | ',' | ':' | '\'' | '|' | ' ' | '(' | ')' => {
                4.4
            }
            'm' | 'w' | 'M' | 'W' | '%' | '@' => 10.8,
            'A'..='Z' => 8.6,
            '0'..='9' => 7.7,
            _ => 7.0,
        })
        .sum()
}

/// Text cut at a width, with an ellipsis.
pub(super) fn cut(text: &str, width: f64) -> String {
    if text_width(text) <= width {
        return text.to_owned();
    }
    let mut short = String::new();
    for letter in text.chars() {
        if text_width(&short) + text_width(&letter.to_string()) + 12.0 > width {
            break;
        }
        short.push(letter);
    }
    format!("{}…", short.trim_end())
}

/// A path through points, begun again behind each that is not finite.
pub(super) fn path(points: &[[f64; 2]]) -> String {
    let mut path = String::new();
    let mut drawing = false;
    for [x, y] in points {
        if !x.is_finite() || !y.is_finite() {
            drawing = false;
            continue;
        }
        let command = if drawing { 'L' } else { 'M' };
        write!(path, "{command}{} {}", px(*x), px(*y)).expect("a string");
        drawing = true;
    }
    path
}

/// The points of a curve that are needed to draw it: of each column of pixels the first, the lowest, the
/// highest and the last. The curve moves by less than a pixel.
pub(super) fn thinned(points: &[[f64; 2]]) -> Vec<[f64; 2]> {
    let mut kept = Vec::new();
    let columns = points
        .chunk_by(|a, b| a[0].floor() == b[0].floor() && a[1].is_finite() && b[1].is_finite());
    for column in columns {
        let by = |better: fn(f64, f64) -> bool| {
            let start = 0;
            (0..column.len()).fold(start, |best, at| {
                if better(column[at][1], column[best][1]) { at } else { best }
            })
        };
        let mut of_column = [0, by(|a, b| a < b), by(|a, b| a > b), column.len() - 1];
        of_column.sort_unstable();
        for (number, at) in of_column.iter().enumerate() {
            if number == 0 || of_column[number - 1] != *at {
                kept.push(column[*at]);
            }
        }
    }
    kept
}

/// The corners of a curve that keeps each value until the next point.
pub(super) fn steps(points: &[[f64; 2]]) -> Vec<[f64; 2]> {
    let mut corners: Vec<[f64; 2]> = Vec::with_capacity(points.len() * 2);
    for point in points {
        if let Some([_, before]) = corners.last().copied() {
            corners.push([point[0], before]);
        }
        corners.push(*point);
    }
    corners
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Distance of a point from a line between two others.
    fn distance(point: [f64; 2], from: [f64; 2], to: [f64; 2]) -> f64 {
        let (dx, dy) = (to[0] - from[0], to[1] - from[1]);
        let length = dx * dx + dy * dy;
        let along = ((point[0] - from[0]) * dx + (point[1] - from[1]) * dy) / length.max(1e-12);
        let along = along.clamp(0.0, 1.0);
        let (x, y) = (from[0] + along * dx - point[0], from[1] + along * dy - point[1]);
        x.hypot(y)
    }

    #[test]
    fn thinned_curve_moves_by_less_than_a_pixel() {
        let mut state = 7u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as f64 / (1u64 << 31) as f64
        };
        let mut points: Vec<[f64; 2]> =
            (0..6_000).map(|at| [f64::from(at) / 100.0, 150.0 * random()]).collect();
        points.extend([[60.5, 3.0], [650.0, 140.0]]);
        let kept = thinned(&points);
        assert!(kept.len() <= 4 * 62, "{} points are left", kept.len());
        let far = points.iter().map(|point| {
            let near = kept.windows(2).map(|pair| distance(*point, pair[0], pair[1]));
            near.fold(f64::INFINITY, f64::min)
        });
        let far = far.fold(0.0, f64::max);
        assert!(far < 1.0, "a point is {far} pixels away");
        // Without the extremes of each column it would be far away.
        let first_only: Vec<_> = points.chunks(100).map(|column| column[0]).collect();
        let lost = points.iter().any(|point| {
            first_only.windows(2).all(|pair| distance(*point, pair[0], pair[1]) > 1.0)
        });
        assert!(lost);
    }

    #[test]
    fn path_begins_again_behind_a_gap() {
        let points = [[0.0, 1.0], [1.0, 2.04], [2.0, f64::NAN], [3.0, -0.01]];
        assert_eq!(path(&points), "M0 1L1 2M3 0");
        assert_eq!(steps(&points[..2]), [[0.0, 1.0], [1.0, 1.0], [1.0, 2.04]]);
    }

    #[test]
    fn cut_text_fits() {
        assert_eq!(cut("data transfer", 200.0), "data transfer");
        let short = cut("a stage with a long name", 80.0);
        assert!(short.ends_with('…') && text_width(&short) <= 80.0, "{short}");
    }
}
