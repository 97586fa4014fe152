//! Golden: the parser's error messages for mistakes in job files.

use workload::job::parse;

fn said(text: &str) -> String {
    parse("a.fio", text).expect_err(text).to_string()
}

/// A line of a section, and its error message.
const VALUES: &[(&str, &str)] = &[
    (
        "bs=4x",
        "bs=4x: \"x\" is not a unit of size; expected bytes, or read,write,trim, as in 4k or 4k,8k",
    ),
    ("bs", "bs: it has no value; expected bytes, or read,write,trim, as in 4k or 4k,8k"),
    (
        "bs=4k,4k,4k,4k",
        "bs=4k,4k,4k,4k: 4 parts where at most three are allowed; expected bytes, or \
             read,write,trim, as in 4k or 4k,8k",
    ),
    ("bs=0", "bs=0: 0 is less than 1; expected bytes, or read,write,trim, as in 4k or 4k,8k"),
    (
        "rw=discard",
        "rw=discard: \"discard\" is not a direction; expected one of read, write, randread, \
             randwrite, rw, readwrite, randrw, trim, randtrim, trimwrite, randtrimwrite; in order also with \
             a distance, as in read:8k or read:-8k",
    ),
    (
        "rw=randread:8",
        "rw=randread:8: a number behind a random direction is not supported: each operation has its own \
             place; expected one of read, write, randread, randwrite, rw, readwrite, randrw, trim, randtrim, \
             trimwrite, randtrimwrite; in order also with a distance, as in read:8k or read:-8k",
    ),
    ("iodepth=0", "iodepth=0: 0 is less than 1; expected a whole number from 1"),
    ("rwmixread=101", "rwmixread=101: 101 is more than 100; expected a whole number from 0 to 100"),
    (
        "runtime=10y",
        "runtime=10y: \"y\" is not a unit of time; expected a time, in seconds where it names \
             no unit, as in 10, 500ms or 2m",
    ),
    (
        "size=101%",
        "size=101%: 101 is more than 100; expected bytes or a percentage up to 100%, as in 4g or 25%",
    ),
    (
        "norandommap=yes",
        "norandommap=yes: \"yes\" is neither 1 nor 0; expected 1 or 0, or the bare key",
    ),
    (
        "bssplit=4k/60:8k/30",
        "bssplit=4k/60:8k/30: the percentages add to 90, not 100; expected \
             size/percent:size/percent, or read,write lists, as in 4k/60:64k/40",
    ),
    (
        "random_distribution=zipf:1",
        "random_distribution=zipf:1: theta is 1, for which fio has no zipf; expected random, \
             zoned:ACCESS%/SIZE%:..., zoned_abs:ACCESS%/BYTES:..., zipf:THETA[:CENTRE], \
             pareto:H[:CENTRE] or normal:PERCENT[:CENTRE], as in zoned:80/20:20/80 or zipf:1.2",
    ),
    (
        "random_distribution=pareto:0.2:1.5",
        "random_distribution=pareto:0.2:1.5: the centre is 1.5, outside of 0 to 1; expected random, \
             zoned:ACCESS%/SIZE%:..., zoned_abs:ACCESS%/BYTES:..., zipf:THETA[:CENTRE], \
             pareto:H[:CENTRE] or normal:PERCENT[:CENTRE], as in zoned:80/20:20/80 or zipf:1.2",
    ),
    (
        "random_distribution=zoned:60/50:40/40",
        "random_distribution=zoned:60/50:40/40: the sizes of the zones add to 90%, not 100%; \
             expected random, zoned:ACCESS%/SIZE%:..., zoned_abs:ACCESS%/BYTES:..., \
             zipf:THETA[:CENTRE], pareto:H[:CENTRE] or normal:PERCENT[:CENTRE], as in \
             zoned:80/20:20/80 or zipf:1.2",
    ),
    (
        "verify=pattern",
        "verify=pattern: a fixed pattern cannot show stale or misplaced data; expected 0, \
             none, null, or any of fio's checksums, as in crc32c",
    ),
    (
        "rate_process=bursty",
        "rate_process=bursty: \"bursty\" is neither; expected linear or poisson",
    ),
    ("flow=8", "flow is not supported: give rate_iops to each job"),
    ("iodpeth=8", "unknown key \"iodpeth\": did you mean \"iodepth\"?"),
    ("qwertyuiop=8", "unknown key \"qwertyuiop\": expected a key of a fio job file"),
    (
        "include other.fio",
        "include other.fio: this text is not in a file, expected the included settings themselves",
    ),
    (
        "size=${SIZE}",
        "size=${SIZE}: the environment has no \"SIZE\"; expected ${NAME}, of a variable that is set",
    ),
    ("size=${SIZE", "size=${SIZE: ${ without }; expected ${NAME}, of a variable that is set"),
    (
        "ioengine=cpuio",
        "ioengine=cpuio: this engine moves no data to or from a device; expected reads, writes or trims of \
             a device",
    ),
    ("replay_no_stall=1", "replay_no_stall: needs read_iolog=, which says what to play"),
];

#[test]
fn value_error_has_line_and_expected_form() {
    for (line, want) in VALUES {
        assert_eq!(said(&format!("[j]\n{line}\n")), format!("a.fio:2: {want}"), "{line}");
    }
}

#[test]
fn structure_error_has_line_and_expected_form() {
    for (text, want) in [
        ("", "a.fio:1: no job: expected at least one section [name] besides [global]"),
        (
            "[global]\nbs=4k\n",
            "a.fio:1: no job: expected at least one section [name] besides [global]",
        ),
        (
            "bs=4k\n[j]\n",
            "a.fio:1: \"bs\" stands before any section: expected [global] or [name] above it",
        ),
        ("[j\nbs=4k\n", "a.fio:1: \"[j\" is not a section header: expected [name]"),
        ("[]\n", "a.fio:1: \"[]\" is not a section header: expected [name]"),
    ] {
        assert_eq!(said(text), want, "{text:?}");
    }
}

#[test]
fn job_errors_reported_once_in_line_order() {
    let text = "[global]\nbs=4x\n[one]\nrw=reed\n[two]\niodepth=none\n";
    let lines = said(text);
    let starts: Vec<&str> = lines.lines().map(|line| &line[..13]).collect();
    assert_eq!(starts, ["a.fio:2: bs=4", "a.fio:4: rw=r", "a.fio:6: iode"]);
}
