//! Lexer of job files: sections and settings, each with its line. Keys are not interpreted here.

use super::{JobError, Wrong};

/// One `key=value` or bare `key`.
#[derive(Clone, Copy, Debug)]
pub struct Setting<'a> {
    pub line: u32,
    pub key: &'a str,
    pub value: Option<&'a str>,
}

impl Setting<'_> {
    /// Key and value for the report; fio reports a bare key as "1".
    pub fn as_option(&self) -> (String, String) {
        (self.key.to_owned(), self.value.unwrap_or("1").to_owned())
    }
}

/// One `[name]` and its settings.
#[derive(Clone, Debug)]
pub struct Section<'a> {
    pub line: u32,
    pub name: &'a str,
    pub settings: Vec<Setting<'a>>,
}

/// Splits the text; mistakes are added to `errors` and skipped. As in fio, `;` and `#` begin a
/// comment anywhere in a line.
pub fn sections<'a>(file: &str, text: &'a str, errors: &mut Vec<JobError>) -> Vec<Section<'a>> {
    let mut sections: Vec<Section<'a>> = Vec::new();
    for (line, raw) in (1_u32..).zip(text.lines()) {
        let content = raw.split([';', '#']).next().unwrap_or("").trim();
        if content.is_empty() {
            continue;
        }
        if content.starts_with('[') {
            let name = header(content);
            if name.is_none() {
                let text = content.to_owned();
                errors.push(JobError::new(file, line, Wrong::Header { text }));
            }
            // A bad header still begins a section, so that its settings are not attributed to another one.
            sections.push(Section { line, name: name.unwrap_or(content), settings: Vec::new() });
            continue;
        }
        let (key, value) = match content.split_once('=') {
            Some((key, value)) => (key.trim(), Some(value.trim())),
            None => (content, None),
        };
        let wrong = if key.split_whitespace().next() == Some("include") {
            Wrong::Include
        } else if value.is_some_and(|value| value.contains("${")) {
            Wrong::Variable { key: key.to_owned(), value: value.unwrap_or("").to_owned() }
        } else if let Some(section) = sections.last_mut() {
            section.settings.push(Setting { line, key, value });
            continue;
        } else {
            Wrong::Homeless { key: key.to_owned() }
        };
        errors.push(JobError::new(file, line, wrong));
    }
    sections
}

fn header(content: &str) -> Option<&str> {
    let name = content.strip_prefix('[')?.strip_suffix(']')?.trim();
    (!name.is_empty()).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ini_parses_comments_blank_lines_and_bare_keys() {
        let text = "; a\n# b\n[one] ; c\n bs = 4k # d\nthread\n\n[two]\r\nrw=read\r\n";
        let mut errors = Vec::new();
        let all = sections("f", text, &mut errors);
        assert_eq!(errors, []);
        assert_eq!((all[0].name, all[0].line, all[1].name, all[1].line), ("one", 3, "two", 7));
        let flat: Vec<_> = all[0].settings.iter().map(|s| (s.line, s.key, s.value)).collect();
        assert_eq!(flat, [(4, "bs", Some("4k")), (5, "thread", None)]);
        assert_eq!(all[1].settings[0].value, Some("read"));
    }
}
