# %% [markdown]
# # Where does the write cliff of a drive come from?
#
# A new flash drive takes random writes at one rate until its spare blocks are used up; then the rate falls, and stays
# low. Is it the collector, which copies what is still valid before it erases? Then
#
# 1. the rate falls when copies begin;
# 2. overwrites in sequence leave nothing to copy, and do not fall that far;
# 3. more spare space leaves less to copy, and the rate falls less far;
# 4. the chips program at nearly the same rate in all of these: the host's rate times write amplification.
#
# Cells begin with `# %%`; editors and jupytext open this file as a notebook.

# %%
import doorbell_ssd as db
import numpy as np

PLAN = "small-flash"
# Random writes of 4 KiB, several times the capacity.
JOB = {"writes": {"rw": "randwrite", "bs": "4k", "iodepth": 16, "norandommap": True, "io_size": "48m"}}
INTERVAL = "20 ms"

# %% [markdown]
# ## The cliff of a new drive

# %%
fresh = db.simulate(JOB, PLAN, series=INTERVAL)
series = fresh.series
assert series is not None
at_ms = series.at_ps / 1e9
rate = series.write.bytes / (series.interval_ps / 1e12) / 2**20
programmed, written = series.column("programmed_units"), series.column("host_units")
# Copies are what is programmed beyond what was written, the buffer's contents apart.
copies_begin = int(np.argmax(np.cumsum(programmed) > np.cumsum(written)))
before, after = float(rate[:copies_begin].mean()), float(rate[copies_begin + 1 :].mean())
print(f"before copies begin, at {at_ms[copies_begin]:.0f} ms: {before:.1f} MiB/s; after: {after:.1f} MiB/s")

# %% [markdown]
# ## The same work with less to copy

# %%
runs = {
    "random, 28 % spare": fresh,
    "random, 50 % spare": db.simulate(JOB, PLAN, set={"medium.flash.spare_per_mille": 500}),
    "random, 100 % spare": db.simulate(JOB, PLAN, set={"medium.flash.spare_per_mille": 1000}),
    "in sequence": db.simulate(JOB, PLAN, job_set={"rw": "write"}),
}
table = []
for name, run in runs.items():
    mib = run.write.bytes_per_second / 2**20
    amplification = run.run["flash"]["software"]["write_amplification_per_mille"] / 1000
    table.append((name, mib, amplification, mib * amplification))
    print(f"{name:<20} {mib:5.1f} MiB/s x {amplification:.2f} = {mib * amplification:5.1f} MiB/s programmed")

# %% [markdown]
# ## The answer
#
# The chips program at nearly one rate whatever is written. What the host sees of it is that rate over write
# amplification: the cliff is the copies of the collector. The breakdown of a write says so too: the time of a slow
# write is a wait for the buffer, behind the collector.

# %%
breakdown = fresh.write.breakdown
assert breakdown is not None
waits = {stage: ns / breakdown.total_ns for stage, ns in breakdown.stages_ns.items() if ns > breakdown.total_ns / 20}
print("a random write waits: " + ", ".join(f"{stage} {share:.0%}" for stage, share in waits.items()))
