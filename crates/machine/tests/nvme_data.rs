//! How NVMe's data are described, from the driver to the controller: scatter gather lists, in both worlds.

mod common;

use common::{clean, only, operations, plan, shares, simulate_with, whole_ps, work};
use machine::interfaces::{Interface, Nvme};
use machine::world::{self, Options};
use workload::OpKind;

const VERIFIED: &str =
    "[mixed]\nrw=randrw\nbsrange=4k-64k\niodepth=8\nsize=4m\nnumber_ios=200\nverify=meta\n";

#[test]
fn data_go_where_lists_say() {
    for sgl in ["long", "always"] {
        let of = |name| plan(name, &[("host.sgl", sgl), ("medium.capacity", "16 MiB")]);
        let outcome = clean(simulate_with(&of("gen4"), &work(VERIFIED), Options::default()));
        assert!(operations(only(&outcome)) > 50);
        for run in [world::live_in_one_thread::<Nvme>, world::live_in_threads::<Nvme>] {
            let options = Options { resets: 1, ..Options::default() };
            let outcome = clean(run(&of("live"), &work(VERIFIED), options).expect("a live run"));
            assert!(operations(only(&outcome)) > 50);
        }
    }
}

/// The list that PRPs need for more than two pages is a read of host memory: a list of one descriptor lies in
/// the command, and saves just that.
#[test]
fn a_descriptor_saves_the_fetch_of_a_list() {
    let job = "[one]\nrw=read\nbs=16k\nsize=1m\nnumber_ios=16\n";
    let run = |sgl| {
        let plan = plan("gen4", &[("host.sgl", sgl)]);
        let outcome = clean(simulate_with(&plan, &work(job), Options::default()));
        let ran = only(&outcome);
        let stages = Nvme::STAGES.iter().zip(shares(ran, OpKind::Read).stages_ps);
        // The request's way to host memory, and the list's way back.
        let fetch = stages.filter(|(stage, _)| ["host read", "prp list"].contains(stage));
        (whole_ps(ran, OpKind::Read).0, fetch.map(|(_, ps)| ps as u64).sum::<u64>())
    };
    let ((never, list), (long, none)) = (run("never"), run("long"));
    assert!(list > 0 && none == 0, "{list} {none}");
    // Give or take a turn of the loop that polls.
    let turn = plan("gen4", &[]).host.poll.0;
    assert!(turn > 0 && (never - long).abs_diff(list) <= turn, "{never} {long} {list} {turn}");
    assert_eq!(run("always"), (long, none));
}
