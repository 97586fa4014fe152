"""The link and the interfaces on it, measured, and what the simulator makes of the link's costs."""

import json
import platform
import shutil
import subprocess
from dataclasses import dataclass

from . import plan
from .build import OUT
from .problem import Problem
from .serving import Endpoint, doorbell

# What is driven, and by which options of the endpoint.
FACES = (("nvme", ()), ("dcx", ()), ("block", ()))
ONE_LOOK = ("dcx", ("--whole-lines",))


@dataclass(frozen=True)
class Size:
    """How much is done."""

    rounds: int
    seconds: float
    simulated: int
    samples: int
    lengths: tuple
    depths: tuple


LONG = Size(1_000_000, 1.0, 20_000, 200, (512, 1024, 2048, 4096), (1, 2, 4, 8, 16, 32, 64))
SHORT = Size(1_000, 0.05, 100, 3, (512, 4096), (1, 16))


def said_by(command):
    """The first line that a command prints, or nothing."""
    if not shutil.which(command[0]):
        return ""
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    return said.stdout.strip().splitlines()[0] if said.returncode == 0 and said.stdout.strip() else ""


def negotiated():
    """The link's generation and lanes, where the driver tells them."""
    query = "pcie.link.gen.current,pcie.link.width.current"
    words = said_by(["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"]).split(",")
    try:
        generation, lanes = (int(word) for word in words)
    except ValueError:
        return None
    return (generation, lanes) if generation in range(1, 6) and lanes in (1, 2, 4, 8, 16) else None


def machine(has_gpu):
    """What it was measured on, in words."""
    model = [line.split(":")[1].strip() for line in open("/proc/cpuinfo", encoding="utf-8")
             if line.startswith("model name")]
    name = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    gpu = (said_by(name) or "one that nvidia-smi does not name") if has_gpu else ""
    return {"processor": model[0] if model else platform.machine(), "processors": len(model),
            "kernel": platform.release(), "gpu": gpu or None, "link": negotiated() if gpu else None}


def probed(program, rounds):
    """What the probe has measured of the link."""
    said = subprocess.run([str(program), "--rounds", str(rounds)], capture_output=True, text=True, check=False)
    if said.returncode != 0:
        raise Problem(f"{program}: {said.stderr}")
    found = json.loads(said.stdout)
    for name in ("entry", "page", "entry_at_once"):
        broken = found[name]["too_early_back"] + (0 if name == "entry_at_once" else found[name]["too_early_there"])
        if broken:
            raise Problem(f"{name}: {broken} words of {found[name]['rounds']} transfers came after their flag: "
                          "the order that every protocol leans on is not kept")
    return found


def show_link(found):
    print(f"the link, with {found['device']} as the device:")
    print(f"  {'':28} {'p50 ns':>10} {'p99 ns':>10}")
    words = {"read": "a load of host memory", "echo": "a word there and one back", "fence": "a line stored, a fence",
             "copy": "4 KiB to host memory", "entry": "64 B there and back", "page": "4 KiB there and back"}
    for name, text in words.items():
        print(f"  {text:28} {found[name]['p50_ns']:10.1f} {found[name]['p99_ns']:10.1f}")
    back = found["echo"]["p50_ns"] - found["read"]["p50_ns"]
    print(f"  {'so a store is seen after':28} {back:10.1f}            (there and back, less a load)")
    once = found["entry_at_once"]
    print(f"  verified: {found['entry']['rounds'] + found['page']['rounds']} transfers each way, none out of order")
    print(f"  whole lines: {once['too_early_there']} words of {once['rounds']} entries were older than their flag")


def job(length, depth, limit):
    return f"[r]\nrw=randread\nbs={length}\niodepth={depth}\nsize=16m\nnorandommap=1\n{limit}\n"


def numbers(path):
    read = json.loads(path.read_text(encoding="utf-8"))["runs"][0]["jobs"][0]["operations"]["read"]
    at = {one["quantile"]: one["ns"] for one in read["latency"]["percentiles"]}
    return {"p50_us": at[0.5] / 1e3, "p99_us": at[0.99] / 1e3, "iops": read["iops"]}


