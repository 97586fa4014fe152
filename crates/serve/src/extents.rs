//! Clients that share one device and none of its blocks: the name and the extent of each.

use std::fmt;
use std::str::FromStr;

use media::{Range, Refused};

/// A client with an extent of the drive, behind an address of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Client {
    pub name: String,
    /// Its blocks on the medium, in blocks of the medium. The client numbers them from 0.
    pub range: Range,
}

/// Error of a client's name and extent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// Not in the form of a client.
    #[error("{found}: expected NAME=FROM+BLOCKS, as in alice=0+4096, with at least one block")]
    Form { found: String },
    /// The extent ends past the last block number.
    #[error("{client}: expected an extent that ends by block 2^64")]
    Wraps { client: Client },
    /// Two clients have the same name.
    #[error("found two clients {name}, expected names that differ")]
    Twice { name: String },
    /// Two extents have blocks in common.
    #[error("{first} and {second}: found blocks in both extents, expected none")]
    Overlap { first: Client, second: Client },
    /// Not one client per address.
    #[error("found {clients} clients and {addresses} sockets, expected one socket for each client")]
    Addresses { clients: usize, addresses: usize },
    /// More device threads than clients, or none.
    #[error("found {threads}, expected 1 to {clients}: at most one for each client")]
    Threads { threads: usize, clients: usize },
    /// The front end has one address for all clients.
    #[error("found --{front_end}, expected {expected}")]
    FrontEnd { front_end: &'static str, expected: String },
    /// A key of the plan that extents do not support.
    #[error("{origin}: {key}: found {found}, expected none: {why}")]
    Plan { origin: String, key: &'static str, found: &'static str, why: &'static str },
}

impl fmt::Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "client {} ({} blocks from {})", self.name, self.range.blocks, self.range.from)
    }
}

impl FromStr for Client {
    type Err = ClientError;

    fn from_str(text: &str) -> Result<Client, ClientError> {
        let parsed = || {
            let (name, extent) = text.split_once('=')?;
            let (from, blocks) = extent.split_once('+')?;
            let range = Range { from: from.parse().ok()?, blocks: blocks.parse().ok()? };
            let printable = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
            (!name.is_empty() && name.chars().all(printable) && range.blocks > 0)
                .then(|| Client { name: name.into(), range })
        };
        let client = parsed().ok_or_else(|| ClientError::Form { found: text.into() })?;
        match client.range.end() {
            Some(_) => Ok(client),
            None => Err(ClientError::Wraps { client }),
        }
    }
}

/// Checks that these clients can share a device, each behind one of `addresses` addresses.
pub(crate) fn check(clients: &[Client], addresses: usize) -> Result<(), ClientError> {
    if clients.len() != addresses {
        return Err(ClientError::Addresses { clients: clients.len(), addresses });
    }
    for (place, second) in clients.iter().enumerate() {
        for first in &clients[..place] {
            if first.name == second.name {
                return Err(ClientError::Twice { name: first.name.clone() });
            }
            if first.range.overlaps(second.range) {
                let (first, second) = (first.clone(), second.clone());
                return Err(ClientError::Overlap { first, second });
            }
        }
    }
    Ok(())
}

/// A line about commands of a client that named blocks outside its extent.
pub(crate) fn refusal(client: &Client, refused: Refused) -> String {
    let (Client { name, range }, (lba, blocks)) = (client, refused.latest);
    let named = match blocks {
        0 => "a list of ranges".to_owned(),
        1 => format!("LBA {lba}"),
        _ => format!("LBA {lba}, {blocks} blocks"),
    };
    let found = match refused.commands {
        1 => "a command".to_owned(),
        commands => format!("{commands} commands, the last"),
    };
    let last = range.from + (range.blocks - 1);
    format!(
        "client {name}: refused {found} with {named}: expected blocks of its extent, LBA 0 to {} (blocks {} \
         to {last} of the drive)",
        range.blocks - 1,
        range.from
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(text: &str) -> Client {
        text.parse().expect("a client")
    }

    #[test]
    fn client_is_name_first_block_and_length() {
        let expected = Client { name: "alice".into(), range: Range { from: 8, blocks: 4096 } };
        assert_eq!(client("alice=8+4096"), expected);
        for wrong in ["", "alice", "=0+1", "a=1", "a=+1", "a=0+0", "a=-1+2", "a b=0+1", "a=0+1+2"] {
            let error = wrong.parse::<Client>().expect_err(wrong).to_string();
            let form = "expected NAME=FROM+BLOCKS, as in alice=0+4096, with at least one block";
            assert_eq!(error, format!("{wrong}: {form}"));
        }
        let error = "a=18446744073709551615+2".parse::<Client>().expect_err("it wraps").to_string();
        assert_eq!(
            error,
            "client a (2 blocks from 18446744073709551615): expected an extent that ends by block 2^64"
        );
    }

    #[test]
    fn overlap_and_duplicate_name_are_refused() {
        let error = |texts: &[&str], addresses| {
            let clients: Vec<_> = texts.iter().map(|text| client(text)).collect();
            check(&clients, addresses).err().map(|error| error.to_string())
        };
        assert_eq!(error(&["a=0+8", "b=8+8", "c=100+1"], 3), None);
        assert_eq!(
            error(&["a=0+8", "b=7+8"], 2).as_deref(),
            Some(
                "client a (8 blocks from 0) and client b (8 blocks from 7): found blocks in both extents, \
                 expected none"
            )
        );
        assert_eq!(
            error(&["a=0+8", "a=8+8"], 2).as_deref(),
            Some("found two clients a, expected names that differ")
        );
        assert_eq!(
            error(&["a=0+8"], 2).as_deref(),
            Some("found 1 clients and 2 sockets, expected one socket for each client")
        );
    }

    #[test]
    fn refusal_names_client_lba_and_extent() {
        let refused = |commands, latest| Refused { commands, latest };
        assert_eq!(
            refusal(&client("mallory=4096+4096"), refused(1, (4096, 8))),
            "client mallory: refused a command with LBA 4096, 8 blocks: expected blocks of its extent, LBA 0 \
             to 4095 (blocks 4096 to 8191 of the drive)"
        );
        assert_eq!(
            refusal(&client("m=0+1"), refused(7, (0, 0))),
            "client m: refused 7 commands, the last with a list of ranges: expected blocks of its extent, \
             LBA 0 to 0 (blocks 0 to 0 of the drive)"
        );
    }
}
