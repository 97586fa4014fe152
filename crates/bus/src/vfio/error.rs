//! Errors of opening a function.

use core::fmt;
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::string::String;
use std::vec::Vec;

use wire::pci::WrongFunction;

use super::abi::AnswerError;

/// Error of opening a function.
#[derive(Debug, thiserror::Error)]
#[error("{function}: {kind}")]
pub struct VfioError {
    /// Address of the function, as in `0000:01:00.0`.
    pub function: String,
    /// The cause.
    pub kind: VfioErrorKind,
}

/// Cause of a [`VfioError`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VfioErrorKind {
    /// The address does not have the form `DDDD:BB:DD.F`.
    #[error("expected a PCI address, as in 0000:01:00.0")]
    Address,
    /// The processor is not x86-64.
    #[error("VFIO is used on x86-64 only, whose order of stores it relies on")]
    Processor,
    /// There is no function with this address.
    #[error("there is no such function in {folder}")]
    NotFound {
        /// Folder of all functions in sysfs.
        folder: PathBuf,
    },
    /// The function is not bound to vfio-pci.
    #[error("{}", Binding { driver: driver.as_deref(), folder })]
    Driver {
        /// Driver to which the function is bound.
        driver: Option<String>,
        /// Folder of the function in sysfs.
        folder: PathBuf,
    },
    /// The function is behind no IOMMU, or the IOMMU is off.
    #[error(
        "it is in no IOMMU group: expected an IOMMU that is on, as with intel_iommu=on on the kernel's \
         command line"
    )]
    NoIommuGroup,
    /// A file of VFIO cannot be opened.
    #[error("{file}: {error}; {hint}")]
    Open {
        /// Path of the file.
        file: PathBuf,
        /// Error of the system.
        error: io::Error,
        /// A likely reason, as a question.
        hint: &'static str,
    },
    /// The kernel has another version of VFIO.
    #[error("VFIO has version {found}, expected {expected}")]
    Version {
        /// Version of the kernel.
        found: i32,
        /// Supported version.
        expected: i32,
    },
    /// Functions of the same IOMMU group are bound to other drivers.
    #[error(
        "its IOMMU group {group} has functions that other drivers use: expected vfio-pci for all of \
         /sys/kernel/iommu_groups/{group}/devices"
    )]
    Group {
        /// Number of the group.
        group: String,
    },
    /// The kernel has no IOMMU model "type 1".
    #[error("VFIO has no IOMMU of type 1: is the module vfio_iommu_type1 loaded?")]
    NoType1,
    /// The bus addresses of the host memory cannot be used.
    #[error(
        "{bytes} bytes of host memory at {at:#x} are not what the IOMMU translates ({}): expected another \
         place (host.memory_base)",
        Ranges(ranges)
    )]
    Place {
        /// Bus address of the memory.
        at: u64,
        /// Length of the memory.
        bytes: usize,
        /// First and last bus address of each range that the IOMMU translates.
        ranges: Vec<(u64, u64)>,
    },
    /// The host memory cannot be mapped for the function.
    #[error(
        "mapping {bytes} bytes of host memory for it: {error}; is the limit of locked memory high enough \
         (ulimit -l)?"
    )]
    Map {
        /// Length of the memory.
        bytes: usize,
        /// Error of the system.
        error: io::Error,
    },
    /// VFIO's device is no PCI function.
    #[error("VFIO says that it is not a PCI function")]
    NotPci,
    /// The function is not the driver's.
    #[error(transparent)]
    Kind(#[from] WrongFunction),
    /// The registers cannot be mapped from the first on.
    #[error("its registers (BAR 0, {bytes} bytes) cannot be mapped from the first on")]
    NotMappable {
        /// Length of BAR 0.
        bytes: u64,
    },
    /// The mappable registers are shorter than a page.
    #[error("its registers have {bytes} bytes, expected a page or more")]
    RegistersTooShort {
        /// Length of the mappable registers.
        bytes: u64,
    },
    /// The function has too few vectors.
    #[error("it has {found} MSI-X vectors, {wanted} are wanted")]
    Vectors {
        /// Number of MSI-X vectors of the function.
        found: u32,
        /// Number that the driver requires.
        wanted: u16,
    },
    /// VFIO has given a malformed answer.
    #[error(transparent)]
    Answer(#[from] AnswerError),
    /// A system call failed.
    #[error("{doing}: {error}")]
    System {
        /// The step, or the resource that it needs.
        doing: &'static str,
        /// Error of the system.
        error: io::Error,
    },
}

impl VfioErrorKind {
    /// Adds the failed step to an error of the system.
    pub(super) fn system(doing: &'static str) -> impl Fn(io::Error) -> VfioErrorKind {
        move |error| VfioErrorKind::System { doing, error }
    }
}

/// Text about a function that is not bound to vfio-pci: the commands that bind it.
struct Binding<'a> {
    driver: Option<&'a str>,
    folder: &'a Path,
}

impl fmt::Display for Binding<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.driver {
            Some(driver) => write!(f, "{driver} has it")?,
            None => f.write_str("no driver has it")?,
        }
        let path = self.folder.display();
        let address = self.folder.file_name().map(OsStr::display);
        let address = address.ok_or(fmt::Error)?;
        write!(
            f,
            ", expected vfio-pci: echo vfio-pci > {path}/driver_override; \
             echo {address} > {path}/driver/unbind (if a driver has it); \
             echo {address} > /sys/bus/pci/drivers_probe"
        )
    }
}

struct Ranges<'a>(&'a [(u64, u64)]);

impl fmt::Display for Ranges<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, (first, last)) in self.0.iter().enumerate() {
            let comma = if number == 0 { "" } else { ", " };
            write!(f, "{comma}{first:#x} to {last:#x}")?;
        }
        Ok(())
    }
}
