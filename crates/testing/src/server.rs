//! Server processes under test.

use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use crate::Folder;

/// A server process, killed on drop. Drop asserts that standard error is empty, if it is a pipe.
pub struct Server {
    pub child: Child,
    lines: Option<BufReader<ChildStdout>>,
    /// Path of its socket, if it listens at `socket` in the folder.
    pub socket: PathBuf,
}

impl Server {
    pub fn begin(folder: &Folder, command: &mut Command) -> Server {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("the server starts");
        let lines = child.stdout.take().map(BufReader::new);
        Server { child, lines, socket: folder.path("socket") }
    }

    /// Starts the server, and waits until it listens at one of its sockets, in any order.
    pub fn listening(folder: &Folder, command: &mut Command) -> Server {
        let mut server = Server::begin(folder, command);
        server.log_mentions(": waiting for a client");
        server
    }

    pub fn line(&mut self) -> String {
        let mut line = String::new();
        let lines = self.lines.as_mut().expect("no thread reads them");
        let bytes = lines.read_line(&mut line).expect("a line of the server");
        assert!(bytes > 0, "the server has ended: {}", self.errors());
        line
    }

    /// Asserts that the next line is this event of the socket.
    #[track_caller]
    pub fn expect_event(&mut self, words: &str) {
        assert_eq!(self.line(), format!("doorbell: socket: {words}\n"));
    }

    /// Asserts that the next line contains `words`.
    #[track_caller]
    pub fn log_mentions(&mut self, words: &str) {
        let line = self.line();
        assert!(line.contains(words), "{words:?} was expected in {line:?}");
    }

    /// Reads lines until one contains `words`. Returns the number of lines before it.
    pub fn log_has_within(&mut self, words: &str) -> usize {
        (0..).find(|_| self.line().contains(words)).expect("it does not go on for ever")
    }

    /// Starts a thread that reads all further lines, so that the server never blocks on a full pipe.
    pub fn read_by_a_thread(&mut self) -> Receiver<String> {
        let (send, lines_read) = channel();
        let lines = self.lines.take().expect("no thread reads them").lines();
        std::thread::spawn(move || {
            lines.map_while(Result::ok).for_each(|line| drop(send.send(line)));
        });
        lines_read
    }

    /// Kills the server with SIGKILL, and waits for its end.
    pub fn kill(&mut self) {
        self.child.kill().expect("the server lives");
        self.child.wait().expect("the server has ended");
    }

    pub fn lives(&mut self) -> bool {
        self.child.try_wait().expect("our own child").is_none()
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
            eprintln!("standard error of the server: {errors}");
        }
    }
}
