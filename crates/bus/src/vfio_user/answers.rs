//! Handling of requests: identity and regions of a function; each request yields a reply, an order for the
//! device, or an error.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::vec::Vec;

use wire::BusAddr;
use wire::pci::{CONFIG_BYTES, ConfigSpace, MSIX_ENTRY_BYTES};
use wire::vfio_user::{
    Action, Data, DeviceInfo, IrqInfo, RegionAccess, RegionInfo, Request, SparseArea, SparseMmap,
    device, errno, irq, region,
};
use zerocopy::IntoBytes;

use super::function::{Function, Registers};
use super::limits;
use super::mailbox::ToDevice;
use super::table::Mapping;
use super::vectors::{Change, Kind, Signalling};
use crate::fd::{self, Eventfd};
use crate::{Memory, backing};

/// Result of a valid request.
pub(super) enum Done {
    /// Done; this is the reply.
    Now(Vec<u8>),
    /// Done; the reply carries the descriptor of the register window.
    Window(Vec<u8>),
    /// To be done by the device; then this is the reply.
    Order { order: ToDevice, payload: Vec<u8> },
}

/// A function as seen by its client.
pub(super) struct Face {
    function: Function,
    config: ConfigSpace,
    registers: Registers,
    /// MSI-X table and pending bits. A vfio-user client emulates the table itself and sends
    /// [`Request::SetIrqs`]; this copy only holds the values that were written.
    table: Vec<u8>,
    /// Counters received from the client that may still be in use.
    counters: Vec<Weak<Eventfd>>,
    signalling: Vec<Arc<Signalling>>,
}

/// A region by its index.
enum Region {
    Registers,
    Table,
    Config,
    /// Region of length zero.
    Nothing,
}

impl Face {
    pub fn new(function: Function, registers: Registers, signalling: Vec<Arc<Signalling>>) -> Face {
        let msix = function.identity.msix;
        let bar =
            function.identity.bars.iter().flatten().find(|b| b.number == usize::from(msix.bar));
        let table_bytes = bar.expect("the window of the vectors' table is one").bytes;
        Face {
            config: ConfigSpace::new(&function.identity),
            function,
            registers,
            table: std::vec![0; table_bytes as usize],
            counters: Vec::new(),
            signalling,
        }
    }

