//! Parsing of whole job files.

use runtime::Span;
use workload::job::{
    Amount, BlockSizes, Direction, Distribution, IncludeError, Outside, RateProcess, parse,
    parse_with,
};

#[test]
fn global_settings_apply_below_and_sections_override() {
    let file = parse(
        "a.fio",
        "; steady state\n[global]\nioengine=libaio\nbs=4k\niodepth=32 # deep\nruntime=10\n\
         [fill]\nrw=write\nbs=128k\nsize=50%\n[global]\nrw=randread\n[read]\nstonewall\n\
         numjobs=4\ntime_based=1\noffset_increment=1g\n[again]\niodepth=1\n",
    )
    .unwrap();
    let [fill, read, again] = &file.jobs[..] else { panic!("three jobs: {file:?}") };
    assert_eq!(
        (fill.name.as_str(), fill.direction, fill.random),
        ("fill", Direction::Write, false)
    );
    assert_eq!(fill.block_size.write, BlockSizes::One(128 << 10));
    assert_eq!((fill.size, fill.iodepth), (Some(Amount::Percent(50)), 32));
    assert!(read.random && read.wait_for_previous && read.time_based);
    assert_eq!((read.numjobs, read.runtime), (4, Some(Span::s(10))));
    assert_eq!(read.offset_increment, Amount::Bytes(1 << 30));
    assert!(again.random && !again.wait_for_previous);
    assert_eq!((again.iodepth, again.line), (1, 18));
    assert_eq!(again.options, [("iodepth".to_owned(), "1".to_owned())]);
    assert_eq!(read.options[0], ("stonewall".to_owned(), "1".to_owned()));
    assert_eq!(file.globals.len(), 5);
    let notes: Vec<String> = file.notes.iter().map(ToString::to_string).collect();
    assert_eq!(notes, ["a.fio:3: ioengine: the driver is chosen by the plan's interface"]);
}

#[test]
fn sizes_rates_and_zones_per_direction() {
    let file = parse(
        "a.fio",
        "[j]\nrw=randrw\nbssplit=4k/50:1k/:32k/,8k/100\nrate_iops=100,\nrate_process=poisson\n\
         random_distribution=zoned:80/20:20/80,100/100\nfdatasync=3\n",
    )
    .unwrap();
    let job = &file.jobs[0];
    let split = BlockSizes::Split(vec![(4096, 50), (1024, 25), (32 << 10, 25)]);
    assert_eq!(job.block_size.read, split);
    assert_eq!(job.block_size.write, BlockSizes::Split(vec![(8192, 100)]));
    assert_eq!((job.rate_iops.read, job.rate_iops.write), (Some(100), None));
    assert_eq!(job.rate_process, RateProcess::Poisson);
    assert_eq!(job.distribution.read, Distribution::Zoned(vec![(80, 20), (20, 80)]));
    assert_eq!(job.distribution.write, Distribution::Zoned(vec![(100, 100)]));
    assert_eq!(job.flush_every, 3);
}

/// Parses `a.fio` with files to include, variables of the environment and settings beside the file.
fn parse_outside(text: &str) -> Result<workload::job::JobFile, String> {
    let include = |from: &str, name: &str| match name {
        "common.fio" => Ok((name.to_owned(), "bs=${BS}\niodepth=4\n".to_owned())),
        "typo.fio" => Ok((name.to_owned(), "bs=8k\niodpeth=4\n".to_owned())),
        "itself.fio" => Ok((name.to_owned(), "include itself.fio\n".to_owned())),
        _ => Err(IncludeError::Io { path: name.into(), why: format!("not beside {from}") }),
    };
    let variable = |name: &str| match name {
        "BS" => Some("16k".to_owned()),
        "UNIT" => Some("k".to_owned()),
        _ => None,
    };
    let settings = [("iodepth".to_owned(), "9".to_owned())];
    let outside = Outside { settings: &settings, variable: &variable, include: &include };
    parse_with("a.fio", text, &outside).map_err(|errors| errors.to_string())
}

