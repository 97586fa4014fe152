//! Metrics in the text format of Prometheus, over HTTP.
//!
//! Clients have limits on their number, and on the length and the time of a request.

use std::fmt::Write as _;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;

use device::meter::{Kind, Totals};
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

/// Samples of a metric: suffix and labels, and value.
type Samples = Vec<(String, String)>;

/// A drive and its counts, from which its samples are made.
struct Source {
    drive: Arc<Drive>,
    posted: Posted,
    /// The label with the drive's name.
    label: String,
}

impl Source {
    fn one(&self, value: u64) -> Samples {
        vec![(format!("{{{}}}", self.label), value.to_string())]
    }

    fn totals(&self, place: usize) -> Totals {
        self.posted.before[place].and(self.posted.now.kinds[place].totals)
    }

    /// Kinds of commands: place and labels.
    fn kinds(&self) -> impl Iterator<Item = (usize, String)> {
        let labels = |kind: &Kind| format!("{},kind=\"{}\"", self.label, kind.word());
        Kind::ALL.iter().map(labels).enumerate()
    }

    /// A sum for each kind of command.
    fn sums(&self, of: fn(&Totals) -> u64) -> Samples {
        self.kinds()
            .map(|(place, labels)| (format!("{{{labels}}}"), of(&self.totals(place)).to_string()))
            .collect()
    }

    fn latencies(&self) -> Samples {
        let mut all = Samples::new();
        for (place, labels) in self.kinds() {
            for (quantile, permille) in [("0.5", 500), ("0.99", 990), ("0.999", 999)] {
                let ns = self.posted.now.kinds[place].percentile_ns(permille);
                let value = ns.map_or("NaN".to_owned(), seconds);
                all.push((format!("{{{labels},quantile=\"{quantile}\"}}"), value));
            }
            all.push((format!("_sum{{{labels}}}"), seconds(self.totals(place).latency_ns)));
            all.push((format!("_count{{{labels}}}"), self.totals(place).commands.to_string()));
        }
        all
    }

    fn stages(&self) -> Samples {
        let mut all = Samples::new();
        for (place, labels) in self.kinds() {
            for (stage, us) in stage_means(&self.posted.now.kinds[place]) {
                let stage = quoted(stage);
                all.push((format!("{{{labels},stage={stage}}}"), seconds((us * 1e3) as u64)));
            }
        }
        all
    }

    fn in_device(&self) -> Samples {
        let window_ns = (device::meter::SECONDS * 1_000_000_000) as f64;
        let mean = |place: usize| self.posted.now.kinds[place].latency_ns as f64 / window_ns;
        self.kinds()
            .map(|(place, labels)| (format!("{{{labels}}}"), format!("{:.6}", mean(place))))
            .collect()
    }

    fn dies(&self, of: fn(&DieView) -> u32) -> Samples {
        let labels = |number: usize| format!("{{{},die=\"{number}\"}}", self.label);
        let dies = self.posted.dies.iter().enumerate();
        dies.map(|(number, die)| (labels(number), of(die).to_string())).collect()
    }

    fn faults(&self) -> Samples {
        let labels = |fault: &str| format!("{{{},fault={}}}", self.label, quoted(fault));
        let settings = self.drive.settings();
        let names = settings.plan.faults.iter().map(|fault| &fault.name);
        names.map(|name| (labels(name), self.posted.injected(name).to_string())).collect()
    }
}

/// Nanoseconds as seconds.
fn seconds(ns: u64) -> String {
    format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000)
}

/// Name, type and help of a metric, and its samples.
type Metric = (&'static str, &'static str, &'static str, fn(&Source) -> Samples);

const METRICS: &[Metric] = &[
    ("doorbell_commands_total", "counter", "Completed commands.", |of| {
        of.sums(|sums| sums.commands)
    }),
    ("doorbell_bytes_total", "counter", "Bytes of the blocks of completed commands.", |of| {
        of.sums(|sums| sums.bytes)
    }),
    ("doorbell_command_errors_total", "counter", "Commands that completed with an error.", |of| {
        of.sums(|sums| sums.errors)
    }),
    (
        "doorbell_command_latency_seconds",
        "summary",
        "Time of commands in the device; quantiles of 5 s.",
        Source::latencies,
    ),
    (
        "doorbell_command_stage_seconds",
        "gauge",
        "Mean time of a stage, of one command in 16 in 5 s; in all, that of the commands.",
        Source::stages,
    ),
    (
        "doorbell_commands_in_device",
        "gauge",
        "Mean number of commands in the device, of 5 s.",
        Source::in_device,
    ),
    ("doorbell_die_cycles", "gauge", "Mean program/erase cycles of a die's blocks.", |of| {
        of.dies(|die| die.cycles_mean)
    }),
    ("doorbell_die_bad_blocks", "gauge", "Bad blocks of a die.", |of| {
        of.dies(|die| die.bad_blocks)
    }),
    ("doorbell_faults_injected_total", "counter", "Injections of a fault.", Source::faults),
    ("doorbell_flushes_ignored_total", "counter", "Flushes that made nothing durable.", |of| {
        of.one(of.posted.flushes_ignored())
    }),
    ("doorbell_clients", "gauge", "Connected clients.", |of| {
        of.one(of.drive.connected().len() as u64)
    }),
    ("doorbell_clients_accepted_total", "counter", "Clients since the start.", |of| {
        of.one(of.drive.accepted())
    }),
    ("doorbell_paused", "gauge", "1 if the drive is paused.", |of| {
        of.one(of.drive.settings().paused.into())
    }),
    ("doorbell_powered", "gauge", "1 if the drive has power.", |of| {
        of.one(of.drive.settings().powered.into())
    }),
];

/// The metrics of all drives.
fn text(control: &Control) -> String {
    let drives = control.drives().clone();
    let sources: Vec<_> = drives
        .into_iter()
        .map(|drive| {
            // A drive that does not answer has the counts of its last answer.
            let request = drive.request();
            let _ = drive.ask();
            let label = format!("drive={}", quoted(&drive.name));
            let posted = drive.posted();
            drop(request);
            Source { drive, posted, label }
        })
        .collect();
    let mut text = String::new();
    for (metric, kind, help, samples) in METRICS {
        let _ = writeln!(text, "# HELP {metric} {help}\n# TYPE {metric} {kind}");
        for (labels, value) in sources.iter().flat_map(samples) {
            let _ = writeln!(text, "{metric}{labels} {value}");
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
