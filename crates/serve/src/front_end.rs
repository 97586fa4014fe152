//! Row of a front end: the properties that the command line and the documentation use.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use device::life::Life;
use media::contents::Backing;
use plan::{MediumPace, Plan};
use runtime::Span;
use world::RunError;
use world::device_threads;
use world::interfaces::Row;

use crate::control::Drive;
use crate::extents::{self, Client, ClientError};
use crate::{Control, Events, lives, plan_for_clients};

/// A front end: a protocol by which clients in other processes reach a device.
pub struct FrontEnd {
    /// Name of its flag, without dashes: `nbd` for `doorbell serve PLAN --nbd ADDRESS`.
    pub name: &'static str,
    /// Placeholder for an address in `--help`.
    pub value_name: &'static str,
    /// Text for `--help`: clients, and the form of an address.
    pub help: &'static str,
    pub addresses: Addresses,
    pub limits: Limits,
    pub(crate) serve: fn(&Job<'_>) -> Result<(), RunError>,
}

/// Number of addresses that a front end can listen at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Addresses {
    One,
    /// One; or one per client, if each client has an extent of the device.
    Clients,
    /// Any number, each with its own device; or, if shared, one device with a controller per address.
    Several,
}

/// Limits for the clients of one address.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub clients: usize,
    /// Maximum clients from one IPv4 address or one IPv6 /64; `None` if clients are local only.
    pub clients_of_network: Option<usize>,
    /// Timeout from connection to the end of the handshake.
    pub handshake: Span,
    /// Maximum requests and bytes in flight per connection; `None` if the front end holds no requests.
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

/// Hosts of the addresses of a front end.
#[derive(Clone, Copy, Debug)]
pub enum Hosts<'a> {
    /// Each address has a device of its own.
    Apart {
        /// Threads of each device, at least 1, to which its queues are dealt.
        device_threads: usize,
    },
    /// One device is behind all addresses, and each host reaches all of it.
    Sharing,
    /// One device is behind all addresses, and each client reaches its extent alone. One client per address.
    Clients {
        clients: &'a [Client],
        /// Device threads, at least 1. Clients are dealt to them in order.
        device_threads: usize,
    },
}

/// Device to serve, and the addresses to serve it at.
pub struct Job<'a> {
    pub row: &'static Row,
    pub plan: Plan,
    pub addresses: &'a [PathBuf],
    /// True if one device is behind all addresses.
    pub shared: bool,
    /// The client of each address, if each has an extent of one device; otherwise none.
    pub clients: &'a [Client],
    pub control: &'a Control,
    /// Number of device threads that the clients are dealt to; without clients, the queues of each device.
    pub device_threads: usize,
    /// One for each drive, in the order of the addresses.
    pub(crate) lives: &'a [Arc<Life>],
    /// The plan gives the number of the first drive.
    pub(crate) numbered: bool,
    pub(crate) report: &'a (dyn Fn(&Path, &str) + Sync),
}

impl Job<'_> {
    /// First address, and the reporter of its events.
    pub(crate) fn first(&self) -> (&Path, Events<'_>) {
        (&self.addresses[0], self.events(&self.addresses[0]))
    }

    pub(crate) fn events<'a>(&'a self, address: &'a Path) -> Events<'a> {
        Events::new(address, self.report)
    }

    /// Adds the addresses to the control of the drive that they share.
    pub(crate) fn add_shared(&self) -> Vec<Arc<Drive>> {
        self.control.add_shared(self.row, &self.plan, self.addresses, self.clients)
    }
}

impl FrontEnd {
    /// Serves the device of a plan to clients of these addresses until the stop of `control` is requested:
    /// then what is not durable is flushed and saved. `report` is called with the address and one line for
    /// each event.
    ///
    /// # Errors
    /// The plan does not fit the interface, or its medium keeps only stamps instead of client data; an
    /// address cannot be bound; the medium does not start; the device has failed; its state cannot be saved.
    pub fn serve(
        &self,
        row: &'static Row,
        plan: &Plan,
        addresses: &[PathBuf],
        hosts: Hosts<'_>,
        control: &Control,
        report: &(dyn Fn(&Path, &str) + Sync),
    ) -> Result<(), RunError> {
        let name = self.name;
        let (clients, device_threads): (&[Client], _) = match hosts {
            Hosts::Clients { clients, device_threads } => (clients, device_threads),
            Hosts::Apart { device_threads } => (&[], device_threads),
            Hosts::Sharing => (&[], 1),
        };
        let most = match self.addresses {
            Addresses::One => 1,
            Addresses::Clients if clients.is_empty() => 1,
            Addresses::Clients | Addresses::Several => usize::MAX,
        };
        if !(1..=most).contains(&addresses.len()) {
            let found = addresses.len();
            return Err(RunError::Other(format!(
                "--{name}: found {found} addresses, expected one"
            )));
        }
        let shared = matches!(hosts, Hosts::Sharing);
        if shared && self.addresses != Addresses::Several {
            let expected = flags_of(|addresses| addresses == Addresses::Several);
            return Err(RunError::Other(format!("--shared: found --{name}, expected {expected}")));
        }
        if let Hosts::Clients { .. } = hosts {
            let checked = self.check_clients(plan, clients, addresses.len());
            checked.map_err(|error| RunError::Other(format!("--client: {error}")))?;
            let checked = check_threads(plan, clients, device_threads);
            checked.map_err(|error| RunError::Other(format!("--device-threads: {error}")))?;
        }
        let mut plan = plan_for_clients(row, plan)?;
        if let Hosts::Apart { device_threads } = hosts {
            self.check_queues(&plan, device_threads)?;
        }
        let is_one = shared || !clients.is_empty();
        let drives = if is_one { 1 } else { addresses.len() };
        let address = lives::number_from(lives::hash(&addresses[0]));
        let lives = &lives::of(&plan, drives, address)?;
        let numbered = plan.device.number.is_some();
        plan.device.lives(lives[0].clone());
        let job = Job {
            row,
            plan,
            addresses,
            shared,
            clients,
            device_threads,
            lives,
            numbered,
            control,
            report,
        };
        lives::saved(lives, &job.events(&addresses[0]), || (self.serve)(&job))
    }

