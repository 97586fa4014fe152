//! Opens an engine by name.

use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use crate::engine::{Client, Drive, Error, Service};
use functions::Named;
use plan::Plan;

/// Default capacity of a drive in memory.
const CAPACITY: &str = "256 MiB";

/// An engine, in this process or another.
pub struct Device(Way);

enum Way {
    Here(Service),
    There(PathBuf),
}

/// Why there is no engine: in words, with what was expected.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
#[non_exhaustive]
pub enum OpenError {
    /// Unknown device name, or an invalid size.
    Word(String),
    /// No server answers at the socket.
    Socket(String),
    /// The drive or its engine does not start, or does not support the operation.
    Start(String),
}

/// Expected forms of a device name.
const EXPECTED: &str = "expected memory, memory:SIZE (as in memory:64m), plan:PLAN (built-in name or TOML \
                        file), shm:SOCKET (of doorbell serve --shm), vfio-user:SOCKET (of a vfio-user \
                        server), vfio:ADDRESS (as in vfio:0000:01:00.0) or engine:SOCKET (of another \
                        process with an engine)";

impl Device {
    /// Opens an engine: `memory` or `memory:64m`, a drive of the given capacity in this process;
    /// `plan:PLAN`, the drive of a plan with a table `[fastpath]` in this process; `shm:SOCKET`, the drive
    /// of `doorbell serve --shm SOCKET`; `vfio-user:SOCKET`, the NVMe function of a vfio-user server;
    /// `vfio:ADDRESS`, that of this machine, bound to vfio-pci; `engine:SOCKET`, another process's engine.
    ///
    /// Areas of a real SSD overwrite what it holds.
    ///
    /// # Errors
    /// The name is invalid, there is no socket, or the drive does not start.
    pub fn open(word: &str) -> Result<Device, OpenError> {
        let refused = || OpenError::Word(format!("{word:?}: {EXPECTED}"));
        let (kind, rest) = word.split_once(':').unwrap_or((word, ""));
        match kind {
            "memory" => {
                let capacity = if rest.is_empty() {
                    CAPACITY.into()
                } else {
                    let why = || {
                        format!(
                            "{word:?}: found no size in {rest:?}, expected one as in memory:64m"
                        )
                    };
                    size(rest).ok_or_else(|| OpenError::Word(why()))?
                };
                Device::start(word, "live", &[("medium.capacity", &capacity)], &here())
            }
            "plan" if !rest.is_empty() => Device::start(word, rest, &[], &here()),
            "shm" if !rest.is_empty() => {
                reached(word, rest)?;
                Device::start(word, "live", &[], &Drive::Served(rest.into()))
            }
            "vfio-user" if !rest.is_empty() => {
                reached(word, rest)?;
                Device::start(word, "live", &[], &Drive::VfioUser(rest.into()))
            }
            "vfio" if !rest.is_empty() => {
                Device::start(word, "live", &[], &Drive::Vfio(rest.into()))
            }
            "engine" if !rest.is_empty() => {
                reached(word, rest)?;
                Ok(Device(Way::There(rest.into())))
            }
            _ => Err(refused()),
        }
    }

    fn start(
        word: &str,
        plan: &str,
        sets: &[(&str, &str)],
        drive: &Drive,
    ) -> Result<Device, OpenError> {
        let plan = Plan::open(plan, &[sets, &[("host.queue_depth", "64")]].concat());
        let plan = plan.map_err(|errors| OpenError::Word(format!("{word:?}: {errors}")))?;
        let service = Service::start(&plan, drive, 0).map_err(|error| {
            OpenError::Start(format!("{word:?}: the drive does not start: {error}"))
        })?;
        Ok(Device(Way::Here(service)))
    }

    /// Allocates an area and a DMA buffer of at least `bytes` bytes each. No other client of this library
    /// can access the area. Both are freed when the client is dropped.
    ///
    /// # Errors
    /// No such area, handle or memory is left, or the engine has ended.
    pub fn alloc(&self, bytes: u64) -> Result<Client, Error> {
        match &self.0 {
            Way::Here(service) => service.open(bytes),
            Way::There(socket) => Client::connect(socket, bytes),
        }
    }

    /// Same as [`alloc`](Self::alloc); the blocks of this client pass `function` between its memory and the
    /// drive, on the engine's thread.
    ///
    /// # Errors
    /// As for [`alloc`](Self::alloc); or the engine is in another process, whose owner chooses the
    /// function.
    pub fn alloc_through(&self, bytes: u64, function: Named) -> Result<Client, Error> {
        match &self.0 {
            Way::Here(service) => service.open_through(bytes, function),
            Way::There(_) => Err(Error::Elsewhere),
        }
    }

    /// Opens the area of this name, or makes one: see [`Service::open_named`].
    ///
    /// # Errors
    /// As for [`Service::open_named`]; or the engine is in another process.
    pub fn open_named(
        &self,
        name: &str,
        bytes: u64,
        function: Option<Named>,
    ) -> Result<Client, Error> {
        match &self.0 {
            Way::Here(service) => service.open_named(name, bytes, function),
            Way::There(_) => Err(Error::Elsewhere),
        }
    }

