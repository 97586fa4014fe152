//! Identify data structures of the controller and its namespaces.

use bus::DevicePort;
use media::Media;
use wire::Nsid;
use wire::nvme::admin::Identify;
use wire::nvme::identify::{
    IDENTIFY_BYTES, IdDescriptors, IdentifyController, IdentifyNamespace, NamespaceList,
    ascii_padded, cmic, cns, csi, ctratt, fuses, lpa, oncs, sgls, vwc,
};
use wire::nvme::opcode;
use wire::nvme::registers::VERSION_1_4;
use wire::nvme::reservation::rescap;
use wire::nvme::status::Status;
use zerocopy::{FromZeros, IntoBytes};

use super::namespace::{Metadata, Namespace};
use super::{
    ABORTS_MAX, COPY_RANGES_MAX, Controller, ERROR_LOG_ENTRIES, EVENT_REQUESTS_MAX, NAMESPACES_MAX,
    Options, UNCORRECTABLE_BYTES_MAX, keep_alive,
};

/// NVMe qualified name of the subsystem, based on a UUID (NVMe base 2.0, 4.5): this, and twelve digits.
const SUBNQN: &str = "nqn.2014-08.org.nvmexpress:uuid:d0078e11-0000-4000-8000-";
/// Drives with different names: 48 bits, those of the last part of a UUID.
const NUMBERS: u64 = 1 << 48;
const MODEL: &str = "doorbell programmable SSD";
const FIRMWARE: &str = env!("CARGO_PKG_VERSION");
/// Bits of DLFEAT (NVM command set 1.0, 4.1.5.1).
const DEALLOCATED_IS_ZERO: u8 = 1;
const WRITE_ZEROES_DEALLOCATES: u8 = 1 << 3;
/// EUI-64 of the first namespace created; those of the others follow consecutively.
const EUI64: u64 = u64::from_be_bytes(*b"doorbell");

/// Bits of the EUI-64 for the namespaces of a drive; those above are of the drive.
const EUI64_SERIAL_LOG2: u32 = 16;

fn eui64(ns: Namespace, options: &Options) -> [u8; 8] {
    let of_number = EUI64.wrapping_add(options.number << EUI64_SERIAL_LOG2);
    options.names.eui64.unwrap_or(of_number).wrapping_add(ns.serial.into()).to_be_bytes()
}

/// Unless it is given: the number of the drive, then the EUI-64.
fn nguid(ns: Namespace, options: &Options) -> [u8; 16] {
    let of_number = u128::from(drive_number(options.number)) << 64
        | u128::from(u64::from_be_bytes(eui64(ns, options)));
    match options.names.nguid {
        Some(first) => first.wrapping_add(ns.serial.into()).to_be_bytes(),
        None => of_number.to_be_bytes(),
    }
}

/// The number of a drive in its names: from 1, of 48 bits.
fn drive_number(before: u64) -> u64 {
    before.wrapping_add(1) % NUMBERS
}

/// Serial number of the drive with this number, from 1.
pub fn serial_of(number: u64) -> String {
    // At most 8 and 12 characters of 20.
    format!("DOORBELL{:04}", number % NUMBERS % 1_000_000_000_000)
}

