//! Set-up of a connection and its function by a client, in the order of the requests.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::vec::Vec;

use wire::BusAddr;
use wire::pci::{CONFIG_BYTES, FunctionKind, NAMED_BYTES, command as pci_command, offset};
use wire::vfio_user::{
    DeviceInfo, DmaMap, IrqInfo, IrqSet, RegionAccess, RegionInfo, SparseArea, SparseMmap,
    VERSION_MAJOR, VERSION_MINOR, Version, command, device, irq, region,
};
use zerocopy::{FromBytes, IntoBytes};

use super::channel::front;
use super::client::{Connection, NotMapped, Window};
use super::error::{SessionError, VfioUserError, VfioUserErrorKind};
use super::limits;
use super::version::{self, Limits};
use crate::memfd::Memfd;
use crate::{Memory, backing};

/// Buffer size for the description of a region and its areas, bytes.
const REGION_ANSWER: usize = 4096;
/// Maximum number of mapped areas of a window.
const AREAS_MAX: usize = 16;
/// Maximum length of a window, bytes.
const WINDOW_BYTES_MAX: u64 = 1 << 24;
/// Data type "eventfd", action "trigger".
const SIGNAL: u32 = 1 << 2 | 1 << 5;
/// Command register: memory space and bus mastering enabled.
const COMMAND_ON: u16 = pci_command::MEMORY | pci_command::BUS_MASTER;
/// MSI-X enable, in the upper byte of its message control.
const MSIX_ON: u8 = 0x80;

/// Access of a server to the client's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// The server maps the memory: DMA is a copy by the server.
    Mapped,
    /// The memory is not mapped: DMA is by messages.
    Messages,
}

/// Connects to the server that listens at `path`, and sets up its function of this kind: `memory_bytes` bytes
/// of memory at bus address `memory_base`, interrupts, bus mastering.
///
/// # Errors
/// If no server listens there, its function is of another kind, its answers are malformed, or it takes longer
/// than [`limits::ANSWER`]. Names the failed step.
pub fn connect(
    path: &Path,
    kind: FunctionKind,
    memory_bytes: usize,
    memory_base: BusAddr,
    sharing: Sharing,
) -> Result<Connection, VfioUserError> {
    let failed = |kind: VfioUserErrorKind| kind.at(path);
    let socket = UnixStream::connect(path).map_err(VfioUserErrorKind::Connect).map_err(failed)?;
    let file = Memfd::new("doorbell-host", memory_bytes);
    let memory = file.and_then(|file| Ok((file.map(memory_base)?, file)));
    let (memory, file) = memory.map_err(VfioUserErrorKind::Memory).map_err(failed)?;
    let connection = Connection::start(socket, path, memory);
    let connection = connection.map_err(VfioUserErrorKind::Start).map_err(failed)?;
    set_up(connection, kind, (sharing == Sharing::Mapped).then_some(&file))
        .map_err(VfioUserErrorKind::SetUp)
        .map_err(failed)
}

/// Queries and sets up the function. The server may map `memory`; if it is `None`, it uses messages.
fn set_up(
    mut connection: Connection,
    kind: FunctionKind,
    memory: Option<&Memfd>,
) -> Result<Connection, SessionError> {
    let theirs = agree(&connection)?;
    let info: DeviceInfo = connection.ask(
        command::DEVICE_INFO,
        &DeviceInfo { argsz: (size_of::<DeviceInfo>() as u32).into(), ..DeviceInfo::default() },
    )?;
    let flags = info.flags.get();
    if flags & device::PCI == 0 || info.regions.get() <= region::CONFIG {
        return Err(SessionError::NotPci(info));
    }
    // Before the reset: another driver's function stays as it is.
    let mut named = [0; NAMED_BYTES];
    connection.read_config(0, &mut named)?;
    kind.validate(&named)?;
    if flags & device::RESET != 0 {
        connection.link.call(command::RESET, &[], &[])?;
    }
    connection.window = connection.window_of_registers()?;
    connection.map(memory)?;
    connection.signal(theirs)?;
    connection.enable()?;
    Ok(connection)
}

