//! Large pieces of memory, on huge pages where the system has them: a random read of gigabytes misses the TLB
//! as well as the caches.

use memmap2::{MmapMut, MmapOptions};

const HUGE_PAGE: usize = 2 << 20;

/// A mapping, and the offset in it from which on there are `bytes` zeros. Only written pages take memory.
///
/// # Panics
/// If the system has no memory for another mapping.
pub(crate) fn zeros(bytes: usize) -> (MmapMut, usize) {
    // Little memory is of small pages: a huge page is zeroed as a whole when it is first touched.
    let huge = bytes >= HUGE_PAGE;
    let spare = if huge { HUGE_PAGE } else { 0 };
    let map = MmapOptions::new().len(bytes + spare).no_reserve_swap().map_anon();
    let map = map.unwrap_or_else(|error| panic!("no {bytes} bytes of memory: {error}"));
    #[cfg(target_os = "linux")]
    if huge {
        // A hint: a kernel without huge pages refuses it, and small ones do.
        let _ = map.advise(memmap2::Advice::HugePage);
    }
    let begin = if huge { map.as_ptr().addr().wrapping_neg() % HUGE_PAGE } else { 0 };
    (map, begin)
}