def simulated(path, interface, length, depth, size):
    """What the plan predicts."""
    text, report = OUT / "predicted.fio", OUT / "predicted.json"
    text.write_text(job(length, depth, f"number_ios={size.simulated}"), encoding="utf-8")
    command = [str(doorbell()), "run", str(text), "--world", "sim", "--plan", str(path),
               "--interface", interface, "--json", str(report)]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    if said.returncode != 0:
        raise Problem(f"{' '.join(command)}:\n{said.stdout}{said.stderr}")
    return numbers(report)


def faces(program, path, size, one_look):
    """Every interface, length and depth: measured and predicted."""
    rows = []
    report = OUT / "measured.json"
    for interface, more in FACES + ((ONE_LOOK,) if one_look else ()):
        with Endpoint(program, interface, *more) as served:
            for length in size.lengths:
                for depth in size.depths:
                    limit = f"runtime={round(size.seconds * 1000)}ms\ntime_based=1"
                    served.run(job(length, depth, limit), interface, "--plan", str(path), "--json", str(report))
                    told = simulated(path, interface, length, depth, size)
                    name = interface + ("".join(more) and ", whole lines")
                    rows.append({"face": name, "bytes": length, "depth": depth,
                                 "measured": numbers(report), "predicted": told})
                    show_row(rows[-1])
    return rows


def show_row(row):
    live, told = row["measured"], row["predicted"]
    print(f"  {row['face']:17} {row['bytes']:5} {row['depth']:5} {live['p50_us']:10.2f} {live['p99_us']:10.2f} "
          f"{live['iops']:11.0f} {told['p50_us']:10.2f} {told['iops']:11.0f} "
          f"{told['p50_us'] / live['p50_us']:7.2f}", flush=True)


def show_ratios(rows, read_ns, latency_ns):
    """DC Express against NVMe, alone: the paper's claim."""
    print("reads one at a time, DC Express over NVMe, p50:")
    print("  bytes  face               measured  predicted  with what has to be looked for")
    by = {(row["face"], row["bytes"], row["depth"]): row for row in rows}
    # What the model does not know: a doorbell that the device loads, and a second look at an entry.
    looked_for = max(read_ns - latency_ns, 0) / 1e3
    for (face, length, depth), row in by.items():
        if depth != 1 or not face.startswith("dcx"):
            continue
        nvme = by["nvme", length, 1]
        live = row["measured"]["p50_us"] / nvme["measured"]["p50_us"]
        told = row["predicted"]["p50_us"] / nvme["predicted"]["p50_us"]
        again = read_ns / 1e3 if face == "dcx" else 0
        seen = (row["predicted"]["p50_us"] + again) / (nvme["predicted"]["p50_us"] + looked_for)
        print(f"  {length:5}  {face:17} {live:9.2f} {told:10.2f} {seen:10.2f}")


def everything(endpoint, probe, size, gpu):
    on = machine(gpu)
    print(", ".join(f"{key}: {value}" for key, value in on.items() if value))
    found = probed(probe, size.rounds)
    show_link(found)
    path = plan.write(found, on["link"], size.samples)
    print(f"the plan is {path.relative_to(OUT.parents[1])}; random reads of 16 MiB, measured, and in virtual time by it:")
    print(f"  {'':17} {'bytes':>5} {'depth':>5} {'p50 us':>10} {'p99 us':>10} {'IOPS':>11} "
          f"{'pred. us':>10} {'pred. IOPS':>11} {'ratio':>7}")
    # Where lines were seen torn, nobody is to lean on them.
    one_look = bool(on["gpu"]) and found["entry_at_once"]["too_early_there"] == 0
    rows = faces(endpoint, path, size, one_look)
    latency = plan.link(found, on["link"])["latency"][0]
    show_ratios(rows, found["read"]["p50_ns"], latency)
    result = OUT / "run.json"
    result.write_text(json.dumps({"machine": on, "link": found, "rows": rows}, indent=1) + "\n", encoding="utf-8")
    print(f"all of it is in {result.relative_to(OUT.parents[1])}; nothing was adjusted to what was measured")
