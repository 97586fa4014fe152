//! Values out of range, and inconsistent values.

use super::{PLAN, assert_rejected, changed, parse_errors};

#[test]
fn coalescing_is_limited_to_the_range_of_the_feature() {
    let with = |lines: &str| parse_errors(&format!("{PLAN}\n[host.coalescing]\n{lines}"));
    assert_eq!(with("completions = 256\nat_most = \"25.5 ms\"\n"), "no error");
    let found = with("completions = 1\nat_most = \"150 us\"\n");
    for expected in [
        "host.coalescing.completions: found 1, expected a whole number from 2 to 256",
        "host.coalescing.at_most: found 150.000us, expected a multiple of \"100 us\"",
    ] {
        assert!(found.contains(expected), "{found}");
    }
}

#[test]
fn shadow_doorbells_must_be_boolean() {
    let with = |value: &str| {
        let line = format!("shadow_doorbells = {value}\nqueue_depth = 9");
        parse_errors(&changed("host", "queue_depth", &line))
    };
    assert_eq!([with("true"), with("false")], ["no error", "no error"]);
    let found = with("\"often\"");
    assert!(found.contains("host.shadow_doorbells: found \"often\", expected"), "{found}");
}

#[test]
fn protection_needs_a_medium_with_metadata() {
    let with = |sets: &[(&str, &str)]| match crate::Plan::open("gen4", sets) {
        Ok(_) => "no error".to_owned(),
        Err(errors) => errors.to_string(),
    };
    let everything = ("medium.keep", "everything");
    assert_eq!(with(&[("device.protection", "3"), everything]), "no error");
    let found = with(&[("device.protection", "4"), everything]);
    assert!(found.contains("device.protection: found 4, expected a whole number from 0 to 3"));
    for other in [("medium.keep", "stamps"), ("medium.file", "somewhere.img")] {
        let found = with(&[everything, ("device.protection", "1"), other]);
        assert!(
            found.contains("device.protection: found 1, expected 0, or DRAM or PCM"),
            "{found}"
        );
    }
}

#[test]
fn host_protection_needs_a_guard_cost() {
    let with = |lines: &str| {
        parse_errors(&changed("host", "queue_depth", &format!("{lines}\nqueue_depth = 9")))
    };
    let guard = "guard = { value = \"300 ns\", source = \"assumed\" }";
    assert_eq!(with("protection = \"device\""), "no error");
    assert_eq!(with(&format!("protection = \"host\"\n{guard}")), "no error");
    let found = with("protection = \"host\"");
    assert!(found.contains("host.guard: found nothing, expected"), "{found}");
    let found = with("protection = \"both\"");
    assert!(found.contains("host.protection: found \"both\", expected"), "{found}");
    let found = with(&format!("protection = \"device\"\n{guard}"));
    assert!(found.contains("host.guard: found"), "{found}");
}

#[test]
fn sgl_must_be_never_long_or_always() {
    let with = |value: &str| {
        parse_errors(&changed("host", "queue_depth", &format!("sgl = {value}\nqueue_depth = 9")))
    };
    assert_eq!(["\"never\"", "\"long\"", "\"always\""].map(with), ["no error"; 3]);
    let found = with("\"short\"");
    assert!(found.contains("host.sgl: found \"short\", expected"), "{found}");
}

#[test]
fn arbitration_classes_and_weights_are_validated() {
    let with = |lines: &str| parse_errors(&format!("{PLAN}\n[arbitration]\n{lines}"));
    let weights = "high = 4\nmedium = 2\nlow = 1\n";
    assert_eq!(with(&format!("classes = \"urgent low\"\n{weights}urgent_most = 8\n")), "no error");
    let found = with(&format!("classes = \"urgent lowest\"\n{weights}"));
    assert!(
        found.ends_with(
            "arbitration.classes: found \"urgent lowest\", expected the classes of the queues in order: \
             urgent, high, medium or low, separated by blanks"
        ),
        "{found}"
    );
    let found = with("classes = \"low\"\nhigh = 0\nmedium = 257\nurgent_most = 0\n");
    for expected in [
        "arbitration.high: found 0, expected a whole number from 1 to 256",
        "arbitration.medium: found 257, expected a whole number from 1 to 256",
        "arbitration.low: found nothing, expected a whole number from 1 to 256",
        "arbitration.urgent_most: found 0, expected a whole number from 1 to 65536",
    ] {
        assert!(found.contains(expected), "{found}");
    }
    let grouped = PLAN.replacen("arbitration_burst", "queue_groups = 2\narbitration_burst", 1);
    assert_eq!(parse_errors(&grouped), "no error");
    assert_eq!(
        parse_errors(&format!("{grouped}\n[arbitration]\nclasses = \"low\"\n{weights}")),
        "p.toml:61:16: device.queue_groups: found 2, expected 1, or no table arbitration: groups are of \
         round robin"
    );
}

