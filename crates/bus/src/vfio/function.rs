//! Opens a PCI function through VFIO: group, container, memory, registers, interrupts.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::string::String;
use std::vec::Vec;

use super::abi::{Answer, AnswerError, Region};
use super::error::{VfioError, VfioErrorKind};
use super::events::Events;
use super::sys::{self, Framed, Plain, Registers};
use crate::fd::Eventfd;
use crate::memfd::Memfd;
use crate::{BUFFER_ALIGN, Memory};
use wire::BusAddr;
use wire::pci::FunctionKind;

/// VFIO's API version, and its IOMMU model "type 1, version 2".
const API_VERSION: i32 = 0;
const TYPE1_V2: u64 = 3;

const GROUP_VIABLE: u32 = 1;
const DEVICE_RESET: u32 = 1;
const DEVICE_PCI: u32 = 1 << 1;

/// Indices of a PCI function's regions and interrupts.
const BAR0: u32 = 0;
const CONFIG: u32 = 7;
const MSIX: u32 = 2;
const ERROR: u32 = 3;
const REQUEST: u32 = 4;

/// Interrupt flags: data are eventfds, action is trigger.
const IRQ_EVENTS: u32 = 1 << 2 | 1 << 5;

/// Offsets in configuration space, and bits of the command register (PCI Local Bus 3.0, 6.2).
const COMMAND: u64 = 4;
const COMMAND_MEMORY: u16 = 1 << 1;
const COMMAND_MASTER: u16 = 1 << 2;
const COMMAND_NO_INTX: u16 = 1 << 10;

/// First and maximum buffer size for an answer, bytes.
const ANSWER_BYTES: usize = 1024;
const ANSWER_BYTES_MAX: usize = 64 * 1024;

/// Requirements of a driver.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// Function that it can drive.
    pub kind: FunctionKind,
    /// Host memory to share with the function, bytes; rounded up to a page.
    pub memory_bytes: usize,
    /// Bus address of that memory.
    pub memory_base: BusAddr,
    /// Number of MSI-X vectors. 0 if the driver polls.
    pub vectors: u16,
}

/// Folders of sysfs and VFIO; others in tests.
struct Places {
    functions: PathBuf,
    vfio: PathBuf,
}

/// A function owned until drop. It can access the shared memory and nothing else, and nothing at all after
/// drop.
pub(super) struct Taken {
    pub registers: Registers,
    pub memory: Memory,
    pub events: Events,
    device: File,
    config: u64,
    /// Keeps the memory mapped for the device. Dropped after it.
    _group: File,
    _container: File,
}

impl Taken {
    /// Opens a function by its address, as in `0000:01:00.0`.
    pub(super) fn open(address: &str, wanted: &Wanted) -> Result<Taken, VfioError> {
        let places = Places { functions: "/sys/bus/pci/devices".into(), vfio: "/dev/vfio".into() };
        open(&places, address, wanted).map_err(|kind| VfioError { function: address.into(), kind })
    }
}

impl Drop for Taken {
    /// Disables bus mastering first: the function stops reading and writing memory.
    fn drop(&mut self) {
        let device = Device { file: &self.device };
        let _ = device.change_command(self.config, 0, COMMAND_MASTER);
    }
}

/// Returns true for the form `DDDD:BB:DD.F`, in lower-case hexadecimal digits.
fn is_address(address: &str) -> bool {
    let shape = "xxxx:xx:xx.x";
    let same = |(found, wanted): (char, char)| match wanted {
        'x' => found.is_ascii_hexdigit() && !found.is_ascii_uppercase(),
        mark => found == mark,
    };
    address.len() == shape.len() && address.chars().zip(shape.chars()).all(same)
}