    /// Frees the area of this name: see [`Service::remove_named`].
    ///
    /// # Errors
    /// As for [`Service::remove_named`]; or the engine is in another process.
    pub fn remove_named(&self, name: &str) -> Result<(), Error> {
        match &self.0 {
            Way::Here(service) => service.remove_named(name),
            Way::There(_) => Err(Error::Elsewhere),
        }
    }

    /// Accepts clients of other processes at this socket; they open `engine:SOCKET`.
    ///
    /// # Errors
    /// Listening fails, or the engine itself is in another process.
    pub fn listen(&mut self, socket: &Path) -> Result<(), OpenError> {
        match &mut self.0 {
            Way::Here(service) => {
                service.listen(socket).map_err(|error| OpenError::Socket(error.to_string()))
            }
            Way::There(_) => Err(OpenError::Start("the engine is in another process".into())),
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

/// A drive in this process. A separate thread helps only if a core remains for the caller.
fn here() -> Drive {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    Drive::Here { own_thread: cores > 2 }
}

/// Checks that the path is a socket. It does not connect: a server would take that for a client.
fn reached(word: &str, socket: &str) -> Result<(), OpenError> {
    let no = |why: String| {
        Err(OpenError::Socket(format!("{word:?}: {why}, expected a server's socket")))
    };
    match std::fs::metadata(socket) {
        Ok(found) if found.file_type().is_socket() => Ok(()),
        Ok(_) => no(format!("{socket} is no socket")),
        Err(error) => no(format!("{socket}: {error}")),
    }
}

/// Converts a size such as `64m` to the syntax of plans.
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
    fn size_suffixes_become_plan_units() {
        assert_eq!(size("64m").as_deref(), Some("64 MiB"));
        assert_eq!(size("4096").as_deref(), Some("4096 B"));
        assert_eq!((size("0"), size("x"), size("4q"), size("")), (None, None, None, None));
    }

    #[test]
    fn open_rejects_unknown_device() {
        for word in ["", "disk", "plan:", "shm:", "vfio-user:", "vfio:", "engine:", "nvme0"] {
            let error = Device::open(word).err().map(|error| error.to_string());
            assert!(error.is_some_and(|text| text.contains("expected memory")), "{word:?}");
        }
    }

    #[test]
    fn drive_of_a_plan_keeps_written_bytes() {
        use crate::Direction::{Read, Write};
        let device = Device::open("plan:small-flash").expect("a drive of flash");
        let client = device.alloc(1 << 16).expect("an area");
        client.copy_in(0, b"flash").expect("inside");
        client.transfer(Write, 0, 4096, 4096).expect("written");
        client.copy_in(0, &[0; 5]).expect("inside");
        client.transfer(Read, 0, 4096, 4096).expect("read");
        let mut seen = [0; 5];
        client.copy_out(0, &mut seen).expect("inside");
        assert_eq!(&seen, b"flash");
    }

    /// Errors of three kinds, each with its own text.
    #[test]
    fn open_errors_name_kind_and_cause() {
        let said = |word: &str| {
            let error = Device::open(word).err().expect(word);
            let kind = match error {
                OpenError::Word(_) => "word",
                OpenError::Socket(_) => "socket",
                OpenError::Start(_) => "start",
            };
            (kind, error.to_string())
        };
        for (word, kind, words) in [
            ("disk", "word", "expected memory, memory:SIZE"),
            ("memory:many", "word", "found no size in \"many\""),
            ("memory:100", "word", "medium.capacity: found "),
            ("plan:gen6", "word", "gen6"),
            ("plan:tlc", "start", "[fastpath]"),
            ("shm:/nowhere/s", "socket", "/nowhere/s: No such file or directory"),
            ("vfio-user:/nowhere/s", "socket", "/nowhere/s: No such file or directory"),
            ("vfio:1:0", "start", "0000:01:00.0"),
            ("vfio:ffff:ff:1f.7", "start", "ffff:ff:1f.7"),
            ("engine:/nowhere/s", "socket", "/nowhere/s: No such file or directory"),
            ("engine:/dev/null", "socket", "/dev/null is no socket"),
        ] {
            let (found, text) = said(word);
            assert_eq!(found, kind, "{text}");
            assert!(text.starts_with(&format!("{word:?}: ")) && text.contains(words), "{text}");
        }
        // A socket whose server has ended: the drive, or the area, is not available.
        let left = std::env::temp_dir().join(format!("fnvme-left-{}", std::process::id()));
        drop(std::os::unix::net::UnixListener::bind(&left).expect("a socket"));
        let word = |kind: &str| format!("{kind}:{}", left.display());
        assert_eq!(said(&word("shm")).0, "start");
        assert_eq!(said(&word("vfio-user")).0, "start");
        let engine = Device::open(&word("engine")).expect("it is asked when an area is");
        assert_eq!(engine.alloc(4096).err(), Some(Error::Unreachable));
        std::fs::remove_file(left).expect("it is there");
    }
}
