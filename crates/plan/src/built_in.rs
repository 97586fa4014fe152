//! Built-in plans: the files of the directory `plans`, embedded in the program.

/// The files of `plans/`, by name.
const PLANS: &[(&str, &str)] = &[
    ("dc-express", include_str!("../../../plans/dc-express.toml")),
    ("dc-express-linux", include_str!("../../../plans/dc-express-linux.toml")),
    ("descriptor-blocks", include_str!("../../../plans/descriptor-blocks.toml")),
    ("fastpath", include_str!("../../../plans/fastpath.toml")),
    ("fastpath-linux", include_str!("../../../plans/fastpath-linux.toml")),
    ("fastpath-x86", include_str!("../../../plans/fastpath-x86.toml")),
    ("flash-bridge", include_str!("../../../plans/flash-bridge.toml")),
    ("flash-closer", include_str!("../../../plans/flash-closer.toml")),
    ("gen4", include_str!("../../../plans/gen4.toml")),
    ("intel-p4510-1tb", include_str!("../../../plans/intel-p4510-1tb.toml")),
    ("intel-p4800x-375gb", include_str!("../../../plans/intel-p4800x-375gb.toml")),
    ("kioxia-cm7-r-3840gb", include_str!("../../../plans/kioxia-cm7-r-3840gb.toml")),
    ("live", include_str!("../../../plans/live.toml")),
    ("many-dies", include_str!("../../../plans/many-dies.toml")),
    ("micron-7450-max-800gb", include_str!("../../../plans/micron-7450-max-800gb.toml")),
    ("micron-7450-pro-960gb", include_str!("../../../plans/micron-7450-pro-960gb.toml")),
    ("samsung-980-pro-1tb", include_str!("../../../plans/samsung-980-pro-1tb.toml")),
    ("samsung-pm9a3-960gb", include_str!("../../../plans/samsung-pm9a3-960gb.toml")),
    ("sk-hynix-pe8110-960gb", include_str!("../../../plans/sk-hynix-pe8110-960gb.toml")),
    ("small-flash", include_str!("../../../plans/small-flash.toml")),
    ("solidigm-p5520-1920gb", include_str!("../../../plans/solidigm-p5520-1920gb.toml")),
    ("tlc", include_str!("../../../plans/tlc.toml")),
    ("vortex", include_str!("../../../plans/vortex.toml")),
    ("vortex-disks", include_str!("../../../plans/vortex-disks.toml")),
    ("wd-zn540-1tb", include_str!("../../../plans/wd-zn540-1tb.toml")),
];

