//! The head of a request, by RFC 9112 and with none of the leniency that it permits: what two readers may
//! understand differently is refused.

/// Status of a request that is malformed, or that two readers could understand differently.
pub(in crate::control) const BAD: &str = "400 Bad Request";

/// Headers that a request has at most once.
const ONCE: [&str; 4] = ["host", "origin", "authorization", "content-length"];

pub(in crate::control) struct Request {
    pub method: String,
    /// The target up to its question mark.
    pub path: String,
    /// False for HTTP/1.0.
    is_1_1: bool,
    /// In order; the names are in lower case.
    headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Request {
    /// Parses a head, without the empty line that ends it. The request has no body yet.
    ///
    /// # Errors
    /// The status to reply with.
    pub fn parse(head: &[u8]) -> Result<Request, &'static str> {
        let text = std::str::from_utf8(head).map_err(|_| BAD)?;
        // One empty line before a request is ignored (RFC 9112, 2.2).
        let mut lines = text.strip_prefix("\r\n").unwrap_or(text).split("\r\n");
        let is_plain = |line: &str| !line.chars().any(|c| c.is_ascii_control() && c != '\t');
        let first: Vec<_> = lines.next().unwrap_or_default().split(' ').collect();
        let [method, target, version] = first[..] else { return Err(BAD) };
        if !is_token(method) || !target.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(BAD);
        }
        let is_1_1 = match version.as_bytes() {
            b"HTTP/1.1" => true,
            b"HTTP/1.0" => false,
            [b'H', b'T', b'T', b'P', b'/', b'0'..=b'9', b'.', b'0'..=b'9'] => {
                return Err("505 HTTP Version Not Supported");
            }
            _ => return Err(BAD),
        };
        let mut headers = Vec::new();
        // The line after the last one is empty if the head ends with its line.
        for line in lines.filter(|line| !line.is_empty()) {
            // A name that is a token has no space before its colon, and is no continuation of a line before.
            let (name, value) = line.split_once(':').ok_or(BAD)?;
            if !is_token(name) || !is_plain(value) {
                return Err(BAD);
            }
            headers.push((name.to_ascii_lowercase(), value.trim_matches([' ', '\t']).to_owned()));
        }
        let count = |once| headers.iter().filter(|(name, _)| name == once).count();
        if ONCE.iter().any(|once| count(*once) > 1) {
            return Err(BAD);
        }
        let (method, path, body) = (method.to_owned(), String::new(), Vec::new());
        let request = Request { method, path, is_1_1, headers, body };
        let path = request.path_of(target).ok_or(BAD)?;
        Ok(Request { path, ..request })
    }

    /// The path of a target, as a path or as a whole address of this host.
    fn path_of(&self, target: &str) -> Option<String> {
        if target.contains('#') {
            return None;
        }
        let path = match without_prefix(target, "http://") {
            None => target,
            Some(rest) => {
                let (host, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
                // The host of the target counts; another in the header is a trap for one of two readers.
                let is_ours = |header: &str| header.eq_ignore_ascii_case(host);
                if !self.header("host").is_some_and(is_ours) {
                    return None;
                }
                if path.starts_with('/') { path } else { "/" }
            }
        };
        path.starts_with('/').then(|| path.split('?').next().unwrap_or_default().to_owned())
    }

    /// The value of a header, by its name in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut found = self.headers.iter().filter(|(known, _)| known == name);
        found.next().map(|(_, value)| value.as_str())
    }

    /// Length of the body.
    ///
    /// # Errors
    /// The status to reply with: it is not told by one number of at most `most`.
    pub fn body_bytes(&self, most: usize) -> Result<usize, &'static str> {
        let length = self.header("content-length");
        if self.header("transfer-encoding").is_some() {
            // A length beside it, or a version without such bodies: readers may disagree where it ends.
            let is_clear = self.is_1_1 && length.is_none();
            return Err(if is_clear { "501 Not Implemented" } else { BAD });
        }
        let Some(length) = length else { return Ok(0) };
        if !is_number(length) {
            return Err(BAD);
        }
        let length = length.parse().ok().filter(|length| *length <= most);
        length.ok_or("413 Content Too Large")
    }

    /// Status of a request for a host that is none of this server.
    pub fn misdirected(&self) -> Option<&'static str> {
        match self.header("host") {
            None if self.is_1_1 => Some(BAD),
            Some(host) if super::is_address(host) => None,
            _ => Some("421 Misdirected Request"),
        }
    }

    /// Whether it has this token: compared exactly, the name of its scheme in any case.
    pub fn has_token(&self, token: &str) -> bool {
        let given = self.header("authorization").and_then(|value| without_prefix(value, "bearer "));
        given.is_some_and(|given| equal(given.trim_start_matches(' ').as_bytes(), token.as_bytes()))
    }
}

/// The text behind a prefix, which is compared in any case.
pub(in crate::control) fn without_prefix<'a>(text: &'a str, prefix: &str) -> Option<&'a str> {
    let (first, rest) = text.split_at_checked(prefix.len())?;
    first.eq_ignore_ascii_case(prefix).then_some(rest)
}

/// Whether this is a token of RFC 9110, 5.6.2.
fn is_token(text: &str) -> bool {
    let is_mark = |byte| b"!#$%&'*+-.^_`|~".contains(&byte);
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || is_mark(byte))
}

/// Whether these are digits and nothing else, as a sign.
pub(super) fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Compares in a time that does not tell how much is equal.
fn equal(one: &[u8], two: &[u8]) -> bool {
    one.len() == two.len() && one.iter().zip(two).fold(0, |sum, (a, b)| sum | (a ^ b)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_has_method_path_and_headers() {
        let head = b"POST /rpc?x=1 HTTP/1.1\r\nHost: a:1\r\nX-Doorbell:  1 \r\n";
        let request = Request::parse(head).unwrap_or_else(|status| panic!("{status}"));
        assert_eq!((&*request.method, &*request.path), ("POST", "/rpc"));
        let (host, ours) = (request.header("host"), request.header("x-doorbell"));
        assert_eq!((host, ours), (Some("a:1"), Some("1")));
        assert_eq!(request.header("other"), None);
    }

    #[test]
    fn scheme_has_any_case_and_token_its_own() {
        for (value, is_known) in [
            ("Bearer Secret", true),
            ("bearer Secret", true),
            ("BEARER  Secret", true),
            ("Bearer secret", false),
            ("Bearer Secre", false),
            ("Bearer", false),
            ("BearerSecret", false),
            ("Basic Secret", false),
            ("Secret", false),
        ] {
            let head = format!("GET / HTTP/1.1\r\nAuthorization: {value}");
            let request = Request::parse(head.as_bytes()).expect("a request");
            assert_eq!(request.has_token("Secret"), is_known, "{value}");
        }
    }
}
