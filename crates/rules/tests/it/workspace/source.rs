//! A source file as the checks see it: text in which comments and literals are blank, its code outside of
//! `#[cfg(test)]`, its functions, and the paths that it names.

/// Comments, strings and characters become blanks; every line keeps its number and its length in bytes.
pub fn masked(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out: Vec<u8> = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let end = at + hidden_at(&bytes[at..], out.last().copied()).max(1);
        let hides = end - at > 1 || bytes[at] == b'"';
        let blank = |byte: &u8| if hides && *byte != b'\n' { b' ' } else { *byte };
        out.extend(bytes[at..end.min(bytes.len())].iter().map(blank));
        at = end;
    }
    String::from_utf8(out).expect("whole characters are replaced")
}

/// The length of the comment or literal that begins here; 0 if there is none.
fn hidden_at(rest: &[u8], before: Option<u8>) -> usize {
    let line = |rest: &[u8]| rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len());
    if rest.starts_with(b"//") {
        return line(rest);
    }
    if rest.starts_with(b"/*") {
        return block_comment(rest);
    }
    match rest[0] {
        b'"' => string(rest),
        b'\'' => character(rest),
        b'r' | b'b' | b'c' if !before.is_some_and(is_word) => {
            let prefix = rest.iter().take_while(|byte| b"rbc".contains(byte)).count();
            let hashes = rest[prefix..].iter().take_while(|byte| **byte == b'#').count();
            match (rest.get(prefix + hashes), rest[..prefix].contains(&b'r')) {
                (Some(b'"'), true) => {
                    let close: Vec<u8> = [b"\"".as_slice(), &b"#".repeat(hashes)].concat();
                    let begin = prefix + hashes + 1;
                    let inside = rest[begin..].windows(close.len()).position(|w| w == close);
                    inside.map_or(rest.len(), |inside| begin + inside + close.len())
                }
                (Some(b'"'), false) if hashes == 0 => prefix + string(&rest[prefix..]),
                (Some(b'\''), false) if hashes == 0 => prefix + character(&rest[prefix..]),
                _ => 0,
            }
        }
        _ => 0,
    }
}

fn block_comment(rest: &[u8]) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < rest.len() {
        match &rest[at..] {
            [b'/', b'*', ..] => (depth, at) = (depth + 1, at + 2),
            [b'*', b'/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            return at;
        }
    }
    rest.len()
}