#[test]
fn power_states_must_decrease_and_start_operational() {
    let state = |milliwatts: u32, idle: bool| {
        format!(
            "[[power.states]]\nmilliwatts = {{ value = {milliwatts}, source = \"assumed\" }}\n\
             idle = {idle}\nenter = {{ value = \"1 ms\", source = \"assumed\" }}\n\
             leave = {{ value = \"0 us\", source = \"assumed\" }}\n"
        )
    };
    let with =
        |first: String, second: String| parse_errors(&format!("{PLAN}\n[power]\n{first}{second}"));
    assert_eq!(with(state(8, false), state(8, true)), "no error");
    let found = with(state(8, true), state(9, true));
    for expected in [
        "power.states.0.idle: found true, expected false: the initial state must be operational",
        "power.states: found a state with more power than the previous one, expected states in \
         order of decreasing power",
    ] {
        assert!(found.contains(expected), "{found}");
    }
    let found = with("saving = \"11 s\"\n".into(), state(700_000, false));
    for expected in [
        "power.saving: found \"11 s\", expected a span from 1 us to 10 s",
        "power.states.0.milliwatts: found 700000, expected a whole number from 0 to 655350",
    ] {
        assert!(found.contains(expected), "{found}");
    }
    let found = with(String::new(), String::new());
    assert!(found.contains("power.states: found 0 states, expected 1 to 32 tables"), "{found}");
}

/// The heading of `[[link.hops]]` without its outer brackets.
const HOP: &str = "[link.hops]";

#[test]
fn link_values_have_ranges() {
    let payload = "expected a power of two from \"128 B\" to \"4 KiB\"";
    for (key, at) in [("mps", "8:7"), ("mrrs", "9:8")] {
        for bytes in ["64 B", "192 B", "8 KiB"] {
            assert_rejected(
                "link",
                key,
                &format!("{key} = \"{bytes}\""),
                // If `mps` is invalid, `completion_bytes` is checked against the largest payload.
                &format!("p.toml:{at}: link.{key}: found \"{bytes}\", {payload}"),
            );
        }
    }
    for (key, line, expected) in [
        (
            "generation",
            "generation = \"gen9\"",
            "p.toml:6:14: link.generation: found \"gen9\", \
             expected \"gen1\" or \"gen2\" or \"gen3\" or \"gen4\" or \"gen5\"",
        ),
        (
            "lanes",
            "lanes = 3",
            "p.toml:7:9: link.lanes: found 3, expected 1, 2, 4, 8, 16 or 32 lanes",
        ),
        (
            "lanes",
            "lanes = \"4\"",
            "p.toml:7:9: link.lanes: found \"4\", expected 1, 2, 4, 8, 16 or 32 lanes",
        ),
        (
            "lanes",
            "lanes = 99999999999999999999999999999999999999999",
            "p.toml:7:9: link.lanes: found 99999999999999999999999999999999999999999, \
             expected 1, 2, 4, 8, 16 or 32 lanes",
        ),
        (
            "rcb",
            "rcb = \"256 B\"",
            "p.toml:10:7: link.rcb: found \"256 B\", expected \"64 B\" or \"128 B\"",
        ),
        (
            "completion_bytes",
            "completion_bytes = \"512 B\"",
            "p.toml:11:20: link.completion_bytes: found \"512 B\", \
             expected a multiple of link.rcb (64 B) up to link.mps (256 B)",
        ),
        (
            "completion_bytes",
            "completion_bytes = \"96 B\"",
            "p.toml:11:20: link.completion_bytes: found \"96 B\", \
             expected a multiple of link.rcb (64 B) up to link.mps (256 B)",
        ),
        ("ecrc", "ecrc = \"no\"", "p.toml:12:8: link.ecrc: found \"no\", expected true or false"),
        (
            "tlps_per_dllp",
            "tlps_per_dllp = { value = 0, source = \"a table\" }",
            "p.toml:16:27: link.tlps_per_dllp: found 0, expected a whole number from 1 to 1024",
        ),
    ] {
        assert_rejected("link", key, line, expected);
    }
}

