//! vfio-user front end: QEMU, SPDK, and programs with a VFIO driver of their own.
//!
//! Each socket has its own device (`own_drive`; `threads` where several threads serve its queues), or one
//! device has a controller per socket (`one_drive`): of the whole drive, or of the extent of the socket's
//! client. The thread of a socket serves the vfio-user protocol; devices run in threads of their own, or
//! share one.

mod one_drive;
mod own_drive;
mod threads;

use std::fmt::Display;

use bus::listen;
use bus::vfio_user::{Ended, Function, Server, Session, VfioUserErrorKind};
use world::RunError;

use crate::events::End;
use crate::front_end::{Addresses, FrontEnd, Job, Limits};

/// The row of this front end.
pub static ROW: FrontEnd = FrontEnd {
    name: "vfio-user",
    value_name: "SOCKET",
    help: "To vfio-user clients, QEMU among them: the path of a Unix socket; given again, another SSD",
    addresses: Addresses::Several,
    limits: Limits {
        clients: 1,
        clients_of_network: None,
        handshake: listen::GREETING,
        in_flight: None,
    },
    serve,
};

fn serve(job: &Job<'_>) -> Result<(), RunError> {
    match job.shared || !job.clients.is_empty() {
        true => one_drive::serve(job, &job.row.require_function(&job.plan)?),
        false if job.device_threads > 1 => threads::serve(job),
        false => own_drive::serve(job),
    }
}

/// Binds a server for each socket. The limit on mappings is divided among them.
fn bind(job: &Job<'_>) -> Result<Vec<Server>, RunError> {
    let (sockets, stop) = (job.addresses.len(), job.control.stop());
    let bind = |socket| {
        let server = Server::bind(socket).map_err(RunError::of)?;
        Ok(server.one_of(sockets).until(stop.clone()))
    };
    job.addresses.iter().map(|socket| bind(socket)).collect()
}

fn accept(server: &Server, function: &Function) -> Result<Session, VfioUserErrorKind> {
    server.accept(function).map_err(|error| error.kind)
}

fn end_of(ended: Ended) -> End {
    match ended {
        Ended::Gone => End::Disconnected,
        Ended::LetGo(why) => End::Dropped(why.to_string()),
        Ended::Device => End::Dropped("the device has ended".into()),
    }
}

/// End of a session whose thread could not start because of a system limit, which may be temporary.
fn no_thread(error: impl Display) -> End {
    End::Dropped(format!("no thread for its device: {error}"))
}
