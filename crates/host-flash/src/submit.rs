//! Submission of commands: in order, or as their dies have room.

use core::future::poll_fn;
use core::task::Poll;

use bus::HostPort;
use wire::pages::Operation;

use super::flash::Remote;
use super::schedule::die_of;

impl<P: HostPort> Remote<P> {
    /// Submits a command for each of these places: in the order in which their dies have room if each die has
    /// a limit, otherwise one after the other. `operation` may be called more than once for a place.
    pub(super) async fn submit(
        &self,
        port: &P,
        places: &[u16],
        operation: impl Fn(usize) -> Operation,
    ) {
        if !self.endpoints[0].has_schedule() {
            for (at, place) in places.iter().enumerate() {
                let operation = operation(at);
                let endpoint = self.endpoint(die_of(&operation).0);
                endpoint.submit(&self.store, port, *place, operation).await;
            }
            return;
        }
        let _entered = Entered { remote: self, places };
        for (at, place) in places.iter().enumerate() {
            let operation = operation(at);
            self.endpoint(die_of(&operation).0).enter(*place, &operation);
        }
        // No slot is held while others are waited for: whichever is granted is used at once.
        for _ in places {
            let (at, held) = poll_fn(|cx| {
                let all = places.iter().enumerate();
                let mut all = all.flat_map(|(at, place)| {
                    self.endpoints.iter().map(move |endpoint| (at, endpoint, *place))
                });
                let granted = all.find_map(|(at, endpoint, place)| {
                    endpoint.granted(cx, place).map(|held| (at, held))
                });
                granted.map_or(Poll::Pending, Poll::Ready)
            })
            .await;
            held.submit(&self.store, port, places[at], operation(at)).await;
        }
    }
}

/// Commands that may still wait for their dies; withdrawn on drop.
struct Entered<'a, P: HostPort> {
    remote: &'a Remote<P>,
    places: &'a [u16],
}

impl<P: HostPort> Drop for Entered<'_, P> {
    fn drop(&mut self) {
        for endpoint in &self.remote.endpoints {
            self.places.iter().for_each(|place| endpoint.leave(*place));
        }
    }
}
