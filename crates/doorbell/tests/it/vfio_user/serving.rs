//! A serving process.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::{Folder, Server, doorbell};

/// Values set in the plan of server and driver: blocks of 512 B, and memory for many operations.
pub const SETS: [&str; 8] = [
    "--set",
    "medium.block=512 B",
    "--set",
    "medium.capacity=64 MiB",
    "--set",
    "host.memory=256 MiB",
    "--set",
    "host.retries=100",
];

/// Starts to serve, in memory or on an image, and waits until the server listens.
pub fn serve(folder: &Folder, image: Option<&Path>) -> Server {
    let file = image.map(|image| format!("medium.file={:?}", image.display().to_string()));
    let mut command = doorbell(folder, &["serve", "live", "--vfio-user", "socket"]);
    serve_by(folder, command.args(SETS).args(file.iter().flat_map(|set| ["--set", set])))
}

/// The same, by this command. Its standard error must stay empty.
pub fn serve_by(folder: &Folder, command: &mut Command) -> Server {
    Server::listening(folder, command.stderr(Stdio::piped()))
}

/// The processor time that the server has used, in ticks of 10 ms (proc(5), fields 14 and 15).
pub fn ticks_of(server: &Server) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", server.child.id()));
    let stat = stat.expect("the server lives");
    let fields: Vec<_> = stat[stat.rfind(')').expect("a name")..].split(' ').collect();
    fields[12..14].iter().map(|ticks| ticks.parse::<u64>().expect("a number")).sum()
}
