//! A serving process.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use crate::common::{Folder, doorbell};

/// What server and driver are told of the plan: blocks of 512 B, and memory for many operations.
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

/// See the module's text. Killed when dropped; then it must not have said anything on standard error.
pub struct Server {
    pub child: Child,
    lines: BufReader<ChildStdout>,
    pub socket: PathBuf,
}

impl Server {
    /// Starts to serve, in memory or on an image, and waits until it listens.
    pub fn start(folder: &Folder, image: Option<&Path>) -> Server {
        let file = image.map(|image| format!("medium.file={:?}", image.display().to_string()));
        let mut command = doorbell(folder, &["serve", "live", "--vfio-user", "socket"]);
        command.args(SETS).args(file.iter().flat_map(|set| ["--set", set]));
        Server::begin(folder, command)
    }

    /// The same, by this command.
    pub fn begin(folder: &Folder, mut command: Command) -> Server {
        let socket = folder.path("socket");
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the server starts");
        let lines = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut server = Server { child, lines, socket };
        // Of several sockets any may be the first.
        server.log_mentions(": waiting for a client");
        server
    }

    /// The next line that the server says ends so.
    pub fn says(&mut self, words: &str) {
        let mut line = String::new();
        self.lines.read_line(&mut line).expect("a line of the server");
        assert_eq!(line, format!("doorbell: socket: {words}\n"));
    }

    /// The next line that the server says holds this.
    pub fn log_mentions(&mut self, words: &str) {
        let mut line = String::new();
        self.lines.read_line(&mut line).expect("a line of the server");
        assert!(line.contains(words), "{words:?} was expected in {line:?}");
    }

    /// Reads what the server says away, until a line holds this: how many lines there were before it.
    pub fn log_has_within(&mut self, words: &str) -> usize {
        for before in 0.. {
            let mut line = String::new();
            let bytes = self.lines.read_line(&mut line).expect("a line of the server");
            assert!(bytes > 0, "the server has ended: {}", self.errors());
            if line.contains(words) {
                return before;
            }
        }
        unreachable!("the server goes on for ever")
    }

    /// Reads what the server says away, until it waits for the next client.
    pub fn has_said_that_it_waits(&mut self) {
        loop {
            let mut line = String::new();
            let bytes = self.lines.read_line(&mut line).expect("a line of the server");
            assert!(bytes > 0, "the server has ended: {}", self.errors());
            if line.ends_with("waiting for a client\n") {
                return;
            }
        }
    }

    /// As `kill -9`.
    pub fn kill(&mut self) {
        self.child.kill().expect("the server lives");
        self.child.wait().expect("the server has ended");
    }

    pub fn lives(&mut self) -> bool {
        self.child.try_wait().expect("our own child").is_none()
    }

    /// The processor time that the server has used, in ticks of 10 ms (proc(5), fields 14 and 15).
    pub fn ticks(&self) -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id()));
        let stat = stat.expect("the server lives");
        let fields: Vec<_> = stat[stat.rfind(')').expect("a name")..].split(' ').collect();
        fields[12..14].iter().map(|ticks| ticks.parse::<u64>().expect("a number")).sum()
    }

    fn errors(&mut self) -> String {
        let mut text = String::new();
        if let Some(mut errors) = self.child.stderr.take() {
            let _ = errors.read_to_string(&mut text);
        }
        text
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let errors = self.errors();
        if !std::thread::panicking() {
            assert_eq!(errors, "", "the server has nothing to complain of");
        } else if !errors.is_empty() {
            eprintln!("the server said: {errors}");
        }
    }
}
