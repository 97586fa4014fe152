//! `doorbell serve`: a front end with its control, until a signal stops it.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::Builder;

use plan::Plan;
use serve::{Control, Hosts};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::iterator::Signals;
use world::interfaces::Row;

use super::front_end::Listen;

/// Serves until SIGTERM or SIGINT.
pub(super) fn serve(
    plan: &Plan,
    listen: &Listen,
    hosts: Hosts<'_>,
    interface: &'static Row,
) -> Result<bool, String> {
    // A closed standard output must not end the server.
    let report = |address: &Path, what: &str| {
        let _ = writeln!(std::io::stdout(), "doorbell: {}: {what}", address.display());
    };
    let control = Control::new().map_err(|error| error.to_string())?;
    stop_by_signals(&control).map_err(|error| format!("signals: {error}"))?;
    let served =
        listen.front_end.serve(interface, plan, &listen.addresses, hosts, &control, &report);
    served.map_err(|error| error.to_string())?;
    Ok(true)
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
