//! Where an engine is, by a word.

use std::fmt;
use std::path::{Path, PathBuf};

use machine::fastpath::functions::Named;
use machine::fastpath::{Client, Drive, Error, Service};
use machine::plan::Plan;

/// A drive in memory unless another size is asked for.
const CAPACITY: &str = "256 MiB";

/// An engine: in this process, or in another.
pub struct Device(Way);

enum Way {
    Here(Service),
    There(PathBuf),
}

/// Why there is no engine: in words, with what was expected.
#[derive(Debug)]
pub struct OpenError(String);

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for OpenError {}

/// What may be asked for.
const EXPECTED: &str = "expected memory, memory:SIZE (as in memory:64m), shm:SOCKET (of doorbell serve \
                        --shm) or engine:SOCKET (of another process with an engine)";

impl Device {
    /// An engine, by a word: `memory` or `memory:64m`, a drive of so many bytes in this process;
    /// `shm:SOCKET`, the drive of `doorbell serve --shm SOCKET`; `engine:SOCKET`, another process's engine.
    ///
    /// # Errors
    /// There is no such word, or nobody listens there.
    pub fn open(word: &str) -> Result<Device, OpenError> {
        let refused = || OpenError(format!("{word:?}: {EXPECTED}"));
        let (kind, rest) = word.split_once(':').unwrap_or((word, ""));
        match kind {
            "memory" => {
                let capacity = if rest.is_empty() {
                    CAPACITY.into()
                } else {
                    size(rest).ok_or_else(refused)?
                };
                // A thread of its own for the drive helps only where one is left for the caller.
                let cores = std::thread::available_parallelism().map_or(1, usize::from);
                let drive = Drive::Here { own_thread: cores > 2 };
                Device::start(&[("medium.capacity", &capacity)], &drive)
            }
            "shm" if !rest.is_empty() => Device::start(&[], &Drive::Served(rest.into())),
            "engine" if !rest.is_empty() => Ok(Device(Way::There(rest.into()))),
            _ => Err(refused()),
        }
    }

    fn start(sets: &[(&str, &str)], drive: &Drive) -> Result<Device, OpenError> {
        let plan = Plan::open("live", &[sets, &[("host.queue_depth", "64")]].concat());
        let plan = plan.map_err(|errors| OpenError(errors.to_string()))?;
        let service =
            Service::start(&plan, drive, 0).map_err(|error| OpenError(error.to_string()))?;
        Ok(Device(Way::Here(service)))
    }

    /// An area of at least so many bytes that nobody else reaches through this library, and a DMA buffer as
    /// long. Both go back when the client is dropped.
    ///
    /// # Errors
    /// No such area, handle or memory is left, or the engine has ended.
    pub fn alloc(&self, bytes: u64) -> Result<Client, Error> {
        match &self.0 {
            Way::Here(service) => service.open(bytes),
            Way::There(socket) => Client::connect(socket, bytes),
        }
    }

    /// The same, and the blocks of this client pass a function on their way between its memory and the drive,
    /// on the engine's thread.
    ///
    /// # Errors
    /// As for [`alloc`](Self::alloc); or the engine is in another process: what passes there is for its
    /// owner to say.
    pub fn alloc_through(&self, bytes: u64, function: Named) -> Result<Client, Error> {
        match &self.0 {
            Way::Here(service) => service.open_through(bytes, function),
            Way::There(_) => Err(Error::Elsewhere),
        }
    }

    /// Admits clients of other processes at this socket: `engine:SOCKET` is their word.
    ///
    /// # Errors
    /// There is no listening there, or the engine is in another process itself.
    pub fn listen(&mut self, socket: &Path) -> Result<(), OpenError> {
        match &mut self.0 {
            Way::Here(service) => {
                service.listen(socket).map_err(|error| OpenError(error.to_string()))
            }
            Way::There(_) => Err(OpenError("the engine is in another process".into())),
        }
    }

    /// The engine, if it is in this process.
    pub fn service(&self) -> Option<&Service> {
        match &self.0 {
            Way::Here(service) => Some(service),
            Way::There(_) => None,
        }
    }
}

/// `64m` as a plan says it.
fn size(text: &str) -> Option<String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" | "b" => "B",
        "k" => "KiB",
        "m" => "MiB",
        "g" => "GiB",
        _ => return None,
    };
    digits.parse::<u64>().ok().filter(|n| *n > 0).map(|n| format!("{n} {unit}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_words() {
        assert_eq!(size("64m").as_deref(), Some("64 MiB"));
        assert_eq!(size("4096").as_deref(), Some("4096 B"));
        assert_eq!((size("0"), size("x"), size("4q"), size("")), (None, None, None, None));
    }

    #[test]
    fn words_that_nobody_knows_are_refused() {
        for word in ["", "disk", "memory:many", "shm:", "engine:", "nvme0"] {
            let error = Device::open(word).err().map(|error| error.to_string());
            assert!(error.is_some_and(|text| text.contains("expected memory")), "{word:?}");
        }
    }
}
