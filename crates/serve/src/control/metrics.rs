//! Metrics in the text format of Prometheus, over HTTP.
//!
//! Clients have limits on their number, and on the length and the time of a request.

use std::fmt::Write as _;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;

use device::meter::Kind;
use world::device::DieView;

use super::Control;
use super::clients::{Listening, Place};
use super::drive::Drive;
use super::http::{self, HttpError, Request};
use super::posted::Posted;
use super::verbs::stage_means;

/// A socket that serves metrics.
pub struct Metrics {
    listener: TcpListener,
    token: Option<String>,
}

impl Metrics {
    /// Listens at an address: of the loopback, unless clients must have a token.
    ///
    /// # Errors
    /// The address is not of the loopback and there is no token, or it cannot be bound.
    pub fn bind(address: SocketAddr, token: Option<String>) -> Result<Metrics, HttpError> {
        let listener = http::bind(address, token.is_some())?;
        Ok(Metrics { listener, token })
    }

    /// The address that is listened at.
    ///
    /// # Errors
    /// The error of the system call.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves clients until the stop is requested.
    pub fn serve(&self, control: &Control) {
        let listening = Listening {
            thread: "scrape",
            socket: self.listener.as_fd(),
            accept: &|| self.listener.accept().map(|(stream, _)| stream),
            shutdown: TcpStream::shutdown,
        };
        listening.serve(control, |stream, place| self.client(stream, place, control));
    }

    fn client(&self, stream: &TcpStream, place: &Place, control: &Control) -> io::Result<()> {
        http::answer(stream, place, 0, |request| match self.refusal(request) {
            Some(status) => Err(status),
            None => Ok(("text/plain; version=0.0.4; charset=utf-8", text(control).into())),
        })
    }

    /// Status of a request that gets no metrics.
    fn refusal(&self, request: &Request) -> Option<&'static str> {
        if request.method != "GET" {
            return Some("405 Method Not Allowed");
        }
        if request.path != "/metrics" {
            return Some("404 Not Found");
        }
        let token = self.token.as_ref()?;
        (!request.has_token(token)).then_some("401 Unauthorized")
    }
}

/// A label's value: backslash, quote and line feed are escaped.
fn quoted(text: &str) -> String {
    let text = text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    format!("\"{text}\"")
}

type Samples = Vec<(String, String)>;

/// The samples of one metric over all drives: suffix and labels, and value.
fn samples(metric: &str, drive: &Drive, posted: &Posted) -> Samples {
    let name = quoted(&drive.name);
    let one = |value: u64| vec![(format!("{{drive={name}}}"), value.to_string())];
    let of_kinds = |value: &dyn Fn(usize) -> u64| -> Samples {
        let kinds = Kind::ALL.iter().enumerate();
        let labels = |kind: &Kind| format!("{{drive={name},kind=\"{}\"}}", kind.word());
        kinds.map(|(place, kind)| (labels(kind), value(place).to_string())).collect()
    };
    let totals = |place: usize| posted.before[place].and(posted.now.kinds[place].totals);
    match metric {
        "doorbell_commands_total" => of_kinds(&|place| totals(place).commands),
        "doorbell_bytes_total" => of_kinds(&|place| totals(place).bytes),
        "doorbell_command_errors_total" => of_kinds(&|place| totals(place).errors),
        "doorbell_command_latency_seconds" => {
            let mut all = Samples::new();
            for (place, kind) in Kind::ALL.iter().enumerate() {
                let labels = format!("drive={name},kind=\"{}\"", kind.word());
                for (quantile, permille) in [("0.5", 500), ("0.99", 990), ("0.999", 999)] {
                    let ns = posted.now.kinds[place].percentile_ns(permille);
                    let value = ns.map_or("NaN".to_owned(), seconds);
                    all.push((format!("{{{labels},quantile=\"{quantile}\"}}"), value));
                }
                all.push((format!("_sum{{{labels}}}"), seconds(totals(place).latency_ns)));
                all.push((format!("_count{{{labels}}}"), totals(place).commands.to_string()));
            }
            all
        }
        "doorbell_command_stage_seconds" => {
            let mut all = Samples::new();
            for (place, kind) in Kind::ALL.iter().enumerate() {
                for (stage, us) in stage_means(&posted.now.kinds[place]) {
                    let labels = format!("{{drive={name},kind=\"{}\",stage=", kind.word());
                    all.push((format!("{labels}{}}}", quoted(stage)), seconds((us * 1e3) as u64)));
                }
            }
            all
        }
        "doorbell_commands_in_device" => {
            let window_ns = device::meter::SECONDS * 1_000_000_000;
            let kinds = Kind::ALL.iter().zip(&posted.now.kinds);
            let labels = |kind: &Kind| format!("{{drive={name},kind=\"{}\"}}", kind.word());
            let mean = |ns: u64| format!("{:.6}", ns as f64 / window_ns as f64);
            kinds.map(|(kind, counts)| (labels(kind), mean(counts.latency_ns))).collect()
        }
        "doorbell_die_cycles" | "doorbell_die_bad_blocks" => {
            let dies = posted.dies.iter().enumerate();
            let value = |die: &DieView| match metric {
                "doorbell_die_cycles" => die.cycles_mean,
                _ => die.bad_blocks,
            };
            let labels = |number: usize| format!("{{drive={name},die=\"{number}\"}}");
            dies.map(|(number, die)| (labels(number), value(die).to_string())).collect()
        }
        "doorbell_faults_injected_total" => {
            let settings = drive.settings();
            let faults = settings.plan.faults.iter();
            let labels = |fault: &str| format!("{{drive={name},fault={}}}", quoted(fault));
            faults
                .map(|fault| (labels(&fault.name), posted.injected(&fault.name).to_string()))
                .collect()
        }
        "doorbell_flushes_ignored_total" => one(posted.flushes_ignored()),
        "doorbell_clients" => one(drive.connected().len() as u64),
        "doorbell_clients_accepted_total" => one(drive.accepted()),
        "doorbell_paused" => one(drive.settings().paused.into()),
        _ => one(drive.settings().powered.into()),
    }
}

