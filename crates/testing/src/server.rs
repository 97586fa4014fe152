//! A process that serves a device.

use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use crate::Folder;

/// Killed when dropped; then it must not have said anything on standard error, if that is ours.
pub struct Server {
    pub child: Child,
    lines: Option<BufReader<ChildStdout>>,
    /// Where it listens, if that is a file of this name.
    pub socket: PathBuf,
}

impl Server {
    pub fn begin(folder: &Folder, command: &mut Command) -> Server {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("the server starts");
        let lines = child.stdout.take().map(BufReader::new);
        Server { child, lines, socket: folder.path("socket") }
    }

    /// Starts it, and waits until it listens. Of several sockets any may be the first.
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

    /// The next line is this, of the socket.
    #[track_caller]
    pub fn says(&mut self, words: &str) {
        assert_eq!(self.line(), format!("doorbell: socket: {words}\n"));
    }

    /// The next line holds this.
    #[track_caller]
    pub fn log_mentions(&mut self, words: &str) {
        let line = self.line();
        assert!(line.contains(words), "{words:?} was expected in {line:?}");
    }

    /// Reads what the server says away, until a line holds this: how many lines there were before it.
    pub fn log_has_within(&mut self, words: &str) -> usize {
        (0..).find(|_| self.line().contains(words)).expect("it does not go on for ever")
    }

    /// From here on a thread reads what it says, whether anybody waits for it or not: its pipe is never full.
    pub fn read_by_a_thread(&mut self) -> Receiver<String> {
        let (tell, said) = channel();
        let lines = self.lines.take().expect("no thread reads them").lines();
        std::thread::spawn(move || {
            lines.map_while(Result::ok).for_each(|line| drop(tell.send(line)));
        });
        said
    }

    /// As `kill -9`.
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
            eprintln!("the server said: {errors}");
        }
    }
}
