//! Calls beyond those of the paper: named areas and latency counters.

use std::ffi::{c_char, c_double, c_int, c_longlong};

use super::{device, fastpath, find, handed_out, named, text};
use crate::engine::{Counters, RequestKind};
use crate::failure::{Failure, answer, number};

/// Opens the area of this name with its data, or makes one of `size` bytes. `size` is 0 to find one only. A
/// null `function` is none.
///
/// # Safety
/// `name` is a C string, `function` null or one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fastpath_open(
    name: *const c_char,
    size: c_int,
    function: *const c_char,
) -> *mut fastpath {
    handed_out(|| {
        let why = || format!("found a size of {size} bytes, expected 0 or more");
        let bytes = u64::try_from(size).map_err(|_| Failure::argument(why()))?;
        // SAFETY: the caller guarantees C strings.
        let (name, function) = unsafe { (text(name, "the name of an area")?, named(function)?) };
        Ok(device()?.open_named(name, bytes, function)?)
    })
}

/// Frees the area of this name, which is not open.
///
/// # Safety
/// `name` is a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fastpath_remove(name: *const c_char) -> c_int {
    answer(|| {
        // SAFETY: the caller guarantees a C string.
        let name = unsafe { text(name, "the name of an area") }?;
        Ok(device()?.remove_named(name)?)
    })
}

/// Length of the area in bytes, or minus an error.
#[unsafe(no_mangle)]
pub extern "C" fn fastpath_size(fp: *const fastpath) -> c_longlong {
    number(|| Ok(find(fp)?.client.area_bytes()))
}

/// Counters of one kind of request, times in ns.
#[repr(C)]
pub struct fastpath_counters {
    /// Requests carried out, failed ones among them.
    pub requests: c_longlong,
    /// Failed and rejected requests.
    pub failed: c_longlong,
    /// Minimum; zero if there was no request.
    pub least: c_longlong,
    /// Mean; zero if there was no request.
    pub mean: c_longlong,
    /// Maximum.
    pub most: c_longlong,
}

fn kind(number: c_int) -> Result<RequestKind, Failure> {
    match number {
        0 => Ok(RequestKind::Read),
        1 => Ok(RequestKind::Write),
        2 => Ok(RequestKind::Flush),
        _ => {
            let why = format!(
                "found the kind {number}, expected FP_READS (0), FP_WRITES (1) or FP_FLUSHES (2)"
            );
            Err(Failure::argument(why))
        }
    }
}

/// Writes the counters of requests of this kind.
///
/// # Safety
/// `counters` points to a structure that may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fastpath_latency(
    fp: *const fastpath,
    of_kind: c_int,
    counters: *mut fastpath_counters,
) -> c_int {
    answer(|| {
        let (inner, kind) = (find(fp)?, kind(of_kind)?);
        if counters.is_null() {
            return Err(Failure::argument("found NULL, expected a fastpath_counters"));
        }
        let Counters { requests, failed, least_ns, most_ns, sum_ns } = inner.client.latency(kind);
        let mean = sum_ns.checked_div(requests).unwrap_or(0);
        let of = |value: u64| c_longlong::try_from(value).unwrap_or(c_longlong::MAX);
        let (requests, failed) = (of(requests), of(failed));
        let (least, mean, most) = (of(least_ns), of(mean), of(most_ns));
        // SAFETY: the caller guarantees that it may be written.
        unsafe { counters.write(fastpath_counters { requests, failed, least, mean, most }) };
        Ok(())
    })
}

/// The latency that `percent` of the requests of this kind do not exceed, ns, or minus an error.
#[unsafe(no_mangle)]
pub extern "C" fn fastpath_latency_percentile(
    fp: *const fastpath,
    of_kind: c_int,
    percent: c_double,
) -> c_longlong {
    number(|| {
        let (inner, kind) = (find(fp)?, kind(of_kind)?);
        if !(0.0..=100.0).contains(&percent) {
            return Err(Failure::argument(format!("found {percent} percent, expected 0 to 100")));
        }
        Ok(inner.client.latency_percentile_ns(kind, percent))
    })
}

/// Sets all counters of an area to zero.
#[unsafe(no_mangle)]
pub extern "C" fn fastpath_latency_reset(fp: *const fastpath) -> c_int {
    answer(|| {
        find(fp)?.client.reset_latency();
        Ok(())
    })
}
