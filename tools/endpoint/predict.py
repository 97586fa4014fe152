"""What the simulator makes of the costs of a link and its ends, beside what was measured of them together."""

import json
import subprocess

from . import plan
from .build import OUT
from .jobs import job, numbers
from .problem import Problem
from .serving import doorbell

SIMULATED_READS = 2000


def show_link(found):
    print(f"the link, with {found['device']} as the device:")
    print(f"  {'':28} {'p50 ns':>10} {'p99 ns':>10} {'mean ns':>10}")
    words = {"read": "a load of host memory", "echo": "a word there and one back",
             "own_read": "a load of the device's own", "own_fence": "a line stored there, a fence",
             "fence_alone": "a fence with nothing to order", "fence": "a line stored, a fence",
             "copy": "4 KiB to host memory", "entry": "64 B there and back", "page": "4 KiB there and back"}
    for name, text in words.items():
        at = found[name]
        print(f"  {text:28} {at['p50_ns']:10.1f} {at['p99_ns']:10.1f} {at['mean_ns']:10.1f}")
    back = found["echo"]["mean_ns"] - found["read"]["mean_ns"]
    print(f"  {'so a store is seen after':28} {'':10} {'':10} {back:10.1f}  (there and back, less a load)")
    once = found["entry_at_once"]
    transfers = found["entry"]["rounds"] + found["page"]["rounds"]
    print(f"  verified: {transfers} transfers each way, none out of order")
    print(f"  whole lines: {once['too_early_there']} words of {once['rounds']} entries were older than their "
          "flag", flush=True)


def show_trials(found):
    print("a command there, its data and their end back, one at a time:")
    print(f"  {'request':17} {'end':22} {'doorbell':15} {'bytes':>6} "
          f"{'p50 ns':>8} {'p99 ns':>8} {'wrong':>8}")
    for row in found["exchanges"]:
        print(f"  {row['request']:17} {row['completion']:22} {row['doorbell']:15} {row['bytes']:6} "
              f"{row['p50_ns']:8} {row['p99_ns']:8} {row['wrong']:8}")
    print("the controller's own code, on the device's memory, a turn:")
    for row in found["code"]:
        packets = f", packets of {row['packet']} B" if row["packet"] else ""
        print(f"  {row['interface']:6} {row['burst']} of {row['bytes']:4} B: {row['p50_ns']:6} ns{packets}")
    print("stores without fences, as the host sees them:")
    for row in found["order"]:
        print(f"  {row['stores']:27} packets of {row['packet']:3}: a later one first in "
              f"{row['overtaken']} of {row['rounds']} rounds, torn {row['torn']} of {row['packets']}")
    print("copies, and polling beside them:")
    for row in found["bandwidth"]:
        print(f"  to the {row['to']:6} {row['copiers']:3} warps of {row['bytes']:6} B, "
              f"{row['pollers']:3} poll: {row['gb_per_s']:7.2f} GB/s, "
              f"{row['looks_per_s'] / 1e6:7.2f} M looks/s")
    print("stores to doorbells:")
    for row in found["doorbells"]:
        watched, settled = "polled" if row["watched"] else "alone", row["settled"]
        print(f"  {row['memory']:15} {watched:6} {row['line']:6} line, {row['cores']} cores: "
              f"{row['ns_a_store']:8.2f} ns a store; there for all after {settled['p50_ns']} ns, p99 "
              f"{settled['p99_ns']}")
    for row in found["wakes"]:
        print(f"the end of a kernel, {row['wait']}: {row['p50_ns']} ns after its last store, "
              f"p99 {row['p99_ns']}")


def simulated(path, interface, row):
    """What a plan predicts of a row."""
    text, report = OUT / "predicted.fio", OUT / "predicted.json"
    limit = f"number_ios={SIMULATED_READS}"
    text.write_text(job(row, limit), encoding="utf-8")
    command = [str(doorbell()), "run", str(text), "--world", "sim", "--plan", str(path),
               "--interface", interface, "--json", str(report)]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    if said.returncode != 0:
        raise Problem(f"{' '.join(command)}:\n{said.stdout}{said.stderr}")
    return numbers(report, "read" if row["job"] == "randread" else "write")


def one(found, row):
    """Predicts a row, by the costs of its link and ends."""
    row["predicted"] = simulated(plan.write(found, row), row["face"].split(",")[0], row)
    return row["predicted"]


def everything(found):
    """Predicts each row that was measured hot, and prints both."""
    print("random reads of 16 MiB, measured, and in virtual time:")
    print(f"  {'':26} {'bytes':>6} {'depth':>5} {'p50 us':>10} {'IOPS':>11} "
          f"{'pred. us':>10} {'pred. IOPS':>11} {'p50':>7} {'IOPS':>7}")
    for row in found["rows"]:
        if row["job"] != "randread" or row["size"] != "16m" or "rate" in row:
            continue
        told, live = one(found, row), row["measured"]
        print(f"  {row['face']:26} {row['bytes']:6} {row['depth']:5} "
              f"{live['p50_us']:10.2f} {live['iops']:11.0f} {told['p50_us']:10.2f} {told['iops']:11.0f} "
              f"{told['p50_us'] / live['p50_us']:7.2f} {told['iops'] / live['iops']:7.2f}", flush=True)
    show_ratios(found["rows"])


def show_ratios(rows):
    """DC Express against NVMe, alone: the paper's claim."""
    print("reads one at a time, DC Express over NVMe, p50:")
    by = {(row["face"], row["bytes"], row["depth"]): row for row in rows if "predicted" in row}
    for (face, length, depth), row in by.items():
        if depth != 1 or not face.startswith("dcx"):
            continue
        nvme = by["nvme", length, 1]
        live = row["measured"]["p50_us"] / nvme["measured"]["p50_us"]
        told = row["predicted"]["p50_us"] / nvme["predicted"]["p50_us"]
        print(f"  {length:6} {face:26} measured {live:5.2f} predicted {told:5.2f}")


def again(path):
    """Predicts from raw results that were kept."""
    everything(json.loads(path.read_text(encoding="utf-8")))
