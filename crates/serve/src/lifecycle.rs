//! The life cycle of a front end: listen, accept, serve, and accept again.
//!
//! A client's mistake is the client's: it is reported, and the next is accepted. Only a failure of the device
//! ends the server. Front ends serve [one client at a time](one_at_a_time), or
//! [many](crate::net::clients::many_at_a_time).

use world::RunError;

use crate::Events;
use crate::events::End;

/// Serves one client after another. `accept` waits for the next; `session` serves it to its end.
///
/// Returns when a session fails, with its error: the device has failed.
pub(crate) fn one_at_a_time<C>(
    events: &Events<'_>,
    mut accept: impl FnMut() -> Result<C, String>,
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

/// Serves each address in a thread of its own, until all have ended.
///
/// Returns the error of this: every address has failed, for a reason that was reported there.
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

/// What a server ends with when each of its addresses has.
pub(crate) fn all_have_ended() -> RunError {
    RunError("the server of every address has ended".into())
}
