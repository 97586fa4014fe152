//! `doorbell ctl`: a client of a server's control socket.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, IsTerminal, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};
use serve::control::{VERBS, Verb};

/// Time limit of an answer: longer than the server's for its drive.
const ANSWER: Duration = Duration::from_secs(15);
/// That of a copy, which may be of terabytes.
const COPY: Duration = Duration::from_secs(24 * 3600);

#[derive(Args)]
pub(super) struct Ctl {
    /// Path of the server's --control socket
    socket: PathBuf,
    /// Verb and its arguments
    #[arg(required = true, num_args = 1.., value_name = "VERB")]
    words: Vec<String>,
    /// Address of the drive, if the server has several
    #[arg(long, value_name = "ADDRESS")]
    drive: Option<String>,
    /// Print the answer as JSON
    #[arg(long)]
    json: bool,
    /// Of `top`: end after this number of views
    #[arg(long, value_name = "N")]
    views: Option<u64>,
}

/// The verbs, for the end of the help.
pub(super) fn help() -> String {
    let row = |name: String, help: &str| format!("\n  {name:32} {help}");
    let verb = |verb: &Verb| row(verb.usage(), verb.help);
    let verbs: String = VERBS.iter().map(verb).collect();
    let top = row("top".into(), "Stats every second");
    format!("Verbs:{verbs}{top}\n\n{}", super::examples::CTL)
}

/// The verb that words begin with, and its arguments.
fn parse(words: &[String]) -> Result<(&'static Verb, Value), String> {
    let two = words.get(1).and_then(|second| Verb::of(&format!("{}.{second}", words[0])));
    let (verb, arguments) = match (two, Verb::of(&words[0])) {
        (Some(verb), _) => (verb, &words[2..]),
        (None, Some(verb)) => (verb, &words[1..]),
        (None, None) => {
            let names: Vec<_> = VERBS.iter().map(|verb| verb.method.replace('.', " ")).collect();
            let found = words.join(" ");
            return Err(format!("{found}: expected a verb: {}, top", names.join(", ")));
        }
    };
    let required = verb.parameters.iter().filter(|parameter| parameter.required).count();
    if !(required..=verb.parameters.len()).contains(&arguments.len()) {
        let (method, found) = (verb.method.replace('.', " "), arguments.len());
        return Err(format!("{method}: found {found} arguments, expected: {}", verb.usage()));
    }
    let named = verb.parameters.iter().zip(arguments);
    let named = named.map(|(parameter, value)| (parameter.name.to_owned(), json!(value)));
    Ok((verb, Value::Object(named.collect())))
}

/// A connection to the server.
struct Connection {
    stream: BufReader<UnixStream>,
    socket: PathBuf,
}

impl Connection {
    fn open(socket: &PathBuf, patience: Duration) -> Result<Connection, String> {
        let failed =
            |error| format!("{}: {error}, expected a server's --control", socket.display());
        let stream = UnixStream::connect(socket).map_err(failed)?;
        stream.set_read_timeout(Some(patience)).map_err(failed)?;
        Ok(Connection { stream: BufReader::new(stream), socket: socket.clone() })
    }

    fn call(&mut self, method: &str, parameters: &Value) -> Result<Value, String> {
        let failed = |error: String| format!("{}: {error}", self.socket.display());
        let request = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": parameters });
        let sent = self.stream.get_mut().write_all(format!("{request}\n").as_bytes());
        sent.map_err(|error| failed(error.to_string()))?;
        let mut line = String::new();
        let got = self.stream.read_line(&mut line).map_err(|error| failed(error.to_string()))?;
        if got == 0 {
            return Err(failed("the server has closed the connection".into()));
        }
        let mut reply: Value =
            serde_json::from_str(&line).map_err(|error| failed(error.to_string()))?;
        match reply.pointer("/error/message").and_then(Value::as_str) {
            Some(message) => Err(message.to_owned()),
            None => Ok(reply["result"].take()),
        }
    }
}

pub(super) fn ctl(typed: &Ctl) -> Result<bool, String> {
    let is_top = typed.words[0] == "top" && typed.words.len() == 1;
    if typed.views.is_some() && !is_top {
        let found = typed.words.join(" ");
        return Err(format!("--views: found {found}, expected top: all other verbs answer once"));
    }
    let words = if is_top { vec!["stats".to_owned()] } else { typed.words.clone() };
    let (verb, mut parameters) = parse(&words)?;
    if let (Some(drive), Some(parameters)) = (&typed.drive, parameters.as_object_mut()) {
        parameters.insert("drive".into(), json!(drive));
    }
    if verb.method == "fork" {
        let file = parameters["file"].as_str().unwrap_or_default();
        let path = std::path::absolute(file).map_err(|error| format!("{file}: {error}"))?;
        parameters["file"] = json!(path);
    }
    let patience = if verb.method == "fork" { COPY } else { ANSWER };
    let mut connection = Connection::open(&typed.socket, patience)?;
    let views = if is_top { typed.views.unwrap_or(u64::MAX) } else { 1 };
    for view in 0..views {
        if view > 0 {
            std::thread::park_timeout(Duration::from_secs(1));
        }
        let answer = connection.call(verb.method, &parameters)?;
        if typed.json {
            println!("{answer}");
            continue;
        }
        if is_top && std::io::stdout().is_terminal() {
            // Clears the screen.
            print!("\x1b[H\x1b[2J");
        }
        print!("{}", text(verb.method, &answer));
    }
    Ok(true)
}