impl<P: DevicePort, M: Media> Controller<P, M> {
    /// Returns the structure selected by CNS.
    pub(super) fn identify(
        &self,
        nsid: Nsid,
        ask: Identify,
    ) -> Result<Box<[u8; IDENTIFY_BYTES]>, Status> {
        let nvm = || match ask.csi {
            csi::NVM => Ok(()),
            _ => Err(Status::INVALID_FIELD),
        };
        let mut page = Box::new([0; IDENTIFY_BYTES]);
        match ask.cns {
            cns::CONTROLLER => page.copy_from_slice(self.identify_controller().as_bytes()),
            // NVMe base 2.0, 5.17.2.1: the broadcast identifier requests the common capabilities.
            cns::NAMESPACE if nsid == Nsid::BROADCAST => {
                page.copy_from_slice(self.identify_all_namespaces().as_bytes());
            }
            // A namespace that is not attached, or not allocated, is reported as zeros.
            cns::NAMESPACE | cns::ALLOCATED_NAMESPACE => {
                let there = match ask.cns {
                    cns::NAMESPACE => self.active_at(nsid),
                    _ => self.shared.namespaces.allocated_at(nsid),
                };
                match there {
                    Ok((_, ns)) => page.copy_from_slice(self.identify_namespace(ns).as_bytes()),
                    Err(Status::INVALID_FIELD) => {}
                    Err(status) => return Err(status),
                }
            }
            cns::ACTIVE_NAMESPACES
            | cns::ALLOCATED_NAMESPACES
            | cns::COMMAND_SET_ACTIVE_NAMESPACES => {
                if nsid.0 >= 0xffff_fffe {
                    return Err(Status::INVALID_NAMESPACE_OR_FORMAT);
                }
                nvm()?;
                let list = match ask.cns {
                    cns::ALLOCATED_NAMESPACES => {
                        NamespaceList::after(nsid, self.shared.namespaces.allocated())
                    }
                    _ => NamespaceList::after(nsid, self.active()),
                };
                page.copy_from_slice(list.as_bytes());
            }
            cns::NAMESPACE_DESCRIPTORS => {
                let (_, ns) = self.active_at(nsid)?;
                let (eui64, nguid) = (eui64(ns, &self.options), nguid(ns, &self.options));
                let (eui64, nguid, csi) = (Some(eui64), Some(nguid), Some(csi::NVM));
                *page = IdDescriptors { eui64, nguid, csi, ..Default::default() }.to_bytes();
            }
            cns::COMMAND_SET_NAMESPACE => {
                self.active_at(nsid)?;
                nvm()?;
            }
            cns::CONTROLLERS => self.list_controllers(&mut page, ask.cntid, u8::MAX),
            cns::CONTROLLERS_OF_NAMESPACE => {
                let (_, ns) = self.shared.namespaces.allocated_at(nsid)?;
                self.list_controllers(&mut page, ask.cntid, ns.attached);
            }
            cns::COMMAND_SET_CONTROLLER => {
                nvm()?;
                // WUSL, in units of the smallest page size (NVM command set 1.0, 4.1.5.2).
                page[2] = (UNCORRECTABLE_BYTES_MAX / 4096).ilog2() as u8;
            }
            _ => return Err(Status::INVALID_FIELD),
        }
        Ok(page)
    }

    fn identify_all_namespaces(&self) -> IdentifyNamespace {
        let mut common = IdentifyNamespace::new_zeroed();
        let formats = self.shared.namespaces.formats();
        common.nlbaf = formats.len() as u8 - 1;
        common.lbaf[..formats.len()].copy_from_slice(&formats);
        (common.mc, common.dpc) = self.metadata_capabilities();
        common
    }

    /// Lists the controllers with these bits and numbers of at least `first` (NVMe base 2.0, 5.17.2.12 and
    /// 5.17.2.13).
    fn list_controllers(&self, page: &mut [u8; IDENTIFY_BYTES], first: u16, bits: u8) {
        for member in self.shared.members.all() {
            if member.id >= first && member.bit() & bits != 0 {
                page[0] += 1;
                let at = 2 * usize::from(page[0]);
                page[at..at + 2].copy_from_slice(&member.id.to_le_bytes());
            }
        }
    }

