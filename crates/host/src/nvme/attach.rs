//! Attaching to a controller: enable, identify, and the settings that a reset clears.

use alloc::vec::Vec;

use bus::HostPort;
use wire::Nsid;
use wire::nvme::features::{AsyncEventConfig, VolatileWriteCache, fid};
use wire::nvme::identify::{IdentifyController, IdentifyNamespace, oacs, oncs, sgls, vwc};
use wire::nvme::io::BLOCKS_MAX;
use wire::nvme::pi::Kind as Guard;

use super::abilities::Abilities;
use super::admin::Admin;
use super::power::transitions;
use super::protect::Protect;
use super::{Options, PAGE_BYTES, Sgl};
use crate::{Deallocated, Geometry, InitError};

/// Validated Identify data.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Identify Controller, as read.
    pub controller: IdentifyController,
    /// Identify Namespace of the namespace in use, as read.
    pub namespace: IdentifyNamespace,
    /// Active namespaces, at most 1024.
    pub namespaces: Vec<Nsid>,
    /// Namespace in use.
    pub nsid: Nsid,
    /// Geometry of the namespace, with the controller's longest transfer.
    pub geometry: Geometry,
    /// Number of I/O queues that the controller grants.
    pub queues: u32,
    /// Type of the namespace's protection information.
    pub protection: Option<Guard>,
}

impl Identity {
    /// Rejects protected namespaces, for users that form commands without protection information.
    pub(crate) fn must_be_plain(&self) -> Result<(), InitError> {
        match self.protection {
            None => Ok(()),
            Some(kind) => Err(InitError::Unsupported {
                what: "DPS",
                found: kind as u64,
                expected: "0: blocks without protection information, of which these commands know nothing",
            }),
        }
    }

    /// Optional commands of the namespace.
    pub(super) fn abilities(&self) -> Abilities {
        Abilities::of(&self.controller, &self.namespace, &self.geometry)
    }

    /// Contents of deallocated blocks (NVM command set 1.0, 4.1.5.1: DLFEAT).
    pub fn deallocated(&self) -> Deallocated {
        deallocated(&self.controller, &self.namespace)
    }
}

pub(super) fn deallocated(
    controller: &IdentifyController,
    namespace: &IdentifyNamespace,
) -> Deallocated {
    if controller.oncs.get() & oncs::DATASET_MANAGEMENT == 0 {
        return Deallocated::Unsupported;
    }
    match namespace.dlfeat & 7 {
        1 => Deallocated::Zeros,
        _ => Deallocated::Unknown,
    }
}

/// Brings a controller in any state to one that is enabled and identified.
pub(super) async fn attach<P: HostPort>(
    admin: &Admin<P>,
    options: &Options,
) -> Result<Identity, InitError> {
    admin.turn_off_unknown().await?;
    admin.turn_on().await?;
    let controller = admin.identify_controller().await?;
    let namespaces = admin.active_namespaces().await?;
    let nsid = match (options.nsid, namespaces.first()) {
        (Some(nsid), _) if namespaces.contains(&nsid) => nsid,
        (None, Some(first)) => *first,
        (wanted, _) => {
            return Err(InitError::Unsupported {
                what: "the namespace asked for (0: the first)",
                found: u64::from(wanted.map_or(0, |nsid| nsid.0)),
                expected: "an active namespace",
            });
        }
    };
    let namespace = admin.identify_namespace(nsid).await?;
    let geometry = geometry(&controller, &namespace, options)?;
    let queues = set_up(admin, options, &controller).await?;
    let protection = protection(&namespace, options.protect)?;
    options.protect.validate(protection)?;
    Ok(Identity { controller, namespace, namespaces, nsid, geometry, queues, protection })
}

