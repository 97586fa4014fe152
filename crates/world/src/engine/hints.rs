//! Hints that a job gives about its region before its first operation.

use host::BlockDevice;
use wire::Lba;
use wire::nvme::dsm::{Context, Frequency};
use workload::job::Lifetime;

use crate::work::Source;

/// The lifetime of data, as the frequency with which their blocks are written. Nothing is said about reads.
fn context(lifetime: Lifetime) -> Context {
    Context::new().with_frequency(match lifetime {
        Lifetime::Short => Frequency::Writes,
        Lifetime::Medium => Frequency::Typical,
        Lifetime::Long | Lifetime::Extreme => Frequency::Rare,
    })
}

/// Gives the hint for the region of a pattern.
pub(super) async fn give<D: BlockDevice>(
    disk: &D,
    source: &Source,
    lifetime: Option<Lifetime>,
) -> Result<(), String> {
    let (Some(lifetime), Source::Pattern(ops)) = (lifetime, source) else { return Ok(()) };
    let (region, shift) = (ops.region(), disk.geometry().block_bytes.trailing_zeros());
    let (mut at, end) = (region.from >> shift, (region.from + region.bytes) >> shift);
    while at < end {
        let blocks = (end - at).min(u32::MAX.into()) as u32;
        let given = disk.hint(Lba(at), blocks, context(lifetime)).await;
        given.map_err(|error| format!("write_hint: {error}"))?;
        at += u64::from(blocks);
    }
    Ok(())
}
