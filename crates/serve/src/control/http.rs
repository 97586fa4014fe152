//! Requests of HTTP, as far as metrics and the page need them: one for each connection, with limits.
//!
//! `Host` must be an address or `localhost`: a name could be one of another site, which was made to point
//! here so that its pages in a browser of this machine reach the server.

mod request;

use std::borrow::Cow;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use runtime::{STD_CLOCK, Span, Time, WallClock};

use super::clients::Place;
use request::{BAD, is_number};
pub(super) use request::{Request, without_prefix};

const HEAD_BYTES_MAX: usize = 8 << 10;
/// Most bytes after a refused request that are read and dropped, so that the client gets the reply.
const DISCARDED_BYTES_MAX: usize = 1 << 20;
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

/// Content type and body of a reply.
pub(super) type Reply = (&'static str, Cow<'static, str>);

/// Reads a request with a body of at most `body_bytes_max`, and replies: what `reply` returns, or the status
/// of the error. It keeps its `place` while it is replied to.
pub(super) fn answer(
    stream: &TcpStream,
    place: &Place,
    body_bytes_max: usize,
    reply: impl FnOnce(&Request) -> Result<Reply, &'static str>,
) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(Duration::from_nanos(REQUEST.as_ns())))?;
    let mut incoming = Incoming { stream, until: STD_CLOCK.now() + REQUEST, bytes: Vec::new() };
    let (method, replied) = match incoming.request(body_bytes_max)? {
        None => return Ok(()),
        Some(Err(status)) => (String::new(), Err(status)),
        Some(Ok(request)) => {
            place.keep(true);
            let replied = request.misdirected().map_or_else(|| reply(&request), Err);
            (request.method, replied)
        }
    };
    let sent = match replied {
        Ok((content_type, body)) => send(stream, &method, "200 OK", content_type, &body),
        Err(status) => {
            send(stream, &method, status, "text/plain; charset=utf-8", &format!("{status}\n"))
        }
    };
    place.keep(false);
    sent?;
    incoming.discard()
}

/// Receiver of a client's bytes, until a time.
struct Incoming<'a> {
    stream: &'a TcpStream,
    until: Time,
    /// Received, and no part of the request so far.
    bytes: Vec<u8>,
}

/// End of what a client sends.
enum Ending {
    Closed,
    Late,
}

impl Incoming<'_> {
    /// Receives more bytes.
    fn more(&mut self) -> io::Result<Option<Ending>> {
        let left = self.until.since(STD_CLOCK.now());
        if left == Span::ZERO {
            return Ok(Some(Ending::Late));
        }
        self.stream.set_read_timeout(Some(Duration::from_nanos(left.as_ns().max(1_000_000))))?;
        let mut some = [0; 4096];
        let got = match (&mut &*self.stream).read(&mut some) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Ok(Some(Ending::Late));
            }
            got => got?,
        };
        self.bytes.extend_from_slice(&some[..got]);
        Ok((got == 0).then_some(Ending::Closed))
    }

    /// Reads a request; `None` if the client sends nothing. The inner error is the status to reply with.
    fn request(
        &mut self,
        body_bytes_max: usize,
    ) -> io::Result<Option<Result<Request, &'static str>>> {
        let ended = |ending| match ending {
            Ending::Closed => BAD,
            Ending::Late => "408 Request Timeout",
        };
        let end = loop {
            match end_of_head(&self.bytes) {
                Ok(Some(end)) => break end,
                Ok(None) => {}
                Err(status) => return Ok(Some(Err(status))),
            }
            if let Some(ending) = self.more()? {
                return Ok((!self.bytes.is_empty()).then(|| Err(ended(ending))));
            }
        };
        let parsed = Request::parse(&self.bytes[..end]);
        let parsed = parsed.and_then(|head| Ok((head.body_bytes(body_bytes_max)?, head)));
        let (length, mut request) = match parsed {
            Ok(parsed) => parsed,
            Err(status) => return Ok(Some(Err(status))),
        };
        self.bytes.drain(..end + 4);
        while self.bytes.len() < length {
            if let Some(ending) = self.more()? {
                return Ok(Some(Err(ended(ending))));
            }
        }
        request.body = self.bytes.drain(..length).collect();
        Ok(Some(Ok(request)))
    }

    /// Discards what follows a request that was refused before its end, or beside it: closed with bytes
    /// unread, a connection is reset, and the client may lose the reply.
    fn discard(mut self) -> io::Result<()> {
        if self.bytes.is_empty() {
            return Ok(());
        }
        self.stream.shutdown(Shutdown::Write)?;
        let mut discarded = 0;
        while discarded < DISCARDED_BYTES_MAX && self.more()?.is_none() {
            discarded += self.bytes.len();
            self.bytes.clear();
        }
        Ok(())
    }
}

/// End of the head, before its empty line; `None` if it has not come.
///
/// # Errors
/// The status to reply with.
fn end_of_head(bytes: &[u8]) -> Result<Option<usize>, &'static str> {
    let end = bytes.windows(4).position(|end| end == b"\r\n\r\n");
    let head = &bytes[..end.unwrap_or(bytes.len())];
    if head.len() > HEAD_BYTES_MAX {
        return Err("431 Request Header Fields Too Large");
    }
    // Some readers end a line there, and others don't.
    let is_bare = |(at, byte): (usize, &u8)| *byte == b'\n' && !head[..at].ends_with(b"\r");
    match head.iter().enumerate().any(is_bare) {
        true => Err(BAD),
        false => Ok(end),
    }
}

/// Sends a reply, the last of its connection.
fn send(
    mut stream: &TcpStream,
    method: &str,
    status: &str,
    content_type: &str,
    body: &str,
) -> io::Result<()> {
    let scheme = match status {
        "401 Unauthorized" => "WWW-Authenticate: Bearer\r\n",
        _ => "",
    };
    // A page of another origin may neither read a reply nor frame the page.
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\n{scheme}\
         Connection: close\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n\
         X-Frame-Options: DENY\r\nReferrer-Policy: no-referrer\r\n\
         Cross-Origin-Resource-Policy: same-origin\r\n\
         Content-Security-Policy: default-src 'none'; style-src 'unsafe-inline'; \
         script-src 'unsafe-inline'; connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; \
         form-action 'none'\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    if method == "HEAD" {
        return Ok(());
    }
    stream.write_all(body.as_bytes())
}

/// Whether a Host header has an IP address or `localhost`, with or without a port.
fn is_address(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => {
            let (inside, port) = rest.split_once(']').unwrap_or(("", rest));
            return inside.parse::<Ipv6Addr>().is_ok() && (port.is_empty() || is_port(port));
        }
        None => match host.find(':') {
            Some(colon) => is_port(&host[colon..]).then_some(&host[..colon]),
            None => Some(host),
        },
    };
    let is_known =
        |name: &str| name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok();
    name.is_some_and(is_known)
}

fn is_port(text: &str) -> bool {
    let port = text.strip_prefix(':').filter(|port| is_number(port));
    port.is_some_and(|port| port.parse::<u16>().is_ok())
}

#[cfg(test)]
mod raw;

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
        for host in [
            "127.0.0.1",
            "127.0.0.1:80",
            "localhost:1",
            "LocalHost:1",
            "[::1]:80",
            "[::1]",
            "192.0.2.1:9",
        ] {
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
            "127.0.0.1:+80",
            "[::1]:+80",
            "127.0.0.1:80:80",
        ] {
            assert!(!is_address(host), "{host}");
        }
    }
}