fn agree(connection: &Connection) -> Result<Limits, SessionError> {
    let version = Version { major: VERSION_MAJOR.into(), minor: VERSION_MINOR.into() };
    let ours = version::ours(limits::DMA_MAPS_MAX);
    let parts = [version.as_bytes(), ours.as_bytes()];
    let (payload, _) = connection.link.call(command::VERSION, &parts, &[])?;
    let version: Version = front(&payload, "the version")?;
    if version.major.get() != VERSION_MAJOR || version.minor.get() > VERSION_MINOR {
        return Err(SessionError::ServerVersion(version));
    }
    let capabilities = &payload[size_of::<Version>()..];
    Ok(version::theirs(capabilities.strip_suffix(&[0]).unwrap_or(capabilities))?)
}

impl Connection {
    /// Sends a query and parses the answer, a structure of the same type.
    fn ask<T: FromBytes + IntoBytes + zerocopy::Immutable>(
        &self,
        command: u16,
        question: &T,
    ) -> Result<T, SessionError> {
        let (payload, _) = self.link.call(command, &[question.as_bytes()], &[])?;
        front(&payload, "an answer")
    }

    /// Queries the register window, and maps the areas that the server offers.
    fn window_of_registers(&self) -> Result<Window, SessionError> {
        let question = RegionInfo {
            argsz: (REGION_ANSWER as u32).into(),
            index: region::BAR0.into(),
            ..RegionInfo::default()
        };
        let (payload, fds) = self.link.call(command::REGION_INFO, &[question.as_bytes()], &[])?;
        let info: RegionInfo = front(&payload, "the registers' window")?;
        let bytes = info.size.get();
        if bytes == 0 || bytes > WINDOW_BYTES_MAX {
            return Err(SessionError::WindowLength { bytes, max: WINDOW_BYTES_MAX });
        }
        let mut window = Window { bytes, areas: Vec::new(), not_mapped: None };
        let offered = info.flags.get() & region::MMAP != 0;
        let areas = if offered { areas(&info, &payload)? } else { Vec::new() };
        match fds.first().filter(|_| !areas.is_empty()) {
            None => window.not_mapped = Some(NotMapped::NotOffered),
            Some(file) => {
                validate(&areas, &info)?;
                match map_all(file.as_fd(), info.offset.get(), &areas) {
                    Ok(mapped) => window.areas = mapped,
                    Err(why) => window.not_mapped = Some(why),
                }
            }
        }
        Ok(window)
    }

    /// Registers our memory with the server.
    fn map(&self, memory: Option<&Memfd>) -> Result<(), SessionError> {
        let map = DmaMap {
            argsz: (size_of::<DmaMap>() as u32).into(),
            flags: 0b11.into(),
            offset: 0.into(),
            address: self.memory.base().0.into(),
            size: (self.memory.bytes() as u64).into(),
        };
        let fds: Vec<_> = memory.map(AsFd::as_fd).into_iter().collect();
        self.link.call(command::DMA_MAP, &[map.as_bytes()], &fds).map(|_| ())
    }

    /// Assigns an eventfd to every vector.
    fn signal(&self, theirs: Limits) -> Result<(), SessionError> {
        let info: IrqInfo = self.ask(
            command::IRQ_INFO,
            &IrqInfo {
                argsz: (size_of::<IrqInfo>() as u32).into(),
                index: irq::MSIX.into(),
                ..IrqInfo::default()
            },
        )?;
        let vectors = (info.count.get() as usize).min(limits::VECTORS.into());
        let counters: Vec<_> = self.counters().take(vectors).collect();
        for (chunk, counters) in counters.chunks(theirs.fds.max(1)).enumerate() {
            let set = IrqSet {
                argsz: (size_of::<IrqSet>() as u32).into(),
                flags: SIGNAL.into(),
                index: irq::MSIX.into(),
                start: ((chunk * theirs.fds.max(1)) as u32).into(),
                count: (counters.len() as u32).into(),
            };
            self.link.call(command::SET_IRQS, &[set.as_bytes()], counters)?;
        }
        Ok(())
    }