/// The built-in plans: name and text.
pub fn built_in() -> &'static [(&'static str, &'static str)] {
    PLANS
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::{Path, PathBuf};

    use bus::sim::STAGES;
    use media::contents::{Contents, Keep, Spec};
    use runtime::{Log, Rt, Span};
    use wire::BusAddr;
    use wire::pcie::Generation;

    use super::*;
    use crate::{Completion, DEVICE_COSTS, HOST_COSTS, MediumPace, Plan};

    fn open(name: &str) -> Plan {
        Plan::open(name, &[]).unwrap_or_else(|errors| panic!("{errors}"))
    }

    fn directory() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../plans")
    }

    #[test]
    fn every_plan_in_the_directory_is_built_in_and_loads() {
        let mut names = Vec::new();
        for entry in directory().read_dir().unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
            let plan = Plan::load(&path).unwrap_or_else(|errors| panic!("{errors}"));
            assert_eq!(plan.name, name);
            names.push(name);
        }
        names.sort();
        let built_in: Vec<_> = PLANS.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, built_in);
    }

    /// A plan of a drive says in its comment how much of the drive it has.
    #[test]
    fn comments_of_drives_have_the_capacity_that_is_modelled() {
        let mut found = 0;
        for (name, text) in PLANS {
            let Some((before, _)) = text.split_once(" GB are modelled") else { continue };
            let stated = before.rsplit(' ').next().and_then(|number| number.parse().ok());
            let bytes = open(name).medium.contents.capacity_bytes;
            assert_eq!(
                stated,
                Some((bytes + 500_000_000) / 1_000_000_000),
                "{name}: {bytes} bytes"
            );
            found += 1;
        }
        assert!(found > 5, "{found} drives");
    }

    /// In every plan, all costs have a source.
    #[test]
    fn every_cost_has_a_source() {
        for (name, _) in PLANS {
            let plan = open(name);
            let keys: Vec<_> = plan.sources.iter().map(|sourced| sourced.key.as_str()).collect();
            for key in ["link.latency", "link.host_read", "host.poll", "host.interrupt"] {
                assert!(keys.contains(&key), "{name}: {key}");
            }
            for (table, costs) in [("host", HOST_COSTS), ("device", DEVICE_COSTS)] {
                for cost in costs {
                    let key = format!("{table}.costs.{cost}");
                    assert!(keys.contains(&key.as_str()), "{name}: {key}");
                }
            }
            assert!(
                plan.sources.iter().any(|sourced| sourced.assumed),
                "{name} lists no assumed value"
            );
            let rt = Rt::simulated(None, Log::Off);
            let small = Spec { capacity_bytes: 4096, ..plan.medium.contents.clone() };
            let started = || plan.start_blocks(&rt, Contents::new(small).unwrap(), true);
            assert!(plan.medium.flash.is_some() || started().is_ok(), "{name} can be simulated");
        }
    }

    #[test]
    fn dc_express_platform_matches_the_paper() {
        let plan = open("dc-express");
        assert_eq!((plan.link.generation, plan.link.lanes), (Generation::Gen2, 4));
        assert_eq!(plan.link.mps, 128);
        assert!(plan.host.memory_base >= BusAddr(1 << 32));
        assert_eq!(plan.host.completion, Completion::Polled);
        let timing = plan.medium.timing().expect("a model");
        assert_eq!((timing.first_byte, timing.write_factor), (Span::ns(110), 55));
        assert_eq!(plan.figures().link_bytes_per_s, timing.bytes_per_s);
        let trip = plan.figures().read_64;
        assert!((Span::ns(600)..Span::ns(650)).contains(&trip), "{trip}");
    }

    /// The two plans differ only in the completion method and the software costs of the host.
    #[test]
    fn linux_plan_has_the_same_hardware() {
        let hardware = |name: &str| -> BTreeMap<String, (String, String)> {
            let sources = open(name).sources.into_iter();
            sources
                .filter(|s| !s.key.starts_with("host."))
                .map(|s| (s.key, (s.value, s.source)))
                .collect()
        };
        assert_eq!(hardware("dc-express"), hardware("dc-express-linux"));
        let plan = open("dc-express-linux");
        assert_eq!(plan.host.completion, Completion::Interrupt);
        let costs: BTreeMap<_, _> = plan.host.costs.iter().map(|c| (c.name, c.span)).collect();
        // The sums of table 5 are results: no cost of the way through the kernel is one of them.
        let path = plan.host.path.as_ref().expect("the way through the kernel");
        assert_eq!(path.piece_bytes, 4096);
        let of_path: Vec<_> = path.costs.iter().map(|c| c.name).collect();
        assert_eq!(of_path, crate::PATH_COSTS);
        let table_5 = [Span::ns(990), Span::ns(1_170), Span::ns(506)];
        let all = plan.host.costs.iter().chain(&path.costs);
        assert!(all.clone().all(|cost| !table_5.contains(&cost.span)));
        assert_eq!(costs["system call"], Span::ZERO);
        assert_eq!(costs["context switch"] * 2, Span::ns(1_100));
    }

    /// The two SSDs of the paper have the same host, link and number of dies.
    #[test]
    fn flash_bridge_and_flash_closer_share_host_and_dies() {
        let (bridge, closer) = (open("flash-bridge"), open("flash-closer"));
        let shared = |plan: &Plan| {
            let host = &plan.host;
            (host.cores, host.interrupt, host.queue_depth, host.queues, plan.link.lanes)
        };
        assert_eq!(shared(&bridge), shared(&closer));
        let chips = |plan: &Plan| plan.medium.flash.as_ref().expect("flash").spec.geometry.bytes();
        let behind = u64::from(bridge.medium.bridge.expect("a bridge").controllers);
        assert_eq!(behind * chips(&bridge), chips(&closer));
        assert_eq!(chips(&closer), 256 << 20, "256 GiB by 1024");
    }

    #[test]
    fn live_plan_is_immediate_and_gen4_is_modelled() {
        let plan = open("live");
        assert_eq!(plan.medium.pace, MediumPace::Immediate);
        assert!(plan.medium.timing().is_some());
        assert_eq!(plan.medium.contents.keep, Keep::Everything);
        assert_eq!(format!("{:?}", plan.link), format!("{:?}", open("gen4").link));
        assert_eq!(open("gen4").medium.pace, MediumPace::Modelled);
    }

    /// A world has a stage for each cost, and the stage table of request traces has a fixed size.
    #[test]
    fn stages_of_all_costs_fit_the_stage_table() {
        let mut names: Vec<&str> = STAGES.to_vec();
        names.extend(media::STAGES.iter().chain(HOST_COSTS).chain(DEVICE_COSTS));
        names.sort_unstable();
        names.dedup();
        assert!(names.len() <= runtime::STAGES_MAX, "{names:?}");
    }

    #[test]
    fn sim_spec_follows_the_plan() {
        let spec = open("dc-express").sim_spec();
        let costs: Vec<_> = spec.host_costs.iter().map(|cost| cost.name).collect();
        // The last two are of the tables [dcx] and [block].
        assert_eq!(costs, [HOST_COSTS, &["mark", "announce"]].concat());
        // The register page, then 8 bytes for each queue and the admin queue.
        assert_eq!(spec.register_bytes, 0x2000);
        assert_eq!(spec.memory_base, BusAddr(1 << 32));
        let rt = runtime::Rt::simulated(None, runtime::Log::Off);
        bus::sim::SimBus::new(&rt, spec).host(0);
    }

    #[test]
    fn resolved_text_of_every_plan_parses_to_the_same_plan() {
        for (name, _) in PLANS {
            let plan = Plan::open(name, &[("run.seed", "7"), ("link.latency", "3 ns")]).unwrap();
            let sets: Vec<_> =
                plan.sets.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
            let again =
                Plan::parse_with(&plan.text, &plan.origin, &sets).unwrap_or_else(|e| panic!("{e}"));
            assert_eq!(again.report(), plan.report());
            assert_eq!((again.text, again.sets), (plan.text, plan.sets));
        }
    }

    #[test]
    fn plan_of_two_lines_takes_the_rest_from_its_base() {
        let text = "base = \"gen4\"\nlink.lanes = 8\n";
        let (plan, base) = (Plan::parse(text, "wide.toml").unwrap(), open("gen4"));
        assert_eq!((plan.link.lanes, base.link.lanes), (8, 4));
        assert_eq!(
            (plan.name.as_str(), plan.about.as_str()),
            ("wide", "The plan gen4 with 1 change.")
        );
        assert_eq!(plan.sources, base.sources);
        let lanes_are_equal = |report: String| report.split_once("\nhost:").unwrap().1.to_owned();
        assert_eq!(lanes_are_equal(plan.report()), lanes_are_equal(base.report()));
    }

    #[test]
    fn one_misspelt_key_over_a_base_is_one_error() {
        let error = |text: &str| Plan::parse(text, "p.toml").unwrap_err().to_string();
        let text = error("base = \"gen4\"\n[link]\nlaens = 8\n");
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(text.starts_with("p.toml:3:1: link.laens: found an unknown key"), "{text}");
        assert!(text.ends_with("did you mean lanes?"), "{text}");
        let text = error("base = \"gen5\"\n");
        assert!(
            text.starts_with("p.toml: found base = \"gen5\", expected a file, or one of"),
            "{text}"
        );
        // An error of the base names the base's line.
        let text = error("base = \"gen4\"\nhost.queues = 33\n");
        assert!(
            text.starts_with("p.toml:2:15: host.queues: found 33, expected at most device.queues"),
            "{text}"
        );
        let text = error("base = \"gen4\"\ndevice.queues = 3\n");
        assert!(text.starts_with("plans/gen4.toml:"), "{text}");
    }

    #[test]
    fn base_of_a_file_is_a_path_from_its_directory() {
        let directory = std::env::temp_dir().join(format!("doorbell-base-{}", std::process::id()));
        let write = |name: &str, text: &str| std::fs::write(directory.join(name), text).unwrap();
        std::fs::create_dir_all(directory.join("below")).unwrap();
        write("one.toml", "base = \"gen4\"\nlink.lanes = 2\n");
        write("below/two.toml", "base = \"../one.toml\"\nhost.cores = 3\n");
        let plan = Plan::load(&directory.join("below/two.toml")).unwrap();
        assert_eq!((plan.link.lanes, plan.host.cores), (2, 3));
        write("below/two.toml", "base = \"../none.toml\"\n");
        let error = Plan::load(&directory.join("below/two.toml")).unwrap_err().to_string();
        assert!(error.contains("below/../none.toml: found No such file"), "{error}");
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
