//! The control socket: JSON-RPC 2.0, one object a line.
//!
//! A client has limits on the length of a line, the time between two, and the time that it takes a reply. At
//! the limit of clients the oldest without a request in progress is disconnected. Nothing here is on the path
//! of a command.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use bus::listen::{ListenError, Listener};
use runtime::{STD_CLOCK, Span, WallClock};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::Control;
use super::answer::Failed;
use super::clients::{Listening, Place};
use super::verbs::perform;

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
        listening.serve(control, |stream, place| client(stream, place, control, report));
    }
}

fn client(
    stream: &UnixStream,
    place: &Place,
    control: &Control,
    report: &(dyn Fn(&str, Option<&str>) + Sync),
) -> io::Result<()> {
    stream.set_write_timeout(Some(REPLY))?;
    let (mut buffer, mut since) = (Vec::new(), STD_CLOCK.now());
    loop {
        while let Some(end) = buffer.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = buffer.drain(..=end).collect();
            place.keep(true);
            if let Some(reply) = answer(&line, control, report, &|_| true) {
                (&mut &*stream).write_all(format!("{reply}\n").as_bytes())?;
            }
            place.keep(false);
            since = STD_CLOCK.now();
        }
        if buffer.len() >= LINE_BYTES_MAX {
            let message = format!("expected a line of at most {LINE_BYTES_MAX} bytes");
            let reply = error_of("null", &Failed { code: -32600, message });
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

/// The reply to the request with this identifier, which comes back as it came: a number of any size too.
fn reply(id: &str, member: &str, value: &Value) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"{member}":{value}}}"#)
}

fn error_of(id: &str, Failed { code, message }: &Failed) -> String {
    reply(id, "error", &json!({ "code": code, "message": message }))
}

/// A request, as far as it is one.
struct Request {
    method: String,
    parameters: Option<Value>,
    /// Text of the identifier; a notification has none.
    id: Option<String>,
}

impl Request {
    fn parse(line: &[u8]) -> Result<Request, Failed> {
        let invalid = |message: String| Failed { code: -32600, message };
        let Ok(mut members) = serde_json::from_slice::<BTreeMap<String, Box<RawValue>>>(line)
        else {
            let expected = "expected a JSON object";
            return Err(match serde_json::from_slice::<Value>(line) {
                Ok(_) => invalid(expected.into()),
                Err(error) => Failed { code: -32700, message: format!("{expected}: {error}") },
            });
        };
        let known = ["jsonrpc", "method", "params", "id"];
        if let Some(unknown) = members.keys().find(|name| !known.contains(&name.as_str())) {
            let known = known.join(", ");
            let message = format!("found the unknown member {unknown:?}, expected one of {known}");
            return Err(invalid(message));
        }
        let mut value = |name: &str| -> Option<Value> {
            let raw = members.remove(name)?;
            Some(serde_json::from_str(raw.get()).unwrap_or(Value::Null))
        };
        let (version, method, parameters) = (value("jsonrpc"), value("method"), value("params"));
        let id = members.remove("id").map(|id| id.get().to_owned());
        let is_id = |id: &String| id == "null" || !id.starts_with(['{', '[', 't', 'f']);
        match (version.as_ref().and_then(Value::as_str), method) {
            (Some("2.0"), Some(Value::String(method))) if id.as_ref().is_none_or(is_id) => {
                Ok(Request { method, parameters, id })
            }
            _ => {
                let expected = "expected an object with jsonrpc \"2.0\", a method and an id";
                Err(invalid(expected.into()))
            }
        }
    }
}

/// The reply to a line; `None` for a notification. Methods that `may` rejects are unknown here.
pub(super) fn answer(
    line: &[u8],
    control: &Control,
    report: &(dyn Fn(&str, Option<&str>) + Sync),
    may: &dyn Fn(&str) -> bool,
) -> Option<String> {
    let Request { method, parameters, id } = match Request::parse(line) {
        Ok(request) => request,
        Err(failed) => return Some(error_of("null", &failed)),
    };
    let done = match may(&method) {
        true => perform(control, &method, parameters.as_ref()),
        false => {
            let message = format!("{method:?}: expected it at the control socket");
            Err(Failed { code: -32601, message })
        }
    };
    report(&method, done.as_ref().err().map(|failed| failed.message.as_str()));
    let id = id?;
    Some(match done {
        Ok(result) => reply(&id, "result", &result),
        Err(failed) => error_of(&id, &failed),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::VERBS;

    fn replied(line: &str) -> Option<Value> {
        let control = Control::new().expect("two descriptors");
        let reply = answer(line.as_bytes(), &control, &|_, _| (), &|_| true)?;
        Some(serde_json::from_str(&reply).expect("an object"))
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
            r#"{"jsonrpc": "2.0", "id": true, "method": "stats"}"#,
            r#"{"jsonrpc": "2.0", "id": 1, "method": "faults.clear", "parms": {"name": "a"}}"#,
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

    #[test]
    fn identifier_comes_back_as_it_came() {
        let control = Control::new().expect("two descriptors");
        for id in [
            "18446744073709551616",
            "-9223372036854775809",
            "1.0",
            "1e2",
            "-0",
            "\"\\u0061\"",
            "null",
        ] {
            for (method, member) in [("stats", "result"), ("none", "error")] {
                let line =
                    format!("{{\"jsonrpc\": \"2.0\", \"id\": {id}, \"method\": {method:?}}}");
                let reply = answer(line.as_bytes(), &control, &|_, _| (), &|_| true);
                let expected = format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"{member}\":");
                let reply = reply.expect("it has an identifier");
                assert!(reply.starts_with(&expected), "{id}: {reply}");
            }
        }
    }

    /// A parameter that is misspelt or of another type never counts as absent: that would clear all faults.
    #[test]
    fn misspelt_and_mistyped_parameters_are_refused_by_every_method() {
        for verb in VERBS {
            for parameters in [r#"{"nam": "a"}"#, r#"{"drive": 5}"#, r#"["a"]"#, "null"] {
                let method = verb.method;
                let line = format!(
                    r#"{{"jsonrpc": "2.0", "id": 1, "method": "{method}", "params": {parameters}}}"#
                );
                assert_eq!(code(&line), Some(-32602), "{method}: {parameters}");
            }
        }
    }
}
