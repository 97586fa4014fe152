//! What the controller and its namespace say of themselves.

use bus::DevicePort;
use media::Media;
use wire::Nsid;
use wire::nvme::admin::Identify;
use wire::nvme::identify::{
    IDENTIFY_BYTES, IdDescriptors, IdentifyController, IdentifyNamespace, NamespaceList,
    ascii_padded, cns, csi, lpa, oacs, oncs, vwc,
};
use wire::nvme::registers::VERSION_1_4;
use wire::nvme::status::Status;
use zerocopy::{FromZeros, IntoBytes};

use super::{ABORTS_MAX, COPY_RANGES_MAX, Controller, ERROR_LOG_ENTRIES, EVENT_REQUESTS_MAX};
use crate::faults::Hook;

/// The one namespace.
pub(super) const NAMESPACE: Nsid = Nsid(1);

/// The NVMe qualified name of the subsystem: a UUID of ours, as NVMe base 2.0, 4.5 allows.
const SUBNQN: &str = "nqn.2014-08.org.nvmexpress:uuid:d0078e11-0000-4000-8000-000000000001";
const SERIAL: &str = "DOORBELL0001";
const MODEL: &str = "doorbell programmable SSD";
const FIRMWARE: &str = env!("CARGO_PKG_VERSION");
/// Bits of DLFEAT (NVM command set 1.0, 4.1.5.1).
const DEALLOCATED_IS_ZERO: u8 = 1;
const WRITE_ZEROES_DEALLOCATES: u8 = 1 << 3;
const EUI64: [u8; 8] = *b"doorbell";

impl<P: DevicePort, M: Media, H: Hook> Controller<P, M, H> {
    /// The structure that is asked for.
    pub(super) fn identify(
        &self,
        nsid: Nsid,
        ask: Identify,
    ) -> Result<Box<[u8; IDENTIFY_BYTES]>, Status> {
        let namespaces = [NAMESPACE];
        let known = || match nsid {
            NAMESPACE => Ok(()),
            _ => Err(Status::INVALID_NAMESPACE_OR_FORMAT),
        };
        let nvm = || match ask.csi {
            csi::NVM => Ok(()),
            _ => Err(Status::INVALID_FIELD),
        };
        let mut page = Box::new([0; IDENTIFY_BYTES]);
        match ask.cns {
            cns::CONTROLLER => page.copy_from_slice(self.identify_controller().as_bytes()),
            // NVMe base 2.0, 5.17.2.1: the broadcast identifier asks for what all have in common.
            cns::NAMESPACE if nsid == Nsid::BROADCAST => {
                let mut common = IdentifyNamespace::new_zeroed();
                let (formats, _) = self.lba_formats();
                common.nlbaf = formats.len() as u8 - 1;
                common.lbaf[..formats.len()].copy_from_slice(&formats);
                page.copy_from_slice(common.as_bytes());
            }
            cns::NAMESPACE | cns::ALLOCATED_NAMESPACE => {
                known()?;
                page.copy_from_slice(self.identify_namespace().as_bytes());
            }
            cns::ACTIVE_NAMESPACES
            | cns::ALLOCATED_NAMESPACES
            | cns::COMMAND_SET_ACTIVE_NAMESPACES => {
                if nsid.0 >= 0xffff_fffe {
                    return Err(Status::INVALID_NAMESPACE_OR_FORMAT);
                }
                nvm()?;
                page.copy_from_slice(NamespaceList::after(nsid, namespaces).as_bytes());
            }
            cns::NAMESPACE_DESCRIPTORS => {
                known()?;
                let descriptors =
                    IdDescriptors { eui64: Some(EUI64), csi: Some(csi::NVM), ..Default::default() };
                *page = descriptors.to_bytes();
            }
            cns::COMMAND_SET_NAMESPACE => {
                known()?;
                nvm()?;
            }
            cns::COMMAND_SET_CONTROLLER => nvm()?,
            _ => return Err(Status::INVALID_FIELD),
        }
        Ok(page)
    }

    fn identify_controller(&self) -> IdentifyController {
        let mut c = IdentifyController::new_zeroed();
        let (vendor, subsystem_vendor) = self.options.pci_vendors;
        (c.vid, c.ssvid) = (vendor.into(), subsystem_vendor.into());
        c.sn = ascii_padded(SERIAL).expect("ASCII");
        c.mn = ascii_padded(MODEL).expect("ASCII");
        c.fr = ascii_padded(FIRMWARE).expect("ASCII");
        c.mdts = (self.options.transfer_bytes_max / 4096).ilog2() as u8;
        c.cntlid = 1.into();
        c.ver = VERSION_1_4.into();
        c.cntrltype = 1;
        c.acl = ABORTS_MAX - 1;
        c.aerl = EVENT_REQUESTS_MAX as u8 - 1;
        // One firmware slot, read-only.
        c.frmw = 1 << 1 | 1;
        c.lpa = lpa::EXTENDED | lpa::COMMANDS_SUPPORTED;
        c.elpe = ERROR_LOG_ENTRIES as u8 - 1;
        c.oacs = oacs::FORMAT.into();
        c.wctemp = 343.into();
        c.cctemp = 353.into();
        // Entries of 64 and of 16 bytes, neither more nor less.
        c.sqes = 0x66;
        c.cqes = 0x44;
        c.nn = 1.into();
        c.oncs = (oncs::COMPARE
            | oncs::DATASET_MANAGEMENT
            | oncs::WRITE_ZEROES
            | oncs::FEATURE_SELECT
            | oncs::VERIFY
            | oncs::COPY)
            .into();
        // Source ranges of a copy as format 0 describes them.
        c.cdfs = 1.into();
        c.vwc = vwc::PRESENT | vwc::BROADCAST_FLUSH;
        // AWUN and AWUPF of zero: one block is written whole or not at all, and no promise beyond.
        c.subnqn[..SUBNQN.len()].copy_from_slice(SUBNQN.as_bytes());
        c.psd[0].mp = 2500.into();
        c
    }

    fn identify_namespace(&self) -> IdentifyNamespace {
        let mut n = IdentifyNamespace::new_zeroed();
        let blocks = self.lbas();
        (n.nsze, n.ncap, n.nuse) = (blocks.into(), blocks.into(), blocks.into());
        n.dlfeat = DEALLOCATED_IS_ZERO | WRITE_ZEROES_DEALLOCATES;
        let (one, all) = self.copy_blocks_max();
        (n.mssrl, n.mcl, n.msrc) = (one.into(), all.into(), COPY_RANGES_MAX as u8 - 1);
        n.eui64 = EUI64;
        let (formats, now) = self.lba_formats();
        (n.nlbaf, n.flbas) = (formats.len() as u8 - 1, now);
        n.lbaf[..formats.len()].copy_from_slice(&formats);
        n
    }
}