#[test]
fn link_credits_hold_up_and_hops_have_ranges() {
    assert_rejected(
        "link.credits",
        "posted_data",
        "posted_data = { value = 15, source = \"a table\" }",
        "p.toml:25:25: link.credits.posted_data: found 15, \
         expected units of 16 B from 16, one packet of link.mps, to 2047",
    );
    assert_rejected(
        "link.credits",
        "posted_headers",
        "posted_headers = { value = 128, source = \"a table\" }",
        "p.toml:24:28: link.credits.posted_headers: found 128, \
         expected a whole number from 1 to 127",
    );
    assert_rejected(
        "link.held_up",
        "one_in",
        "one_in = { value = 0, source = \"a table\" }",
        "p.toml:29:20: link.held_up.one_in: found 0, expected a whole number from 1 to 1000000000",
    );
    assert_rejected(
        HOP,
        "name",
        "name = \"\"",
        "p.toml:20:8: link.hops.0.name: found \"\", expected the name of the hop",
    );
    let text = PLAN.replace("[[link.hops]]", "[link.hops]");
    assert_eq!(
        parse_errors(&text),
        "p.toml:19:1: link.hops: found a table, expected tables [[link.hops]]"
    );
}

#[test]
fn host_memory_base_and_size_have_ranges() {
    for (key, line, expected) in [
        (
            "memory_base",
            "memory_base = \"4 GiB\"",
            "p.toml:33:15: host.memory_base: found \"4 GiB\", \
             expected a multiple of 4096, as in \"0x1_0000_0000\"",
        ),
        (
            "memory_base",
            "memory_base = 1000",
            "p.toml:33:15: host.memory_base: found 1000, \
             expected a multiple of 4096, as in \"0x1_0000_0000\"",
        ),
        (
            "memory_base",
            "memory_base = 0xf000_0000",
            "p.toml:33:15: host.memory_base: found 67108864 bytes of memory from 0xf0000000, \
             expected memory that ends by 0xf0000000 or begins at 4 GiB or above",
        ),
        (
            "memory_base",
            "memory_base = \"0xffff_ffff_ffff_f000\"",
            "p.toml:33:15: host.memory_base: found 67108864 bytes of memory from \
             0xfffffffffffff000, \
             expected memory that ends by 0xf0000000 or begins at 4 GiB or above",
        ),
        (
            "memory",
            "memory = \"64.1 kB\"",
            "p.toml:34:10: host.memory: found \"64.1 kB\", \
             expected whole pages of 4 KiB from \"1 MiB\" to \"1 TiB\"",
        ),
        (
            "memory",
            "memory = \"16 MiB\"",
            "p.toml:34:10: host.memory: found 16 MiB, expected at least 16984 KiB: for host.queues \
             (2) of host.queue_depth (64) commands with transfers of device.mdts (128 KiB)",
        ),
    ] {
        assert_rejected("host", key, line, expected);
    }
}

#[test]
fn host_queues_have_ranges() {
    for (key, line, expected) in [
        (
            "cores",
            "cores = 0",
            "p.toml:35:9: host.cores: found 0, expected a whole number from 1 to 64",
        ),
        (
            "completion",
            "completion = \"irq\"",
            "p.toml:36:14: host.completion: found \"irq\", \
             expected \"polled\" or \"hybrid\" or \"interrupt\"",
        ),
        (
            "queue_depth",
            "queue_depth = 4096",
            "p.toml:40:15: host.queue_depth: found 4096, expected a whole number from 1 to 4095",
        ),
        (
            "queue_depth",
            "queue_depth = -1",
            "p.toml:40:15: host.queue_depth: found -1, expected a whole number from 1 to 4095",
        ),
        (
            "queues",
            "queues = 9",
            "p.toml:41:10: host.queues: found 9, expected at most device.queues, which is 8\n\
             p.toml:34:10: host.memory",
        ),
        (
            "timeout",
            "timeout = \"0 s\"",
            "p.toml:42:11: host.timeout: found \"0 s\", \
             expected a span from 1 us to 3600 s, such as \"110 ns\"",
        ),
    ] {
        if let Some((first, second)) = expected.split_once('\n') {
            // More queues need more memory too: two errors, in the order of their lines.
            let errors = parse_errors(&changed("host", key, line));
            let lines: Vec<_> = errors.lines().collect();
            assert!(lines[0].starts_with(second) && lines[1..] == [first], "{errors}");
        } else {
            assert_rejected("host", key, line, expected);
        }
    }
}

