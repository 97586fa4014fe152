//! Class drivers: the system's handling of a function, independent of its own driver. Bridges are passive and
//! take no interrupts; storage and network functions are bus masters.

use alloc::vec::Vec;
use core::fmt;

use bus::pci::ConfigAccess;
use wire::pci::class;

use super::{Function, Tree, Trouble};

/// Class of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Bridge to another bus.
    Bridge,
    /// Mass storage.
    Storage,
    /// Network controller.
    Network,
}

impl Class {
    /// Class of a function. `None` if it is of no supported class.
    pub fn of(function: &Function) -> Option<Class> {
        match function.header.base_class() {
            class::BRIDGE if function.is_bridge() => Some(Class::Bridge),
            class::STORAGE => Some(Class::Storage),
            class::NETWORK => Some(Class::Network),
            _ => None,
        }
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Class::Bridge => "bridge",
            Class::Storage => "storage",
            Class::Network => "network",
        })
    }
}

/// Reason why a device was not started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The class has no device of this number.
    #[error("{class} {unit}: there is no such device")]
    NoDevice {
        /// Class.
        class: Class,
        /// Number within the class.
        unit: usize,
    },
    /// The function cannot be enabled.
    #[error(transparent)]
    Function(#[from] Trouble),
}

/// A function assigned to a class driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    /// Class.
    pub class: Class,
    /// Number within the class, from 0.
    pub unit: usize,
    /// Index of the function in the tree.
    pub function: usize,
    /// True if the device may be used.
    pub operational: bool,
}

/// All devices of a tree, in its order.
#[derive(Clone, Debug, Default)]
pub struct Devices(Vec<Device>);

impl Devices {
    /// Assigns each function to the driver of its class.
    pub fn of(tree: &Tree) -> Devices {
        let mut devices: Vec<Device> = Vec::new();
        for (function, found) in tree.functions.iter().enumerate() {
            if let Some(class) = Class::of(found) {
                let unit = devices.iter().filter(|device| device.class == class).count();
                // A bridge is operational once its buses have numbers.
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

    /// Device of this class and number.
    pub fn get(&self, class: Class, unit: usize) -> Option<&Device> {
        self.0.iter().find(|device| device.class == class && device.unit == unit)
    }

    /// Starts a device: enables its windows and bus mastering. No effect on a bridge, which forwards from its
    /// enumeration to its removal.
    ///
    /// # Errors
    /// There is no such device, or one of its windows has no address.
    pub async fn start(
        &mut self,
        class: Class,
        unit: usize,
        tree: &Tree,
        bus: &impl ConfigAccess,
    ) -> Result<(), StartError> {
        let mut found = self.0.iter_mut().filter(|d| d.class == class && d.unit == unit);
        let device = found.next().ok_or(StartError::NoDevice { class, unit })?;
        if class != Class::Bridge {
            tree.functions[device.function].enable(bus).await?;
            device.operational = true;
        }
        Ok(())
    }

    /// Stops a device: disables its windows and bus mastering. No effect on a bridge, or without such a
    /// device.
    pub async fn stop(&mut self, class: Class, unit: usize, tree: &Tree, bus: &impl ConfigAccess) {
        for device in self.0.iter_mut().filter(|d| d.class == class && d.unit == unit) {
            if class != Class::Bridge {
                tree.functions[device.function].disable(bus).await;
                device.operational = false;
            }
        }
    }
}