fn open(places: &Places, address: &str, wanted: &Wanted) -> Result<Taken, VfioErrorKind> {
    if !is_address(address) {
        return Err(VfioErrorKind::Address);
    }
    if !cfg!(target_arch = "x86_64") {
        return Err(VfioErrorKind::Processor);
    }
    let group_number = group_of(places, address)?;
    let container = open_file(&places.vfio.join("vfio"), "is the module vfio loaded?")?;
    let (group, device) = {
        let version = sys::plain(container.as_fd(), Plain::GetApiVersion, 0);
        let version = version.map_err(VfioErrorKind::system("asking for VFIO's version"))?;
        if version != API_VERSION {
            return Err(VfioErrorKind::Version { found: version, expected: API_VERSION });
        }
        let path = places.vfio.join(&group_number);
        let group = open_file(&path, "is another program using it, may this user open it?")?;
        let device = join(&container, &group, &group_number, address)?;
        (group, File::from(device))
    };
    let memory = share(&container, wanted)?;
    let asked = Device { file: &device };
    let resettable = asked.is_pci_and_resettable()?;
    let config = asked.region(CONFIG)?.offset;
    wanted.kind.validate(&asked.read_config(config)?)?;
    if resettable {
        sys::plain(device.as_fd(), Plain::DeviceReset, 0)
            .map_err(VfioErrorKind::system("resetting it"))?;
    }
    let registers = asked.map_bar0()?;
    let events = asked.events(wanted.vectors)?;
    let function =
        Taken { registers, memory, events, device, config, _group: group, _container: container };
    let on = COMMAND_MEMORY | COMMAND_MASTER | COMMAND_NO_INTX;
    Device { file: &function.device }.change_command(config, on, 0)?;
    Ok(function)
}

/// Number of a function's IOMMU group. Fails if the function is not bound to vfio-pci.
fn group_of(places: &Places, address: &str) -> Result<String, VfioErrorKind> {
    let function = places.functions.join(address);
    if !function.is_dir() {
        return Err(VfioErrorKind::NotFound { folder: places.functions.clone() });
    }
    let link = |name: &str| -> Option<String> {
        let target = std::fs::read_link(function.join(name)).ok()?;
        Some(target.file_name()?.to_string_lossy().into_owned())
    };
    let driver = link("driver");
    if driver.as_deref() != Some("vfio-pci") {
        return Err(VfioErrorKind::Driver { driver, folder: function });
    }
    link("iommu_group").ok_or(VfioErrorKind::NoIommuGroup)
}

fn open_file(path: &Path, hint: &'static str) -> Result<File, VfioErrorKind> {
    let opened = File::options().read(true).write(true).open(path);
    opened.map_err(|error| VfioErrorKind::Open { file: path.into(), error, hint })
}

/// Adds the group to the container, sets the container's IOMMU model, and opens the function.
fn join(
    container: &File,
    group: &File,
    number: &str,
    address: &str,
) -> Result<OwnedFd, VfioErrorKind> {
    let mut status = [0; 2];
    sys::exchange(group.as_fd(), Framed::GroupGetStatus, &mut status)
        .map_err(VfioErrorKind::system("asking for its group's status"))?;
    if status[1] & GROUP_VIABLE == 0 {
        return Err(VfioErrorKind::Group { group: number.into() });
    }
    let model = sys::plain(container.as_fd(), Plain::CheckExtension, TYPE1_V2);
    if !matches!(model, Ok(1)) {
        return Err(VfioErrorKind::NoType1);
    }
    sys::set_container(group.as_fd(), container.as_fd())
        .map_err(VfioErrorKind::system("putting its group into a container"))?;
    sys::plain(container.as_fd(), Plain::SetIommu, TYPE1_V2)
        .map_err(VfioErrorKind::system("giving its container an IOMMU of type 1"))?;
    sys::device(group.as_fd(), address).map_err(VfioErrorKind::system("opening it"))
}

/// Allocates host memory and maps it for the function at its bus address.
fn share(container: &File, wanted: &Wanted) -> Result<Memory, VfioErrorKind> {
    let base = wanted.memory_base;
    let memfd = Memfd::new("doorbell-host", wanted.memory_bytes);
    let memory =
        memfd.and_then(|memfd| memfd.map(base)).map_err(VfioErrorKind::system("host memory"))?;
    let words = answer(container.as_fd(), Framed::IommuGetInfo, &[0; 5])?;
    let ranges = Answer(&words).iova_ranges()?;
    let last = base.0.checked_add(memory.bytes() as u64 - 1);
    let inside = |&(first, end): &(u64, u64)| first <= base.0 && last.is_some_and(|l| l <= end);
    let aligned = base.0.is_multiple_of(BUFFER_ALIGN as u64);
    if !aligned || last.is_none() || !(ranges.is_empty() || ranges.iter().any(inside)) {
        return Err(VfioErrorKind::Place { at: base.0, bytes: memory.bytes(), ranges });
    }
    let failed = |error| VfioErrorKind::Map { bytes: memory.bytes(), error };
    sys::map_dma(container.as_fd(), &memory).map_err(failed)?;
    Ok(memory)
}

