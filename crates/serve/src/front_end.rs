//! The row of a front end: what the command and the documentation know of it.

use std::fmt;
use std::path::{Path, PathBuf};

use plan::Plan;
use runtime::Span;
use world::RunError;
use world::interfaces::Row;

use crate::{Events, plan_for_clients};

/// A front end: a protocol by which clients in other processes reach a device.
pub struct FrontEnd {
    /// Its flag, without dashes: `nbd` for `doorbell serve PLAN --nbd ADDRESS`.
    pub name: &'static str,
    /// What an address is called in help.
    pub value_name: &'static str,
    /// Its clients, and what an address looks like.
    pub help: &'static str,
    /// How many addresses it listens at.
    pub addresses: Addresses,
    pub limits: Limits,
    pub(crate) serve: fn(&Job<'_>) -> Result<(), RunError>,
}

/// How many addresses a front end listens at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Addresses {
    One,
    /// Any number, a device behind each; or one device behind all of them, with a controller for each.
    Several,
}

/// What the clients of one address may use.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub clients: usize,
    /// Of these, clients of one IPv4 address or one /64 of IPv6, where clients come over a network.
    pub clients_of_network: Option<usize>,
    /// From a connection to the end of its handshake.
    pub handshake: Span,
    /// What one connection may have in flight, where the front end holds it: requests, and their bytes.
    pub in_flight: Option<(usize, usize)>,
}

impl fmt::Display for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = if self.clients == 1 { "" } else { "s" };
        write!(f, "{} client{plural} at a time", self.clients)?;
        if let Some(clients) = self.clients_of_network {
            write!(f, " ({clients} of one network)")?;
        }
        write!(f, ", a handshake of at most {}", self.handshake)?;
        if let Some((requests, bytes)) = self.in_flight {
            write!(f, ", {requests} requests and {} MiB in flight for each", bytes >> 20)?;
        }
        Ok(())
    }
}

/// What to serve, and where.
pub struct Job<'a> {
    pub row: &'static Row,
    /// The plan of the device.
    pub plan: Plan,
    pub addresses: &'a [PathBuf],
    /// One device behind all addresses.
    pub shared: bool,
    pub(crate) report: &'a (dyn Fn(&Path, &str) + Sync),
}

impl Job<'_> {
    /// The first address, and its events.
    pub(crate) fn first(&self) -> (&Path, Events<'_>) {
        (&self.addresses[0], self.events(&self.addresses[0]))
    }

    pub(crate) fn events<'a>(&'a self, address: &'a Path) -> Events<'a> {
        Events::new(address, self.report)
    }
}

impl FrontEnd {
    /// Serves the device of a plan to clients of these addresses until the device fails. What happens is
    /// reported with its address, one line for each event.
    ///
    /// # Errors
    /// The plan does not fit the interface, or keeps only stamps of what clients write; an address cannot be
    /// listened at; the medium does not start; the device has failed.
    pub fn serve(
        &self,
        row: &'static Row,
        plan: &Plan,
        addresses: &[PathBuf],
        shared: bool,
        report: &(dyn Fn(&Path, &str) + Sync),
    ) -> Result<(), RunError> {
        let name = self.name;
        if addresses.is_empty() || addresses.len() > 1 && self.addresses == Addresses::One {
            let found = addresses.len();
            return Err(RunError(format!("--{name}: found {found} addresses, expected one")));
        }
        if shared && self.addresses == Addresses::One {
            return Err(RunError(format!("--shared: found --{name}, expected {}", of_several())));
        }
        let plan = plan_for_clients(row, plan)?;
        (self.serve)(&Job { row, plan, addresses, shared, report })
    }
}

/// The flags of front ends that `--shared` goes with.
fn of_several() -> String {
    let several = crate::all().filter(|front_end| front_end.addresses == Addresses::Several);
    several.map(|front_end| format!("--{}", front_end.name)).collect::<Vec<_>>().join(" or ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_printed_as_help_shows_them() {
        let one = "1 client at a time, a handshake of at most 5.000s";
        let nbd = "64 clients at a time (48 of one network), a handshake of at most 10.000s, \
                   128 requests and 64 MiB in flight for each";
        for (name, expected) in [("shm", one), ("vfio-user", one), ("nbd", nbd)] {
            let row = crate::all().find(|row| row.name == name).expect("a front end");
            assert_eq!(row.limits.to_string(), expected, "{name}");
        }
    }

    #[test]
    fn shared_is_refused_where_there_is_one_address() {
        let row = world::interfaces::by_name("nvme").expect("an interface");
        let plan = Plan::open("live", &[]).expect("a plan");
        let nbd = crate::all().find(|row| row.name == "nbd").expect("a front end");
        let refused = |addresses: &[PathBuf], shared| {
            let error = nbd.serve(row, &plan, addresses, shared, &|_, _| ()).expect_err("refused");
            error.to_string()
        };
        assert_eq!(refused(&["a".into()], true), "--shared: found --nbd, expected --vfio-user");
        let two = ["a".into(), "b".into()];
        assert_eq!(refused(&two, false), "--nbd: found 2 addresses, expected one");
    }
}
