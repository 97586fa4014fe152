//! Examples at the end of each command's help. `readme.rs` runs those that end by themselves.

/// Of the program.
pub(super) const EXAMPLES: &str = "\
Examples:
  doorbell run jobs/randread-4k.fio                     one job, live and simulated
  doorbell compare jobs/randread-4k.fio                 the same job through every interface
  doorbell explain jobs/randread-4k.fio                 what bounds its rate, what changes give
  doorbell check gen4 --set link.lanes=8                what follows from a plan, with sources
  doorbell serve live --nbd target/nbd.sock             an SSD for nbd-client, QEMU or fio

`doorbell COMMAND --help` has more. Plans: `doorbell plans`. Job keys: `doorbell keys`.";

pub(super) const RUN: &str = "\
Examples:
  doorbell run jobs/randread-4k.fio
  doorbell run jobs/latency-512.fio --plan dc-express --world sim --interface dcx
  doorbell run jobs/overwrite.fio --plan small-flash --world sim --series flash.json
  doorbell run jobs/randread-4k.fio --world sim --trace trace.json
  doorbell run jobs/randread-4k.fio --plan gen4 --job iodepth=1 --job random_distribution=zipf:1.2
  doorbell run jobs/randread-4k.fio --plan gen4 --world sim --json target/result.json
  doorbell run jobs/randread-4k.fio --world live --vfio 0000:01:00.0";

pub(super) const REPLAY: &str = "\
Examples:
  doorbell replay jobs/randread-4k.fio --plan gen4 --seed 7
  doorbell replay jobs/randread-4k.fio --plan gen4 --seed 7 --log events.log
  doorbell replay result.json                           a run, from its --json alone";

pub(super) const COMPARE: &str = "\
Examples:
  doorbell compare jobs/randread-4k.fio
  doorbell compare jobs/randread-4k.fio --world sim --set link.lanes=8
  doorbell compare jobs/randread-4k.fio --world sim --csv target/compare.csv";

pub(super) const EXPLAIN: &str = "\
Examples:
  doorbell explain jobs/randread-4k.fio --quick
  doorbell explain jobs/randread-4k.fio --plan gen4 --job iodepth=1 --verbose
  doorbell explain jobs/overwrite.fio --plan small-flash --json -";

pub(super) const SWEEP: &str = "\
Examples:
  doorbell sweep examples/sweeps/payoff.toml --out target/sweep.jsonl --csv target/sweep.csv
  doorbell sweep examples/sweeps/depth.toml --dry-run
  doorbell sweep my.toml --find 'cheapest link.lanes where read.p99 < 20us and iops > 100k'";

pub(super) const SERVE: &str = "\
Examples:
  doorbell serve live --shm target/ssd.sock             for doorbell run --socket
  doorbell serve live --vfio-user target/vfu.sock       for QEMU, SPDK or doorbell run --vfio-user
  doorbell serve small-flash --nbd target/nbd.sock      for nbd-client, qemu-img or fio
  doorbell serve live --nbd target/nbd.sock --control target/ctl.sock --metrics 127.0.0.1:9100
  doorbell serve live --shm target/a.sock --shm target/b.sock --client a=0+65536 --client b=65536+65536";

pub(super) const CTL: &str = "\
Examples:
  doorbell ctl target/ctl.sock stats
  doorbell ctl target/ctl.sock faults inject '{ name = \"late\", what = \"delay\", span = \"1 ms\" }'
  doorbell ctl target/ctl.sock timing set first_byte '5 us'
  doorbell ctl target/ctl.sock power cut";

pub(super) const CHECK: &str = "\
Examples:
  doorbell check gen4
  doorbell check my.toml --set link.lanes=8 --set host.queue_depth=64";

pub(super) const PLANS: &str = "\
Examples:
  doorbell plans
  doorbell plans gen4";

pub(super) const PAPERS: &str = "\
Examples:
  doorbell papers                     the verdicts of all: holds, departs, quoted
  doorbell papers dc-express          figures, tables, and swings of assumed costs too
  doorbell papers --mutations         break each mechanism and see its check fail";

pub(super) const DISKHOG: &str = "\
Examples:
  doorbell diskhog --threads 8 --policy per-core
  doorbell diskhog --rw write --random --bytes '64 KiB' --json shares.json";

pub(super) const TENANTS: &str = "\
Examples:
  doorbell tenants
  doorbell tenants --world live --time '500 ms' --set medium.pace=immediate";

pub(super) const STATE: &str = "\
Examples:
  doorbell state check drive.state
  doorbell state repair drive.state";

pub(super) const POWER_CUTS: &str = "\
Examples:
  doorbell power-cuts small-flash --cuts 100
  doorbell power-cuts small-flash --cuts 100 --interface host-flash";

pub(super) const CONFORMANCE: &str = "\
Examples:
  doorbell conformance --world sim
  doorbell conformance --world live --vfio-user target/vfu.sock --only queues
  doorbell conformance --list";

pub(super) const HARDWARE: &str = "\
Example (tools/qemu-hardware starts QEMU with these options):
  doorbell hardware --qtest qtest.sock --memory guest.mem --ios 1000";

pub(super) const BENCH: &str = "\
Examples:
  doorbell bench
  doorbell bench --size 8GiB --turns 10 --json bench.json
  doorbell bench --one-thread 10000 --interface dcx";

pub(super) const CALIBRATE: &str = "\
Example:
  doorbell calibrate --out this-machine.toml";

pub(super) const VALIDATE: &str = "\
Examples:
  doorbell validate samsung-980-pro-1tb --quick         short runs of 4 KiB at depths up to 128
  doorbell validate --json target/validate.json         every table whose drive has a plan
  doorbell validate my.tsv --plan my.toml               measurements of your own: docs/drives.md";

pub(super) const FIT: &str = "\
Examples:
  doorbell fit sk-hynix-pe8110-960gb --out target/pe8110.toml
  doorbell fit samsung-980-pro-1tb --rows randread       not those beside other loads
  doorbell fit my.tsv --plan my.toml --key medium.flash.times.read=20us..200us --key medium.flash.dies=1..16
  doorbell fit --jobs > target/reads.fio                to run by fio on a drive of your own
  doorbell fit target/drive.json --plan samsung-980-pro-1tb    from the JSON output of fio";

pub(super) const COMPLETIONS: &str = "\
Examples:
  doorbell completions bash > ~/.local/share/bash-completion/completions/doorbell
  doorbell completions zsh > ~/.zfunc/_doorbell
  doorbell completions fish > ~/.config/fish/completions/doorbell.fish";

pub(super) const MAN: &str = "\
Examples:
  doorbell man target/man && man target/man/doorbell-run.1";
