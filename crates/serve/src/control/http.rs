//! Requests of HTTP, as far as metrics and the page need them: one for each connection, with limits.
//!
//! `Host` must be an address or `localhost`: a name could be one of another site, which was made to point
//! here so that its pages in a browser of this machine reach the server.

use std::borrow::Cow;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use runtime::{STD_CLOCK, Span, WallClock};

const HEAD_BYTES_MAX: usize = 8 << 10;
/// Time limit of a request, and of each part of a reply.
const REQUEST: Span = Span::s(2);

/// Why HTTP is not served at an address.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HttpError {
    /// The address cannot be bound.
    #[error("{address}: {error}, expected an address to listen at")]
    Bind { address: SocketAddr, error: io::Error },
    /// Other machines can reach the address.
    #[error("{address}: expected a loopback address, or a token")]
    Open { address: SocketAddr },
}

/// Listens at an address: of the loopback, unless clients must have a token.
pub(super) fn bind(address: SocketAddr, has_token: bool) -> Result<TcpListener, HttpError> {
    if !address.ip().to_canonical().is_loopback() && !has_token {
        return Err(HttpError::Open { address });
    }
    let failed = |error| HttpError::Bind { address, error };
    let listener = TcpListener::bind(address).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    Ok(listener)
}

pub(super) struct Request {
    pub method: String,
    /// The target up to its question mark.
    pub path: String,
    /// In order; the names are in lower case.
    headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Request {
    /// The request with these first lines, without a body.
    pub fn of(head: &str) -> Request {
        let mut lines = head.lines();
        let mut words = lines.next().unwrap_or_default().split(' ');
        let method = words.next().unwrap_or_default().to_owned();
        let path = words.next().unwrap_or_default().split('?').next().unwrap_or_default();
        let headers = lines
            .filter_map(|line| line.split_once(':'))
            .map(|(name, value)| (name.trim().to_ascii_lowercase(), value.trim().to_owned()));
        Request { method, path: path.to_owned(), headers: headers.collect(), body: Vec::new() }
    }

    /// The value of a header, by its name in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut found = self.headers.iter().filter(|(known, _)| known == name);
        found.next().map(|(_, value)| value.as_str())
    }

    fn is_misdirected(&self) -> bool {
        !self.header("host").is_some_and(is_address)
    }

    pub fn has_token(&self, token: &str) -> bool {
        let given = self.header("authorization").and_then(|value| value.strip_prefix("Bearer "));
        given.is_some_and(|given| equal(given.as_bytes(), token.as_bytes()))
    }
}

/// Compares in a time that does not tell how much is equal.
fn equal(one: &[u8], two: &[u8]) -> bool {
    one.len() == two.len() && one.iter().zip(two).fold(0, |sum, (a, b)| sum | (a ^ b)) == 0
}

/// Content type and body of a reply.
pub(super) type Reply = (&'static str, Cow<'static, str>);

/// Reads a request with a body of at most `body_bytes_max`, and replies: what `reply` returns, or the status
/// of the error.
pub(super) fn answer(
    stream: &TcpStream,
    body_bytes_max: usize,
    reply: impl FnOnce(&Request) -> Result<Reply, &'static str>,
) -> io::Result<()> {
    let Some(request) = read(stream, body_bytes_max)? else { return Ok(()) };
    let replied = match request.is_misdirected() {
        true => Err("421 Misdirected Request"),
        false => reply(&request),
    };
    match replied {
        Ok((content_type, body)) => send(stream, "200 OK", content_type, &body),
        Err(status) => send(stream, status, "text/plain; charset=utf-8", &format!("{status}\n")),
    }
}

/// Reads a request with a body of at most `body_bytes_max`; `None` if it is none, too long or too late.
fn read(mut stream: &TcpStream, body_bytes_max: usize) -> io::Result<Option<Request>> {
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(Duration::from_nanos(REQUEST.as_ns())))?;
    let (mut bytes, since) = (Vec::new(), STD_CLOCK.now());
    let mut more = |bytes: &mut Vec<u8>| -> io::Result<bool> {
        let left = (since + REQUEST).since(STD_CLOCK.now());
        if left == Span::ZERO {
            return Ok(false);
        }
        stream.set_read_timeout(Some(Duration::from_nanos(left.as_ns().max(1_000_000))))?;
        let mut some = [0; 4096];
        let got = stream.read(&mut some)?;
        bytes.extend_from_slice(&some[..got]);
        Ok(got > 0)
    };
    let end = loop {
        if let Some(end) = bytes.windows(4).position(|end| end == b"\r\n\r\n") {
            break end;
        }
        if bytes.len() > HEAD_BYTES_MAX || !more(&mut bytes)? {
            return Ok(None);
        }
    };
    let mut request = Request::of(&String::from_utf8_lossy(&bytes[..end]));
    let length = request.header("content-length").map_or(Ok(0), str::parse::<usize>);
    let Some(length) = length.ok().filter(|length| *length <= body_bytes_max) else {
        return Ok(None);
    };
    let mut body = bytes.split_off(end + 4);
    while body.len() < length {
        if !more(&mut body)? {
            return Ok(None);
        }
    }
    body.truncate(length);
    request.body = body;
    Ok(Some(request))
}

