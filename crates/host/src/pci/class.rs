//! Class drivers: what the system does with a function, whoever drives it. Bridges are passive, and take no
//! interrupts; storage and network master the bus.

use alloc::vec::Vec;

use bus::pci::ConfigAccess;
use wire::pci::class;

use super::{Function, Tree, Trouble};

/// What the system takes a function for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// A bridge to another bus.
    Bridge,
    /// Mass storage.
    Storage,
    /// A network controller.
    Network,
}

impl Class {
    /// The class of a function; none: nobody here has use for it.
    pub fn of(function: &Function) -> Option<Class> {
        match function.header.base_class() {
            class::BRIDGE if function.is_bridge() => Some(Class::Bridge),
            class::STORAGE => Some(Class::Storage),
            class::NETWORK => Some(Class::Network),
            _ => None,
        }
    }

    /// Whether its interrupts are set up. A bridge's own are not: those of what is behind it only pass.
    pub fn takes_interrupts(self) -> bool {
        self != Class::Bridge
    }
}

/// A function that a class driver has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its class.
    pub class: Class,
    /// Its number within the class, from 0.
    pub unit: usize,
    /// The function, by its number in the tree.
    pub function: usize,
    /// It may be used.
    pub operational: bool,
}

/// All devices of a tree, in its order.
#[derive(Clone, Debug, Default)]
pub struct Devices(Vec<Device>);

impl Devices {
    /// Gives each function to the driver of its class.
    pub fn of(tree: &Tree) -> Devices {
        let mut devices: Vec<Device> = Vec::new();
        for (function, found) in tree.functions.iter().enumerate() {
            if let Some(class) = Class::of(found) {
                let unit = devices.iter().filter(|device| device.class == class).count();
                // A bridge works from the moment at which its buses have numbers.
                let operational = class == Class::Bridge && found.buses.is_some();
                devices.push(Device { class, unit, function, operational });
            }
        }
        Devices(devices)
    }

    /// The devices.
    pub fn iter(&self) -> impl Iterator<Item = &Device> {
        self.0.iter()
    }

    /// The device of this class and number.
    pub fn get(&self, class: Class, unit: usize) -> Option<&Device> {
        self.0.iter().find(|device| device.class == class && device.unit == unit)
    }

    /// Makes a device operational: it answers for its windows, and may reach memory. Of a bridge nothing
    /// changes: it passes things on from its enumeration to its removal.
    ///
    /// # Errors
    /// A window of it has no place.
    pub async fn start(
        &mut self,
        class: Class,
        unit: usize,
        tree: &Tree,
        bus: &impl ConfigAccess,
    ) -> Result<(), Trouble> {
        for device in self.0.iter_mut().filter(|d| d.class == class && d.unit == unit) {
            if class != Class::Bridge {
                tree.functions[device.function].enable(bus).await?;
                device.operational = true;
            }
        }
        Ok(())
    }

    /// Makes a device silent. Of a bridge nothing changes.
    pub async fn stop(&mut self, class: Class, unit: usize, tree: &Tree, bus: &impl ConfigAccess) {
        for device in self.0.iter_mut().filter(|d| d.class == class && d.unit == unit) {
            if class != Class::Bridge {
                tree.functions[device.function].disable(bus).await;
                device.operational = false;
            }
        }
    }
}
