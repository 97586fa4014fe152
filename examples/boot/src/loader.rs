//! PVH start info (version 1): memory map and command line.
#![allow(unsafe_code)]

use core::ops::Range;

/// Magic number of the start info.
const MAGIC: u32 = 0x336e_c578;
/// Type of a usable memory map entry.
const USABLE: u32 = 1;
/// Address of a page below 1 MiB that neither firmware nor the loader uses: the secondary cores start there.
pub const LOW_PAGE: u64 = 0x8000;
/// Limits on the memory map's entries and the command line's bytes.
const PIECES_MAX: u32 = 128;
const WORDS_MAX: usize = 1024;

#[repr(C)]
struct StartInfo {
    magic: u32,
    version: u32,
    flags: u32,
    modules: u32,
    module_list: u64,
    command_line: u64,
    rsdp: u64,
    map: u64,
    map_entries: u32,
    reserved: u32,
}

#[repr(C)]
struct Piece {
    at: u64,
    bytes: u64,
    kind: u32,
    reserved: u32,
}

unsafe extern "C" {
    static image_end: u8;
}

pub struct Loaded {
    /// Usable memory after the image, below 4 GiB, contiguous.
    pub memory: Range<u64>,
    pub command_line: &'static str,
}

/// Reads and validates the start info at address `info`.
///
/// # Errors
/// A message if the start info is invalid or the memory that the image needs is not usable.
///
/// # Safety
/// To be called once, before any memory is used, with the loader's value of `%ebx`.
pub unsafe fn read(info: u64) -> Result<Loaded, &'static str> {
    if info == 0 || !info.is_multiple_of(4) {
        return Err("the loader hands over nothing");
    }
    let address = |at: u64| core::ptr::with_exposed_provenance::<u8>(at as usize);
    // SAFETY: all addresses below 4 GiB are mapped, and the address is from the loader.
    let info = unsafe { &*address(info).cast::<StartInfo>() };
    if info.magic != MAGIC || info.version < 1 {
        return Err("the loader is no PVH loader of version 1 or later");
    }
    if info.map.checked_add(u64::from(PIECES_MAX) * 24).is_none_or(|end| end > 4 << 30) {
        return Err("the loader's map of memory is out of reach");
    }
    let behind_image = (&raw const image_end).addr() as u64;
    let (mut memory, mut low) = (0..0, false);
    for index in 0..u64::from(info.map_entries.min(PIECES_MAX)) {
        let at = info.map + index * size_of::<Piece>() as u64;
        // SAFETY: as above.
        let piece = unsafe { address(at).cast::<Piece>().read_unaligned() };
        let end = piece.at.saturating_add(piece.bytes).min(4 << 30);
        low |= piece.kind == USABLE && piece.at <= LOW_PAGE && end >= LOW_PAGE + 4096;
        if piece.kind == USABLE && piece.at <= behind_image && end > behind_image {
            memory = behind_image..end;
        }
    }
    if memory.is_empty() {
        return Err("the memory that the image lies in is not usable, says the loader");
    }
    if !low {
        return Err("the page that other cores begin at is not usable, says the loader");
    }
    Ok(Loaded { memory, command_line: words(info.command_line) })
}

/// Returns the C string at `at`; empty if there is none or it is not UTF-8.
fn words(at: u64) -> &'static str {
    if at == 0 {
        return "";
    }
    let first = core::ptr::with_exposed_provenance::<u8>(at as usize);
    // SAFETY: mapped, from the loader, and never written by this program.
    let bytes = unsafe { core::slice::from_raw_parts(first, WORDS_MAX) };
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(0);
    core::str::from_utf8(&bytes[..end]).unwrap_or("")
}

/// Copies memory that holds firmware's tables. `None` if the range is not below 4 GiB or starts at 0.
pub fn firmware(at: u64, bytes: usize) -> Option<alloc::vec::Vec<u8>> {
    let end = at.checked_add(bytes as u64)?;
    let mut copy = alloc::vec![0; bytes];
    // Page 0 is firmware's, too, but a pointer to address 0 is invalid.
    if at == 0 || end > 4 << 30 {
        return None;
    }
    let from = core::ptr::with_exposed_provenance::<u8>(at as usize);
    // SAFETY: mapped, and `copy` has the same length. Memory of ours in the range is only read; a device's
    // registers in it read as arbitrary bytes.
    unsafe { core::ptr::copy(from, copy.as_mut_ptr(), bytes) };
    Some(copy)
}