fn text(method: &str, answer: &Value) -> String {
    let mut out = String::new();
    let none = Vec::new();
    let drives = answer["drives"].as_array().unwrap_or(&none);
    for drive in drives {
        let _ = writeln!(out, "{}", drive["drive"].as_str().unwrap_or_default());
        match method {
            "stats" => stats(&mut out, drive),
            "clients" => list(&mut out, &drive["clients"]),
            _ => list(&mut out, &drive["faults"]),
        }
    }
    if drives.is_empty() {
        let drive = answer["drive"].as_str().map_or(String::new(), |drive| format!("{drive}: "));
        let _ = writeln!(out, "{drive}{}", plain(&answer["done"]));
    }
    out
}

/// Objects as one line each.
fn list(out: &mut String, all: &Value) {
    for one in all.as_array().into_iter().flatten() {
        let fields = one.as_object().into_iter().flatten();
        let words: Vec<_> = fields.map(|(key, value)| format!("{key} {}", plain(value))).collect();
        let _ = writeln!(out, "  {}", words.join(", "));
    }
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn stats(out: &mut String, drive: &Value) {
    let flag = |name: &str, yes: &'static str, no: &'static str| {
        if drive[name].as_bool() == Some(true) { yes } else { no }
    };
    let _ = writeln!(
        out,
        "  power {}, {}, {} clients, {} flushes ignored",
        flag("powered", "on", "off"),
        flag("paused", "paused", "running"),
        drive["clients"],
        drive["flushes_ignored"],
    );
    let head =
        ["", "commands", "errors", "per s", "MB/s", "mean us", "p50 us", "p99 us", "p99.9 us"];
    let mut row = |cells: &[String]| {
        let cells: String = cells.iter().map(|cell| format!("{cell:>11}")).collect();
        let _ = writeln!(out, "{cells}");
    };
    row(&head.map(str::to_owned));
    for (kind, counts) in drive["commands"].as_object().into_iter().flatten() {
        let number =
            |name: &str| counts[name].as_f64().map_or("-".to_owned(), |n| format!("{n:.1}"));
        let mb_per_s = counts["bytes_per_s"].as_f64().unwrap_or(0.0) / 1e6;
        row(&[
            kind.clone(),
            counts["commands"].to_string(),
            counts["errors"].to_string(),
            number("per_s"),
            format!("{mb_per_s:.1}"),
            number("mean_us"),
            number("p50_us"),
            number("p99_us"),
            number("p999_us"),
        ]);
    }
    for (kind, counts) in drive["commands"].as_object().into_iter().flatten() {
        let stage = |stage: &Value| {
            format!("{} {:.2}", plain(&stage["stage"]), stage["us"].as_f64().unwrap_or(0.0))
        };
        let stages: Vec<_> =
            counts["stages_us"].as_array().into_iter().flatten().map(stage).collect();
        if !stages.is_empty() {
            let _ = writeln!(out, "  {kind} us: {}", stages.join(", "));
        }
    }
    let dies = drive["dies"].as_array().map_or(0, Vec::len);
    if dies > 0 {
        let all = || drive["dies"].as_array().into_iter().flatten();
        let most = all().filter_map(|die| die["cycles_most"].as_u64()).max().unwrap_or(0);
        let busy = all().filter(|die| die["doing"] != "idle").count();
        let bad: u64 = all().filter_map(|die| die["bad_blocks"].as_u64()).sum();
        let _ =
            writeln!(out, "  dies: {busy} of {dies} busy, up to {most} cycles, {bad} bad blocks");
    }
    for line in drive["flash"].as_array().into_iter().flatten() {
        let _ = writeln!(out, "  {}", plain(line));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn words_are_verb_and_named_arguments() {
        let (verb, parameters) = parse(&words("timing set first_byte 5us")).expect("a verb");
        assert_eq!(verb.method, "timing.set");
        assert_eq!(parameters, json!({ "key": "first_byte", "value": "5us" }));
        assert_eq!(parse(&words("faults clear")).expect("a verb").1, json!({}));
        assert_eq!(parse(&words("faults clear a")).expect("a verb").1, json!({ "name": "a" }));
        for (wrong, message) in [
            ("stats now", "stats: found 1 arguments, expected: stats"),
            ("timing set a", "timing set: found 1 arguments, expected: timing set KEY VALUE"),
        ] {
            assert_eq!(parse(&words(wrong)).expect_err(wrong), message);
        }
        let unknown = parse(&words("faults now")).expect_err("no verb");
        assert!(unknown.starts_with("faults now: expected a verb: stats, clients,"), "{unknown}");
    }
}