    fn identify_controller(&self) -> IdentifyController {
        let mut c = IdentifyController::new_zeroed();
        let (vendor, subsystem_vendor) = self.options.pci_vendors;
        (c.vid, c.ssvid) = (vendor.into(), subsystem_vendor.into());
        let number = drive_number(self.options.number);
        let names = &self.options.names;
        let serial = names.serial.clone().unwrap_or_else(|| serial_of(number));
        c.sn = ascii_padded(&serial).expect("ASCII");
        c.mn = ascii_padded(names.model.as_deref().unwrap_or(MODEL)).expect("ASCII");
        c.fr = ascii_padded(FIRMWARE).expect("ASCII");
        c.mdts = (self.options.transfer_bytes_max / 4096).ilog2() as u8;
        c.cntlid = self.shared.member.id.into();
        if !self.shared.members.is_alone() {
            c.cmic = cmic::SEVERAL_PORTS | cmic::SEVERAL_CONTROLLERS;
        }
        c.ctratt = ctratt::LONG_HOST_IDENTIFIERS.into();
        c.ver = VERSION_1_4.into();
        c.cntrltype = 1;
        c.kas = keep_alive::KAS.into();
        c.acl = ABORTS_MAX - 1;
        c.aerl = EVENT_REQUESTS_MAX as u8 - 1;
        // One firmware slot, read-only.
        c.frmw = 1 << 1 | 1;
        c.lpa = lpa::EXTENDED | lpa::COMMANDS_SUPPORTED;
        c.elpe = ERROR_LOG_ENTRIES as u8 - 1;
        let (admin, io) = self.optional_commands();
        c.oacs = admin.into();
        // An extended self-test takes one minute, the minimum that can be reported. One self-test at a time
        // per controller.
        (c.edstt, c.dsto) = (1.into(), self.shared.members.is_alone().into());
        let bytes = |blocks: u64| u128::from(blocks) * u128::from(self.block_bytes);
        c.tnvmcap = bytes(self.media.blocks()).into();
        c.unvmcap = bytes(self.shared.namespaces.unallocated()).into();
        c.wctemp = 343.into();
        c.cctemp = 353.into();
        if self.has_admin(opcode::admin::SANITIZE) {
            c.sanicap = self.sanitizing_capabilities().into();
        }
        // Entries of 64 and 16 bytes, minimum and maximum.
        c.sqes = 0x66;
        c.cqes = 0x44;
        c.nn = NAMESPACES_MAX.into();
        c.oncs = (io | oncs::FEATURE_SELECT).into();
        // Compare and Write may be fused, for one block: ACWU is zero.
        if self.shared.place.is_none() {
            c.fuses = fuses::COMPARE_AND_WRITE.into();
        }
        // Copy source ranges in format 0.
        c.cdfs = 1.into();
        c.sgls = (sgls::ANY_BYTE | sgls::BIT_BUCKET | sgls::LONGER).into();
        c.vwc = vwc::PRESENT | vwc::BROADCAST_FLUSH;
        // AWUN and AWUPF of zero: single blocks are written atomically; larger writes are not.
        let subnqn = format!("{SUBNQN}{number:012x}");
        c.subnqn[..subnqn.len()].copy_from_slice(subnqn.as_bytes());
        self.describe_power(&mut c);
        c
    }

    /// MC and DPC: metadata inline or in a separate buffer; all three protection types; metadata of 8 bytes,
    /// so that the protection information is both first and last.
    fn metadata_capabilities(&self) -> (u8, u8) {
        if self.shared.namespaces.offers_metadata() { (3, 0x1f) } else { (0, 0) }
    }

    fn identify_namespace(&self, ns: Namespace) -> IdentifyNamespace {
        let mut n = IdentifyNamespace::new_zeroed();
        let blocks = ns.lbas();
        (n.nsze, n.ncap, n.nuse) = (blocks.into(), blocks.into(), blocks.into());
        n.nmic = u8::from(!self.shared.members.is_alone() && !ns.private);
        if self.has_io(opcode::io::RESERVATION_REPORT) {
            n.rescap = rescap::KINDS | rescap::IGNORE_KEY_1_3;
        }
        if self.keeps_a_label() {
            n.rescap |= rescap::PERSIST;
        }
        n.dlfeat = DEALLOCATED_IS_ZERO | WRITE_ZEROES_DEALLOCATES;
        let (one, all) = self.copy_blocks_max(ns);
        (n.mssrl, n.mcl, n.msrc) = (one.into(), all.into(), COPY_RANGES_MAX as u8 - 1);
        (n.eui64, n.nguid) = (eui64(ns, &self.options), nguid(ns, &self.options));
        n.nvmcap = (u128::from(ns.blocks) * u128::from(self.block_bytes)).into();
        let formats = self.shared.namespaces.formats();
        (n.nlbaf, n.flbas) = (formats.len() as u8 - 1, self.shared.namespaces.format_of(ns));
        (n.mc, n.dpc) = self.metadata_capabilities();
        n.dps = ns.metadata.map_or(0, Metadata::dps);
        n.lbaf[..formats.len()].copy_from_slice(&formats);
        n
    }
}