#[test]
fn included_settings_and_variables_take_effect_in_their_section() {
    let text = "[global]\ninclude common.fio\n[one]\nsize=4${UNIT}${UNIT}\n[two]\nrw=read\n";
    let why = parse_outside(text).unwrap_err();
    assert_eq!(
        why.lines().next(),
        Some(
            "a.fio:4: size=4kk: \"kk\" is not a unit of size; expected bytes \
         or a percentage up to 100%, as in 4g or 25%"
        )
    );
    let file = parse_outside(&text.replace("${UNIT}${UNIT}", "${UNIT}")).unwrap();
    for job in &file.jobs {
        assert_eq!(job.block_size.read, BlockSizes::One(16 << 10), "{}", job.name);
    }
    assert_eq!(file.jobs[0].size, Some(Amount::Bytes(4096)));
    let used: Vec<_> =
        file.variables.iter().map(|(name, value)| format!("{name}={value}")).collect();
    assert_eq!(used, ["BS=16k", "UNIT=k"]);
    assert_eq!(file.globals[0], ("bs".to_owned(), "16k".to_owned()));
    assert_eq!(
        file.text,
        "[global]\nbs=16k\niodepth=4\n[one]\nsize=4k\niodepth=9\n[two]\nrw=read\niodepth=9\n"
    );
    let again = parse("a.fio", &file.text).unwrap();
    let same = |job: &workload::job::Job| workload::job::Job { line: 0, ..job.clone() };
    assert!(again.jobs.iter().map(same).eq(file.jobs.iter().map(same)));
}

#[test]
fn command_line_settings_override_every_section() {
    let file = parse_outside("[global]\niodepth=2\n[one]\niodepth=3\n[two]\nrw=read\n").unwrap();
    let depths: Vec<_> = file.jobs.iter().map(|job| job.iodepth).collect();
    assert_eq!(depths, [9, 9]);
    assert_eq!(file.jobs[0].options.last(), Some(&("iodepth".to_owned(), "9".to_owned())));
}

#[test]
fn error_of_included_file_names_that_file() {
    for (text, want) in [
        (
            "[one]\ninclude typo.fio\n",
            "typo.fio:2: unknown key \"iodpeth\": did you mean \"iodepth\"?",
        ),
        (
            "[one]\ninclude none.fio\n",
            "a.fio:2: include none.fio: none.fio: cannot be read: not beside a.fio",
        ),
        (
            "[one]\ninclude itself.fio\n",
            "itself.fio:1: include itself.fio: found more than 16 files, one in the other",
        ),
    ] {
        assert_eq!(parse_outside(text).unwrap_err(), want);
    }
}

#[test]
fn command_line_setting_is_named_in_its_error() {
    let settings = [("iodpeth".to_owned(), "9".to_owned())];
    let outside = Outside { settings: &settings, ..Outside::none() };
    let errors = parse_with("a.fio", "[one]\n[two]\n", &outside).unwrap_err();
    assert_eq!(errors.to_string(), "iodpeth=9: unknown key \"iodpeth\": did you mean \"iodepth\"?");
}

#[test]
fn rate_in_bytes_excludes_rate_in_operations() {
    let file = parse("a.fio", "[j]\nrw=randrw\nrate=4m,1m\n").unwrap();
    assert_eq!(file.jobs[0].rate_bytes.each().map(|rate| rate.unwrap() >> 20), [4, 1, 1]);
    let errors = parse("a.fio", "[j]\nrate=4m\nrate_iops=100\n").unwrap_err().to_string();
    assert_eq!(errors, "a.fio:2: rate: found with rate_iops, expected one of them for a direction");
}

#[test]
fn bssplit_blank_percentages_share_the_remainder() {
    let file = parse("a.fio", "[j]\nbssplit=4k/:8k/:16k/\n").unwrap();
    let split = BlockSizes::Split(vec![(4096, 34), (8192, 33), (16384, 33)]);
    assert_eq!(file.jobs[0].block_size.read, split);
}

#[test]
fn verify_checksum_enables_stamps_with_note() {
    let file = parse("a.fio", "[j]\nrw=randwrite\nverify=crc32c\nverify_fatal=1\n").unwrap();
    let verify = file.jobs[0].verify;
    assert!(verify.on && verify.read_back && verify.fatal);
    assert!(file.notes[0].to_string().starts_with("a.fio:3: verify: contents are checked by"));
}

