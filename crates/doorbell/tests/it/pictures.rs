//! Pictures of the book: cut from the pages of results that its examples write, as SVG files that need
//! nothing else. The committed files equal those of this build; `DOORBELL_BLESS=1` rewrites them.

use std::fmt::Write as _;
use std::fs;

use testing::root;

/// A page whose examples write pages of results; the others of [`PICTURES`] are checked with it.
pub const PAGE: &str = "docs/first-hour.md";

/// Each picture: its file in `docs/pictures`, the page of results that an example of the book writes, and the
/// picture's label there.
const PICTURES: &[(&str, &str, &str)] = &[
    ("first-hour.svg", "target/answer.html", "Latency by stage, stacked bars"),
    ("interface.svg", "target/interface.html", "iops over in flight"),
    ("drive.svg", "target/drive.html", "randread of 4096 bytes, user"),
];

/// Width of a picture on a page, and of a column of its legend.
const WIDTH: usize = 800;
const COLUMN: usize = 160;
const ROW: usize = 20;

/// Compares the pictures with the pages. The examples have been run.
pub fn check() {
    for (name, page, label) in PICTURES {
        let page = fs::read_to_string(root().join(page)).unwrap_or_else(|e| panic!("{page}: {e}"));
        let picture = cut(&page, label).unwrap_or_else(|| panic!("{name}: no picture {label:?}"));
        let path = root().join("docs/pictures").join(name);
        if std::env::var_os("DOORBELL_BLESS").is_some() {
            fs::write(&path, picture).expect("a picture that can be written");
            continue;
        }
        let found = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        assert!(found == picture, "docs/pictures/{name} differs; DOORBELL_BLESS=1 rewrites it");
    }
}

/// The text between two marks, the first of them after `from`.
fn between<'a>(text: &'a str, from: &str, open: &str, close: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(from)?;
    let (_, rest) = rest.split_once(open)?;
    rest.split_once(close).map(|(inside, _)| inside)
}

/// The wide form of a picture, with its legend above it.
fn cut(page: &str, label: &str) -> Option<String> {
    let label = format!("aria-label=\"{label}\"");
    let (before, _) = page.split_once(&label)?;
    let figure = &page[before.rfind("<figure>")?..];
    let height: usize =
        between(figure, "class=\"wide\"", "viewBox=\"0 0 800 ", "\"")?.parse().ok()?;
    let body = between(figure, &label, ">", "</svg>")?;
    let style = between(page, "<head>", "<style>", "</style>")?;
    let colours = &style[..style.find("@media")?];
    let rules = between(style, "svg.patterns", "\n", "\n\ndetails")?;
    let patterns = between(page, "class=\"patterns\"", "<defs>", "</defs>")?;
    let legend = between(figure, "<figure>", "<ul class=\"legend\">", "</ul>").unwrap_or("");
    let (drawn, above) = drawn_legend(legend);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"-8 -8 {} {}\" \
         font-family=\"sans-serif\" {label}>\n\
         <style>{colours}{}</style>\n<defs>{patterns}</defs>\n",
        WIDTH + 16,
        height + above + 16,
        // Nothing in a file is pointed at.
        rules.lines().filter(|line| !line.contains("hover")).collect::<Vec<_>>().join("\n"),
    );
    writeln!(svg, "<rect x=\"-8\" y=\"-8\" width=\"100%\" height=\"100%\" fill=\"#fff\"></rect>")
        .ok()?;
    writeln!(svg, "{drawn}<g transform=\"translate(0 {above})\">{}</g>\n</svg>", lines(body))
        .ok()?;
    Some(svg)
}

/// A line for each element, without the origins of numbers and what a pointer shows.
fn lines(body: &str) -> String {
    let mut text = String::new();
    let mut depth = 0;
    for part in body.split_inclusive('>') {
        let opens = part.contains("<g class=\"reading\"");
        if opens || depth > 0 {
            depth += part.matches("<g").count();
            depth -= part.matches("</g>").count();
            continue;
        }
        match part.split_once(" data-") {
            Some((kept, _)) => write!(text, "{kept}>").expect("text"),
            None => text.push_str(part),
        }
        if part.ends_with("</text>") || part.ends_with("</rect>") || part.ends_with("</path>") {
            text.push('\n');
        }
    }
    text
}

/// The legend as part of the picture, and its height.
fn drawn_legend(legend: &str) -> (String, usize) {
    let mut text = String::new();
    let items: Vec<&str> = legend.split("<li>").skip(1).collect();
    for (number, item) in items.iter().enumerate() {
        let key = between(item, "<svg", ">", "</svg>").unwrap_or("");
        let name = between(item, "</svg>", "", "</li>").unwrap_or("");
        let columns = WIDTH / COLUMN;
        let (x, y) = (number % columns * COLUMN, number / columns * ROW);
        let wide = if item.contains("class=\"key square\"") { 18 } else { 32 };
        writeln!(
            text,
            "<g transform=\"translate({x} {y})\">{key}\
             <text class=\"total\" x=\"{wide}\" y=\"10\">{name}</text></g>"
        )
        .expect("text");
    }
    (text, items.len().div_ceil(WIDTH / COLUMN) * ROW + if items.is_empty() { 0 } else { 10 })
}

#[test]
fn picture_is_cut_with_its_legend_and_without_readings() {
    let page = "<head><style>:root { --k1: red; }\n@media dark { }\nsvg.patterns { }\nsvg text { }\n\
                .reading:hover { }\n\ndetails { }</style></head>\
                <svg class=\"patterns\"><defs><pattern/></defs></svg>\
                <figure><ul class=\"legend\"><li><svg class=\"key\"><path></path></svg>nvme</li></ul>\
                <svg class=\"wide\" viewBox=\"0 0 800 30\" aria-label=\"A\">\
                <rect x=\"1\" data-of=\"sum /a\"></rect>\
                <g class=\"reading\"><g><rect></rect></g></g><text>1</text></svg></figure>";
    let picture = cut(page, "A").expect("a picture");
    for kept in [
        "--k1: red",
        "svg text",
        "<pattern/>",
        ">nvme</text>",
        "<rect x=\"1\"></rect>",
        "<text>1</text>",
    ] {
        assert!(picture.contains(kept), "{kept}: {picture}");
    }
    for gone in ["data-of", "reading", "@media", "hover"] {
        assert!(!picture.contains(gone), "{gone}: {picture}");
    }
    assert!(cut(page, "B").is_none());
}
