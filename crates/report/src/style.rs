//! Colour of the text views.

/// Colour on a terminal, none elsewhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Style {
    colour: bool,
}

const RESET: &str = "\u{1b}[0m";
const BOLD: &str = "\u{1b}[1m";
const RED: &str = "\u{1b}[31m";
const YELLOW: &str = "\u{1b}[33m";

impl Style {
    pub const PLAIN: Style = Style { colour: false };
    /// With escape sequences for colour.
    pub const COLOUR: Style = Style { colour: true };

    fn with(self, code: &str, text: &str) -> String {
        if self.colour { format!("{code}{text}{RESET}") } else { text.to_owned() }
    }

    pub(crate) fn head(self, text: &str) -> String {
        self.with(BOLD, text)
    }

    pub(crate) fn warning(self, text: &str) -> String {
        self.with(YELLOW, text)
    }

    pub(crate) fn error(self, text: &str) -> String {
        self.with(RED, text)
    }
}
