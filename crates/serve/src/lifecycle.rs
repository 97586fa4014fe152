//! The life cycle of a front end: listen, accept, serve, and accept again.
//!
//! A client's error is reported, and the next client is accepted. Only a failure of the device or a stop ends
//! the server. Front ends serve [one client at a time](one_at_a_time), or
//! [many](crate::net::clients::many_at_a_time).

use std::fmt::Display;

use world::RunError;

use crate::control::Drive;
use crate::events::End;
use crate::{Control, Events};

/// Serves one client after another. `accept` waits for the next client; `session` serves it until it leaves.
///
/// Returns when the stop is requested.
///
/// # Errors
/// That of the first session that fails: the device has failed.
pub(crate) fn one_at_a_time<C, E: Display>(
    events: &Events<'_>,
    control: &Control,
    drive: &Drive,
    mut accept: impl FnMut() -> Result<C, E>,
    mut session: impl FnMut(C) -> Result<End, RunError>,
) -> Result<(), RunError> {
    while drive.wait_for_power() {
        events.waiting();
        let client = match accept() {
            Ok(client) => client,
            Err(_) if control.stop().is_requested() => break,
            Err(why) => {
                events.note(why);
                continue;
            }
        };
        if !drive.is_powered() {
            events.ended(&End::Dropped("the power is off".into()));
            continue;
        }
        events.connected();
        let _entered = drive.enter(None);
        let end = session(client)?;
        events.ended(&match control.stop().is_requested() {
            true => End::Dropped("the server stops".into()),
            false => end,
        });
    }
    Ok(())
}

/// Serves one address in its own thread. The error that ends it, or the failure to start the thread, is
/// reported at that address.
pub(crate) fn one_thread_each<'scope, 'a: 'scope>(
    scope: &'scope std::thread::Scope<'scope, 'a>,
    events: Events<'scope>,
    serve: impl FnOnce(&Events<'_>) -> Result<(), RunError> + Send + 'scope,
) {
    let thread = std::thread::Builder::new().spawn_scoped(scope, move || {
        if let Err(error) = serve(&events) {
            events.note(error);
        }
    });
    if let Err(error) = thread {
        events.note(format_args!("no client is served: no thread for this address: {error}"));
    }
}

/// Result of a server when no address is served any more.
///
/// # Errors
/// Without a request to stop, every address has failed. The reasons were reported at the addresses.
pub(crate) fn all_have_ended(control: &Control) -> Result<(), RunError> {
    match control.stop().is_requested() {
        true => Ok(()),
        false => Err(RunError::Other("the server of every address has ended".into())),
    }
}
