//! Parsing of front-end addresses from the command line.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};

const EXPECTED: &str =
    "expected HOST:PORT, as 127.0.0.1:10809 or localhost:10809, or a path, as ./nbd.sock";

#[derive(Debug, PartialEq, Eq)]
pub enum Address {
    /// Path of a Unix socket.
    Unix(PathBuf),
    /// Addresses that the host name resolves to. The first that can be bound is used.
    Tcp(Vec<SocketAddr>),
}

/// Error of the address given for a front end.
#[derive(Debug, thiserror::Error)]
#[error("--{flag} {text}: {kind}")]
pub struct AddressError {
    /// Name of the front end's flag, without the dashes.
    pub flag: String,
    pub text: String,
    pub kind: AddressErrorKind,
}

/// Cause of an [`AddressError`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AddressErrorKind {
    /// The text is empty, or a number: a port without a host.
    #[error("found no host and no path, {EXPECTED}")]
    NoHost,
    /// The part behind the last colon is no port.
    #[error("found the port {port:?}, expected 0 to 65535; {EXPECTED}")]
    Port { port: String },
    /// The part before the last colon is no host name: it has colons or spaces.
    #[error("found no host in {host:?}, {EXPECTED}")]
    Host { host: String },
    /// The host name is empty, or resolves to no address.
    #[error("found no address of the host {host:?}, {EXPECTED}")]
    NoAddress { host: String },
    /// The host name does not resolve.
    #[error("the host {host:?}: {error}, {EXPECTED}")]
    Resolve { host: String, error: io::Error },
}

impl Address {
    /// Parses the address given for the front end `flag`. Text with a slash or with the prefix `unix:` is a
    /// path; text with a colon is HOST:PORT. Text with neither is a path, unless it is a number: a number is
    /// a port without a host.
    ///
    /// # Errors
    /// The text has none of these forms, or the host does not resolve.
    pub fn of(flag: &str, address: &Path) -> Result<Address, AddressError> {
        let Some(text) = address.to_str() else { return Ok(Address::Unix(address.into())) };
        Address::parse(text).map_err(|kind| AddressError {
            flag: flag.into(),
            text: text.into(),
            kind,
        })
    }

    fn parse(text: &str) -> Result<Address, AddressErrorKind> {
        if let Some(path) = text.strip_prefix("unix:").filter(|path| !path.is_empty()) {
            return Ok(Address::Unix(path.into()));
        }
        if text.contains('/') {
            return Ok(Address::Unix(text.into()));
        }
        if let Ok(one) = text.parse() {
            return Ok(Address::Tcp(vec![one]));
        }
        let Some((host, port)) = text.rsplit_once(':') else {
            return match text.is_empty() || text.bytes().all(|byte| byte.is_ascii_digit()) {
                true => Err(AddressErrorKind::NoHost),
                false => Ok(Address::Unix(text.into())),
            };
        };
        let number =
            port.bytes().all(|byte| byte.is_ascii_digit()).then(|| port.parse::<u16>().ok());
        let Some(port) = number.flatten() else {
            return Err(AddressErrorKind::Port { port: port.into() });
        };
        if host.contains([':', ' ']) {
            return Err(AddressErrorKind::Host { host: host.into() });
        }
        match (host, port).to_socket_addrs().map(Iterator::collect::<Vec<_>>) {
            Ok(all) if !all.is_empty() && !host.is_empty() => Ok(Address::Tcp(all)),
            Ok(_) => Err(AddressErrorKind::NoAddress { host: host.into() }),
            Err(error) => Err(AddressErrorKind::Resolve { host: host.into(), error }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_parses_as_host_port_or_unix_path() {
        let of = |text: &str| Address::of("nbd", Path::new(text));
        let path = |text: &str| Address::Unix(text.into());
        for text in ["nbd.sock", "./10809", "a/b:c", "/run/localhost:10809"] {
            assert_eq!(of(text).expect("a path"), path(text), "{text}");
        }
        assert_eq!(of("unix:localhost:1").expect("a path"), path("localhost:1"));
        let tcp = |text: &str| Address::Tcp(vec![text.parse().expect("an address")]);
        assert_eq!(of("127.0.0.1:10809").expect("an address"), tcp("127.0.0.1:10809"));
        assert_eq!(of("[::1]:10809").expect("an address"), tcp("[::1]:10809"));
        let local = of("localhost:10809").expect("a host that every machine has");
        assert!(matches!(local, Address::Tcp(all) if all.iter().all(|one| one.ip().is_loopback())));
        for text in [
            "127.0.0.1:99999",
            "localhost:",
            "localhost:port",
            "localhost:-1",
            ":10809",
            "10809",
            "",
            "unix:",
            "[::1]",
            "::1",
            "no host:1",
        ] {
            let error = of(text).expect_err(text).to_string();
            assert!(error.starts_with(&format!("--nbd {text}: ")), "{error}");
            assert!(error.contains("expected HOST:PORT, as 127.0.0.1:10809"), "{error}");
        }
    }
}
