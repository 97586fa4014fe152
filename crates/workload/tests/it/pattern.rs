//! Operations generated from job settings, through the public API.

use proptest::prelude::*;
use runtime::Span;
use workload::job::{Job, parse};
use workload::{Op, OpKind, Ops, Target};

const TARGET: Target = Target { capacity_bytes: 64 << 20, block_bytes: 512 };

fn job(settings: &str) -> Job {
    parse("a.fio", &format!("[j]\n{}\n", settings.replace(' ', "\n"))).unwrap().jobs.remove(0)
}

fn ops(settings: &str) -> Vec<Op> {
    Ops::new(&job(settings), 0, 1, TARGET).unwrap().take(100_000).collect()
}

fn refused(settings: &str) -> String {
    Ops::new(&job(settings), 1, 1, TARGET).unwrap_err().to_string()
}

/// Number of operations that cover each 4 KiB block.
fn cover(ops: &[Op]) -> Vec<u32> {
    let mut seen = vec![0; (TARGET.capacity_bytes / 4096) as usize];
    for op in ops {
        for at in 0..u64::from(op.bytes / 4096) {
            seen[(op.offset_bytes / 4096 + at) as usize] += 1;
        }
    }
    seen
}

#[test]
fn random_map_visits_each_block_once_per_pass() {
    let all = ops("rw=randread bs=4k io_size=128m");
    let (first, second) = all.split_at(all.len() / 2);
    assert_eq!(first.len(), 16_384);
    assert!(cover(first).iter().all(|&times| times == 1));
    assert!(cover(second).iter().all(|&times| times == 1));
    assert_ne!(first, second);
    assert_ne!(first[1].offset_bytes, first[0].offset_bytes + 4096);
}

#[test]
fn randrw_reads_and_writes_share_random_map() {
    let all = ops("rw=randrw rwmixread=70 bs=4k");
    assert!(cover(&all).iter().all(|&times| times == 1));
    let reads = all.iter().filter(|op| op.kind == OpKind::Read).count();
    assert!((11_100..11_800).contains(&reads), "{reads} reads of 16,384");
}

#[test]
fn trim_job_covers_region_and_transfers_no_data() {
    for settings in
        ["rw=trim bs=4k", "rw=randtrim bs=4k", "rw=trim bs=1k,2k,4k", "rw=trim bs=1k,4k"]
    {
        let all = ops(settings);
        assert!(cover(&all).iter().all(|&times| times == 1), "{settings}");
        assert!(all.iter().all(|op| op.kind == OpKind::Trim), "{settings}");
        assert_eq!(job(settings).data_bytes_max(), 0);
    }
    // As in fio: `fsync` counts writes only.
    assert_eq!(ops("rw=trim bs=4k fsync=2 end_fsync=1 number_ios=5").len(), 5);
}

/// As in fio 3.33: `number_ios` and `io_size` count pairs.
#[test]
fn trimwrite_writes_each_trimmed_range() {
    for settings in ["rw=trimwrite bs=4k", "rw=randtrimwrite bssplit=4k/50:16k/50 norandommap"] {
        let all = ops(&format!("{settings} io_size=1m"));
        for pair in all.chunks_exact(2) {
            let place = |op: &Op| (op.offset_bytes, op.bytes);
            assert_eq!((pair[0].kind, pair[1].kind), (OpKind::Trim, OpKind::Write), "{settings}");
            assert_eq!(place(&pair[0]), place(&pair[1]), "{settings}");
        }
        let trimmed: u64 = all.iter().step_by(2).map(|op| u64::from(op.bytes)).sum();
        assert!((1 << 20..(1 << 20) + 16_384).contains(&trimmed), "{settings}: {trimmed}");
        assert_eq!(ops(&format!("{settings} number_ios=5")).len(), 10);
    }
    let kinds = |settings| -> String {
        let letter = |op: &Op| match op.kind {
            OpKind::Trim => 't',
            OpKind::Write => 'w',
            _ => 'F',
        };
        ops(settings).iter().map(letter).collect()
    };
    assert_eq!(kinds("rw=trimwrite number_ios=3 fsync=2 end_fsync=1"), "twtwFtwF");
}

#[test]
fn norandommap_repeats_some_blocks() {
    for settings in ["rw=randread norandommap", "rw=randread blockalign=4k"] {
        let all = ops(settings);
        assert_eq!(all.len(), 16_384);
        assert!(cover(&all).contains(&2), "{settings}");
    }
}

#[test]
fn sequential_job_wraps_at_region_end() {
    let all = ops("rw=write bs=32k offset=1m size=64k io_size=160k");
    let places: Vec<u64> = all.iter().map(|op| op.offset_bytes - (1 << 20)).collect();
    assert_eq!(places, [0, 32 << 10, 0, 32 << 10, 0]);
}

#[test]
fn sequential_rw_has_separate_positions() {
    let all = ops("rw=rw bs=4k number_ios=1000");
    for kind in [OpKind::Read, OpKind::Write] {
        let of_kind: Vec<u64> =
            all.iter().filter(|op| op.kind == kind).map(|op| op.offset_bytes).collect();
        assert!(of_kind.len() > 400);
        assert!(of_kind.iter().enumerate().all(|(at, &place)| place == at as u64 * 4096));
    }
}

