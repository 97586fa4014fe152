//! A page over the same interface as the control socket: `GET /` and `POST /rpc`.
//!
//! Other pages in the same browser must not reach it: a request that changes something has a header that a
//! page of another origin cannot send.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;

use super::Control;
use super::clients::{Listening, Place};
use super::http::{self, HttpError, Reply, Request, without_prefix};
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
        listening.serve(control, |stream, place| self.client(stream, place, control, report));
    }

    fn client(
        &self,
        stream: &TcpStream,
        place: &Place,
        control: &Control,
        report: &(dyn Fn(&str, Option<&str>) + Sync),
    ) -> io::Result<()> {
        http::answer(stream, place, LINE_BYTES_MAX, |request| self.reply(request, control, report))
    }

    fn reply(
        &self,
        request: &Request,
        control: &Control,
        report: &(dyn Fn(&str, Option<&str>) + Sync),
    ) -> Result<Reply, &'static str> {
        if let Some(status) = self.refusal(request) {
            return Err(status);
        }
        if request.method == "GET" {
            return Ok(("text/html; charset=utf-8", PAGE.into()));
        }
        // It writes files: for the owner of the server alone.
        let may = |method: &str| method != "fork";
        let reply = answer(&request.body, control, report, &may);
        Ok(("application/json", reply.unwrap_or_default().into()))
    }

    /// Status of a request that is refused.
    fn refusal(&self, request: &Request) -> Option<&'static str> {
        match (&*request.method, &*request.path) {
            // The page itself has nothing of the drive.
            ("GET", "/") => return None,
            ("POST", "/rpc") => {}
            (_, "/" | "/rpc") => return Some("405 Method Not Allowed"),
            _ => return Some("404 Not Found"),
        }
        let host = request.header("host").unwrap_or_default();
        let is_ours = |origin: &str| {
            without_prefix(origin, "http://").is_some_and(|own| own.eq_ignore_ascii_case(host))
        };
        if request.header("x-doorbell").is_none() || !request.header("origin").is_none_or(is_ours) {
            return Some("403 Forbidden");
        }
        let token = self.token.as_ref()?;
        (!request.has_token(token)).then_some("401 Unauthorized")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_of_another_site_is_refused() {
        let address = "127.0.0.1:0".parse().expect("an address");
        let page = |token: Option<&str>| {
            Page::bind(address, token.map(str::to_owned)).expect("the loopback")
        };
        let (free, guarded) = (page(None), page(Some("secret")));
        let refusal = |page: &Page, head: &str| {
            page.refusal(&Request::parse(head.as_bytes()).expect("a request"))
        };
        let host = "Host: 127.0.0.1:8\r\n";
        let ours = format!("{host}X-Doorbell: 1\r\n");
        let post = "POST /rpc HTTP/1.1\r\n";
        assert_eq!(refusal(&free, &format!("GET / HTTP/1.1\r\n{host}")), None);
        assert_eq!(refusal(&guarded, &format!("GET / HTTP/1.1\r\n{host}")), None);
        assert_eq!(refusal(&free, &format!("{post}{ours}")), None);
        let origin = format!("{post}{ours}Origin: http://127.0.0.1:8\r\n");
        assert_eq!(refusal(&free, &origin), None);
        let origin =
            format!("{post}x-doorbell:1\r\nhost: LOCALHOST:8\r\nOrigin: HTTP://localhost:8\r\n");
        assert_eq!(refusal(&free, &origin), None);
        for (head, status) in [
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
