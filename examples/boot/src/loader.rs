//! What the loader says: where memory is, and the words of the command line (PVH, version 1).
#![allow(unsafe_code)]

use core::ops::Range;

/// First word of what the loader hands over.
const MAGIC: u32 = 0x336e_c578;
/// A piece of memory that may be used.
const USABLE: u32 = 1;
/// A page below 1 MiB that is neither firmware's nor the loader's: other processors begin there.
pub const LOW_PAGE: u64 = 0x8000;
/// No machine has a longer map, no command line that is meant is longer.
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

/// What is believed of it.
pub struct Loaded {
    /// Usable memory behind the image, below 4 GiB, in one piece.
    pub memory: Range<u64>,
    /// The words that it was started with.
    pub command_line: &'static str,
}

/// Reads it.
///
/// # Errors
/// What is wrong with it.
///
/// # Safety
/// It is called once, before anything is done with memory, with what the loader has left in `%ebx`.
pub unsafe fn read(info: u64) -> Result<Loaded, &'static str> {
    if info == 0 || !info.is_multiple_of(4) {
        return Err("the loader hands over nothing");
    }
    let address = |at: u64| core::ptr::with_exposed_provenance::<u8>(at as usize);
    // SAFETY: below 4 GiB everything is mapped, and the address is the loader's.
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

/// Up to the first zero; nothing, if it is no text.
fn words(at: u64) -> &'static str {
    if at == 0 {
        return "";
    }
    let first = core::ptr::with_exposed_provenance::<u8>(at as usize);
    // SAFETY: mapped, the loader's, and nobody writes there.
    let bytes = unsafe { core::slice::from_raw_parts(first, WORDS_MAX) };
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(0);
    core::str::from_utf8(&bytes[..end]).unwrap_or("")
}

/// A copy of memory that firmware has written its tables to. None: it is not mapped, or not its own.
pub fn firmware(at: u64, bytes: usize) -> Option<alloc::vec::Vec<u8>> {
    let end = at.checked_add(bytes as u64)?;
    let mut copy = alloc::vec![0; bytes];
    // Page 0 is firmware's too, but its first bytes are where no reference may be.
    if at == 0 || end > 4 << 30 {
        return None;
    }
    let from = core::ptr::with_exposed_provenance::<u8>(at as usize);
    // SAFETY: mapped, and `copy` is as long. What of it should be memory of ours is only read, and what a
    // device answers there are bytes as others.
    unsafe { core::ptr::copy(from, copy.as_mut_ptr(), bytes) };
    Some(copy)
}
