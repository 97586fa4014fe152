//! The control socket: JSON-RPC 2.0, one object a line.
//!
//! A client has limits on the length of a line, the time between two, and the time that it takes a reply. At
//! the limit of clients the oldest is disconnected. Nothing here is on the path of a command.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use bus::listen::{ListenError, Listener};
use runtime::{STD_CLOCK, Span, WallClock};
use serde_json::{Value, json};

use super::Control;
use super::clients::Listening;
use super::verbs::{Failed, perform};

/// Maximum length of a request.
pub const LINE_BYTES_MAX: usize = 64 << 10;
/// Time limit from one request to the end of the next.
const SILENCE: Span = Span::s(60);
/// Time limit of a reply.
const REPLY: Duration = Duration::from_secs(5);

/// A control socket that listens, for processes of its owner alone.
pub struct ControlSocket {
    listener: Listener,
}

impl ControlSocket {
    /// # Errors
    /// As [`Listener::bind`].
    pub fn bind(path: &Path) -> Result<ControlSocket, ListenError> {
        let listener = Listener::bind(path)?;
        listener.set_nonblocking().map_err(ListenError::Bind)?;
        Ok(ControlSocket { listener })
    }

    /// Serves clients until the stop is requested. `report` is called with the method of each request, and
    /// the error if it failed.
    pub fn serve(&self, control: &Control, report: &(dyn Fn(&str, Option<&str>) + Sync)) {
        let listening = Listening {
            thread: "control",
            socket: self.listener.as_fd(),
            accept: &|| self.listener.accept(),
            shutdown: UnixStream::shutdown,
        };
        listening.serve(control, |stream| client(stream, control, report));
    }
}

fn client(
    stream: &UnixStream,
    control: &Control,
    report: &(dyn Fn(&str, Option<&str>) + Sync),
) -> io::Result<()> {
    stream.set_write_timeout(Some(REPLY))?;
    let (mut buffer, mut since) = (Vec::new(), STD_CLOCK.now());
    loop {
        while let Some(end) = buffer.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = buffer.drain(..=end).collect();
            if let Some(reply) = answer(&line, control, report, &|_| true) {
                (&mut &*stream).write_all(format!("{reply}\n").as_bytes())?;
            }
            since = STD_CLOCK.now();
        }
        if buffer.len() >= LINE_BYTES_MAX {
            let message = format!("expected a line of at most {LINE_BYTES_MAX} bytes");
            let reply = error_of(&Value::Null, &Failed { code: -32600, message });
            return (&mut &*stream).write_all(format!("{reply}\n").as_bytes());
        }
        let left = (since + SILENCE).since(STD_CLOCK.now());
        if left == Span::ZERO {
            return Ok(());
        }
        stream.set_read_timeout(Some(Duration::from_nanos(left.as_ns().max(1_000_000))))?;
        let mut some = [0; 4096];
        match (&mut &*stream).read(&mut some)? {
            0 => return Ok(()),
            got => buffer.extend_from_slice(&some[..got]),
        }
    }
}

fn error_of(id: &Value, Failed { code, message }: &Failed) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "error": { "code": code, "message": message } })
}

/// The reply to a line; `None` for a notification. Methods that `may` rejects are unknown here.
pub(super) fn answer(
    line: &[u8],
    control: &Control,
    report: &(dyn Fn(&str, Option<&str>) + Sync),
    may: &dyn Fn(&str) -> bool,
) -> Option<Value> {
    let request: Value = match serde_json::from_slice(line) {
        Ok(request) => request,
        Err(error) => {
            let message = format!("expected a JSON object: {error}");
            return Some(error_of(&Value::Null, &Failed { code: -32700, message }));
        }
    };
    let id = request.get("id");
    let is_id = |id: &Value| id.is_string() || id.is_number() || id.is_null();
    let (Some("2.0"), Some(method), true) = (
        request.get("jsonrpc").and_then(Value::as_str),
        request.get("method").and_then(Value::as_str),
        id.is_none_or(is_id),
    ) else {
        let message = "expected an object with jsonrpc \"2.0\", a method and an id".to_owned();
        return Some(error_of(&Value::Null, &Failed { code: -32600, message }));
    };
    let done = match may(method) {
        true => perform(control, method, request.get("params").unwrap_or(&Value::Null)),
        false => {
            let message = format!("{method:?}: expected it at the control socket");
            Err(Failed { code: -32601, message })
        }
    };
    report(method, done.as_ref().err().map(|failed| failed.message.as_str()));
    let id = id?;
    Some(match done {
        Ok(result) => json!({ "jsonrpc": "2.0", "id": id, "result": result }),
        Err(failed) => error_of(id, &failed),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replied(line: &str) -> Option<Value> {
        let control = Control::new().expect("two descriptors");
        answer(line.as_bytes(), &control, &|_, _| (), &|_| true)
    }

    fn code(line: &str) -> Option<i64> {
        replied(line)?["error"]["code"].as_i64()
    }

    #[test]
    fn invalid_request_gets_the_code_of_the_specification() {
        for line in ["", "{", "nothing", "\u{0}", "[1"] {
            assert_eq!(code(line), Some(-32700), "{line:?}");
        }
        for line in [
            "1",
            "[]",
            "{}",
            r#"{"jsonrpc": "1.0", "id": 1, "method": "stats"}"#,
            r#"{"jsonrpc": "2.0", "id": 1, "method": 7}"#,
            r#"{"jsonrpc": "2.0", "id": {}, "method": "stats"}"#,
        ] {
            assert_eq!(code(line), Some(-32600), "{line:?}");
        }
        assert_eq!(code(r#"{"jsonrpc": "2.0", "id": 1, "method": "none"}"#), Some(-32601));
        assert_eq!(code(r#"{"jsonrpc": "2.0", "id": 1, "method": "pause"}"#), Some(-32602));
    }

    #[test]
    fn notification_gets_no_reply_and_request_its_id() {
        assert_eq!(replied(r#"{"jsonrpc": "2.0", "method": "stats"}"#), None);
        let reply =
            replied(r#"{"jsonrpc": "2.0", "id": "a", "method": "stats"}"#).expect("a reply");
        assert_eq!(reply, json!({ "jsonrpc": "2.0", "id": "a", "result": { "drives": [] } }));
    }
}
