//! One device for the clients of several addresses: all their controllers are tasks of one executor, in one
//! thread.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::mpsc::{Receiver, Sender};

use media::Refused;
use runtime::Rt;
use world::device::Device;
use world::interfaces::Extent;
use world::{RunError, until};

use crate::Events;
use crate::extents::{Client, refusal};
use crate::front_end::Job;

/// Runs a device and the sessions of its clients, each a task. Blocks while there is no client. Returns when
/// no address is left that could have one.
pub(crate) fn run<S, F: Future<Output = ()> + 'static>(
    rt: &Rt,
    sessions: Receiver<S>,
    session: impl Fn(S) -> F,
) {
    let clients = Rc::new(Cell::new(0_u32));
    let serve = |next: S| {
        clients.set(clients.get() + 1);
        let (clients, session) = (clients.clone(), session(next));
        rt.spawn(async move {
            session.await;
            clients.set(clients.get() - 1);
        });
    };
    while let Ok(first) = sessions.recv() {
        serve(first);
        rt.block_on(until(rt, || {
            sessions.try_iter().for_each(&serve);
            clients.get() == 0
        }));
    }
}

/// Flushes the device and saves its state, as the server stops.
pub(crate) fn save(job: &Job<'_>, rt: &Rt, device: Rc<Device>) -> Result<(), RunError> {
    rt.block_on(device.flush());
    rt.drop_tasks();
    if job.control.stop().is_requested()
        && let Some(device) = Rc::into_inner(device)
    {
        device.switch_off().save(&job.plan)?;
        job.addresses.iter().for_each(|address| job.events(address).stopped());
    }
    Ok(())
}

/// Commands of one session that were refused as outside the client's extent. They are sent to the thread of
/// its socket: over shared memory the first at once, and the others at its end, so that a client cannot fill
/// the log.
pub(crate) struct Refusals {
    before: u64,
    sent: bool,
    to: Sender<Refused>,
}

impl Refusals {
    pub fn new<P: bus::DevicePort>(of: &Extent<P>, to: Sender<Refused>) -> Refusals {
        Refusals { before: of.part.refused().commands, sent: false, to }
    }

    /// Sends the first one, if there is one.
    pub fn send_first<P: bus::DevicePort>(&mut self, of: &Extent<P>) {
        let refused = of.part.refused();
        if !self.sent && refused.commands > self.before {
            self.sent = true;
            self.before = refused.commands;
            // Fails only if the thread of the socket has ended: there is no place for reports then.
            let _ = self.to.send(Refused { commands: 1, ..refused });
        }
    }

    /// Sends what has not been sent.
    pub fn send_rest<P: bus::DevicePort>(self, of: &Extent<P>) {
        let refused = of.part.refused();
        if refused.commands > self.before {
            let commands = refused.commands - self.before;
            let _ = self.to.send(Refused { commands, ..refused });
        }
    }
}

/// Reports refusals of a session until its controllers have stopped.
pub(crate) fn report(events: &Events<'_>, client: Option<&Client>, refused: &Receiver<Refused>) {
    for refused in refused {
        if let Some(client) = client {
            events.note(refusal(client, refused));
        }
    }
}

/// The ranges of a job's clients.
pub(crate) fn ranges(job: &Job<'_>) -> Vec<media::Range> {
    job.clients.iter().map(|client| client.range).collect()
}
