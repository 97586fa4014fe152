# %% [markdown]
# # At which medium latency does each interface stop paying off for reads of 512 B?
#
# An interface pays off as long as its mean latency is at most 90 % of NVMe's on the same link and medium. The
# medium's latency to the first byte is swept from 100 ns (faster than DRAM behind a controller) to 100 us (flash).
# Cells begin with `# %%`; editors and jupytext open this file as a notebook.

# %%
from pathlib import Path

import doorbell_ssd as db

HERE = Path(__file__).resolve().parent if "__file__" in globals() else Path.cwd()
SPEC = HERE.parent / "sweeps/payoff.toml"
PAYS_OFF = 0.9

# %% [markdown]
# The sweep is that of `doorbell sweep examples/sweeps/payoff.toml`: 3 interfaces, 13 latencies.

# %%
result = db.sweep(SPEC)
assert not result.failed, result.failed
mean = result.frame().pivot(index="first_byte_ps", columns="interface", values="mean_ns")
share = mean.div(mean["nvme"], axis="index")
print(share.round(3).to_string())

# %% [markdown]
# The last latency at which each one pays off. Above it the medium takes so much of the mean that what the interface
# saves, which stays the same, is less than a tenth.

# %%
last_us: dict[str, float | None] = {}
saved_ns: dict[str, float] = {}
for interface in ("dcx", "block"):
    below = share.index[share[interface] <= PAYS_OFF]
    last_us[interface] = None if below.empty else float(below.max()) / 1e6
    saved_ns[interface] = float((mean["nvme"] - mean[interface]).median())
    where = "nowhere" if last_us[interface] is None else f"up to {last_us[interface]:g} us"
    print(f"{interface}: pays off {where}; saves {saved_ns[interface]:.0f} ns (median of the sweep)")

# %% [markdown]
# Where the time goes at 1 us: the breakdown of one run of each interface.

# %%
job = {"reads": {"rw": "randread", "bs": 512, "size": "256m", "number_ios": 500}}
runs = {
    interface: db.simulate(job, "dc-express", interface=interface, set={"medium.timing.first_byte": "1 us"})
    for interface in ("nvme", "block", "dcx")
}
for interface, run in runs.items():
    stages = run.read.breakdown.stages_ns if run.read.breakdown else {}
    largest = sorted(stages.items(), key=lambda stage: -stage[1])[:3]
    print(f"{interface}: {run.read.latency.mean_ns:.0f} ns, " + ", ".join(f"{name} {ns:.0f}" for name, ns in largest))