    /// Checks that the queues of a device can be dealt to this number of threads.
    fn check_queues(&self, plan: &Plan, threads: usize) -> Result<(), RunError> {
        let most = device_threads::THREADS_MAX;
        let refused = |found: String, expected: &str| {
            Err(RunError::Other(format!("--device-threads: found {found}, expected {expected}")))
        };
        match u32::try_from(threads) {
            Ok(1) => Ok(()),
            Ok(threads) if (1..=most).contains(&threads) => {
                if self.addresses == Addresses::One {
                    return refused(format!("--{}", self.name), "a front end with queues");
                }
                Ok(device_threads::check(plan, threads)?)
            }
            _ => refused(threads.to_string(), &format!("1 to {most}")),
        }
    }

    fn check_clients(
        &self,
        plan: &Plan,
        clients: &[Client],
        addresses: usize,
    ) -> Result<(), ClientError> {
        if self.addresses == Addresses::One {
            let expected = flags_of(|addresses| addresses != Addresses::One);
            return Err(ClientError::FrontEnd { front_end: self.name, expected });
        }
        let rejected = |key, found, why| {
            let origin = plan.origin.to_string();
            ClientError::Plan { origin, key, found, why }
        };
        if !plan.faults.is_empty() {
            let why = "a fault of the device is one of all clients";
            return Err(rejected("faults", "some", why));
        }
        if plan.device.protection.is_some() {
            let why = "an extent has no metadata";
            return Err(rejected("device.protection", "one", why));
        }
        extents::check(clients, addresses)
    }
}

/// Checks that the clients can be dealt to this number of device threads.
fn check_threads(plan: &Plan, clients: &[Client], threads: usize) -> Result<(), ClientError> {
    if !(1..=clients.len()).contains(&threads) {
        return Err(ClientError::Threads { threads, clients: clients.len() });
    }
    let rejected = |key, found, why| {
        let origin = plan.origin.to_string();
        Err(ClientError::Plan { origin, key, found, why })
    };
    let medium = &plan.medium;
    if threads == 1 {
        Ok(())
    } else if medium.flash.is_some() {
        rejected("medium.kind", "flash", "its clients share chips and flash software")
    } else if medium.pace == MediumPace::Modelled {
        rejected("medium.pace", "modelled", "its clients share channels and banks")
    } else if matches!(medium.contents.backing, Backing::File(_) | Backing::Bounded { .. }) {
        rejected("medium.file", "one", "one thread has the file")
    } else {
        Ok(())
    }
}

/// Flags of the front ends with such addresses.
fn flags_of(which: impl Fn(Addresses) -> bool) -> String {
    let such = crate::all().filter(|front_end| which(front_end.addresses));
    such.map(|front_end| format!("--{}", front_end.name)).collect::<Vec<_>>().join(" or ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_display_matches_help_text() {
        let one = "1 client at a time, a handshake of at most 5.000s";
        let nbd = "64 clients at a time (48 of one network), a handshake of at most 10.000s, \
                   128 requests and 64 MiB in flight for each";
        for (name, expected) in [("shm", one), ("vfio-user", one), ("nbd", nbd)] {
            let row = crate::all().find(|row| row.name == name).expect("a front end");
            assert_eq!(row.limits.to_string(), expected, "{name}");
        }
    }

    #[test]
    fn shared_flag_rejected_by_single_address_front_end() {
        let row = world::interfaces::named("nvme").expect("an interface");
        let plan = Plan::open("live", &[]).expect("a plan");
        let nbd = crate::all().find(|row| row.name == "nbd").expect("a front end");
        let refused = |addresses: &[PathBuf], hosts| {
            let control = Control::new().expect("two descriptors");
            let served = nbd.serve(row, &plan, addresses, hosts, &control, &|_, _| ());
            served.expect_err("refused").to_string()
        };
        let one = ["a".into()];
        assert_eq!(refused(&one, Hosts::Sharing), "--shared: found --nbd, expected --vfio-user");
        let clients = ["alice=0+8".parse().expect("a client")];
        assert_eq!(
            refused(&one, Hosts::Clients { clients: &clients, device_threads: 1 }),
            "--client: found --nbd, expected --shm or --vfio-user"
        );
        let two = ["a".into(), "b".into()];
        let apart = Hosts::Apart { device_threads: 1 };
        assert_eq!(refused(&two, apart), "--nbd: found 2 addresses, expected one");
    }
}
