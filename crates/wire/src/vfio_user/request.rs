//! Validated requests of a client.

use zerocopy::FromBytes;

use super::message::{
    DeviceInfo, DmaMap, DmaUnmap, Header, IrqInfo, IrqSet, RegionAccess, RegionInfo, Version,
    command, errno, irq,
};
use crate::BusAddr;

/// Granularity of memory mappings, bytes.
const PAGE_BYTES: u64 = 4096;

/// A valid request, as far as one message shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request<'a> {
    /// Version proposed by the client, and its capabilities in JSON.
    Version {
        /// Major version.
        major: u16,
        /// Minor version.
        minor: u16,
        /// JSON, without the terminating zero.
        capabilities: &'a [u8],
    },
    /// Maps memory: whole pages that end inside the address space.
    DmaMap {
        /// Bus address.
        at: BusAddr,
        /// Length in bytes, not zero.
        bytes: u64,
        /// Offset in the file, bytes.
        offset: u64,
        /// True if the device may read it.
        readable: bool,
        /// True if the device may write it.
        writable: bool,
    },
    /// Unmaps memory.
    DmaUnmap {
        /// Address and length as it was mapped; `None` for all memory.
        what: Option<(BusAddr, u64)>,
        /// Structure to repeat in the reply.
        echo: DmaUnmap,
    },
    /// Gets properties of the device.
    DeviceInfo,
    /// Gets properties of a region.
    RegionInfo {
        /// Region index.
        index: u32,
        /// Maximum payload of the reply, bytes; at least that of [`RegionInfo`].
        most: u32,
    },
    /// Gets properties of an interrupt type.
    IrqInfo {
        /// Interrupt type.
        index: u32,
    },
    /// Configures, masks or triggers interrupts.
    SetIrqs {
        /// Interrupt type.
        index: u32,
        /// First interrupt.
        start: u32,
        /// Number of interrupts.
        count: u32,
        /// Action.
        action: Action,
        /// Selection of interrupts.
        data: Data<'a>,
    },
    /// Reads a region.
    RegionRead {
        /// Region index.
        region: u32,
        /// Offset in the region, bytes.
        offset: u64,
        /// Length in bytes.
        count: u32,
    },
    /// Writes a region.
    RegionWrite {
        /// Region index.
        region: u32,
        /// Offset in the region, bytes.
        offset: u64,
        /// Data.
        data: &'a [u8],
    },
    /// Resets the device.
    Reset,
}

/// Action of [`Request::SetIrqs`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Masks.
    Mask,
    /// Unmasks.
    Unmask,
    /// Triggers, or sets the eventfds to signal.
    Trigger,
}

/// Interrupts that [`Request::SetIrqs`] applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data<'a> {
    /// All interrupts of the range.
    None,
    /// Interrupts whose byte is not zero.
    Bools(&'a [u8]),
    /// The file descriptors of the message are the eventfds to signal; none removes them.
    Eventfds,
}

