"""The link, what protocols are made of on it, and every interface: measured; the raw results are one file."""

import json
import os
import platform
import shutil
import subprocess
from dataclasses import dataclass

from . import check, plan, predict
from .build import OUT, ROOT
from .jobs import job, numbers
from .problem import Problem
from .serving import INTERFACES, Endpoint, doorbell

# What is driven, by which options of the endpoint, and whether at all lengths and depths.
FACES = (("nvme", (), True), ("dcx", (), True), ("block", (), True))
# Options that rely on properties that are not guaranteed. Measured only if no violation was found.
UNGUARANTEED = (("dcx", ("--whole-lines",), False), ("dcx", ("--packets", "128"), False),
           ("dcx", ("--whole-lines", "--packets", "128"), True))

# Cores of the driver and of the endpoint's own process, on a machine that has more.
DRIVER_CORE, ENDPOINT_CORE = 2, 4


@dataclass(frozen=True)
class Size:
    """How much is done."""

    rounds: int
    trials: int
    seconds: float
    samples: int
    lengths: tuple
    depths: tuple
    written: tuple
    cold: tuple
    few: tuple
    arriving: tuple
    megabytes: int


LONG = Size(100_000, 30_000, 0.12, 1000, (512, 1024, 2048, 4096, 8192, 16384, 65536, 131072),
            (1, 2, 4, 8, 16, 32, 128), ((512, 4096, 65536), (1, 8, 64)), ((512, 4096, 131072), (1, 32)),
            (512, 4096), (512, 4096, 16384), 8192)
SHORT = Size(1_000, 100, 0.05, 50, (512, 4096), (1, 16), ((4096,), (1,)), ((4096,), (1,)), (512,), (512,), 64)


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
    return {"processor": model[0] if model else platform.machine(), "processors": os.cpu_count(),
            "kernel": platform.release(), "gpu": gpu or None, "link": negotiated() if gpu else None,
            "pinned": spare_cores(), "commit": said_by(["git", "-C", str(ROOT), "rev-parse", "HEAD"]) or None}


def spare_cores():
    """Whether driver and endpoint can have cores of their own, with some to spare."""
    return (os.cpu_count() or 1) > ENDPOINT_CORE


def probed(program, rounds):
    """What the probe has measured of the link."""
    command = [str(program), "--rounds", str(rounds)]
    if spare_cores():
        command = ["taskset", "-c", str(DRIVER_CORE), *command]
    found = said_in_json(command)
    for name in ("entry", "page", "entry_at_once"):
        at = found[name]
        broken = at["too_early_back"] + (0 if name == "entry_at_once" else at["too_early_there"])
        if broken:
            raise Problem(f"{name}: {broken} words of {at['rounds']} transfers came after their flag: "
                          "the order that every protocol requires is violated")
    return found


def said_in_json(command):
    said = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    if said.returncode != 0:
        raise Problem(f"{command[0]}: {said.stderr}")
    return json.loads(said.stdout)


def tried(program, rounds, link):
    """Results of the trials."""
    command = [program, "--rounds", rounds, "--ns-a-tick", link["ns_a_tick"]]
    return said_in_json(command + (["--core", DRIVER_CORE] if spare_cores() else []))


# Poisson arrivals a second: few enough that reads rarely queue. Their phase in the device's polling loop is
# random.
RATE = 20_000


def measured(served, row, seconds, path):
    """One row, by one run."""
    report = OUT / "measured.json"
    limit = f"runtime={round(seconds * 1000)}ms\ntime_based=1"
    interface = row["face"].split(",")[0]
    options = ("--plan", str(path), "--set", "host.memory=192 MiB", "--json", str(report))
    served.run(job(row, limit), interface, *options)
    found = row["measured"] = numbers(report, "read" if row["job"] == "randread" else "write")
    print(f"  {row['face']:26} {row['job']:9} {row['size']:>5} {row['bytes']:6} {row['depth']:5} "
          f"{row.get('rate') or '':6} {found['p50_us']:10.2f} {found['p99_us']:10.2f} "
          f"{found['iops']:11.0f}", flush=True)
    return row


def may_rely(found):
    """Whether no torn line and no torn packet of up to 128 bytes was found."""
    torn = sum(row["torn"] for row in found["trials"]["order"] if row["packet"] <= 128)
    too_early = found["link"]["entry_at_once"]["too_early_there"]
    return bool(found["machine"]["gpu"]) and too_early == 0 and torn == 0


def faces(program, path, size, may_rely_on_more, keep):
    """Every interface, length and depth: verified first, then measured, and kept."""
    rows, blocks = [], {}
    cores = (DRIVER_CORE, ENDPOINT_CORE) if spare_cores() else None
    print(f"  {'':26} {'':9} {'of':>5} {'bytes':>6} {'depth':>5} {'rate':>6} "
          f"{'p50 us':>10} {'p99 us':>10} {'IOPS':>11}")
    for interface, more, all_of_it in FACES + (UNGUARANTEED if may_rely_on_more else ()):
        name = ", ".join([interface, *(word[2:].replace("-", " ") for word in more if word.startswith("--"))])
        with Endpoint(program, interface, *more, "--megabytes", str(size.megabytes), cores=cores) as served:
            blocks[name] = sum(check.verified(served.run(check.mixed(depth, operations), interface,
                                                         "--resets", str(resets), *check.SETS))
                               for depth, operations, resets in check.RUNS)

            def row(job, length, depth, region, rate=None):
                asked = {"face": name, "job": job, "size": region, "bytes": length, "depth": depth}
                asked |= {"rate": rate} if rate else {}
                rows.append(measured(served, asked, size.seconds * (3 if rate else 1), path))

            for length in size.arriving:
                row("randread", length, 16, "16m", RATE)

            for length in size.lengths if all_of_it else size.few:
                for depth in size.depths:
                    row("randread", length, depth, "16m")
            for rw, region, (lengths, depths) in (("randwrite", "16m", size.written),
                                                  ("randread", f"{size.megabytes}m", size.cold)):
                for length in lengths:
                    for depth in depths:
                        row(rw, length, depth, region)
        keep("verified", blocks)
        keep("rows", rows)


def everything(programs, size, gpu, also_predict):
    """Measures it all; writes the raw results as they come; then predicts and shows."""
    endpoint, probe, trials = programs
    assert set(INTERFACES) == {interface for interface, *_ in FACES}
    result = OUT / "run.json"
    found = {"machine": machine(gpu)}

    def keep(name, value):
        found[name] = value
        result.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")

    print(", ".join(f"{key}: {value}" for key, value in found["machine"].items() if value), flush=True)
    keep("suite", check.conforms(endpoint))
    print(found["suite"], flush=True)
    keep("link", probed(probe, size.rounds))
    predict.show_link(found["link"])
    keep("trials", tried(trials, size.trials, found["link"]))
    predict.show_trials(found["trials"])
    keep("host", plan.calibrated(size.samples))
    path = plan.write(found)
    print(f"the plan is {path.relative_to(OUT.parents[1])}; random reads and writes:")
    faces(endpoint, path, size, may_rely(found), keep)
    if also_predict:
        predict.everything(found)
    print(f"all of it is in {result.relative_to(OUT.parents[1])}; nothing was adjusted to what was measured")
