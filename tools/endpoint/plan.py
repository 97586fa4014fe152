"""A plan of a machine's link, host and endpoint, from what was measured of each alone."""

import re
import subprocess

from .build import OUT
from .problem import Problem
from .serving import doorbell

# What calibrate does not write, because it knows NVMe alone. Nothing here is measured.
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
"take block" = {{ value = "{fence:.3f} ns", source = "measured: a fence" }}
return = {{ value = "{fence:.3f} ns", source = "measured: a fence" }}
"dma start" = {{ value = "0 ns", source = "assumed: in the copy" }}
"""


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
    read, echo = measured["read"]["p50_ns"], measured["echo"]["p50_ns"]
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


def write(measured, negotiated, samples=200):
    """Writes the plan, and gives its path."""
    text = calibrated(samples)
    fence = measured["fence"]["p50_ns"]
    values = link(measured, negotiated)
    values["copy"] = (measured["copy"]["p50_ns"], "measured: 4 KiB from the device's memory to the host's")
    values["parse"] = (2 * fence, "measured: two fences, as each command takes; nothing else of its code")
    for key, (value, source) in values.items():
        line = f'{key} = {{ value = "{value:.3f} ns", source = "{source}" }}'
        text, found = re.subn(rf"^{key} = .*$", line, text, flags=re.MULTILINE)
        if found != 1:
            raise Problem(f"{OUT / 'host.toml'}: {found} lines with the key {key}, one was expected")
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
    path = OUT / "measured.toml"
    path.write_text(text + OTHER_INTERFACES.format(fence=fence), encoding="utf-8")
    return path