/// Sends a query; repeats it with a larger buffer if the answer does not fit.
fn answer(fd: BorrowedFd<'_>, call: Framed, question: &[u32]) -> Result<Vec<u32>, VfioErrorKind> {
    let mut bytes = ANSWER_BYTES;
    loop {
        let mut words = Vec::from(question);
        words.resize(bytes / 4, 0);
        sys::exchange(fd, call, &mut words).map_err(VfioErrorKind::system("asking VFIO"))?;
        let needed = words[0] as usize;
        if needed <= bytes {
            return Ok(words);
        }
        if needed > ANSWER_BYTES_MAX || bytes == ANSWER_BYTES_MAX {
            return Err(AnswerError::TooLong { bytes: needed }.into());
        }
        bytes = ANSWER_BYTES_MAX;
    }
}

struct Device<'a> {
    file: &'a File,
}

impl Device<'_> {
    fn is_pci_and_resettable(&self) -> Result<bool, VfioErrorKind> {
        let words = answer(self.file.as_fd(), Framed::DeviceGetInfo, &[0; 6])?;
        if words[1] & DEVICE_PCI == 0 {
            return Err(VfioErrorKind::NotPci);
        }
        Ok(words[1] & DEVICE_RESET != 0)
    }

    fn region(&self, index: u32) -> Result<Region, VfioErrorKind> {
        let words = answer(self.file.as_fd(), Framed::RegionGetInfo, &[0, 0, index, 0])?;
        Ok(Answer(&words).region()?)
    }

    fn read_config<const N: usize>(&self, at: u64) -> Result<[u8; N], VfioErrorKind> {
        let mut bytes = [0; N];
        let read = self.file.read_exact_at(&mut bytes, at);
        read.map(|()| bytes).map_err(VfioErrorKind::system("reading its configuration"))
    }

    fn change_command(&self, config: u64, on: u16, off: u16) -> Result<(), VfioErrorKind> {
        let command = u16::from_le_bytes(self.read_config(config + COMMAND)?);
        let command = (command | on) & !off;
        self.file
            .write_all_at(&command.to_le_bytes(), config + COMMAND)
            .map_err(VfioErrorKind::system("writing its command register"))
    }

    /// Maps the registers that can be mapped in one piece from the first on. A doorbell beyond them reads
    /// all ones and its writes are dropped: the driver's timeouts detect that.
    fn map_bar0(&self) -> Result<Registers, VfioErrorKind> {
        let region = self.region(BAR0)?;
        let first = region.mappable.iter().find(|(offset, bytes)| *offset == 0 && *bytes > 0);
        let Some((_, bytes)) = first else {
            return Err(VfioErrorKind::NotMappable { bytes: region.bytes });
        };
        let pages = usize::try_from(*bytes).ok().map(|bytes| bytes - bytes % BUFFER_ALIGN);
        let Some(bytes @ BUFFER_ALIGN..) = pages else {
            return Err(VfioErrorKind::RegistersTooShort { bytes: *bytes });
        };
        Registers::map(self.file.as_fd(), region.offset, bytes)
            .map_err(VfioErrorKind::system("mapping its registers"))
    }

    fn vectors(&self, index: u32) -> Result<u32, VfioErrorKind> {
        let words = answer(self.file.as_fd(), Framed::IrqGetInfo, &[0, 0, index, 0]);
        // The kernel does not know this kind of interrupt.
        Ok(words.map_or(0, |words| words[3]))
    }

    fn signal(&self, index: u32, events: &[Eventfd]) -> Result<(), VfioErrorKind> {
        let mut words = std::vec![0, IRQ_EVENTS, index, 0, events.len() as u32];
        words.extend(events.iter().map(|event| event.as_fd().as_raw_fd() as u32));
        sys::exchange(self.file.as_fd(), Framed::SetIrqs, &mut words)
            .map_err(VfioErrorKind::system("asking for its interrupts"))
    }

    /// Starts the events: interrupts, device errors, removal requests.
    fn events(&self, wanted: u16) -> Result<Events, VfioErrorKind> {
        let found = self.vectors(MSIX)?;
        if u32::from(wanted) > found {
            return Err(VfioErrorKind::Vectors { found, wanted });
        }
        let event = || Eventfd::new().map_err(VfioErrorKind::system("an event counter"));
        let vectors: Vec<Eventfd> = (0..wanted).map(|_| event()).collect::<Result<_, _>>()?;
        if !vectors.is_empty() {
            self.signal(MSIX, &vectors)?;
        }
        let mut gone = Vec::new();
        for index in [ERROR, REQUEST] {
            if self.vectors(index)? > 0 {
                let told = event()?;
                self.signal(index, core::slice::from_ref(&told))?;
                gone.push(told);
            }
        }
        Events::start(vectors, gone)
            .map_err(VfioErrorKind::system("the thread that counts its interrupts"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    const ADDRESS: &str = "0000:01:00.0";

    fn wanted() -> Wanted {
        Wanted {
            kind: FunctionKind::NVME,
            memory_bytes: 4096,
            memory_base: BusAddr(0x1_0000_0000),
            vectors: 0,
        }
    }

    struct Sandbox(PathBuf);

    impl Sandbox {
        fn new(name: &str) -> Sandbox {
            let id = std::process::id();
            let root = std::env::temp_dir().join(std::format!("vfio-{name}-{id}"));
            std::fs::create_dir_all(root.join("pci").join(ADDRESS)).unwrap();
            std::fs::create_dir_all(root.join("vfio")).unwrap();
            Sandbox(root)
        }

        fn open(&self, address: &str) -> String {
            let places = Places { functions: self.0.join("pci"), vfio: self.0.join("vfio") };
            let opened = open(&places, address, &wanted());
            opened.err().expect("no function here can be opened").to_string()
        }

        fn link(&self, name: &str, to: &str) {
            let link = self.0.join("pci").join(ADDRESS).join(name);
            std::os::unix::fs::symlink(to, link).unwrap();
        }
    }

    impl Drop for Sandbox {
        fn drop(&mut self) {
            std::fs::remove_dir_all(&self.0).unwrap();
        }
    }

    #[test]
    fn pci_address_accepts_one_form() {
        assert!(is_address("0000:01:00.0"));
        assert!(is_address("0001:af:1f.7"));
        for bad in ["", "01:00.0", "0000:01:00.0 ", "0000:AF:00.0", "0000/01:00.0", "../../../.."] {
            assert!(!is_address(bad), "{bad}");
        }
        let error = Taken::open("1:0.0", &wanted()).err().unwrap().to_string();
        assert_eq!(error, "1:0.0: expected a PCI address, as in 0000:01:00.0");
    }

    #[test]
    fn missing_requirements_reported_in_order_of_repair() {
        let sandbox = Sandbox::new("missing");
        let error = sandbox.open("0000:02:00.0");
        assert!(error.starts_with("there is no such function in "), "{error}");
        let error = sandbox.open(ADDRESS);
        assert!(
            error.starts_with("no driver has it, expected vfio-pci: echo vfio-pci > "),
            "{error}"
        );
        sandbox.link("driver", "../../drivers/vfio-pci");
        let error = sandbox.open(ADDRESS);
        assert!(error.starts_with("it is in no IOMMU group: expected an IOMMU"), "{error}");
        sandbox.link("iommu_group", "../../kernel/iommu_groups/7");
        let error = sandbox.open(ADDRESS);
        assert!(error.ends_with("is the module vfio loaded?"), "{error}");
        // The file exists, but is not VFIO.
        std::fs::write(sandbox.0.join("vfio/vfio"), "").unwrap();
        let error = sandbox.open(ADDRESS);
        assert!(error.starts_with("asking for VFIO's version: "), "{error}");
    }

    #[test]
    fn error_names_driver_bound_to_function() {
        let sandbox = Sandbox::new("driver");
        sandbox.link("driver", "../../drivers/nvme");
        let error = sandbox.open(ADDRESS);
        assert!(error.starts_with("nvme has it, expected vfio-pci: "), "{error}");
    }
}