#[test]
fn read_iolog_gives_ignored_pattern_settings_a_note() {
    let notes = |text: &str| -> Vec<String> {
        let notes = parse("a.fio", text).unwrap().notes;
        notes.into_iter().map(|note| format!("{}:{}", note.line, note.key)).collect()
    };
    let pattern = "rw=randread\nblocksize=8k\nruntime=1\ntime_based\nnumber_ios=3\n";
    let text = format!("[j]\nread_iolog=a.log:b.log\n{pattern}");
    assert_eq!(notes(&text), ["2:read_iolog", "3:rw", "4:blocksize", "6:time_based"]);
    assert_eq!(notes("[j]\nread_iolog=a.log:b.log\nnumjobs=2\nruntime=1\n"), [""; 0]);
    assert_eq!(notes("[j]\niodepth=8\niodepth_batch_submit=4\n"), ["3:iodepth_batch_submit"]);
}

#[test]
fn read_iolog_accepts_several_files() {
    let text = "[j]\nread_iolog=a.log:b.log\nreplay_time_scale=200\nreplay_no_stall=0\n";
    let trace = parse("a.fio", text).unwrap().jobs.remove(0).trace.unwrap();
    assert_eq!(trace.paths, ["a.log", "b.log"]);
    assert_eq!((trace.no_stall, trace.time_scale_percent), (false, 200));
}

proptest::proptest! {
    #[test]
    fn arbitrary_job_file_does_not_panic(
        text in "(\\[[a-z]{0,3}\\]?\n|[a-z_]{0,8}=?[ -~é]{0,12}\n){0,8}",
    ) {
        let _ = parse("a.fio", &text);
    }

    #[test]
    fn arbitrary_value_of_known_key_does_not_panic(
        at in 0..workload::job::KEYS.len(),
        value in "[0-9a-z%:/,.-]{0,16}",
    ) {
        let _ = parse("a.fio", &format!("[j]\n{}={value}\n", workload::job::KEYS[at].name));
    }
}

#[test]
fn values_that_fio_takes_for_none_or_the_rest_are_taken_so() {
    let job = |text: &str| parse("a.fio", &format!("[j]\n{text}\n")).unwrap().jobs.remove(0);
    let none = job("rw=read");
    for zero in ["offset=0%", "offset=0", "offset_increment=0%", "size=0", "size=0%", "io_size=0"] {
        let same = |of: &workload::job::Job| (of.offset, of.offset_increment, of.size, of.io_size);
        assert_eq!(same(&job(zero)), same(&none), "{zero}");
    }
    assert_eq!(job("number_ios=0").number_ios, None);
    for (zones, want) in [
        ("zoned:50/5:30/15:20/", vec![(50, 5), (30, 15), (20, 80)]),
        ("zoned:60/:40/", vec![(60, 50), (40, 50)]),
    ] {
        let found = job(&format!("random_distribution={zones}")).distribution.read;
        assert_eq!(found, Distribution::Zoned(want));
    }
    let text = "[j]\nrandom_distribution=zoned:60/100:40/\n";
    assert!(parse("a.fio", text).unwrap_err().to_string().contains("a zone of no bytes"));
    let file = parse("a.fio", "[j]\ntime_based\n[k]\nwait_for=j\nioengine=libaio\n").unwrap();
    assert!(!file.jobs[0].time_based && file.jobs[1].wait_for_previous);
    let notes: Vec<_> = file.notes.iter().map(|note| note.key.as_str()).collect();
    assert_eq!(notes, ["time_based", "wait_for", "ioengine"]);
    assert_eq!((job("rw=write:112k").distance, job("rw=read:-8k").distance), (112 << 10, -8 << 10));
    let ops = |text: &str| {
        let target = workload::Target { capacity_bytes: 1 << 20, block_bytes: 512 };
        workload::pattern::Ops::new(&job(text), 0, 1, target).unwrap().collect::<Vec<_>>()
    };
    assert_eq!(ops("rw=read\nbs=4k\nsize=16k\nloops=3").len(), 12);
    assert_eq!(ops("rw=read\nbs=4k\nsize=16k\nnumber_ios=2\nloops=3").len(), 6);
    for (sync, fua) in [("0", false), ("none", false), ("dsync", true), ("1", true)] {
        let ops = ops(&format!("rw=rw\nbs=4k\nsize=64k\nsync={sync}"));
        assert!(
            ops.iter().all(|op| op.durability.fua == (fua && op.kind == workload::OpKind::Write))
        );
    }
}
