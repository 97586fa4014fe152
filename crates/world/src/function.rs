//! PCI functions: configuration space of the interfaces' devices.

use std::ops::Range;

use bus::Masks;
use bus::vfio_user::{Function, limits::VECTORS};
use wire::block::registers as block_registers;
use wire::dcx::registers::Group;
use wire::nvme::registers::{ACQ, AQA, ASQ, CC, DOORBELLS, INTMC, INTMS};
use wire::pci::{Bar, Identity, MsixTable, Pin, class};
use wire::pcie::Generation;

use plan::Plan;

/// PCI vendor ID. Assumed: an unassigned number, so that no driver applies the quirks of a product.
pub const VENDOR: u16 = 0x0db1;
/// Device IDs of the vendor: an NVMe controller, descriptor blocks, DC Express.
const NVME: u16 = 0x0001;
const BLOCK: u16 = 0x0002;
const DCX: u16 = 0x0003;
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
    // BAR0 bits 13:4 are reserved, so the window is at least 16 KiB.
    Function {
        identity: identity(plan, (class::NVME, NVME), register_bytes.max(16 << 10)),
        register_bytes,
        mapped: DOORBELLS..register_bytes,
        writable: WRITABLE.to_vec(),
        masks: Some(MASKS),
    }
}

/// Descriptor blocks: the two registers that announce a block may be mapped.
pub fn block(plan: &Plan, register_bytes: u32) -> Function {
    use block_registers::{ANNOUNCEMENT, CONTROL, RING, SHAPE};
    Function {
        identity: identity(plan, (class::OTHER_STORAGE, BLOCK), register_bytes),
        register_bytes,
        mapped: ANNOUNCEMENT..register_bytes,
        writable: vec![RING..RING + 8, SHAPE..SHAPE + 4, CONTROL..CONTROL + 4],
        masks: None,
    }
}

/// DC Express with `queues` queues, whose register block is at offset `at`, behind an NVMe controller's
/// registers. Its doorbells are accessed by messages: they are written to wake a sleeping device only.
pub fn dcx(plan: &Plan, at: u32, queues: u16, register_bytes: u32) -> Function {
    let nvme = nvme(plan, at);
    let group = |queue| {
        let Group { commands, status, doorbell, .. } = Group::of(at, queue);
        [commands..status, doorbell..doorbell + 4]
    };
    Function {
        identity: identity(plan, (class::OTHER_STORAGE, DCX), register_bytes),
        register_bytes,
        writable: nvme.writable.into_iter().chain((0..queues.into()).flat_map(group)).collect(),
        ..nvme
    }
}

/// Identity of a function of this class and device ID, with this length of registers.
fn identity(plan: &Plan, (class, device): (u32, u16), register_bytes: u32) -> Identity {
    let generation = Generation::ALL.iter().position(|g| *g == plan.link.generation);
    let bytes = register_bytes.next_power_of_two();
    Identity {
        vendor: VENDOR,
        device,
        class,
        revision: 1,
        bars: [
            Some(Bar { number: 0, bytes, wide: true, prefetchable: false }),
            Some(Bar { number: MSIX_BAR.into(), bytes: 4096, wide: false, prefetchable: false }),
        ],
        msix: MsixTable { vectors: VECTORS, bar: MSIX_BAR, table: 0, pending: 2048 },
        pin: Some(Pin::A),
        link_generation: generation.expect("all are listed") as u8 + 1,
        link_lanes: plan.link.lanes,
        serial: SERIAL.wrapping_add(plan.device.before() << 16),
    }
}
