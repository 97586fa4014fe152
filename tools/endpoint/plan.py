"""A plan of a machine's link, host and endpoint, from what was measured of each alone."""

import re
import subprocess

from .build import OUT
from .problem import Problem
from .serving import doorbell

# What calibrate does not write, because it knows NVMe alone. Only what says so is measured.
OTHER_INTERFACES = """
[dcx]
tags = "random"
tag_bits = 32
max_latency = {{ value = "1 s", source = "assumed: longer than any read, on a machine that others use too" }}
fetch_max = 8
anticipate = false
sleep_after = 0
writes = "ordinary"
mark = {{ value = "5 ns", source = "assumed: a store that misses the first cache" }}

[block]
ring = 256
largest = 64
returned = "whole"
engines = 1
ahead = 0
sizing = "adaptive"

[block.costs]
announce = {{ value = "20 ns", source = "assumed: two stores" }}
"take block" = {{ value = "{take:.3f} ns", source = "measured: {took}" }}
return = {{ value = "{release:.3f} ns", source = "measured: a fence behind a line that was stored" }}
"dma start" = {{ value = "0 ns", source = "assumed: in the copy" }}
"""

# Commands that the endpoint fetches together and ends behind one fence (`BURST` in gpu/memory.h).
BURST = 8

# A command's pages are in itself up to two of them.
PAGE = 4096


def calibrated(samples):
    """The plan of the host's own costs, as `doorbell calibrate` writes it."""
    out = OUT / "host.toml"
    command = [str(doorbell()), "calibrate", "--samples", str(samples), "--ms", "5", "--out", str(out)]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    if said.returncode != 0:
        raise Problem(f"{' '.join(command)}:\n{said.stdout}{said.stderr}")
    return out.read_text(encoding="utf-8")


def link(measured, negotiated):
    """The link's keys: where the PCIe link is known, a round trip is cut as the model cuts it."""
    read, echo = measured["read"]["mean_ns"], measured["echo"]["mean_ns"]
    # A word that the host stores is found by a load; the rest of the way there and back is the device's store.
    latency = max(echo - read, 0.0)
    told = "measured: a word there and back, less a load"
    loaded = "measured: a load of host memory by the device"
    if negotiated is None:
        return {"latency": (latency, told), "host_read": (read, loaded), "device_read": (read, loaded)}
    latency = min(latency, read / 2)
    both = f"{loaded}, less two latencies"
    return {"latency": (latency, f"{told}; at most half of one"), "host_read": (read - 2 * latency, both),
            "device_read": (read, f"{loaded}; plays no part, as registers are host memory")}


def code(found, face, burst):
    """What the controller's own code takes for a burst, nanoseconds: a turn on its own memory, less its loads of
    commands and of data there, which the link's and the copy's costs have, and its fence."""
    interface, packets = face.split(",")[0], "packets" in face
    at = {row["burst"]: row["p50_ns"] for row in found["trials"]["code"]
          if row["interface"] == interface and row["bytes"] == 512 and (row["packet"] > 0) == packets}
    least, most = min(at), max(at)
    turn = at[least] + (at[most] - at[least]) * (burst - least) / (most - least)
    own = found["link"]["own_read"]["mean_ns"] * (2 + burst) + (0 if packets else found["link"]["own_fence"]["mean_ns"])
    return max(turn - own, 0.0)


def burst_of(row):
    """How many commands the endpoint finds together: what is in flight, but reads that arrive one by one."""
    return 1 if row is None or "rate" in row else min(row["depth"], BURST)


def parse(found, latency, row):
    """What the endpoint's processor takes for a command, and of what: a burst of them shares it."""
    link, face = found["link"], row["face"] if row else "nvme"
    read, burst = link["read"]["mean_ns"], burst_of(row)
    if face == "block":
        return each_of_block(found), "measured: the controller's code for one more command of a block"
    parts = {"the controller's code": code(found, face, burst)}
    if "packets" not in face:
        parts["a fence"] = link["fence"]["mean_ns"]
    if "whole lines" in face:
        parts["a fence with nothing before it"] = link["fence_alone"]["mean_ns"]
    if face.startswith("dcx"):
        # The model's device polls entries whole, and works on none meanwhile, as this one does.
        if "whole lines" not in face:
            parts["a second load of entries"] = read
    elif burst > 1:
        # The model's device fetches while it works; this one does one thing after the other.
        parts["loads of a burst"] = 2 * read
        if row["bytes"] > 2 * PAGE:
            parts["loads of lists of pages"] = burst * read
    else:
        # The model stores a doorbell into the device; here the device loads it, and until then the host's store waits.
        parts["a load in place of a doorbell's way"] = max(read - latency, 0)
    shared = f", shared by a burst of {burst}" if burst > 1 else ""
    return sum(parts.values()) / burst, "measured: " + ", ".join(parts) + shared


def each_of_block(found):
    """What one more command of a block takes of the controller's code; the block has costs of its own."""
    # On a busy machine a block of eight can be measured shorter than one of one.
    return max(code(found, "block", BURST) - code(found, "block", 1), 0.0) / (BURST - 1)


def write(found, row=None):
    """Writes the plan by which a row is predicted, or all are driven, and gives its path."""
    measured, negotiated, text = found["link"], found["machine"]["link"], found["host"]
    values = link(measured, negotiated)
    values["copy"] = (measured["copy"]["mean_ns"], "measured: 4 KiB from the device's memory to the host's")
    values["parse"] = parse(found, values["latency"][0], row)
    for key, (value, source) in values.items():
        line = f'{key} = {{ value = "{value:.3f} ns", source = "{source}" }}'
        text, many = re.subn(rf"^{key} = .*$", line, text, flags=re.MULTILINE)
        if many != 1:
            raise Problem(f"{OUT / 'host.toml'}: {many} lines with the key {key}, one was expected")
    if negotiated is not None:
        generation, lanes = negotiated
        text = text.replace("coherent = true", "coherent = false")
        text = re.sub(r'^generation = .*$', f'generation = "gen{generation}"', text, flags=re.MULTILINE)
        text = re.sub(r"^lanes = .*$", f"lanes = {lanes}", text, flags=re.MULTILINE)
        text = re.sub(r'^mps = .*$', 'mps = "256 B"', text, flags=re.MULTILINE)
        text = re.sub(r'^mrrs = .*$', 'mrrs = "512 B"', text, flags=re.MULTILINE)
        text = re.sub(r"^# There is no link.*\n", "# Packets as most hosts cut them: assumed.\n", text, flags=re.MULTILINE)
        text = text.replace("assumed: plays no part, as there is no link", "assumed: each packet is acknowledged")
    name = "the endpoint of gpu/, driven from a core of this machine, by what was measured of each alone."
    text = re.sub(r"^#.*\n", "# Written by `tools/gpu run`.\n", text, count=1)
    text = text.replace('name = "calibrated"', 'name = "endpoint"')
    text = re.sub(r'^about = .*$', f'about = "{name[0].upper()}{name[1:]}"', text, flags=re.MULTILINE)
    looked = max(measured["read"]["mean_ns"] - values["latency"][0], 0)
    take = max(code(found, "block", 1) - each_of_block(found), 0) + looked
    more = OTHER_INTERFACES.format(release=measured["fence"]["mean_ns"], take=take,
                                   took="the controller's code for a block, and a load in place of a doorbell's way")
    path = OUT / "measured.toml"
    path.write_text(text + more, encoding="utf-8")
    return path
