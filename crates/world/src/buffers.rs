//! Buffers of the clones of jobs: their size, and whether they fit in host memory.

use std::borrow::Cow;
use std::path::PathBuf;

use bus::Arena;
use host::Geometry;
use workload::job::Job;
use workload::trace::Longest;

use crate::error::{BuffersTooLarge, RunError};
use crate::work::{Work, WorkError, target};

/// Size of the buffer of each task of a job, and the operation of its recordings that sets it.
struct Size {
    bytes: usize,
    of: Option<(PathBuf, Longest)>,
}

impl Size {
    fn new(work: &Work, job: &Job, geometry: &Geometry) -> Result<Size, WorkError> {
        let of = work.longest(job, target(*geometry))?;
        let longest = match (&job.trace, &of) {
            (None, _) => job.data_bytes_max(),
            (Some(_), Some((_, longest))) => longest.bytes,
            (Some(_), None) => 0,
        };
        Ok(Size { bytes: longest.max(geometry.block_bytes) as usize, of })
    }
}

/// Size in bytes of the buffer of each task of a job.
pub(crate) fn buffer_bytes(
    work: &Work,
    job: &Job,
    geometry: &Geometry,
) -> Result<usize, WorkError> {
    Ok(Size::new(work, job, geometry)?.bytes)
}

/// Checks that the buffers of all concurrent clones of this thread fit in host memory. The driver may
/// allocate more at run time; an engine reports an error if memory is exhausted then.
///
/// The depth of a recording that is the work itself, if nothing gives it, is at most what half of the memory
/// has room for: a work with that depth, and a note, are returned then.
pub(crate) fn fit<'a>(
    work: &'a Work,
    geometry: Geometry,
    memory: &Arena,
    thread: (usize, usize),
) -> Result<(Cow<'a, Work>, Option<String>), RunError> {
    let left = memory.bytes().saturating_sub(memory.used_bytes());
    if work.depth_is_default()
        && let [job] = &work.jobs[..]
        && let Size { bytes, of: Some((path, longest)) } = Size::new(work, job, &geometry)?
    {
        let room = (left / 2 / memory.taken_by(bytes)).max(1);
        if room < job.iodepth as usize {
            let note = format!(
                "{}:{}: the longest operation takes {} bytes: host.memory has room for {room} at once, \
                 not {}; for more give a larger host.memory, or iodepth",
                path.display(),
                longest.line,
                longest.bytes,
                job.iodepth
            );
            let mut fitted = work.clone();
            fitted.jobs[0].iodepth = room as u32;
            check(&fitted, geometry, memory, left as u64, thread)?;
            return Ok((Cow::Owned(fitted), Some(note)));
        }
    }
    check(work, geometry, memory, left as u64, thread)?;
    Ok((Cow::Borrowed(work), None))
}

fn check(
    work: &Work,
    geometry: Geometry,
    memory: &Arena,
    left: u64,
    (place, of): (usize, usize),
) -> Result<(), RunError> {
    for group in work.groups() {
        let (mut before, mut taken) = (0, 0_u64);
        for job in group {
            // Number of clones below `end` whose index modulo `of` is `place`.
            let here = |end: usize| (end + of - 1 - place) / of;
            let clones = (here(before + job.numjobs as usize) - here(before)) as u64;
            before += job.numjobs as usize;
            let size = Size::new(work, job, &geometry)?;
            let (depth, each) = (u64::from(job.iodepth.max(1)), memory.taken_by(size.bytes) as u64);
            taken = taken.saturating_add(clones.saturating_mul(depth).saturating_mul(each));
            if taken > left {
                let of = size.of.map(|(path, longest)| {
                    format!("the operation at {}:{}", path.display(), longest.line)
                });
                return Err(RunError::Buffers(Box::new(BuffersTooLarge {
                    file: work.file.clone(),
                    line: job.line,
                    job: job.name.clone(),
                    clones,
                    numjobs: job.numjobs,
                    depth,
                    each,
                    of: of.unwrap_or_else(|| "bs".to_owned()),
                    taken,
                    left,
                    all: memory.bytes() as u64,
                })));
            }
        }
    }
    Ok(())
}
