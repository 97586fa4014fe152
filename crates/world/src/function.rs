//! PCI functions: configuration space of the interfaces' devices.

use std::ops::Range;

use bus::Masks;
use bus::vfio_user::{Function, limits::VECTORS};
use wire::nvme::registers::{ACQ, AQA, ASQ, CC, DOORBELLS, INTMC, INTMS};
use wire::pci::{Bar, Identity, MsixTable, Pin, class};
use wire::pcie::Generation;

use plan::Plan;

/// PCI vendor and device ID. Assumed: unassigned numbers, so that no driver applies the quirks of a product.
pub const VENDOR: u16 = 0x0db1;
/// See [`VENDOR`].
const DEVICE: u16 = 0x0001;
/// Device Serial Number of the first drive; those of others follow.
const SERIAL: u64 = u64::from_le_bytes(*b"doorbell");
/// BAR of the MSI-X table.
const MSIX_BAR: u8 = 4;
/// Writable registers below the doorbells.
const WRITABLE: &[Range<u32>] = &[CC..CC + 4, AQA..AQA + 4, ASQ..ASQ + 8, ACQ..ACQ + 8];

/// The interrupt masks (NVMe base 2.0, 3.1.3.3 and 3.1.3.4).
pub const MASKS: Masks = Masks { set: INTMS, clear: INTMC };

/// An NVMe controller (NVMe over PCIe 1.0, 3.1): registers are accessed by messages, doorbells may be mapped.
pub fn nvme(plan: &Plan, register_bytes: u32) -> Function {
    let generation = Generation::ALL.iter().position(|g| *g == plan.link.generation);
    // BAR0 bits 13:4 are reserved, so the window is at least 16 KiB.
    let bytes = register_bytes.next_power_of_two().max(16 << 10);
    Function {
        identity: Identity {
            vendor: VENDOR,
            device: DEVICE,
            class: class::NVME,
            revision: 1,
            bars: [
                Some(Bar { number: 0, bytes, wide: true, prefetchable: false }),
                Some(Bar {
                    number: MSIX_BAR.into(),
                    bytes: 4096,
                    wide: false,
                    prefetchable: false,
                }),
            ],
            msix: MsixTable { vectors: VECTORS, bar: MSIX_BAR, table: 0, pending: 2048 },
            pin: Pin::A,
            link_generation: generation.expect("all are listed") as u8 + 1,
            link_lanes: plan.link.lanes,
            serial: SERIAL.wrapping_add(plan.device.before() << 16),
        },
        register_bytes,
        mapped_from: DOORBELLS,
        writable: WRITABLE,
        masks: Some(MASKS),
    }
}
