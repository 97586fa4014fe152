//! The life cycle of a front end: listen, accept, serve, and accept again.
//!
//! A client's error is reported, and the next client is accepted. Only a failure of the device ends the
//! server. Front ends serve [one client at a time](one_at_a_time), or
//! [many](crate::net::clients::many_at_a_time).

use std::fmt::Display;

use world::RunError;

use crate::Events;
use crate::events::End;

/// Serves one client after another. `accept` waits for the next client; `session` serves it until it leaves.
///
/// Returns the error of the first session that fails: the device has failed.
pub(crate) fn one_at_a_time<C, E: Display>(
    events: &Events<'_>,
    mut accept: impl FnMut() -> Result<C, E>,
    mut session: impl FnMut(C) -> Result<End, RunError>,
) -> RunError {
    loop {
        events.waiting();
        let client = match accept() {
            Ok(client) => client,
            Err(why) => {
                events.note(why);
                continue;
            }
        };
        events.connected();
        match session(client) {
            Ok(end) => events.ended(&end),
            Err(error) => return error,
        }
    }
}

/// Serves one address in its own thread. The error that ends it, or the failure to start the thread, is
/// reported at that address.
pub(crate) fn one_thread_each<'scope, 'a: 'scope>(
    scope: &'scope std::thread::Scope<'scope, 'a>,
    events: Events<'scope>,
    serve: impl FnOnce(&Events<'_>) -> RunError + Send + 'scope,
) {
    let thread = std::thread::Builder::new().spawn_scoped(scope, move || {
        let error = serve(&events);
        events.note(error);
    });
    if let Err(error) = thread {
        events.note(format_args!("no client is served: no thread for this address: {error}"));
    }
}

/// Error of a server when every address has failed. The reasons were reported at the addresses.
pub(crate) fn all_have_ended() -> RunError {
    RunError::Other("the server of every address has ended".into())
}
