# %% [markdown]
# # How does a drive of one's own compare with a plan?
#
# fio measures the drive: random reads of three sizes at three depths, `measured/virtual-disk.fio`. Here it is the
# virtual disk of a shared machine; the file says under which conditions. For another drive, run that file on it and put
# the result in the place of `virtual-disk.json`.
#
# Cells begin with `# %%`; editors and jupytext open this file as a notebook.

# %%
import math
from pathlib import Path

import doorbell_ssd as db

HERE = Path(__file__).resolve().parent if "__file__" in globals() else Path.cwd()
measured = {(one.block_bytes, one.depth): one for one in db.load_fio(HERE / "measured/virtual-disk.json")}
for (size, depth), one in measured.items():
    print(f"{size >> 10:4} KiB, depth {depth:2}: p50 {one.at(0.5) / 1e3:6.0f} us, p99 {one.at(0.99) / 1e3:6.0f} us, "
          f"{one.bytes_per_second / 1e6:4.0f} MB/s")


# %% [markdown]
# ## The nearest plan
#
# The same reads on plans of four kinds of media: DRAM, a medium of 100 us, hard disks, and flash. The nearest is the
# one whose medians are the fewest doublings away, on average.

# %%
def simulated(plan: db.PlanLike, size: int, depth: int) -> db.Operations:
    job = {"rw": "randread", "bs": size, "iodepth": depth, "size": "4m", "norandommap": True, "number_ios": 400}
    return db.simulate({"reads": job}, plan).read


def doublings(of: float, than: float) -> float:
    return math.log2(of / than)


PLANS: dict[str, db.PlanLike] = {
    "gen4": "gen4",
    "vortex": "vortex",
    "vortex-disks": "vortex-disks",
    "small-flash, filled": {"base": "small-flash", "medium.flash.start": "filled"},
}
reads = {name: {at: simulated(plan, *at) for at in measured} for name, plan in PLANS.items()}
away = {
    name: sum(abs(doublings(one.at(0.5), of[at].latency.at(0.5))) for at, one in measured.items()) / len(measured)
    for name, of in reads.items()
}
for name, mean in away.items():
    print(f"{name}: {mean:.1f} doublings away")
nearest = min(away, key=lambda name: away[name])


# %% [markdown]
# ## Where they depart
#
# More than a doubling is a departure.

# %%
def departures(of: dict[tuple[int, int], db.Operations]) -> dict[tuple[int, int], dict[str, float]]:
    """Doublings of what was measured over what was simulated, for each size and depth."""
    found = {}
    for at, one in measured.items():
        latency = of[at].latency
        found[at] = {
            "p50": doublings(one.at(0.5), latency.at(0.5)),
            "p99": doublings(one.at(0.99), latency.at(0.99)),
            "rate": doublings(one.iops, of[at].iops),
        }
    return found


def print_departures(found: dict[tuple[int, int], dict[str, float]]) -> None:
    for (size, depth), numbers in found.items():
        row = ", ".join(f"{name} {2**number:5.2f}{'*' if abs(number) > 1 else ' '}" for name, number in numbers.items())
        print(f"{size >> 10:4} KiB, depth {depth:2}: measured is {row} of the plan's")


from_nearest = departures(reads[nearest])
print(f"against {nearest}:")
print_departures(from_nearest)

# %% [markdown]
# ## A plan of one's own
#
# Two numbers are enough for two keys, and no more than they say is set:
#
# - `medium.timing.bandwidth`: what each byte adds to the median of one read at a time;
# - `medium.timing.first_byte`: the median of one read of 4 KiB, less what the plan takes for all else. That the medium
#   is what took it is an assumption: from the host's side only the sum is seen.
#
# How many reads the drive works on at once is not set: depth 4 and depth 16 disagree about it, so these numbers do not
# have it. Nor does a key stand for the tail: others worked on the machine, and what they took is not a property of the
# drive.

# %%
sizes = sorted({size for size, _ in measured})
small, large = measured[sizes[0], 1], measured[sizes[-1], 1]
bytes_per_second = (large.block_bytes - small.block_bytes) / (large.at(0.5) - small.at(0.5)) * 1e9
timing = {"medium.timing.bandwidth": {
    "value": f"{bytes_per_second / 1e6:.0f} MB/s",
    "source": "virtual-disk.json: from the medians of one read at a time",
}}
without = simulated({"base": "gen4", "medium.timing.first_byte": "0 ns", **timing}, small.block_bytes, 1)
timing["medium.timing.first_byte"] = {
    "value": f"{small.at(0.5) - without.latency.at(0.5)} ns",
    "source": "assumed: the median of one read of 4 KiB (virtual-disk.json) less gen4's host, link and transfer",
}
own = {"base": "gen4", **timing}
for key, value in timing.items():
    print(f"{key} = {value}")
own_reads = {at: simulated(own, *at) for at in measured}
from_own = departures(own_reads)
print("against the plan with these keys:")
print_departures(from_own)

at_once = {depth: small.at(0.5) * depth / measured[small.block_bytes, depth].at(0.5) for depth in (4, 16)}
print(f"reads at once, by the medians of 4 KiB: {at_once[4]:.1f} at depth 4, {at_once[16]:.1f} at depth 16")


# %% [markdown]
# ## The picture
#
# Medians over the depth: points were measured, lines are plans.

# %%
def picture() -> None:
    import matplotlib.pyplot as plt

    _, panels = plt.subplots(1, len(sizes), sharey=True, figsize=(12, 4))
    depths = sorted({depth for _, depth in measured})
    for panel, size in zip(panels, sizes, strict=True):
        for name, of in ((nearest, reads[nearest]), ("own keys", own_reads)):
            panel.plot(depths, [of[size, depth].latency.at(0.5) / 1e3 for depth in depths], label=name)
        for quantile, marker in ((0.5, "o"), (0.99, "^")):
            points = [measured[size, depth].at(quantile) / 1e3 for depth in depths]
            panel.plot(depths, points, marker, label=f"measured p{quantile * 100:g}")
        panel.set(title=f"{size >> 10} KiB", xlabel="depth", xscale="log", yscale="log")
    panels[0].set(ylabel="read latency (us)")
    panels[0].legend()


picture()
