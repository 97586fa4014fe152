//! `doorbell power-cuts`.

use campaign::power_cuts::{self, Campaign, Survived};
use clap::Args;
use world::interfaces::Row;

use super::Sets;
use super::interface::Named;
use super::output::bar;

#[derive(Args)]
pub(super) struct PowerCuts {
    /// Plan of a flash SSD: built-in name or TOML file
    plan: String,
    /// Number of power cuts
    #[arg(long, default_value_t = 2_000)]
    cuts: u64,
    /// Instead, run this many sequences of power cuts, kills, stops and power losses of the host, with the
    /// state in a file among the temporary ones
    #[arg(long, value_name = "N", conflicts_with = "cuts")]
    sequences: Option<u64>,
    /// Seed of every RNG
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Start at this cut, or sequence
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Host interface; with host-flash the FTL runs on the host and loses power too
    #[arg(long, value_parser = Named, default_value = "nvme")]
    interface: &'static Row,
    #[command(flatten)]
    sets: Sets,
}

pub(super) fn power_cuts(typed: &PowerCuts) -> Result<bool, String> {
    let plan = &typed.sets.open(&typed.plan)?;
    let row = typed.interface.of_plan(plan);
    power_cuts::check(row, plan).map_err(|error| error.to_string())?;
    let count = typed.sequences.unwrap_or(typed.cuts).max(1);
    let campaign = Campaign { seed: typed.seed, from: typed.from, cuts: count };
    let bar = bar(campaign.cuts, "{bar:40} {pos} of {len} cuts, {eta} left");
    let progress = |cut: u64| bar.set_position(cut.saturating_sub(campaign.from));
    let job_result = match typed.sequences {
        None => power_cuts::run(row, plan, campaign, progress),
        Some(_) => power_cuts::check_sequences(row, plan)
            .map_err(|error| error.to_string())
            .map(|()| power_cuts::run_sequences(row, plan, campaign, progress))?,
    };
    bar.finish_and_clear();
    let seed = typed.seed;
    match job_result {
        Ok(survived) => {
            print_statistics(&plan.name, &survived);
            Ok(true)
        }
        Err(failure) => {
            eprintln!("error: {failure}");
            let repro_arguments = match typed.sequences {
                None => power_cuts::repro_arguments(&typed.plan, row.name, seed, failure.cut),
                Some(_) => power_cuts::repro_sequence(&typed.plan, row.name, seed, failure.cut),
            };
            eprintln!("to repeat: {repro_arguments}{}", typed.sets.typed());
            Ok(false)
        }
    }
}

fn print_statistics(plan: &str, survived: &Survived) {
    let Survived { cuts, early, orderly, writes, trims, flushes, hints, blocks, collected, .. } =
        survived;
    let Survived { sequences, kills, hosts, stops, disk_failures, .. } = survived;
    if *sequences > 0 {
        println!(
            "{sequences} sequences with {kills} kills, {stops} stops and {hosts} power losses of the host, \
             and {disk_failures} failures of its disk"
        );
    }
    println!(
        "{cuts} power cuts, {early} of them before the device was ready, {orderly} orderly; plan {plan}"
    );
    println!(
        "  {writes} writes, {trims} trims and {flushes} flushes acknowledged, {collected} superblocks \
         collected"
    );
    if *hints > 0 {
        println!("  {hints} hints given");
    }
    println!("  {blocks} blocks read: nothing that was flushed is lost, and nothing is torn");
}