/// Sends a reply, the last of its connection.
fn send(mut stream: &TcpStream, status: &str, content_type: &str, body: &str) -> io::Result<()> {
    // A page of another origin may neither read a reply nor frame the page.
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\n\
         Connection: close\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n\
         X-Frame-Options: DENY\r\nReferrer-Policy: no-referrer\r\n\
         Cross-Origin-Resource-Policy: same-origin\r\n\
         Content-Security-Policy: default-src 'none'; style-src 'unsafe-inline'; \
         script-src 'unsafe-inline'; connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; \
         form-action 'none'\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())
}

/// Whether a Host header has an IP address or `localhost`, with or without a port.
fn is_address(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => {
            let (inside, port) = rest.split_once(']').unwrap_or(("", rest));
            return inside.parse::<Ipv6Addr>().is_ok() && (port.is_empty() || is_port(port));
        }
        None => host
            .split_once(':')
            .map_or(Some(host), |(name, port)| port.parse::<u16>().is_ok().then_some(name)),
    };
    name.is_some_and(|name| name == "localhost" || name.parse::<IpAddr>().is_ok())
}

fn is_port(text: &str) -> bool {
    text.strip_prefix(':').is_some_and(|port| port.parse::<u16>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_is_served_without_a_token() {
        for (address, has_token, served) in [
            ("127.0.0.1:0", false, true),
            ("[::ffff:127.0.0.1]:0", false, true),
            ("0.0.0.0:0", false, false),
            ("[::]:0", false, false),
            ("192.0.2.1:0", false, false),
            ("0.0.0.0:0", true, true),
        ] {
            match bind(address.parse().expect("an address"), has_token) {
                Ok(_) => assert!(served, "{address}"),
                Err(HttpError::Open { .. }) => assert!(!served, "{address}"),
                // A machine without this address.
                Err(HttpError::Bind { .. }) => {}
            }
        }
    }

    #[test]
    fn host_is_an_address_or_localhost() {
        for host in ["127.0.0.1", "127.0.0.1:80", "localhost:1", "[::1]:80", "[::1]", "192.0.2.1:9"]
        {
            assert!(is_address(host), "{host}");
        }
        for host in [
            "",
            "a",
            "evil.example:80",
            "127.0.0.1.evil.example",
            "localhost.evil:80",
            "[::1",
            "[::1]x",
            "[a]:80",
            "127.0.0.1:",
            "127.0.0.1:x",
            "127.0.0.1:80:80",
        ] {
            assert!(!is_address(host), "{host}");
        }
    }

    #[test]
    fn misdirected_request_gets_no_reply_of_its_handler() {
        for (host, expected) in [
            ("Host: 127.0.0.1:9\r\n", "HTTP/1.1 200 OK"),
            ("Host: evil.example\r\n", "HTTP/1.1 421 Misdirected Request"),
            ("", "HTTP/1.1 421 Misdirected Request"),
        ] {
            let listener = TcpListener::bind("127.0.0.1:0").expect("the loopback");
            let address = listener.local_addr().expect("bound");
            let mut client = TcpStream::connect(address).expect("it listens");
            write!(client, "GET /metrics HTTP/1.1\r\n{host}\r\n").expect("sent");
            let (stream, _) = listener.accept().expect("a client");
            answer(&stream, 0, |_| Ok(("text/plain", "secret".into()))).expect("answered");
            drop(stream);
            let mut text = String::new();
            client.read_to_string(&mut text).expect("a reply");
            assert_eq!(text.lines().next(), Some(expected), "{host}");
            assert_eq!(text.contains("secret"), expected.contains("200"), "{host}");
        }
    }

    #[test]
    fn request_has_method_path_and_headers() {
        let request = Request::of("POST /rpc?x=1 HTTP/1.1\r\nHost: a:1\r\nX-Doorbell:  1 \r\n");
        assert_eq!((&*request.method, &*request.path), ("POST", "/rpc"));
        assert_eq!(
            (request.header("host"), request.header("x-doorbell")),
            (Some("a:1"), Some("1"))
        );
        assert_eq!(request.header("other"), None);
        let nothing = Request::of("");
        assert_eq!((&*nothing.method, &*nothing.path), ("", ""));
    }
}
