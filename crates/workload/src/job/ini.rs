//! Lexer of job files: sections and settings, each with its file and line. Included files and variables are
//! resolved here; keys are not interpreted.

use std::rc::Rc;

use super::{IncludeError, JobError, Outside, Wrong};
use crate::limits::JOB_FILE_BYTES_MAX;

/// Files that include each other, one in the other.
const INCLUDES_MAX: usize = 16;

/// One `key=value` or bare `key`.
#[derive(Clone, Debug)]
pub struct Setting {
    pub file: Rc<str>,
    /// From 1; 0 for a setting that is not in a file.
    pub line: u32,
    pub key: String,
    pub value: Option<String>,
}

impl Setting {
    /// Key and value for the report; fio reports a bare key as "1".
    pub fn as_option(&self) -> (String, String) {
        (self.key.clone(), self.value.as_deref().unwrap_or("1").to_owned())
    }
}

/// One `[name]` and its settings.
#[derive(Clone, Debug)]
pub struct Section {
    pub file: Rc<str>,
    pub line: u32,
    pub name: String,
    pub settings: Vec<Setting>,
}

impl Section {
    /// The section as lines of a job file.
    pub fn to_text(&self) -> String {
        let line = |setting: &Setting| match &setting.value {
            Some(value) => format!("{}={value}\n", setting.key),
            None => format!("{}\n", setting.key),
        };
        format!("[{}]\n", self.name) + &self.settings.iter().map(line).collect::<String>()
    }
}

/// Reads a file and those that it includes.
pub struct Lexer<'a> {
    outside: &'a Outside<'a>,
    pub sections: Vec<Section>,
    pub errors: Vec<JobError>,
    /// Environment variables that were used, with their values.
    pub variables: Vec<(String, String)>,
    bytes: usize,
}

impl<'a> Lexer<'a> {
    pub fn new(outside: &'a Outside<'a>) -> Lexer<'a> {
        let (sections, errors, variables) = (Vec::new(), Vec::new(), Vec::new());
        Lexer { outside, sections, errors, variables, bytes: 0 }
    }

    /// Splits the text; mistakes are collected and skipped. As in fio, `;` and `#` begin a comment
    /// anywhere in a line, and an included file continues the section that includes it.
    pub fn read(&mut self, file: &str, text: &str, depth: usize) {
        let file: Rc<str> = file.into();
        self.bytes += text.len();
        if self.bytes > JOB_FILE_BYTES_MAX {
            self.errors.push(JobError::new(&file, 1, Wrong::FileTooLong { bytes: self.bytes }));
            return;
        }
        for (line, raw) in (1_u32..).zip(text.lines()) {
            let content = raw.split([';', '#']).next().unwrap_or("").trim();
            if !content.is_empty()
                && let Err(wrong) = self.line(&file, line, content, depth)
            {
                self.errors.push(JobError::new(&file, line, wrong));
            }
        }
    }

    fn line(
        &mut self,
        file: &Rc<str>,
        line: u32,
        content: &str,
        depth: usize,
    ) -> Result<(), Wrong> {
        if content.starts_with('[') {
            let name = header(content);
            // A bad header still begins a section, so that its settings are not attributed to another one.
            let section = name.unwrap_or(content).to_owned();
            self.sections.push(Section {
                file: file.clone(),
                line,
                name: section,
                settings: Vec::new(),
            });
            return name.map(drop).ok_or_else(|| Wrong::Header { text: content.to_owned() });
        }
        if let Some(name) =
            content.strip_prefix("include").filter(|rest| rest.starts_with([' ', '\t']))
        {
            return self.include(file, name.trim(), depth);
        }
        let (key, value) = match content.split_once('=') {
            Some((key, value)) => (key.trim(), Some(self.expand(key.trim(), value.trim())?)),
            None => (content, None),
        };
        let key = key.to_owned();
        match self.sections.last_mut() {
            Some(section) => {
                section.settings.push(Setting { file: file.clone(), line, key, value })
            }
            None => return Err(Wrong::NoSection { key }),
        }
        Ok(())
    }

    fn include(&mut self, file: &str, name: &str, depth: usize) -> Result<(), Wrong> {
        let wrong = |why: IncludeError| Wrong::Include { name: name.to_owned(), why };
        if depth == INCLUDES_MAX {
            return Err(wrong(IncludeError::TooDeep { most: INCLUDES_MAX }));
        }
        let (found, text) = (self.outside.include)(file, name).map_err(wrong)?;
        self.read(&found, &text, depth + 1);
        Ok(())
    }

    /// The value with the values of environment variables in the place of `${NAME}`.
    fn expand(&mut self, key: &str, value: &str) -> Result<String, Wrong> {
        let (mut result, mut rest) = (String::new(), value);
        while let Some((before, after)) = rest.split_once("${") {
            let wrong =
                |why: String| Wrong::Variable { key: key.to_owned(), value: value.to_owned(), why };
            let Some((name, behind)) = after.split_once('}') else {
                return Err(wrong("${ without }".to_owned()));
            };
            let Some(found) = (self.outside.variable)(name) else {
                return Err(wrong(format!("the environment has no {name:?}")));
            };
            result = result + before + &found;
            let used = (name.to_owned(), found);
            if !self.variables.contains(&used) {
                self.variables.push(used);
            }
            rest = behind;
        }
        Ok(result + rest)
    }
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
        let outside = Outside::none();
        let mut lexer = Lexer::new(&outside);
        lexer.read("f", text, 0);
        assert_eq!(lexer.errors, []);
        let all: Vec<_> = lexer.sections.iter().map(|one| (one.name.as_str(), one.line)).collect();
        assert_eq!(all, [("one", 3), ("two", 7)]);
        let settings = &lexer.sections[0].settings;
        let flat: Vec<_> =
            settings.iter().map(|s| (s.line, s.key.as_str(), s.value.as_deref())).collect();
        assert_eq!(flat, [(4, "bs", Some("4k")), (5, "thread", None)]);
        assert_eq!(lexer.sections[1].settings[0].value.as_deref(), Some("read"));
    }
}
