//! The page and the metrics as a client of raw sockets sees them.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};

use crate::{Control, Metrics, Page};

const TOKEN: &str = "Secret";

/// Calls `body` with the addresses of a page and of metrics, each with a token.
fn served(body: impl FnOnce(SocketAddr, SocketAddr)) {
    let control = &Control::new().expect("two descriptors");
    let (any, token) = ("127.0.0.1:0".parse().expect("an address"), || Some(TOKEN.to_owned()));
    let page = &Page::bind(any, token()).expect("the loopback");
    let metrics = &Metrics::bind(any, token()).expect("the loopback");
    std::thread::scope(|scope| {
        scope.spawn(|| page.serve(control, &|_, _| ()));
        scope.spawn(|| metrics.serve(control));
        // Also after a failure, for which the threads would be waited for.
        struct Stops<'a>(&'a Control);
        impl Drop for Stops<'_> {
            fn drop(&mut self) {
                self.0.stop().request();
            }
        }
        let _stops = Stops(control);
        let address = |address: std::io::Result<SocketAddr>| address.expect("it is bound");
        body(address(page.address()), address(metrics.address()));
    });
}

/// The reply to these bytes, after which the client sends nothing.
fn reply(address: SocketAddr, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.write_all(request).expect("sent");
    let _ = stream.shutdown(Shutdown::Write);
    let mut reply = Vec::new();
    stream.read_to_end(&mut reply).expect("a reply, and no reset");
    String::from_utf8(reply).expect("text")
}

fn status(reply: &str) -> &str {
    reply.lines().next().and_then(|line| line.strip_prefix("HTTP/1.1 ")).unwrap_or("none")
}

const HOST: &str = "Host: 127.0.0.1:8\r\n";
const OK: &str = "200 OK";
const BAD: &str = "400 Bad Request";

/// Headers that the page asks for.
fn ours() -> String {
    format!("{HOST}X-Doorbell: 1\r\nAuthorization: bearer {TOKEN}\r\n")
}

const STOP: &str = r#"{"jsonrpc":"2.0","id":1,"method":"none"}"#;

fn post(headers: &str) -> String {
    format!("POST /rpc HTTP/1.1\r\n{}{headers}\r\n{STOP}", ours())
}

fn get(target: &str, headers: &str) -> String {
    format!("GET {target} HTTP/1.1\r\n{headers}\r\n")
}

/// Requests and the status of each: hosts, and ends of bodies.
fn hosts_and_bodies() -> Vec<(String, &'static str)> {
    let (host, ours, ok, bad) = (HOST, ours(), OK, BAD);
    let length = format!("Content-Length: {}\r\n", STOP.len());
    vec![
        (post(&length), ok),
        (get("/", host), ok),
        (get("/?x=1", host), ok),
        (get("http://127.0.0.1:8/", host), ok),
        (get("http://127.0.0.1:8", host), ok),
        (get("/", "hOST: LOCALHOST\r\n"), ok),
        (format!("\r\n{}", get("/", host)), ok),
        (format!("GET / HTTP/1.0\r\n{host}\r\n"), ok),
        // Of two, one reader takes the first and another the last.
        (get("/", &format!("{host}{host}")), bad),
        (get("/", &format!("{host}host: evil.example\r\n")), bad),
        (
            post(&format!("{length}Origin: http://127.0.0.1:8\r\nOrigin: http://evil.example\r\n")),
            bad,
        ),
        (post(&format!("{length}Authorization: Bearer {TOKEN}\r\n")), bad),
        (post(&format!("{length}{length}")), bad),
        (post(&format!("{length}Content-Length: 1\r\n")), bad),
        // The host of a target and that of a header.
        (get("http://127.0.0.1:9/", host), bad),
        (get("http://evil.example/", host), bad),
        (get("127.0.0.1:8", host), bad),
        (get("/", ""), bad),
        ("GET / HTTP/1.0\r\n\r\n".to_owned(), "421 Misdirected Request"),
        (get("/", "Host: evil.example\r\n"), "421 Misdirected Request"),
        // End of a body.
        (post("Transfer-Encoding: chunked\r\n"), "501 Not Implemented"),
        (post("Transfer-Encoding: identity\r\n"), "501 Not Implemented"),
        (post(&format!("{length}Transfer-Encoding: chunked\r\n")), bad),
        (post("Transfer-Encoding : chunked\r\n"), bad),
        (format!("POST /rpc HTTP/1.0\r\n{ours}Transfer-Encoding: chunked\r\n\r\n"), bad),
        (post("Content-Length: 65537\r\n"), "413 Content Too Large"),
        (post("Content-Length: 99999999999999999999999\r\n"), "413 Content Too Large"),
        (post("Content-Length: 100000\r\n"), "413 Content Too Large"),
        (post("Content-Length: -1\r\n"), bad),
        (post("Content-Length: +1\r\n"), bad),
        (post("Content-Length: 0x1\r\n"), bad),
        (post("Content-Length: 1, 1\r\n"), bad),
        (post("Content-Length:\r\n"), bad),
        (post("Content-Length: 500\r\n"), bad),
    ]
}