    /// Enables memory space, bus mastering and MSI-X.
    fn enable(&self) -> Result<(), SessionError> {
        self.write_config(offset::COMMAND, &COMMAND_ON.to_le_bytes())?;
        let mut config = [0; 256];
        self.read_config(0, &mut config)?;
        let mut at = usize::from(config[offset::CAPABILITIES] & !3);
        // The configuration space has no room for a longer list.
        for _ in 0..64 {
            const MSIX: u8 = 0x11;
            match config.get(at..at + 4) {
                Some([MSIX, _, _, control]) => {
                    return self.write_config(at + 3, &[control | MSIX_ON]);
                }
                Some([_, next, ..]) if at > 0 => at = usize::from(next & !3),
                _ => break,
            }
        }
        Ok(())
    }

    fn read_config(&self, at: usize, to: &mut [u8]) -> Result<(), SessionError> {
        assert!(at + to.len() <= CONFIG_BYTES);
        let access = config_access(at, to.len());
        let (payload, _) = self.link.call(command::REGION_READ, &[access.as_bytes()], &[])?;
        match payload.get(size_of::<RegionAccess>()..) {
            Some(data) if data.len() == to.len() => to.copy_from_slice(data),
            _ => return Err(SessionError::ConfigLength { bytes: payload.len() }),
        }
        Ok(())
    }

    fn write_config(&self, at: usize, from: &[u8]) -> Result<(), SessionError> {
        let access = config_access(at, from.len());
        self.link.call(command::REGION_WRITE, &[access.as_bytes(), from], &[]).map(|_| ())
    }
}

fn config_access(at: usize, bytes: usize) -> RegionAccess {
    RegionAccess {
        offset: (at as u64).into(),
        region: region::CONFIG.into(),
        count: (bytes as u32).into(),
    }
}

/// Validates that the areas lie in their window, on page boundaries.
fn validate(areas: &[SparseArea], info: &RegionInfo) -> Result<(), SessionError> {
    let bytes = info.size.get();
    for area in areas {
        let (at, length) = (area.offset.get(), area.size.get());
        let inside = at.checked_add(length).is_some_and(|end| end <= bytes);
        let pages = at.is_multiple_of(4096) && length.is_multiple_of(4096) && length > 0;
        if !inside || !pages || info.offset.get().checked_add(at).is_none() {
            return Err(SessionError::Area { area: *area, bytes });
        }
    }
    Ok(())
}

/// Maps areas of a window that begins at offset `begin` of a file. The error is the reason why they stay
/// unmapped.
fn map_all(
    file: BorrowedFd<'_>,
    begin: u64,
    areas: &[SparseArea],
) -> Result<Vec<Memory>, NotMapped> {
    backing::must_be_local(file)?;
    let of_file = |error| NotMapped::System { file: backing::name(file), error };
    let map = |area: &SparseArea| {
        let (at, length) = (area.offset.get(), area.size.get() as usize);
        let area = Memory::map_guarded(file, begin + at, length, BusAddr(at), true)?;
        area.populate()?;
        Ok(area)
    };
    areas.iter().map(map).collect::<io::Result<_>>().map_err(of_file)
}

/// The mappable areas of a window: those listed in a capability, or the whole window.
fn areas(info: &RegionInfo, payload: &[u8]) -> Result<Vec<SparseArea>, SessionError> {
    let whole = SparseArea { offset: 0.into(), size: info.size };
    if info.flags.get() & region::CAPS == 0 {
        return Ok(std::vec![whole]);
    }
    let mut at = info.capabilities.get() as usize;
    for _ in 0..AREAS_MAX {
        let here = payload.get(at..).ok_or(SessionError::Capability)?;
        let capability: SparseMmap = front(here, "a capability")?;
        if capability.id.get() == region::CAP_SPARSE_MMAP {
            let count = capability.areas.get() as usize;
            let rest = &here[size_of::<SparseMmap>()..];
            let bytes = size_of::<SparseArea>();
            if count > AREAS_MAX || rest.len() < count * bytes {
                return Err(SessionError::Areas { count, bytes: rest.len() });
            }
            let area = |bytes| front(bytes, "an area");
            return rest.chunks(bytes).take(count).map(area).collect();
        }
        match capability.next.get() as usize {
            0 => break,
            next => at = next,
        }
    }
    Ok(std::vec![whole])
}