fn string(rest: &[u8]) -> usize {
    let mut at = 1;
    while at < rest.len() {
        match rest[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    rest.len()
}

/// A character, not a lifetime.
fn character(rest: &[u8]) -> usize {
    match rest.get(1) {
        Some(b'\\') => {
            let behind = rest.get(3..).unwrap_or_default();
            behind.iter().position(|byte| *byte == b'\'').map_or(0, |inside| inside + 4)
        }
        Some(first) => {
            let length = match first {
                0..0x80 => 1,
                0x80..0xe0 => 2,
                0xe0..0xf0 => 3,
                _ => 4,
            };
            if rest.get(1 + length) == Some(&b'\'') { length + 2 } else { 0 }
        }
        None => 0,
    }
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// Words, numbers and single signs, each with its offset.
pub fn tokens(masked: &str) -> Vec<(usize, &str)> {
    let bytes = masked.as_bytes();
    let (mut found, mut at) = (Vec::new(), 0);
    while at < bytes.len() {
        let length = match bytes[at] {
            byte if is_word(byte) => bytes[at..].iter().take_while(|b| is_word(**b)).count(),
            byte if byte.is_ascii_whitespace() => {
                at += 1;
                continue;
            }
            _ => masked[at..].chars().next().expect("a character").len_utf8(),
        };
        found.push((at, &masked[at..at + length]));
        at += length;
    }
    found
}

/// The line of a byte, from 1.
pub fn line_of(text: &str, at: usize) -> usize {
    text[..at].matches('\n').count() + 1
}

/// The token after the brace, bracket or parenthesis that closes the one at `open`.
fn behind_the_close(tokens: &[(usize, &str)], open: usize) -> usize {
    let mut depth = 0;
    for (number, (_, token)) in tokens.iter().enumerate().skip(open) {
        match *token {
            "{" | "(" | "[" => depth += 1,
            "}" | ")" | "]" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return number + 1;
        }
    }
    tokens.len()
}

/// Keywords that begin an item, after its attributes.
const ITEMS: &[&str] = &[
    "pub",
    "mod",
    "fn",
    "use",
    "impl",
    "struct",
    "enum",
    "const",
    "static",
    "type",
    "trait",
    "extern",
    "unsafe",
    "async",
    "macro_rules",
];

/// Masked text without the items of `#[cfg(test)]`, and with everything else.
pub fn tests_cut_out(masked: &str) -> String {
    let tokens = tokens(masked);
    let mut out = masked.as_bytes().to_vec();
    let mut at = 0;
    while at < tokens.len() {
        let words: Vec<&str> = tokens[at..].iter().take(7).map(|(_, token)| *token).collect();
        if words != ["#", "[", "cfg", "(", "test", ")", "]"] {
            at += 1;
            continue;
        }
        let from = at;
        at += 7;
        while tokens.get(at).is_some_and(|(_, token)| *token == "#") {
            at = behind_the_close(&tokens, at + 1);
        }
        if !tokens.get(at).is_some_and(|(_, token)| ITEMS.contains(token)) {
            continue;
        }
        let end = item_end(&tokens, at);
        let until = tokens.get(end).map_or(out.len(), |(begin, _)| *begin);
        for byte in &mut out[tokens[from].0..until] {
            *byte = if *byte == b'\n' { b'\n' } else { b' ' };
        }
        at = end;
    }
    String::from_utf8(out).expect("whole items are replaced")
}

/// The token after an item: after its `;`, or after its body.
fn item_end(tokens: &[(usize, &str)], from: usize) -> usize {
    let ends_at_brace = !tokens[from..].iter().take(4).any(|(_, token)| *token == "use");
    let mut at = from;
    while at < tokens.len() {
        match tokens[at].1 {
            ";" => return at + 1,
            "{" if ends_at_brace => return behind_the_close(tokens, at),
            "(" | "[" | "{" => at = behind_the_close(tokens, at),
            _ => at += 1,
        }
    }
    tokens.len()
}

/// A function with a body.
#[derive(Debug, PartialEq)]
pub struct Function<'a> {
    pub name: &'a str,
    /// Line of the word `fn`, from 1.
    pub line: usize,
    /// Lines from there to the closing brace.
    pub lines: usize,
}

/// Every function of masked text, including those nested in others, in `impl`s, traits and macros.
pub fn functions(masked: &str) -> Vec<Function<'_>> {
    let tokens = tokens(masked);
    let mut found = Vec::new();
    for (number, (at, token)) in tokens.iter().enumerate() {
        // `fn(u8)` is a type.
        let named = tokens.get(number + 1).filter(|(_, name)| *name != "(");
        let (true, Some((_, name))) = (*token == "fn", named) else { continue };
        let Some(open) = body(&tokens, number + 1) else { continue };
        let close = behind_the_close(&tokens, open) - 1;
        let line = line_of(masked, *at);
        found.push(Function { name, line, lines: line_of(masked, tokens[close].0) - line + 1 });
    }
    found
}

/// The brace that opens the body of the function whose signature begins here; `None` if it has no body.
fn body(tokens: &[(usize, &str)], from: usize) -> Option<usize> {
    let mut open: Vec<&str> = Vec::new();
    for (number, (_, token)) in tokens.iter().enumerate().skip(from) {
        match *token {
            "{" if open.is_empty() => return Some(number),
            ";" if open.is_empty() => return None,
            "(" | "[" | "{" | "<" => open.push(token),
            // Not the `>` of an arrow.
            ">" if tokens[number - 1].1 != "-" && open.last() == Some(&"<") => {
                open.pop();
            }
            ")" | "]" | "}" => {
                let opener = match *token {
                    ")" => "(",
                    "]" => "[",
                    _ => "{",
                };
                // A `<` in between was a comparison or a shift.
                while open.pop()? != opener {}
            }
            _ => {}
        }
    }
    None
}

/// Every path of masked text, those of `use` with their braces expanded, `as NAME` at their ends.
pub fn paths(masked: &str) -> Vec<(usize, String)> {
    let tokens = tokens(masked);
    let (mut found, mut at) = (Vec::new(), 0);
    while at < tokens.len() {
        let begin = tokens[at].0;
        // `use<'a>` belongs to a type.
        if tokens[at].1 == "use" && tokens.get(at + 1).is_some_and(|(_, token)| *token != "<") {
            let end = item_end(&tokens, at);
            let mut inside = &tokens[at + 1..end];
            used(&mut inside, String::new(), begin, &mut found);
            at = end;
        } else if tokens[at].1.bytes().all(is_word) {
            let mut path = tokens[at].1.to_owned();
            at += 1;
            while at + 2 < tokens.len() && (tokens[at].1, tokens[at + 1].1) == (":", ":") {
                if !tokens[at + 2].1.bytes().all(is_word) {
                    break;
                }
                path = format!("{path}::{}", tokens[at + 2].1);
                at += 3;
            }
            found.push((begin, path));
        } else {
            at += 1;
        }
    }
    found
}

/// Parses one tree of a `use`.
fn used(
    tokens: &mut &[(usize, &str)],
    prefix: String,
    begin: usize,
    found: &mut Vec<(usize, String)>,
) {
    let mut path = prefix;
    while let Some(((_, token), rest)) = tokens.split_first() {
        match *token {
            "," | "}" | ";" => break,
            "{" => {
                *tokens = rest;
                while tokens.first().is_some_and(|(_, token)| !["}", ";"].contains(token)) {
                    used(tokens, path.clone(), begin, found);
                    if tokens.first().is_some_and(|(_, token)| *token == ",") {
                        *tokens = &tokens[1..];
                    }
                }
                *tokens = tokens.get(1..).unwrap_or_default();
                return;
            }
            ":" => {
                if !path.ends_with("::") && !path.is_empty() {
                    path += "::";
                }
            }
            "as" => path += " as ",
            word => path += word,
        }
        *tokens = rest;
    }
    found.push((begin, path));
}