/// Parses a command's header and payload.
///
/// # Errors
/// Error number for the reply.
pub fn parse<'a>(header: &Header, payload: &'a [u8]) -> Result<Request<'a>, u32> {
    match header.command.get() {
        command::VERSION => {
            let (version, capabilities) = front::<Version>(payload)?;
            let (major, minor) = (version.major.get(), version.minor.get());
            let capabilities = capabilities.strip_suffix(&[0]).unwrap_or(capabilities);
            Ok(Request::Version { major, minor, capabilities })
        }
        command::DMA_MAP => dma_map(front::<DmaMap>(payload)?.0),
        command::DMA_UNMAP => dma_unmap(front::<DmaUnmap>(payload)?.0),
        command::DEVICE_INFO => {
            let info = front::<DeviceInfo>(payload)?.0;
            long_enough::<DeviceInfo>(info.argsz.get()).map(|_| Request::DeviceInfo)
        }
        command::REGION_INFO => {
            let info = front::<RegionInfo>(payload)?.0;
            let most = long_enough::<RegionInfo>(info.argsz.get())?;
            Ok(Request::RegionInfo { index: info.index.get(), most })
        }
        command::IRQ_INFO => {
            let info = front::<IrqInfo>(payload)?.0;
            long_enough::<IrqInfo>(info.argsz.get())?;
            Ok(Request::IrqInfo { index: info.index.get() })
        }
        command::SET_IRQS => {
            let (set, data) = front::<IrqSet>(payload)?;
            set_irqs(set, data)
        }
        command::REGION_READ => {
            let access = front::<RegionAccess>(payload)?.0;
            let (region, offset) = (access.region.get(), access.offset.get());
            let count = access.count.get();
            offset.checked_add(u64::from(count)).ok_or(errno::EINVAL)?;
            Ok(Request::RegionRead { region, offset, count })
        }
        command::REGION_WRITE => {
            let (access, data) = front::<RegionAccess>(payload)?;
            let (region, offset) = (access.region.get(), access.offset.get());
            if data.len() as u64 != u64::from(access.count.get()) {
                return Err(errno::EINVAL);
            }
            offset.checked_add(data.len() as u64).ok_or(errno::EINVAL)?;
            Ok(Request::RegionWrite { region, offset, data })
        }
        command::RESET => Ok(Request::Reset),
        _ => Err(errno::ENOTSUP),
    }
}

/// Splits a payload into the structure at its start and the rest.
fn front<T: FromBytes>(payload: &[u8]) -> Result<(T, &[u8]), u32> {
    T::read_from_prefix(payload).map_err(|_| errno::EINVAL)
}

fn long_enough<T>(argsz: u32) -> Result<u32, u32> {
    if (argsz as usize) < size_of::<T>() { Err(errno::EINVAL) } else { Ok(argsz) }
}

fn dma_map(map: DmaMap) -> Result<Request<'static>, u32> {
    let (address, size, offset) = (map.address.get(), map.size.get(), map.offset.get());
    let whole_pages = [address, size, offset].iter().all(|n| n.is_multiple_of(PAGE_BYTES));
    // The last page of the address space is excluded, so that no range ends past it.
    let ends = address.checked_add(size).is_some() && offset.checked_add(size).is_some();
    let flags = map.flags.get();
    if !whole_pages || size == 0 || !ends || flags & 0b11 == 0 {
        return Err(errno::EINVAL);
    }
    if flags & !0b11 != 0 {
        return Err(errno::ENOTSUP);
    }
    let (readable, writable) = (flags & 1 != 0, flags & 2 != 0);
    Ok(Request::DmaMap { at: BusAddr(address), bytes: size, offset, readable, writable })
}

fn dma_unmap(unmap: DmaUnmap) -> Result<Request<'static>, u32> {
    const ALL: u32 = 1 << 1;
    let (address, size) = (unmap.address.get(), unmap.size.get());
    let what = match unmap.flags.get() {
        0 => Some((BusAddr(address), size)),
        // Unmap all takes no address and no size.
        ALL if address == 0 && size == 0 => None,
        ALL => return Err(errno::EINVAL),
        _ => return Err(errno::ENOTSUP),
    };
    if (unmap.argsz.get() as usize) < size_of::<DmaUnmap>() {
        return Err(errno::EINVAL);
    }
    Ok(Request::DmaUnmap { what, echo: unmap })
}

