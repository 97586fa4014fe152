//! Model of sleep and doorbell: is a command ever lost?
//!
//! Mirrors `Pair::submit` (crates/host/src/dcx/pair.rs): store the command, fence, check whether the device
//! sleeps, ring; and `Front::sleep` and `Front::notice` (crates/device/src/dcx): set ASLEEP, fence, check for
//! a command once more, wait until the doorbell changes. Stores of each side wait in its own buffer, in
//! order, and reach the other at any later moment (x86-TSO; a posted write on PCIe); loads read memory. A
//! fence waits until the buffer is empty.

use crate::search::{Model, search};

const COMMANDS: u8 = 3;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Host {
    /// About to store the next command.
    Store,
    /// About to pass the fence.
    Fence,
    /// About to check whether the device sleeps.
    Look,
    Ring,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Device {
    Poll,
    /// Has set ASLEEP, and is about to pass the fence.
    Fence,
    /// Checks for a command once more.
    LastLook,
    Asleep,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Store {
    Command(u8),
    Doorbell(u8),
    Asleep(bool),
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct State {
    host: Host,
    device: Device,
    /// Commands stored by the host, present in memory, and taken by the device.
    stored: u8,
    in_memory: u8,
    taken: u8,
    asleep: bool,
    doorbell: u8,
    /// The doorbell's value when the device last read it, and whether it changed since sleep began.
    noticed: u8,
    woken: bool,
    from_host: Vec<Store>,
    from_device: Vec<Store>,
}

#[derive(Clone, Copy)]
struct Sleep {
    host_fence: bool,
    device_fence: bool,
    last_look: bool,
    /// The doorbell's value left from an earlier enable of the queue.
    doorbell: u8,
}

/// The rules that driver and device implement.
const BUILT: Sleep = Sleep { host_fence: true, device_fence: true, last_look: true, doorbell: 0 };

impl Sleep {
    fn host(&self, s: &State, then: &mut dyn FnMut(&'static str, State)) {
        let mut next = s.clone();
        match s.host {
            Host::Store if s.stored == COMMANDS => {}
            Host::Store => {
                next.stored += 1;
                next.from_host.push(Store::Command(next.stored));
                next.host = Host::Fence;
                then("host stores a command", next);
            }
            Host::Fence if self.host_fence && !s.from_host.is_empty() => {}
            Host::Fence => {
                next.host = Host::Look;
                then("host passes its fence", next);
            }
            Host::Look => {
                next.host = if s.asleep { Host::Ring } else { Host::Store };
                then("host looks", next);
            }
            Host::Ring => {
                next.from_host.push(Store::Doorbell(s.stored));
                next.host = Host::Store;
                then("host rings", next);
            }
        }
    }

    fn device(&self, s: &State, then: &mut dyn FnMut(&'static str, State)) {
        let mut next = s.clone();
        // The register task: any change of the doorbell wakes a waiting poller.
        if s.doorbell != s.noticed {
            let mut next = s.clone();
            (next.noticed, next.woken) = (s.doorbell, true);
            then("device notices the doorbell", next);
        }
        match s.device {
            Device::Poll if s.in_memory > s.taken => {
                next.taken += 1;
                then("device fetches", next);
            }
            Device::Poll => {
                // The version of `turned` is taken before ASLEEP is set.
                next.woken = false;
                next.from_device.push(Store::Asleep(true));
                next.device = Device::Fence;
                then("device says it sleeps", next);
            }
            Device::Fence if self.device_fence && !s.from_device.is_empty() => {}
            Device::Fence => {
                next.device = Device::LastLook;
                then("device passes its fence", next);
            }
            Device::LastLook => {
                let found = self.last_look && s.in_memory > s.taken;
                if found {
                    next.taken += 1;
                    next.from_device.push(Store::Asleep(false));
                }
                next.device = if found { Device::Poll } else { Device::Asleep };
                then("device looks once more", next);
            }
            Device::Asleep if s.woken => {
                next.from_device.push(Store::Asleep(false));
                next.device = Device::Poll;
                then("device wakes", next);
            }
            Device::Asleep => {}
        }
    }
}

impl Model for Sleep {
    type State = State;

    fn start(&self) -> Vec<State> {
        vec![State {
            host: Host::Store,
            device: Device::Poll,
            stored: 0,
            in_memory: 0,
            taken: 0,
            asleep: false,
            doorbell: self.doorbell,
            noticed: self.doorbell,
            woken: false,
            from_host: Vec::new(),
            from_device: Vec::new(),
        }]
    }

    fn steps(&self, s: &State, then: &mut dyn FnMut(&'static str, State)) {
        for from_host in [true, false] {
            let mut next = s.clone();
            let buffer = if from_host { &mut next.from_host } else { &mut next.from_device };
            if !buffer.is_empty() {
                match buffer.remove(0) {
                    Store::Command(number) => next.in_memory = number,
                    Store::Doorbell(number) => next.doorbell = number,
                    Store::Asleep(asleep) => next.asleep = asleep,
                }
                then("a store lands", next);
            }
        }
        self.host(s, then);
        // A device that polls and finds nothing would loop for ever: bound its posted stores.
        if s.from_device.len() < 4 {
            self.device(s, then);
        }
    }

    fn wrong(&self, s: &State, last: bool) -> Option<String> {
        (last && s.taken < COMMANDS).then(|| format!("command {} is lost", s.taken + 1))
    }
}

#[test]
fn model_sleep_loses_no_command() {
    let states = search(&BUILT).unwrap_or_else(|way| panic!("{way}"));
    assert!(states > 1000, "only {states} states");
}

#[test]
fn model_sleep_loses_command_without_fence_or_recheck() {
    let broken = [
        Sleep { host_fence: false, ..BUILT },
        Sleep { device_fence: false, ..BUILT },
        Sleep { last_look: false, ..BUILT },
    ];
    for model in broken {
        let way = search(&model).expect_err("a lost command");
        assert!(way.contains("is lost"), "{way}");
    }
}

/// Numbers start again each time a queue is enabled. A doorbell that kept its value would hide a ring.
#[test]
fn model_sleep_loses_command_if_doorbell_not_cleared() {
    // The last command number of the earlier enable equals the last of this one.
    search(&Sleep { doorbell: COMMANDS, ..BUILT }).expect_err("a lost command");
}