#[test]
fn queue_depth_must_fit_the_device_queue() {
    assert_rejected(
        "device",
        "queue_entries",
        "queue_entries = 64",
        "p.toml:40:15: host.queue_depth: found 64, \
         expected less than device.queue_entries, which is 64",
    );
}

#[test]
fn device_and_run_values_have_ranges() {
    for (table, key, line, expected) in [
        (
            "device",
            "mdts",
            "mdts = \"96 KiB\"",
            "p.toml:60:8: device.mdts: found \"96 KiB\", \
             expected a power of two from \"4 KiB\" to \"16 MiB\"",
        ),
        (
            "device",
            "arbitration_burst",
            "arbitration_burst = 3",
            "p.toml:61:21: device.arbitration_burst: found 3, \
             expected a power of two up to 64, or 0 for no limit",
        ),
        (
            "device",
            "arbitration_burst",
            "arbitration_burst = 0\nqueue_groups = 9",
            "p.toml:62:16: device.queue_groups: found 9, expected a whole number from 1 to 8",
        ),
        (
            "device",
            "fetch_max",
            "fetch_max = 0",
            "p.toml:57:13: device.fetch_max: found 0, expected a whole number from 1 to 64",
        ),
        (
            "run",
            "seed",
            "seed = -7",
            "p.toml:85:8: run.seed: found -7, \
             expected a whole number from 0 to 9223372036854775807",
        ),
        (
            "run",
            "breakdown_sample",
            "breakdown_sample = 3",
            "p.toml:86:20: run.breakdown_sample: found 3, \
             expected a power of two from 1, which traces every command, to 1048576",
        ),
    ] {
        assert_rejected(table, key, line, expected);
    }
}

#[test]
fn unknown_medium_kind_is_rejected_with_the_known_kinds() {
    let errors = parse_errors(&changed("medium", "kind", "kind = \"nand\""));
    let start = "p.toml:68:8: medium.kind: found \"nand\", expected \"dram\" or \"pcm\" or \"flash\" or \
        \"disks\"";
    assert!(errors.starts_with(start) && errors.lines().count() == 1, "{errors}");
}

#[test]
fn limits_that_an_error_names_are_accepted() {
    let with = |value: &str| crate::Plan::open("gen4", &[("medium.capacity", value)]);
    let error = with("0 B").expect_err("no block").to_string();
    let most = error.rsplit_once("up to ").expect("a limit").1;
    let plan = with(most).unwrap_or_else(|error| panic!("{most}: {error}"));
    assert_eq!(plan.medium.contents.capacity_bytes, 1 << 50);
    assert!(with("1025 TiB").is_err());
    assert!(with("1 PB").is_ok());
}

#[test]
fn medium_values_have_ranges() {
    for (table, key, line, expected) in [
        (
            "medium",
            "capacity",
            "capacity = \"1000000 B\"",
            "p.toml:69:12: medium.capacity: found \"1000000 B\", \
             expected whole blocks of 4 KiB, at least one, up to 1 PiB",
        ),
        (
            "medium",
            "capacity",
            "capacity = \"2048 TiB\"",
            "p.toml:69:12: medium.capacity: found \"2048 TiB\", \
             expected whole blocks of 4 KiB, at least one, up to 1 PiB",
        ),
        (
            "medium",
            "block",
            "block = \"1 KiB\"",
            "p.toml:70:9: medium.block: found \"1 KiB\", expected \"512 B\" or \"4 KiB\"",
        ),
        (
            "medium",
            "keep",
            "keep = \"stamps\"",
            "p.toml:72:8: medium.file: found \"disk.img\", expected no file, \
             or medium.keep = \"everything\": a raw image stores every byte",
        ),
        (
            "medium.timing",
            "row",
            "row = { value = \"100 B\", source = \"a table\" }",
            "p.toml:78:17: medium.timing.row: found \"100 B\", \
             expected a power of two from \"64 B\" to \"1 MiB\"",
        ),
        (
            "medium.timing",
            "write_factor",
            "write_factor = { value = 1.5, source = \"a table\" }",
            "p.toml:82:26: medium.timing.write_factor: found 1.5, \
             expected a whole number from 1 to 1000000",
        ),
    ] {
        assert_rejected(table, key, line, expected);
    }
}
