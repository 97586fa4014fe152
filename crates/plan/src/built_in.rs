//! Plans that need no file: those of the directory `plans`, in the program.

/// Every plan of `plans/`, by name.
const PLANS: &[(&str, &str)] = &[
    ("dc-express", include_str!("../../../plans/dc-express.toml")),
    ("dc-express-linux", include_str!("../../../plans/dc-express-linux.toml")),
    ("descriptor-blocks", include_str!("../../../plans/descriptor-blocks.toml")),
    ("fastpath", include_str!("../../../plans/fastpath.toml")),
    ("flash-bridge", include_str!("../../../plans/flash-bridge.toml")),
    ("flash-closer", include_str!("../../../plans/flash-closer.toml")),
    ("gen4", include_str!("../../../plans/gen4.toml")),
    ("live", include_str!("../../../plans/live.toml")),
    ("small-flash", include_str!("../../../plans/small-flash.toml")),
    ("tlc", include_str!("../../../plans/tlc.toml")),
    ("vortex", include_str!("../../../plans/vortex.toml")),
    ("vortex-disks", include_str!("../../../plans/vortex-disks.toml")),
];

/// The plans in the program: name and text.
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
    fn every_plan_of_the_directory_is_built_in_and_loads() {
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

    /// What costs time has a source in every plan, whichever way it is written.
    #[test]
    fn every_cost_is_sourced() {
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
            assert!(plan.sources.iter().any(|sourced| sourced.assumed), "{name} owns up to none");
            let rt = Rt::simulated(None, Log::Off);
            let small = Spec { capacity_bytes: 4096, ..plan.medium.contents.clone() };
            let started = || plan.start_blocks(&rt, Contents::new(small).unwrap(), true);
            assert!(plan.medium.flash.is_some() || started().is_ok(), "{name} can be simulated");
        }
    }

    #[test]
    fn the_dc_express_platform_is_that_of_the_paper() {
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

    /// The two differ in how the host learns of completions and in its software, nowhere else.
    #[test]
    fn the_linux_plan_has_the_same_hardware() {
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
        assert_eq!(costs["block driver"], Span::ns(990));
        assert_eq!(costs["system call"], Span::ns(1_170));
        assert_eq!(costs["benchmark"], Span::ns(506));
        assert_eq!(costs["context switch"] * 2, Span::ns(1_100));
    }

    /// The two SSDs of one paper are in one host, behind one link, and made of as many of the same dies.
    #[test]
    fn both_ssds_of_the_flash_paper_are_in_one_machine() {
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
    fn the_live_plan_takes_no_time_and_its_twin_does() {
        let plan = open("live");
        assert_eq!(plan.medium.pace, MediumPace::Immediate);
        assert!(plan.medium.timing().is_some());
        assert_eq!(plan.medium.contents.keep, Keep::Everything);
        assert_eq!(format!("{:?}", plan.link), format!("{:?}", open("gen4").link));
        assert_eq!(open("gen4").medium.pace, MediumPace::Modelled);
    }

    /// A world names a stage for each cost, and the table of journeys is fixed.
    #[test]
    fn a_world_has_room_for_the_stages_of_all_costs() {
        let mut names: Vec<&str> = STAGES.to_vec();
        names.extend(media::STAGES.iter().chain(HOST_COSTS).chain(DEVICE_COSTS));
        names.sort_unstable();
        names.dedup();
        assert!(names.len() <= runtime::STAGES_MAX, "{names:?}");
    }

    #[test]
    fn a_world_is_built_as_the_plan_says() {
        let spec = open("dc-express").sim_spec();
        let costs: Vec<_> = spec.host_costs.iter().map(|cost| cost.name).collect();
        // The last are of the tables [dcx] and [block].
        assert_eq!(costs, [HOST_COSTS, &["mark", "announce"]].concat());
        // The register page, then 8 bytes for each queue and the admin queue.
        assert_eq!(spec.register_bytes, 0x2000);
        assert_eq!(spec.memory_base, BusAddr(1 << 32));
        let rt = runtime::Rt::simulated(None, runtime::Log::Off);
        bus::sim::SimBus::new(&rt, spec).host(0);
    }
}