fn set_irqs(set: IrqSet, data: &[u8]) -> Result<Request<'_>, u32> {
    let (index, start, count) = (set.index.get(), set.start.get(), set.count.get());
    let flags = set.flags.get();
    if index >= irq::COUNT || start.checked_add(count).is_none() || flags & !0x3f != 0 {
        return Err(errno::EINVAL);
    }
    let data = match flags & 7 {
        1 => Data::None,
        2 => Data::Bools(data.get(..count as usize).ok_or(errno::EINVAL)?),
        4 => Data::Eventfds,
        _ => return Err(errno::EINVAL),
    };
    let action = match flags >> 3 {
        1 => Action::Mask,
        2 => Action::Unmask,
        4 => Action::Trigger,
        _ => return Err(errno::EINVAL),
    };
    Ok(Request::SetIrqs { index, start, count, action, data })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use zerocopy::IntoBytes;

    fn of(command: u16, payload: &[u8]) -> Result<Request<'_>, u32> {
        parse(&Header::command(1, command, payload.len()), payload)
    }

    fn map(address: u64, size: u64, offset: u64, flags: u32) -> DmaMap {
        DmaMap {
            argsz: 32.into(),
            flags: flags.into(),
            offset: offset.into(),
            address: address.into(),
            size: size.into(),
        }
    }

    #[test]
    fn dma_map_requires_whole_pages_in_address_space() {
        let good = map(0x1000, 0x2000, 0x3000, 1);
        assert_eq!(
            of(command::DMA_MAP, good.as_bytes()),
            Ok(Request::DmaMap {
                at: BusAddr(0x1000),
                bytes: 0x2000,
                offset: 0x3000,
                readable: true,
                writable: false
            })
        );
        for bad in [
            map(0x1001, 0x2000, 0, 3),
            map(0x1000, 0x2001, 0, 3),
            map(0x1000, 0, 0, 3),
            map(0x1000, 0x1000, 0x10, 3),
            map(0x1000, 0x1000, 0, 0),
            map(u64::MAX - 4095, 0x1000, 0, 3),
            map(0, 0x1000, u64::MAX - 4095, 3),
        ] {
            assert_eq!(of(command::DMA_MAP, bad.as_bytes()), Err(errno::EINVAL), "{bad:?}");
        }
    }

    #[test]
    fn short_messages_are_rejected() {
        for command in 1..=13 {
            let shortest = match command {
                command::VERSION => 4,
                command::DMA_MAP => 32,
                command::DMA_UNMAP => 24,
                command::REGION_INFO => 32,
                command::SET_IRQS => 20,
                command::REGION_IO_FDS | command::DMA_READ | command::DMA_WRITE => {
                    assert_eq!(of(command, &[]), Err(errno::ENOTSUP));
                    continue;
                }
                command::RESET => continue,
                _ => 16,
            };
            assert_eq!(of(command, &[0xff; 64][..shortest - 1]), Err(errno::EINVAL), "{command}");
        }
    }

    #[test]
    fn region_write_length_must_match_payload() {
        let access =
            |count: u32| RegionAccess { offset: 8.into(), region: 7.into(), count: count.into() };
        let mut message = access(3).as_bytes().to_vec();
        message.extend([1, 2, 3]);
        let written = of(command::REGION_WRITE, &message);
        assert_eq!(written, Ok(Request::RegionWrite { region: 7, offset: 8, data: &[1, 2, 3] }));
        message.push(4);
        assert_eq!(of(command::REGION_WRITE, &message), Err(errno::EINVAL));
    }

    proptest! {
        /// Any message is an error, or a range inside the address space.
        #[test]
        fn arbitrary_messages_parse_or_fail(
            command in 0_u16..20,
            payload in prop::collection::vec(any::<u8>(), 0..80),
        ) {
            match of(command, &payload) {
                Ok(Request::DmaMap { at, bytes, offset, .. }) => {
                    prop_assert!(at.0.checked_add(bytes).is_some() && bytes > 0);
                    prop_assert!(offset.checked_add(bytes).is_some());
                }
                Ok(Request::RegionWrite { offset, data, .. }) => {
                    prop_assert!(offset.checked_add(data.len() as u64).is_some());
                }
                Ok(Request::RegionRead { offset, count, .. }) => {
                    prop_assert!(offset.checked_add(u64::from(count)).is_some());
                }
                Ok(Request::SetIrqs { index, start, count, data, .. }) => {
                    prop_assert!(index < irq::COUNT && start.checked_add(count).is_some());
                    if let Data::Bools(bools) = data {
                        prop_assert_eq!(bools.len(), count as usize);
                    }
                }
                _ => {}
            }
        }
    }
}
