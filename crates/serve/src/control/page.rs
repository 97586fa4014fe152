//! A page over the same interface as the control socket: `GET /` and `POST /rpc`.
//!
//! Other pages in the same browser must not reach it. A request that changes something has a header that a
//! page of another origin cannot send, and `Host` is an address or `localhost`: a name could be one of
//! another site that was made to point here.

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;

use super::Control;
use super::clients::Listening;
use super::http::{self, HttpError, Request};
use super::socket::{LINE_BYTES_MAX, answer};

const PAGE: &str = include_str!("page.html");

/// A socket that serves the page.
pub struct Page {
    listener: TcpListener,
    token: Option<String>,
}

impl Page {
    /// Listens at an address: of the loopback, unless clients must have a token.
    ///
    /// # Errors
    /// The address is not of the loopback and there is no token, or it cannot be bound.
    pub fn bind(address: SocketAddr, token: Option<String>) -> Result<Page, HttpError> {
        Ok(Page { listener: http::bind(address, token.is_some())?, token })
    }

    /// The address that is listened at.
    ///
    /// # Errors
    /// The error of the system call.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves clients until the stop is requested. `report` is called as by
    /// [`ControlSocket::serve`](super::ControlSocket::serve).
    pub fn serve(&self, control: &Control, report: &(dyn Fn(&str, Option<&str>) + Sync)) {
        let listening = Listening {
            thread: "page",
            socket: self.listener.as_fd(),
            accept: &|| self.listener.accept().map(|(stream, _)| stream),
            shutdown: TcpStream::shutdown,
        };
        listening.serve(control, |stream| self.client(stream, control, report));
    }

    fn client(
        &self,
        stream: &TcpStream,
        control: &Control,
        report: &(dyn Fn(&str, Option<&str>) + Sync),
    ) -> io::Result<()> {
        let Some(request) = http::read(stream, LINE_BYTES_MAX)? else { return Ok(()) };
        if let Some(status) = self.refusal(&request) {
            return http::reply(
                stream,
                status,
                "text/plain; charset=utf-8",
                &format!("{status}\n"),
            );
        }
        if request.method == "GET" {
            return http::reply(stream, "200 OK", "text/html; charset=utf-8", PAGE);
        }
        // It writes files: for the owner of the server alone.
        let may = |method: &str| method != "fork";
        let reply = answer(&request.body, control, report, &may);
        let reply = reply.map_or_else(String::new, |reply| reply.to_string());
        http::reply(stream, "200 OK", "application/json", &reply)
    }

    /// Status of a request that is refused.
    fn refusal(&self, request: &Request) -> Option<&'static str> {
        let host = request.header("host").unwrap_or_default();
        if !is_address(host) {
            return Some("421 Misdirected Request");
        }
        match (&*request.method, &*request.path) {
            // The page itself has nothing of the drive.
            ("GET", "/") => return None,
            ("POST", "/rpc") => {}
            (_, "/" | "/rpc") => return Some("405 Method Not Allowed"),
            _ => return Some("404 Not Found"),
        }
        let is_ours = |origin: &str| origin.strip_prefix("http://") == Some(host);
        if request.header("x-doorbell").is_none() || !request.header("origin").is_none_or(is_ours) {
            return Some("403 Forbidden");
        }
        let token = self.token.as_ref()?;
        (!request.has_token(token)).then_some("401 Unauthorized")
    }
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
    fn request_of_another_site_is_refused() {
        let address = "127.0.0.1:0".parse().expect("an address");
        let page = |token: Option<&str>| {
            Page::bind(address, token.map(str::to_owned)).expect("the loopback")
        };
        let (free, guarded) = (page(None), page(Some("secret")));
        let refusal = |page: &Page, head: &str| page.refusal(&Request::of(head));
        let host = "Host: 127.0.0.1:8\r\n";
        let ours = format!("{host}X-Doorbell: 1\r\n");
        let post = "POST /rpc HTTP/1.1\r\n";
        assert_eq!(refusal(&free, &format!("GET / HTTP/1.1\r\n{host}")), None);
        assert_eq!(refusal(&guarded, &format!("GET / HTTP/1.1\r\n{host}")), None);
        assert_eq!(refusal(&free, &format!("{post}{ours}")), None);
        let origin = format!("{post}{ours}Origin: http://127.0.0.1:8\r\n");
        assert_eq!(refusal(&free, &origin), None);
        for (head, status) in [
            ("GET / HTTP/1.1\r\n".to_owned(), "421 Misdirected Request"),
            (format!("{post}Host: evil.example\r\nX-Doorbell: 1\r\n"), "421 Misdirected Request"),
            (format!("{post}{host}"), "403 Forbidden"),
            (format!("{post}{ours}Origin: http://evil.example\r\n"), "403 Forbidden"),
            (format!("{post}{ours}Origin: http://127.0.0.1:9\r\n"), "403 Forbidden"),
            (format!("{post}{ours}Origin: null\r\n"), "403 Forbidden"),
            (format!("GET /rpc HTTP/1.1\r\n{ours}"), "405 Method Not Allowed"),
            (format!("POST / HTTP/1.1\r\n{ours}"), "405 Method Not Allowed"),
            (format!("GET /x HTTP/1.1\r\n{ours}"), "404 Not Found"),
        ] {
            assert_eq!(refusal(&free, &head), Some(status), "{head}");
        }
        assert_eq!(refusal(&guarded, &format!("{post}{ours}")), Some("401 Unauthorized"));
        let known = format!("{post}{ours}Authorization: Bearer secret\r\n");
        assert_eq!(refusal(&guarded, &known), None);
    }
}
