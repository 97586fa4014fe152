//! The exhibits of each paper, in the order in which they are printed.

use super::check::Item;
use super::{
    adaptive, adaptive_figures, blocks, dc_express, dcx_kernel, dcx_link, dcx_tables, dcx_tags,
    fastpath, flash_arrays, flash_cliff, flash_pairs, flash_tables, flash_windows, flash_workers,
    vortex, vortex_tables,
};

pub(super) const ADAPTIVE: &[Item] = &[
    Item::Check(adaptive::POLICIES),
    Item::Check(adaptive::READS_OVER_WRITES),
    Item::Check(adaptive::RISING),
    Item::Check(adaptive::LOWEST),
    Item::Check(adaptive::STATIC),
    Item::Check(adaptive::ADAPTIVE),
    Item::Check(adaptive::REQUESTS),
    Item::Check(blocks::FULL),
    Item::Check(blocks::GATHERING),
    Item::Check(blocks::ALONE),
    Item::Shown(adaptive_figures::all),
    Item::Shown(blocks::tables),
];

pub(super) const DC_EXPRESS: &[Item] = &[
    Item::Check(dc_express::SMALL_BLOCK),
    Item::Check(dc_express::SMALLEST),
    Item::Check(dc_express::TRANSFER),
    Item::Check(dc_express::ANTICIPATED),
    Item::Check(dc_express::GAPLESS),
    Item::Check(dc_express::OUT_OF_ORDER),
    Item::Check(dc_express::COLLISIONS),
    Item::Check(dcx_tags::SHORT_TAGS),
    Item::Check(dcx_tags::WIDE_TAGS),
    Item::Check(dc_express::RANDOM_ARRIVAL),
    Item::Check(dc_express::UPSTREAM),
    Item::Check(dc_express::DOWNSTREAM),
    Item::Check(dcx_kernel::WAYS),
    Item::Check(dcx_kernel::PIECES),
    Item::Check(dcx_kernel::SHARE_OF_COPY),
    Item::Check(dcx_kernel::BLOCK_DRIVER),
    Item::Check(dcx_kernel::READ_CALL),
    Item::Check(dcx_kernel::FIO_ITSELF),
    Item::Check(dc_express::LINUX_NVME),
    Item::Check(dc_express::HEADLINE),
    Item::Check(dc_express::SPARED),
    Item::Check(dc_express::TENFOLD),
    Item::Check(dcx_link::BY_LOAD),
    Item::Check(dcx_link::CREDITS),
    Item::Check(dcx_link::ASYMPTOTE),
    Item::Shown(dc_express::quoted),
    Item::Shown(dcx_tables::all),
    Item::Shown(dcx_link::tables),
    Item::Shown(dcx_tags::schemes),
];

/// Exhibits of 10^8 reads, and of 2^30 packets.
pub(super) const DC_EXPRESS_LONG: &[Item] = &[
    Item::Check(dcx_tags::PRESENT),
    Item::Check(dcx_tags::ALL_READS),
    Item::Check(dcx_tags::ALL_COMPARED),
];

pub(super) const FASTPATH: &[Item] = &[
    Item::Check(fastpath::RANDOM_READS),
    Item::Check(fastpath::RANDOM_WRITES),
    Item::Check(fastpath::OVER_POLLED),
    Item::Check(fastpath::BASELINE),
    Item::Check(fastpath::BASELINE_WRITES),
    Item::Check(fastpath::LESS),
    Item::Check(fastpath::LESS_WRITES),
    Item::Check(fastpath::BANDWIDTH),
    Item::Check(fastpath::LEAST),
    Item::Check(fastpath::MOST),
    Item::Check(fastpath::IOPS),
    Item::Check(fastpath::BEFORE),
    Item::Check(fastpath::ON_X86),
    Item::Check(fastpath::SCALING),
    Item::Shown(fastpath::figures),
];

pub(super) const FLASH: &[Item] = &[
    Item::Check(flash_pairs::READ_LATENCY),
    Item::Check(flash_pairs::WRITE_LATENCY),
    Item::Check(flash_pairs::READ_RATE),
    Item::Check(flash_pairs::WRITE_RATE),
    Item::Check(flash_pairs::MEMORY),
    Item::Check(flash_pairs::FINE),
    Item::Check(flash_pairs::CORES),
    Item::Check(flash_pairs::CORES_OVER_ALL),
    Item::Check(flash_pairs::CORES_BY_SIZE),
    Item::Check(flash_workers::CORES_BY_MODE),
    Item::Check(flash_workers::CORES_BY_WORKERS),
    Item::Check(flash_workers::MEMORY_BY_WORKERS),
    Item::Check(flash_workers::CLOSER_8_OVER_4),
    Item::Check(flash_workers::BRIDGE_8_OVER_4),
    Item::Check(flash_workers::CLOSER_8_OVER_1),
    Item::Check(flash_workers::BRIDGE_8_OVER_1),
    Item::Check(flash_workers::CLOSER_IOPS),
    Item::Check(flash_workers::BRIDGE_IOPS),
    Item::Check(flash_workers::CLOSER_QUEUED),
    Item::Check(flash_workers::BRIDGE_QUEUED),
    Item::Check(flash_workers::RANDOM_OVER_SEQUENTIAL),
    Item::Shown(flash_tables::all),
];

/// Exhibits that overwrite drives and arrays several times.
pub(super) const FLASH_LONG: &[Item] = &[
    Item::Check(flash_cliff::CLIFF),
    Item::Check(flash_arrays::FIVE_SSDS),
    Item::Check(flash_arrays::OF_ITS_OWN),
    Item::Check(flash_arrays::STRAGGLER),
    Item::Check(flash_arrays::STRAGGLER_CLOSER),
    Item::Check(flash_arrays::IN_TURN),
    Item::Check(flash_windows::WRITES),
    Item::Check(flash_windows::READS),
    Item::Shown(flash_cliff::figures),
    Item::Shown(flash_arrays::tables),
    Item::Shown(flash_windows::exhibits),
];

pub(super) const VORTEX: &[Item] = &[
    Item::Check(vortex::ROUND_ROBIN_COUNT),
    Item::Check(vortex::PER_CORE_COUNT),
    Item::Check(vortex::POOL_COUNT),
    Item::Check(vortex::SINGLE_COUNT),
    Item::Check(vortex::ONE_CORE),
    Item::Check(vortex::EIGHT_CORES),
    Item::Check(vortex::FAVOURED),
    Item::Check(vortex::EVEN),
    Item::Check(vortex::NOT_MUCH_MORE),
    Item::Check(vortex::ALIKE),
    Item::Check(vortex::ABOVE),
    Item::Check(vortex::SATURATION),
    Item::Check(vortex::TWO_CORES),
    Item::Check(vortex::ENOUGH),
    Item::Check(vortex::WRITES),
    Item::Check(vortex::ENQUEUED),
    Item::Shown(vortex_tables::all),
];
