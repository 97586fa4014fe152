//! Parts of a page: sections, tables, numbers.

use maud::{Markup, Render, html};

use super::number::Unit;

/// A section of a page, with its entry in the contents.
pub(super) struct Section {
    pub id: String,
    pub title: String,
    pub body: Markup,
}

impl Section {
    pub fn new(id: &str, title: &str, body: Markup) -> Section {
        Section { id: id.to_owned(), title: title.to_owned(), body }
    }
}

impl Render for Section {
    fn render(&self) -> Markup {
        html! {
            section id=(self.id) {
                h2 { (self.title) }
                (self.body)
            }
        }
    }
}

/// The origin of a number as an attribute.
pub(super) fn origin(of: &str) -> Option<&str> {
    Some(of).filter(|of| !of.is_empty())
}

/// A number as text, with its value and the numbers of the document that it is derived from: an operation
/// and JSON pointers, or nothing.
pub(super) fn number(unit: Unit, value: f64, of: &str) -> Markup {
    html! { data value=(value) data-of=[origin(of)] { (unit.text(value)) } }
}

/// A table: first column text, the others numbers.
#[derive(Default)]
pub(super) struct Grid {
    pub caption: String,
    pub columns: Vec<String>,
    pub rows: Vec<Vec<Markup>>,
    pub text: bool,
}

impl Grid {
    pub fn new(columns: &[&str]) -> Grid {
        Grid { columns: columns.iter().map(|name| (*name).to_owned()).collect(), ..Grid::default() }
    }

    pub fn captioned(mut self, caption: &str) -> Grid {
        caption.clone_into(&mut self.caption);
        self
    }

    pub fn of_text(mut self) -> Grid {
        self.text = true;
        self
    }

    pub fn row(&mut self, cells: impl IntoIterator<Item = Markup>) {
        self.rows.push(cells.into_iter().collect());
    }
}

impl Render for Grid {
    fn render(&self) -> Markup {
        let class = if self.text { "text" } else { "numbers" };
        // A wide table scrolls by itself, for a keyboard as well.
        html! {
            // As wide as the page, not as the table.
            @if !self.caption.is_empty() { p.caption { (self.caption) } }
            div.scroll tabindex="0" role="group" aria-label=(self.caption) {
                table class=(class) {
                    thead { tr { @for column in &self.columns { th scope="col" { (column) } } } }
                    tbody {
                        @for row in &self.rows {
                            tr {
                                @for (place, cell) in row.iter().enumerate() {
                                    @if place == 0 { th scope="row" { (cell) } } @else { td { (cell) } }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Content that is shown on request.
pub(super) fn details(summary: &str, content: &impl Render) -> Markup {
    html! { details { summary { (summary) } (content) } }
}

/// A picture with its title, a sentence on how to read it, and its numbers as a table.
pub(super) fn figure(title: &str, about: &str, picture: &Markup, table: Option<&Grid>) -> Markup {
    html! {
        figure {
            figcaption {
                strong { (title) }
                @if !about.is_empty() { " " span { (about) } }
            }
            (picture)
            @if let Some(table) = table { (details("The numbers", table)) }
        }
    }
}

pub(super) fn text(text: &str) -> Markup {
    html! { (text) }
}

/// A word as an argument of a shell.
pub(super) fn quoted(word: &str) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./=:,+@%".contains(letter);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}