#[test]
fn clones_have_own_rng_and_region() {
    let job = job("rw=randread bs=4k size=1m offset_increment=25%");
    let clone = |k| Ops::new(&job, k, 1, TARGET).unwrap();
    assert_eq!(clone(2).region().from, 32 << 20);
    let places = |k| clone(k).map(|op| op.offset_bytes % (16 << 20)).collect::<Vec<_>>();
    assert_ne!(places(0), places(1));
    assert_eq!(places(1), places(1));
}

#[test]
fn fsync_every_n_writes_and_end_fsync() {
    let kinds: String = ops("rw=write bs=4k number_ios=5 fsync=2 end_fsync=1")
        .iter()
        .map(|op| if op.kind == OpKind::Flush { 'F' } else { 'w' })
        .collect();
    assert_eq!(kinds, "wwFwwFwF");
    assert!(ops("rw=read number_ios=5 end_fsync=1").iter().all(|op| op.kind == OpKind::Read));
}

#[test]
fn time_based_job_runs_until_stop() {
    let job = job("rw=write bs=4k size=8k time_based=1 runtime=1 end_fsync=1");
    let mut ops = Ops::new(&job, 0, 1, TARGET).unwrap();
    assert_eq!(ops.by_ref().take(1000).count(), 1000);
    ops.stop();
    assert_eq!(ops.map(|op| op.kind).collect::<Vec<_>>(), [OpKind::Flush]);
}

#[test]
fn rate_iops_sets_due_times() {
    let all = ops("rw=randread rate_iops=1000 number_ios=3");
    let due: Vec<_> = all.iter().map(|op| op.not_before).collect();
    assert_eq!(due, [Some(Span::ZERO), Some(Span::ms(1)), Some(Span::ms(2))]);
}

#[test]
fn two_rates_set_mix_in_due_time_order() {
    let all = ops("rw=randrw rate_iops=300,100 rate_process=poisson number_ios=4000");
    assert!(all.windows(2).all(|pair| pair[0].not_before <= pair[1].not_before));
    let reads = all.iter().filter(|op| op.kind == OpKind::Read).count();
    assert!((2_900..3_100).contains(&reads), "{reads} reads of 4,000");
}

#[test]
fn rwmix_change_keeps_offsets() {
    let places = |settings| ops(settings).iter().map(|op| op.offset_bytes).collect::<Vec<_>>();
    assert_eq!(places("rw=randrw rwmixread=70"), places("rw=randrw rwmixread=20"));
}

#[test]
fn randseed_overrides_run_seed() {
    let run = |settings: &str, seed| {
        Ops::new(&job(settings), 0, seed, TARGET).unwrap().collect::<Vec<_>>()
    };
    assert_eq!(run("rw=randread randseed=7", 1), run("rw=randread randseed=7", 2));
    assert_ne!(run("rw=randread", 1), run("rw=randread", 2));
}

#[test]
fn startdelay_drawn_within_range() {
    let job = job("startdelay=1-5");
    let delay = |k| Ops::new(&job, k, 1, TARGET).unwrap().start_delay();
    assert!((0..20).all(|k| (Span::s(1)..=Span::s(5)).contains(&delay(k))));
    assert_ne!(delay(0), delay(1));
}

#[test]
fn job_beyond_target_is_rejected() {
    for (settings, want) in [
        (
            "bs=1000",
            "bs: 1000 bytes: expected a multiple of the device's block of 512 bytes (of a plan: medium.block)",
        ),
        (
            "size=64m offset_increment=1m",
            "the region of clone 1 is 1048576..68157440: expected it to end within the capacity \
             of 67108864 bytes",
        ),
        ("size=4k bs=8k", "the region has 0 bytes: expected room for one operation of 8192 bytes"),
        (
            "rw=randread random_distribution=zoned_abs:100/65m",
            "random_distribution: the zones end at 68157440: expected them within the region's \
             67108864 bytes",
        ),
    ] {
        assert_eq!(refused(settings), want, "{settings}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn operations_are_whole_blocks_in_region_and_repeatable(
        seed: u64,
        rw in prop::sample::select(vec!["randread", "randwrite", "randrw", "rw", "read", "write"]),
        sizes in prop::sample::select(vec![
            "bs=4k", "bs=512,16k", "bsrange=512-8k", "bssplit=4k/30:1536/30:64k/40",
        ]),
        more in prop::sample::select(vec![
            "norandommap=0", "norandommap=1", "blockalign=8k", "fsync=3",
            "random_distribution=zoned:50/10:50/90", "random_distribution=zoned_abs:70/64k:30/64k",
            "rate_iops=1000", "rate_iops=1000,10",
        ]),
        size_kib in 128_u64..4096,
    ) {
        let job = job(&format!("rw={rw} {sizes} {more} size={size_kib}k offset=3m"));
        let ops = || Ops::new(&job, 0, seed, TARGET).unwrap();
        let region = ops().region();
        let mut count = 0;
        for op in ops().take(5_000) {
            count += 1;
            if op.kind == OpKind::Flush {
                continue;
            }
            prop_assert!(op.bytes > 0 && op.bytes.is_multiple_of(512));
            prop_assert!(op.offset_bytes.is_multiple_of(512));
            prop_assert!(op.offset_bytes >= region.from);
            prop_assert!(op.offset_bytes + u64::from(op.bytes) <= region.from + region.bytes);
        }
        prop_assert!(count > 0);
        prop_assert!(ops().take(5_000).eq(ops().take(5_000)));
    }
}
