//! `doorbell serve`: a front end with its control, metrics and log, until a signal stops it.

use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::{Builder, Scope};

use clap::Args;
use serve::{Control, ControlSocket, Hosts, Metrics, Page};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::iterator::Signals;
use world::interfaces::Row;

use super::Sets;
use super::front_end::Listen;
use super::log::{Log, LogLevel};

#[derive(Args)]
pub(super) struct Controls {
    /// Listen here for `doorbell ctl`: the path of a Unix socket, for this user alone
    #[arg(long, value_name = "SOCKET")]
    control: Option<PathBuf>,
    /// Serve metrics for Prometheus at this address, of the loopback without a token
    #[arg(long, value_name = "IP:PORT")]
    metrics: Option<SocketAddr>,
    /// Token that clients of --metrics must have: Authorization: Bearer TOKEN
    #[arg(long, value_name = "TOKEN", requires = "metrics")]
    metrics_token: Option<String>,
    /// Serve a page of `doorbell ctl` at this address, of the loopback without a token
    #[arg(long, value_name = "IP:PORT")]
    http: Option<SocketAddr>,
    /// Token that clients of --http must have: open http://IP:PORT/#token=TOKEN
    #[arg(long, value_name = "TOKEN", requires = "http")]
    http_token: Option<String>,
    /// Log to standard error, with times
    #[arg(long, value_name = "LEVEL")]
    log: Option<LogLevel>,
}

/// Serves until SIGTERM or SIGINT.
pub(super) fn serve(
    name: &str,
    sets: &Sets,
    listen: &Listen,
    controls: &Controls,
    hosts: Hosts<'_>,
    interface: &'static Row,
) -> Result<bool, String> {
    let plan = sets.open(name)?;
    let log = Log::start(controls.log);
    // A closed standard output must not end the server.
    let report = |address: &Path, what: &str| {
        let _ = writeln!(std::io::stdout(), "doorbell: {}: {what}", address.display());
        log.event(address, what);
    };
    let Controls { control, metrics, http, .. } = controls;
    let is_watched = control.is_some() || metrics.is_some() || http.is_some();
    let control = match is_watched {
        true => Control::watching(plan.clone()),
        false => Control::new(),
    };
    // Also without a log.
    let alarm = |address: &str, what: &str| {
        let _ = writeln!(std::io::stderr(), "doorbell: {address}: {what}");
    };
    let control = &control.map_err(|error| error.to_string())?.with_alarm(alarm);
    stop_by_signals(control).map_err(|error| format!("signals: {error}"))?;
    let socket = controls.control.as_deref().map(|path| {
        ControlSocket::bind(path).map_err(|error| format!("--control {}: {error}", path.display()))
    });
    let metrics = controls.metrics.map(|address| {
        let metrics = Metrics::bind(address, controls.metrics_token.clone());
        metrics.map_err(|error| format!("--metrics: {error}"))
    });
    let page = controls.http.map(|address| {
        let page = Page::bind(address, controls.http_token.clone());
        page.map_err(|error| format!("--http: {error}"))
    });
    let (socket, metrics, page) = (socket.transpose()?, metrics.transpose()?, page.transpose()?);
    let requests = |method: &str, error: Option<&str>| log.request(method, error);
    let served = std::thread::scope(|scope| {
        if let Some(socket) = &socket {
            thread(scope, "control", move || socket.serve(control, &requests))?;
        }
        if let Some(metrics) = &metrics {
            thread(scope, "metrics", move || metrics.serve(control))?;
        }
        if let Some(page) = &page {
            thread(scope, "http", move || page.serve(control, &requests))?;
        }
        let served =
            listen.front_end.serve(interface, &plan, &listen.addresses, hosts, control, &report);
        // Its threads end with the server.
        control.stop().request();
        served.map_err(|error| error.to_string())
    });
    served.map(|()| true)
}

fn thread<'scope>(
    scope: &'scope Scope<'scope, '_>,
    name: &str,
    body: impl FnOnce() + Send + 'scope,
) -> Result<(), String> {
    let thread = Builder::new().name(name.into()).spawn_scoped(scope, body);
    thread.map(drop).map_err(|error| format!("no thread for --{name}: {error}"))
}

/// The first SIGTERM or SIGINT requests the stop; the second ends the process at once, with the status that a
/// shell reports for it.
fn stop_by_signals(control: &Control) -> std::io::Result<()> {
    let is_second = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT] {
        // In this order: the first signal finds the flag unset, and sets it.
        flag::register_conditional_shutdown(signal, 128 + signal, is_second.clone())?;
        flag::register(signal, is_second.clone())?;
    }
    let (mut signals, stop) = (Signals::new([SIGTERM, SIGINT])?, control.stop().clone());
    Builder::new().name("signals".into()).spawn(move || {
        if signals.forever().next().is_some() {
            stop.request();
        }
    })?;
    Ok(())
}
