//! Mode pages: caching (SBC-3, 6.5.5) and control (SPC-4, 7.5.8).

use super::capacity::Shape;
use super::cdb::{ModeSense, PageControl};
use super::data::Data;
use super::sense::{Additional, Field, Key, Sense};

/// PAGE CODE.
pub mod page {
    /// Caching.
    pub const CACHING: u8 = 0x08;
    /// Control.
    pub const CONTROL: u8 = 0x0a;
    /// All pages.
    pub const ALL: u8 = 0x3f;
}

/// SUBPAGE CODE: all subpages.
const WITH_SUBPAGES: u8 = 0xff;
/// Device-specific parameter: DPO and FUA are supported.
const DPOFUA: u8 = 0x10;
/// LONGLBA, in the header of MODE SENSE(10).
const LONG_LBA: u8 = 0x01;
/// WCE, in byte 2 of the caching page.
const WCE: u8 = 0x04;
/// QUEUE ALGORITHM MODIFIER, in byte 3 of the control page: commands may be reordered.
const REORDERED: u8 = 0x10;

/// Returns MODE SENSE data.
///
/// # Errors
/// The pages or the page control are not supported.
pub fn sense(asked: &ModeSense, shape: &Shape, write_cache: bool) -> Result<Data, Sense> {
    if asked.control == PageControl::Saved {
        return Err(Sense::new(Key::IllegalRequest, Additional::SAVING_NOT_SUPPORTED));
    }
    let subpages = asked.subpage == 0 || asked.page == page::ALL && asked.subpage == WITH_SUBPAGES;
    if !subpages {
        return Err(Sense::invalid_field(Field::byte(3)));
    }
    let pages: &[u8] = match asked.page {
        page::CACHING => &[page::CACHING],
        page::CONTROL => &[page::CONTROL],
        page::ALL => &[page::CACHING, page::CONTROL],
        _ => return Err(Sense::invalid_field(Field::bit(2, 5))),
    };
    let mut data = Data::new();
    data.put_zeros(if asked.ten { 8 } else { 4 });
    let header = data.len();
    if !asked.no_descriptor {
        descriptor(&mut data, shape, asked.long_lba);
    }
    let descriptors = (data.len() - header) as u8;
    for page in pages {
        put_page(&mut data, *page, asked.control, write_cache);
    }
    // The length does not include its own bytes, and is not reduced by the allocation length.
    if asked.ten {
        data.set_u16(0, data.len() as u16 - 2).set(3, DPOFUA).set(7, descriptors);
        data.set(4, if asked.long_lba && descriptors > 0 { LONG_LBA } else { 0 });
    } else {
        data.set(0, data.len() as u8 - 1).set(2, DPOFUA).set(3, descriptors);
    }
    Ok(data)
}

/// Block descriptor of a direct-access device (SBC-3, 6.5.2).
fn descriptor(data: &mut Data, shape: &Shape, long: bool) {
    if long {
        data.put_u64(shape.blocks).put_zeros(4).put_u32(shape.block_bytes);
    } else {
        let blocks = u32::try_from(shape.blocks).unwrap_or(u32::MAX);
        // The byte above the 24-bit length is reserved.
        data.put_u32(blocks).put_u32(shape.block_bytes & 0x00ff_ffff);
    }
}

fn put_page(data: &mut Data, number: u8, control: PageControl, write_cache: bool) {
    // No value can be changed: all bits of changeable values are clear.
    let changeable = control == PageControl::Changeable;
    match number {
        page::CACHING => {
            let flags = if write_cache && !changeable { WCE } else { 0 };
            data.put(&[page::CACHING, 18, flags]).put_zeros(17);
        }
        _ => {
            let queueing = if changeable { 0 } else { REORDERED };
            data.put(&[page::CONTROL, 10, 0, queueing]).put_zeros(8);
        }
    }
}

/// WCE in MODE SENSE(6) data for the caching page; `None` if they do not contain the page.
pub fn parse_write_cache(bytes: &[u8]) -> Option<bool> {
    let descriptors = usize::from(*bytes.get(3)?);
    let at = bytes.get(4 + descriptors..)?;
    let (code, flags) = (*at.first()? & 0x3f, *at.get(2)?);
    (code == page::CACHING).then_some(flags & WCE != 0)
}
