//! Addresses of front ends on a network, as they are typed.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};

#[derive(Debug, PartialEq, Eq)]
pub enum Address {
    /// A Unix socket at this path.
    Unix(PathBuf),
    /// Any one of these: what the name of a host resolves to.
    Tcp(Vec<SocketAddr>),
}

impl Address {
    /// The address of the front end with this flag. A text with a slash is a path, and so is what follows
    /// `unix:`; one with a colon is a host and a port. A name with neither is a path, unless it is a number:
    /// a port without its host.
    ///
    /// # Errors
    /// It is none of these, or the host has no address: in words.
    pub fn of(flag: &str, address: &Path) -> Result<Address, String> {
        const EXPECTED: &str =
            "expected HOST:PORT, as 127.0.0.1:10809 or localhost:10809, or a path, as ./nbd.sock";
        let Some(text) = address.to_str() else { return Ok(Address::Unix(address.into())) };
        if let Some(path) = text.strip_prefix("unix:").filter(|path| !path.is_empty()) {
            return Ok(Address::Unix(path.into()));
        }
        if text.contains('/') {
            return Ok(Address::Unix(address.into()));
        }
        if let Ok(one) = text.parse() {
            return Ok(Address::Tcp(vec![one]));
        }
        let Some((host, port)) = text.rsplit_once(':') else {
            return match text.is_empty() || text.bytes().all(|byte| byte.is_ascii_digit()) {
                true => Err(format!("--{flag} {text}: found no host and no path, {EXPECTED}")),
                false => Ok(Address::Unix(address.into())),
            };
        };
        let number =
            port.bytes().all(|byte| byte.is_ascii_digit()).then(|| port.parse::<u16>().ok());
        let Some(port) = number.flatten() else {
            return Err(format!(
                "--{flag} {text}: found the port {port:?}, expected 0 to 65535; {EXPECTED}"
            ));
        };
        if host.contains([':', ' ']) {
            return Err(format!("--{flag} {text}: found no host in {host:?}, {EXPECTED}"));
        }
        match (host, port).to_socket_addrs().map(Iterator::collect::<Vec<_>>) {
            Ok(all) if !all.is_empty() && !host.is_empty() => Ok(Address::Tcp(all)),
            Ok(_) => {
                Err(format!("--{flag} {text}: found no address of the host {host:?}, {EXPECTED}"))
            }
            Err(error) => Err(format!("--{flag} {text}: the host {host:?}: {error}, {EXPECTED}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_host_and_a_port_or_a_path() {
        let of = |text: &str| Address::of("nbd", Path::new(text));
        let path = |text: &str| Ok(Address::Unix(text.into()));
        for text in ["nbd.sock", "./10809", "a/b:c", "/run/localhost:10809"] {
            assert_eq!(of(text), path(text), "{text}");
        }
        assert_eq!(of("unix:localhost:1"), path("localhost:1"));
        let tcp = |text: &str| Ok(Address::Tcp(vec![text.parse().expect("an address")]));
        assert_eq!(of("127.0.0.1:10809"), tcp("127.0.0.1:10809"));
        assert_eq!(of("[::1]:10809"), tcp("[::1]:10809"));
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
            let error = of(text).expect_err(text);
            assert!(error.starts_with(&format!("--nbd {text}: ")), "{error}");
            assert!(error.contains("expected HOST:PORT, as 127.0.0.1:10809"), "{error}");
        }
    }
}