/// Requests and the status of each: ends of lines and headers.
fn lines_and_headers() -> Vec<(String, &'static str)> {
    let (host, bad, long) = (HOST, BAD, "a".repeat(9 << 10));
    vec![
        // End of a line or a header.
        (get("/", &format!("{host}X-A: b\n")), bad),
        (format!("GET / HTTP/1.1\n{host}\n"), bad),
        (get("/", &format!("{host}X-A: b\rX-B: c\r\n")), bad),
        (get("/", &format!("{host}X-A: b\0c\r\n")), bad),
        (get("/", &format!("{host}X-A: b\r\n continued\r\n")), bad),
        (get("/", &format!(" {host}")), bad),
        (get("/", &format!("{host}X-A : b\r\n")), bad),
        (get("/", &format!("{host}X-A\r\n")), bad),
        (get("/", &format!("{host}: b\r\n")), bad),
        (get("/ ", host), bad),
        (get("/\t", host), bad),
        (get("/#x", host), bad),
        (format!("GET  / HTTP/1.1\r\n{host}\r\n"), bad),
        (format!("GET /\r\n{host}\r\n"), bad),
        (format!("GET / HTTP/2.0\r\n{host}\r\n"), "505 HTTP Version Not Supported"),
        (format!("GET / http/1.1\r\n{host}\r\n"), bad),
        (format!("GET / HTTP/1.10\r\n{host}\r\n"), bad),
        (get("/", &format!("{host}X-A: {long}\r\n")), "431 Request Header Fields Too Large"),
        (get(&format!("/{long}"), host), "431 Request Header Fields Too Large"),
        (
            format!("GET / HTTP/1.1\r\n{host}X-A: {long}{long}{long}"),
            "431 Request Header Fields Too Large",
        ),
    ]
}

/// Each as a reader with leniency takes it for something else.
#[test]
fn request_that_readers_understand_differently_is_refused() {
    let cases = [hosts_and_bodies(), lines_and_headers()].concat();
    served(|page, _| {
        for (request, expected) in &cases {
            let reply = reply(page, request.as_bytes());
            assert_eq!(status(&reply), *expected, "{request:?}");
        }
        let not_text = reply(page, b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-A: \xff\r\n\r\n");
        assert_eq!(status(&not_text), BAD);
        let head = reply(page, format!("HEAD / HTTP/1.1\r\n{HOST}\r\n").as_bytes());
        assert!(head.ends_with("\r\n\r\n"), "a reply to HEAD has no body: {head}");
        let nothing = reply(page, b"");
        assert_eq!(nothing, "");
    });
}

/// A handler that refuses has not run: there is nothing of the metrics in the reply.
#[test]
fn refused_scrape_has_no_metrics() {
    let host = "Host: 127.0.0.1\r\n";
    let token = format!("AUTHORIZATION: BEARER {TOKEN}\r\n");
    served(|_, metrics| {
        for (headers, expected) in [
            (format!("{host}{token}"), "200 OK"),
            (format!("Host: evil.example\r\n{token}"), "421 Misdirected Request"),
            (token.clone(), "400 Bad Request"),
            (format!("{host}{host}{token}"), "400 Bad Request"),
            (format!("{host}{token}{token}"), "400 Bad Request"),
            (format!("{host}{token}Transfer-Encoding: chunked\r\n"), "501 Not Implemented"),
            (format!("{host}{token}Content-Length: 1\r\n"), "413 Content Too Large"),
            (host.to_owned(), "401 Unauthorized"),
            (format!("{host}Authorization: bearer secret\r\n"), "401 Unauthorized"),
        ] {
            let reply =
                reply(metrics, format!("GET /metrics HTTP/1.1\r\n{headers}\r\n").as_bytes());
            assert_eq!(status(&reply), expected, "{headers}");
            assert_eq!(reply.contains("# TYPE"), expected == "200 OK", "{headers}");
        }
    });
}

/// A scrape is answered while clients that have sent a part of a request are still connected, at most 16.
#[test]
fn metrics_answer_during_60_slow_clients() {
    const ROUNDS: u32 = 20;
    let request = format!(
        "GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
    );
    served(|_, metrics| {
        // On a busy machine the time limit of all of them may be over before the reply.
        let was_beside = (0..ROUNDS).any(|_| {
            let slow: Vec<_> = (0..60)
                .map(|_| {
                    let mut stream = TcpStream::connect(metrics).expect("it listens");
                    stream.write_all(b"GET /m").expect("sent");
                    stream.set_nonblocking(true).expect("a socket");
                    stream
                })
                .collect();
            let reply = reply(metrics, request.as_bytes());
            assert_eq!(status(&reply), "200 OK");
            let is_connected = |mut stream: &TcpStream| {
                let read = stream.read(&mut [0; 64]);
                read.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
            };
            slow.iter().any(is_connected)
        });
        assert!(
            was_beside,
            "in {ROUNDS} rounds every reply came after the end of all slow clients"
        );
    });
}