/// Nanoseconds as seconds.
fn seconds(ns: u64) -> String {
    format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000)
}

/// Name, type and help of each metric.
const METRICS: &[(&str, &str, &str)] = &[
    ("doorbell_commands_total", "counter", "Completed commands."),
    ("doorbell_bytes_total", "counter", "Bytes of the blocks of completed commands."),
    ("doorbell_command_errors_total", "counter", "Commands that completed with an error."),
    (
        "doorbell_command_latency_seconds",
        "summary",
        "Time of commands in the device; quantiles of 5 s.",
    ),
    (
        "doorbell_command_stage_seconds",
        "gauge",
        "Mean time of a stage, of one command in 16 in 5 s; in all, that of the commands.",
    ),
    ("doorbell_commands_in_device", "gauge", "Mean number of commands in the device, of 5 s."),
    ("doorbell_die_cycles", "gauge", "Mean program/erase cycles of a die's blocks."),
    ("doorbell_die_bad_blocks", "gauge", "Bad blocks of a die."),
    ("doorbell_faults_injected_total", "counter", "Injections of a fault."),
    ("doorbell_flushes_ignored_total", "counter", "Flushes that made nothing durable."),
    ("doorbell_clients", "gauge", "Connected clients."),
    ("doorbell_clients_accepted_total", "counter", "Clients since the start."),
    ("doorbell_paused", "gauge", "1 if the drive is paused."),
    ("doorbell_powered", "gauge", "1 if the drive has power."),
];

/// The metrics of all drives.
fn text(control: &Control) -> String {
    let drives = control.drives().clone();
    let posted: Vec<_> = drives
        .iter()
        .map(|drive| {
            // A drive that does not answer has the counts of its last answer.
            let _request = drive.request();
            let _ = drive.ask();
            (drive, drive.posted())
        })
        .collect();
    let mut text = String::new();
    for (metric, kind, help) in METRICS {
        let _ = writeln!(text, "# HELP {metric} {help}\n# TYPE {metric} {kind}");
        for (drive, posted) in &posted {
            for (labels, value) in samples(metric, drive, posted) {
                let _ = writeln!(text, "{metric}{labels} {value}");
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_needs_path_and_token() {
        let address = "127.0.0.1:0".parse().expect("an address");
        let metrics = |token: Option<&str>| {
            Metrics::bind(address, token.map(str::to_owned)).expect("the loopback")
        };
        let (free, guarded) = (metrics(None), metrics(Some("secret")));
        let refusal = |metrics: &Metrics, head: &str| {
            metrics.refusal(&Request::parse(head.as_bytes()).expect("a request"))
        };
        let get = "GET /metrics HTTP/1.1\r\n";
        assert_eq!(refusal(&free, get), None);
        let post = refusal(&free, "POST /metrics HTTP/1.1\r\n");
        assert_eq!(post, Some("405 Method Not Allowed"));
        assert_eq!(refusal(&free, "GET / HTTP/1.1\r\n"), Some("404 Not Found"));
        assert_eq!(refusal(&guarded, get), Some("401 Unauthorized"));
        for (line, status) in [
            ("Authorization: Bearer secret", None),
            ("authorization:Bearer secret", None),
            ("Authorization: Bearer secre", Some("401 Unauthorized")),
            ("Authorization: secret", Some("401 Unauthorized")),
            ("Other: Bearer secret", Some("401 Unauthorized")),
        ] {
            assert_eq!(refusal(&guarded, &format!("{get}{line}\r\n")), status, "{line}");
        }
    }

    #[test]
    fn label_values_are_escaped() {
        assert_eq!(quoted("a\"b\\c\nd"), r#""a\"b\\c\nd""#);
        assert_eq!(seconds(1_000_000_001), "1.000000001");
    }
}