/// Sets up what a reset clears. Returns the number of I/O queues that the controller grants.
pub(super) async fn set_up<P: HostPort>(
    admin: &Admin<P>,
    options: &Options,
    controller: &IdentifyController,
) -> Result<u32, InitError> {
    let offered = controller.oacs.get() & oacs::DOORBELL_BUFFER != 0;
    if options.shadow_doorbells && !offered {
        return Err(InitError::Unsupported {
            what: "OACS",
            found: u64::from(controller.oacs.get()),
            expected: "Doorbell Buffer Config (bit 8), which was asked for",
        });
    }
    admin.set_up_shadows().await?;
    let queues = admin.number_of_queues(options.queues).await?;
    if let Some(on) = options.volatile_cache
        && controller.vwc & vwc::PRESENT != 0
    {
        let value = VolatileWriteCache::new().with_wce(on).into_bits();
        admin
            .set_feature("Set Features: Volatile Write Cache", fid::VOLATILE_WRITE_CACHE, value)
            .await?;
    }
    if let Some(arbitration) = options.arbitration {
        let value = arbitration.into_bits();
        admin.set_feature("Set Features: Arbitration", fid::ARBITRATION, value).await?;
    }
    if let Some(coalescing) = options.coalescing {
        let value = coalescing.into_bits();
        let step = "Set Features: Interrupt Coalescing";
        admin.set_feature(step, fid::INTERRUPT_COALESCING, value).await?;
    }
    let saving = options.power_saving.filter(|_| controller.apsta & 1 != 0);
    if let Some(table) = saving.and_then(|most| transitions(controller, most)) {
        admin.let_it_save(&table).await?;
    }
    let value = AsyncEventConfig::new()
        .with_smart(SMART_WARNINGS)
        .with_namespace_attribute(controller.oaes.get() & OAES_NAMESPACE != 0)
        .into_bits();
    let step = "Set Features: Asynchronous Event Configuration";
    admin.try_feature(step, fid::ASYNC_EVENT_CONFIG, value).await?;
    Ok(queues)
}

/// The five critical warnings of the SMART log (NVMe base 2.0, 5.16.1.3).
const SMART_WARNINGS: u8 = 0x1f;

/// Bit of OAES: Namespace Attribute Notices (NVMe base 2.0, 5.17.2.1).
const OAES_NAMESPACE: u32 = 1 << 8;

/// Type of the namespace's protection information: eight bytes per block, from the controller or the host. If
/// the metadata follows each block's data, only the controller can generate it, because a Read with PRACT
/// does not transfer it.
pub(super) fn protection(
    namespace: &IdentifyNamespace,
    protect: Protect,
) -> Result<Option<Guard>, InitError> {
    let unsupported = |what, found, expected| Err(InitError::Unsupported { what, found, expected });
    let bytes = namespace.format().map_or(0, |format| u64::from(format.ms.get()));
    match (Guard::of(namespace.dps & 7), bytes) {
        (Ok(None), 0) => Ok(None),
        (Ok(None), _) => unsupported("MS", bytes, "0, or 8 bytes of protection information"),
        (Ok(_), 8) if protect.is_by_host() && namespace.metadata_is_inline() => {
            let expected = "bit 4 clear: tags that the host makes have a buffer of their own";
            unsupported("FLBAS", u64::from(namespace.flbas), expected)
        }
        (Ok(kind), 8) => Ok(kind),
        (Ok(_), _) => unsupported("MS", bytes, "8: protection information and nothing else"),
        (Err(_), _) => unsupported("DPS", u64::from(namespace.dps), "a type from 0 to 3"),
    }
}

/// Geometry of the namespace, if this driver supports it.
pub(super) fn geometry(
    controller: &IdentifyController,
    namespace: &IdentifyNamespace,
    options: &Options,
) -> Result<Geometry, InitError> {
    let unsupported = |what, found, expected| Err(InitError::Unsupported { what, found, expected });
    let blocks = namespace.nsze.get();
    if blocks == 0 {
        return unsupported("NSZE", 0, "a namespace of at least one block");
    }
    let Some(format) = namespace.format() else {
        return unsupported("FLBAS", u64::from(namespace.flbas), "one of the formats there are");
    };
    let block_bytes = match format.block_bytes() {
        Some(bytes @ 512..=4096) => bytes as u32,
        _ => return unsupported("LBADS", u64::from(format.ds), "9 to 12: 512 to 4096 bytes"),
    };
    protection(namespace, options.protect)?;
    // MDTS is a power of two of the smallest pages; 0 means no limit.
    let most = match controller.mdts {
        0 => u64::MAX,
        mdts => PAGE_BYTES.checked_shl(u32::from(mdts)).filter(|b| *b != 0).unwrap_or(u64::MAX),
    };
    let most = most
        .min(u64::from(options.transfer_bytes_max))
        .min(u64::from(BLOCKS_MAX) * u64::from(block_bytes));
    let most = most - most % u64::from(block_bytes);
    if most == 0 {
        let found = u64::from(options.transfer_bytes_max);
        return unsupported("the longest transfer", found, "at least one block");
    }
    let volatile_cache =
        controller.vwc & vwc::PRESENT != 0 && options.volatile_cache != Some(false);
    // PRPs are dword aligned; SGLs may need that too.
    let any_byte = controller.sgls.get() & sgls::SUPPORTED == sgls::ANY_BYTE;
    let buffer_align = if any_byte && options.sgl != Sgl::Never { 1 } else { 4 };
    let transfer_bytes_max = most as u32;
    Ok(Geometry { blocks, block_bytes, transfer_bytes_max, buffer_align, volatile_cache })
}