    /// The file that holds the mappable registers.
    pub fn window(&self) -> BorrowedFd<'_> {
        self.registers.mapped().1
    }

    /// Resets the counters on which device threads are blocked. Counters are set to non-blocking when they
    /// are received, but a client can revert that through its own descriptor.
    pub fn unblock(&self) {
        for signalling in &self.signalling {
            let Some(number) = signalling.now() else { continue };
            let counters = self.counters.iter().filter_map(Weak::upgrade);
            for counter in counters.filter(|counter| counter.number() == number) {
                counter.take();
                if signalling.now() != Some(number) {
                    // The thread was not blocked: restore the count.
                    counter.signal();
                }
            }
        }
    }

    /// Handles a request, except for the device's part.
    pub fn answer(&mut self, request: Request<'_>, fds: Vec<OwnedFd>) -> Result<Done, u32> {
        match request {
            // A version is negotiated once.
            Request::Version { .. } => Err(errno::EINVAL),
            Request::DmaMap { at, bytes, offset, readable, writable } => {
                let memory = memory_of(fds, at, bytes, offset, writable)?;
                let mapping = Mapping { at: at.0, bytes, readable, writable, memory };
                Ok(Done::Order { order: ToDevice::Map(mapping), payload: Vec::new() })
            }
            Request::DmaUnmap { what, echo } => {
                Ok(Done::Order { order: ToDevice::Unmap(what), payload: echo.as_bytes().to_vec() })
            }
            Request::DeviceInfo => {
                let info = DeviceInfo {
                    argsz: (size_of::<DeviceInfo>() as u32).into(),
                    flags: (device::RESET | device::PCI).into(),
                    regions: region::COUNT.into(),
                    irqs: irq::COUNT.into(),
                };
                Ok(Done::Now(info.as_bytes().to_vec()))
            }
            Request::RegionInfo { index, most } => self.region_info(index, most as usize),
            Request::IrqInfo { index } => self.irq_info(index),
            Request::SetIrqs { index, start, count, action, data } => {
                let change = self.vectors(index, start, count, action, data, fds)?;
                match change {
                    Some(change) => {
                        let order = ToDevice::Vectors(change);
                        Ok(Done::Order { order, payload: Vec::new() })
                    }
                    None => Ok(Done::Now(Vec::new())),
                }
            }
            Request::RegionRead { region, offset, count } => self.read(region, offset, count),
            Request::RegionWrite { region, offset, data } => self.write(region, offset, data),
            Request::Reset => Ok(Done::Order { order: ToDevice::Reset, payload: Vec::new() }),
        }
    }

    fn region(&self, index: u32) -> Result<Region, u32> {
        if index >= region::COUNT {
            return Err(errno::EINVAL);
        }
        Ok(match index {
            region::BAR0 => Region::Registers,
            region::CONFIG => Region::Config,
            index if index == u32::from(self.function.identity.msix.bar) => Region::Table,
            _ => Region::Nothing,
        })
    }

    fn bytes_of(&self, region: &Region) -> u64 {
        match region {
            Region::Registers => {
                let bar = self.function.identity.bars.iter().flatten().find(|b| b.number == 0);
                u64::from(bar.expect("the registers have a window").bytes)
            }
            Region::Table => self.table.len() as u64,
            Region::Config => CONFIG_BYTES as u64,
            Region::Nothing => 0,
        }
    }

    fn region_info(&self, index: u32, most: usize) -> Result<Done, u32> {
        let region = self.region(index)?;
        let size = self.bytes_of(&region);
        let head = size_of::<RegionInfo>();
        let mut info = RegionInfo {
            argsz: (head as u32).into(),
            flags: if size > 0 { region::READ | region::WRITE } else { 0 }.into(),
            index: index.into(),
            size: size.into(),
            ..RegionInfo::default()
        };
        let Region::Registers = region else { return Ok(Done::Now(info.as_bytes().to_vec())) };
        let (mapped, _) = self.registers.mapped();
        let sparse = SparseMmap {
            id: region::CAP_SPARSE_MMAP.into(),
            version: 1.into(),
            areas: 1.into(),
            ..SparseMmap::default()
        };
        let area = SparseArea {
            offset: u64::from(mapped.start).into(),
            size: u64::from(mapped.end - mapped.start).into(),
        };
        let whole = head + size_of::<SparseMmap>() + size_of::<SparseArea>();
        info.argsz = (whole as u32).into();
        info.flags = (region::READ | region::WRITE | region::MMAP | region::CAPS).into();
        info.capabilities = (head as u32).into();
        let mut payload = info.as_bytes().to_vec();
        if most >= whole {
            payload.extend_from_slice(sparse.as_bytes());
            payload.extend_from_slice(area.as_bytes());
        }
        Ok(Done::Window(payload))
    }

    fn read(&self, index: u32, offset: u64, count: u32) -> Result<Done, u32> {
        let region = self.inside(index, offset, count as usize)?;
        let access =
            RegionAccess { offset: offset.into(), region: index.into(), count: count.into() };
        let head = size_of::<RegionAccess>();
        let mut payload = std::vec![0; head + count as usize];
        payload[..head].copy_from_slice(access.as_bytes());
        let to = &mut payload[head..];
        match region {
            Region::Registers => self.registers.read(offset, to),
            Region::Table => to.copy_from_slice(&self.table[offset as usize..][..to.len()]),
            Region::Config => assert!(self.config.read(offset, to), "judged before"),
            Region::Nothing => {}
        }
        Ok(Done::Now(payload))
    }

    fn write(&mut self, index: u32, offset: u64, data: &[u8]) -> Result<Done, u32> {
        let access = RegionAccess {
            offset: offset.into(),
            region: index.into(),
            count: (data.len() as u32).into(),
        };
        let payload = access.as_bytes().to_vec();
        match self.inside(index, offset, data.len())? {
            Region::Registers => {
                let before = self.registers.is_silent();
                self.registers.write(offset, data);
                let after = self.registers.is_silent();
                if before != after {
                    return Ok(Done::Order { order: ToDevice::Silence(after), payload });
                }
            }
            Region::Table => self.write_table(offset as usize, data),
            Region::Config => {
                let control_bits = |c: &ConfigSpace| (c.bus_master(), c.intx_enabled());
                let before = control_bits(&self.config);
                let effects = self.config.write(offset, data).expect("judged before");
                let after = control_bits(&self.config);
                if effects.reset || before != after {
                    let (bus_master, intx_enabled) = after;
                    let reset = effects.reset;
                    let order = ToDevice::Config { bus_master, intx_enabled, reset };
                    return Ok(Done::Order { order, payload });
                }
            }
            Region::Nothing => {}
        }
        Ok(Done::Now(payload))
    }

    /// Writes the MSI-X table: message addresses, data and mask bits are writable; pending bits are not.
    fn write_table(&mut self, offset: usize, data: &[u8]) {
        let entries = usize::from(self.function.identity.msix.vectors) * MSIX_ENTRY_BYTES as usize;
        let begin = self.function.identity.msix.table as usize;
        for (place, value) in (offset..).zip(data) {
            if (begin..begin + entries).contains(&place) {
                let writable = match (place - begin) % MSIX_ENTRY_BYTES as usize {
                    0..12 => 0xff,
                    12 => 1,
                    _ => 0,
                };
                self.table[place] = value & writable;
            }
        }
    }

    /// The region, if these bytes lie inside it.
    fn inside(&self, index: u32, offset: u64, count: usize) -> Result<Region, u32> {
        let region = self.region(index)?;
        let bytes = self.bytes_of(&region);
        let ends = offset.checked_add(count as u64).is_some_and(|end| end <= bytes);
        if !ends || count > limits::TRANSFER_BYTES_MAX {
            return Err(errno::EINVAL);
        }
        Ok(region)
    }

    fn has_pin(&self) -> bool {
        self.function.identity.pin.is_some()
    }

    fn irq_info(&self, index: u32) -> Result<Done, u32> {
        let (flags, count) = match index {
            irq::INTX if self.has_pin() => {
                (irq::EVENTFD | irq::MASKABLE | irq::AUTOMASKED, Kind::Intx.count())
            }
            irq::MSIX => (irq::EVENTFD, Kind::Msix.count()),
            index if index < irq::COUNT => (0, 0),
            _ => return Err(errno::EINVAL),
        };
        let info = IrqInfo {
            argsz: (size_of::<IrqInfo>() as u32).into(),
            flags: flags.into(),
            index: index.into(),
            count: count.into(),
        };
        Ok(Done::Now(info.as_bytes().to_vec()))
    }

    fn vectors(
        &mut self,
        index: u32,
        start: u32,
        count: u32,
        action: Action,
        data: Data<'_>,
        fds: Vec<OwnedFd>,
    ) -> Result<Option<Change>, u32> {
        let kind = match index {
            irq::INTX if self.has_pin() => Kind::Intx,
            irq::MSIX => Kind::Msix,
            // Other kinds have no vectors; disabling all of none is valid.
            _ if start == 0 && count == 0 => return Ok(None),
            _ => return Err(errno::EINVAL),
        };
        if start + count > kind.count() {
            return Err(errno::EINVAL);
        }
        let which = || -> Vec<u32> {
            let wanted = |(_, on): &(u32, bool)| *on;
            match data {
                Data::Bools(bools) => {
                    let flags = bools.iter().map(|flag| *flag != 0);
                    (start..).zip(flags).filter(wanted).map(|(vector, _)| vector).collect()
                }
                _ => (start..start + count).collect(),
            }
        };
        match (action, data) {
            (Action::Trigger, Data::None) if count == 0 => Ok(Some(Change::Off(kind))),
            (Action::Trigger, Data::Eventfds) => {
                let counters = self.counters_of(count, fds)?;
                Ok(Some(Change::Signal { kind, start, counters }))
            }
            (Action::Trigger, _) => Ok(Some(Change::Trigger { kind, which: which() })),
            (Action::Mask | Action::Unmask, Data::Eventfds) => Err(errno::ENOTSUP),
            (_, _) if kind == Kind::Msix => Err(errno::ENOTSUP),
            (_, _) if which().is_empty() => Ok(None),
            (Action::Mask, _) => Ok(Some(Change::Mask)),
            (Action::Unmask, _) => Ok(Some(Change::Unmask)),
        }
    }

    /// Takes one counter per vector, or none for any of them.
    fn counters_of(
        &mut self,
        count: u32,
        fds: Vec<OwnedFd>,
    ) -> Result<Vec<Option<Arc<Eventfd>>>, u32> {
        if fds.is_empty() {
            return Ok((0..count).map(|_| None).collect());
        }
        if fds.len() != count as usize {
            return Err(errno::EINVAL);
        }
        let counters: Result<Vec<_>, _> =
            fds.into_iter().map(|fd| Eventfd::from_peer(fd).map(Arc::new)).collect();
        let counters = counters.map_err(|_| errno::EINVAL)?;
        self.counters.retain(|counter| counter.strong_count() > 0);
        self.counters.extend(counters.iter().map(Arc::downgrade));
        Ok(counters.into_iter().map(Some).collect())
    }
}

/// Maps the memory behind a descriptor. `None` if there is no descriptor or its pages are not memory: then
/// messages access it, which every client has to support.
fn memory_of(
    mut fds: Vec<OwnedFd>,
    at: BusAddr,
    bytes: u64,
    offset: u64,
    writable: bool,
) -> Result<Option<Memory>, u32> {
    let Some(file) = fds.pop() else { return Ok(None) };
    let number = |error: std::io::Error| error.raw_os_error().map_or(errno::EIO, |n| n as u32);
    if !fds.is_empty() {
        return Err(errno::EINVAL);
    }
    if !backing::is_memory(file.as_fd()).map_err(number)? {
        return Ok(None);
    }
    // The file may be truncated later; a file that is too short now is an error of the client.
    let length = fd::length(file.as_fd()).map_err(number)?;
    let bytes = usize::try_from(bytes).map_err(|_| errno::EINVAL)?;
    if offset + bytes as u64 > length {
        return Err(errno::EINVAL);
    }
    Memory::map_guarded(file.as_fd(), offset, bytes, at, writable).map(Some).map_err(number)
}
