"""The page of what was measured, with its pictures and the predictions beside it, from raw results that were kept."""

import json

from . import measure, picture, predict
from .build import ROOT, SOURCES
from .problem import Problem

RAW = SOURCES / "results/h100.json"
PAGE = ROOT / "docs/gpu-measured.md"
PICTURES = ROOT / "docs/pictures"

# What is predicted on the page: all of it takes minutes.
LENGTHS, DEPTHS = (512, 4096, 16384, 65536), (1, 2, 4, 8, 32)
NAMES = {"nvme": "NVMe", "dcx": "DC Express", "block": "descriptor blocks",
         "dcx, whole lines": "DC Express, whole lines", "dcx, packets": "DC Express, tags in packets",
         "dcx, whole lines, packets": "DC Express, whole lines, tags in packets"}
# How far a prediction may be off, for the page to count it as held.
WITHIN = 0.15


def table(heads, rows):
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def link_part(found):
    names = (("load of host memory", "read"), ("load of GPU memory, L2 hit", "own_read"),
             ("echo of a word, polled on both sides", "echo"), ("fence without stores before it", "fence_alone"),
             ("128 B to host memory, fence", "fence"),
             ("128 B to GPU memory, fence", "own_fence"),
             ("4 KiB to host memory, no fence", "copy"))
    rows = [(text, *(f"{found[key][part]:.0f}" for part in ("p50_ns", "p99_ns", "mean_ns"))) for text, key in names]
    sent = found["entry"]["rounds"] + found["page"]["rounds"] + found["entry_at_once"]["rounds"]
    once = found["entry_at_once"]
    return (table(("ns", "p50", "p99", "mean"), rows) +
            f"\n{sent} payloads of 64 B and 4 KiB in each direction: no word arrived after its flag. Entries of 64 B loaded "
            f"at\nonce, without a fence: {once['too_early_there']} stale words in {once['rounds']}.\n")


def exchange_part(rows):
    lengths = [64, 512, 4096, 16384, 131072]
    at = {(row["request"], row["completion"], row["bytes"]): row for row in rows if row["doorbell"] == "cached"}
    kinds = list(dict.fromkeys((row["request"], row["completion"]) for row in rows
                               if row["doorbell"] == "cached" and row["request"] != "doorbell, acquired"))
    cells = [(request, completion, *(f"{at[request, completion, length]['p50_ns'] / 1e3:.2f}" for length in lengths),
              sum(row["wrong"] for row in rows if (row["request"], row["completion"]) == (request, completion)
                  and row["doorbell"] == "cached")) for request, completion in kinds]
    lone = [(row["request"], row["completion"], row["doorbell"], f"{row['p50_ns'] / 1e3:.2f}",
             f"{row['p99_ns'] / 1e3:.2f}") for row in rows
            if row["bytes"] == 512 and (row["doorbell"] != "cached" or row["request"] == "doorbell, acquired")]
    return (table(("request", "completion", *(f"{picture.size(length)}, us" for length in lengths), "stale words"), cells)
            + "\n" + table(("request", "completion", "doorbell memory", "512 B, p50 us", "p99 us"), lone))


def exchange_words(rows):
    """What a round consists of: trials of earlier versions had no pause."""
    if "pause_ns" in rows[0]:
        return (f"The host pauses for up to {rows[0]['pause_ns']} ns before each round. Times include loading the data; "
                "tags in packets\nload them while later packets arrive.\n")
    return ("Each round is two polls plus the GPU's work: host time that fits between two polls does not show. Times include "
            "loading\nthe data; tags in packets load them while later packets arrive.\n")


def order_part(rows):
    cells = [(row["stores"], row["packet"], f"{row['overtaken']} of {row['rounds']}",
              f"{row['torn']} of {row['packets']}") for row in rows]
    return table(("stores", "packet, B", "rounds out of order", "packets torn"), cells)


def load_part(rows):
    cells = [(f"{row['copiers']} x {picture.size(row['bytes'])}", row["to"], row["pollers"],
              f"{row['gb_per_s']:.1f}", f"{row['looks_per_s'] / 1e6:.1f}") for row in rows]
    return table(("copying warps", "to", "polling warps", "GB/s", "M polls/s"), cells)


def doorbell_part(found):
    cells = [(row["memory"], "yes" if row["watched"] else "no", row["line"], row["cores"], f"{row['ns_a_store']:.1f}",
              row["settled"]["p50_ns"], row["settled"]["p99_ns"]) for row in found["doorbells"]]
    ends = "; ".join(f"{row['wait']} {row['p50_ns'] / 1e3:.1f} us (p99 {row['p99_ns'] / 1e3:.1f})"
                     for row in found["wakes"])
    return (table(("memory", "polled", "line", "cores", "ns/store", "store and full fence, p50 ns", "p99"), cells) +
            f"\nTime from the last store of a kernel until the host knows that it has ended: {ends}.\n")


def code_part(rows):
    cells = [(NAMES[row["interface"] + (", packets" if row["packet"] else "")], row["burst"], row["bytes"],
              f"{row['p50_ns'] / 1e3:.2f}") for row in rows]
    return table(("interface", "commands", "bytes", "p50, us"), cells)


def hot(rows):
    return [row for row in rows if row["job"] == "randread" and row["size"] == "16m" and "rate" not in row]


def arriving(rows):
    return [row for row in rows if "rate" in row]


def held(rows, of="p50_us"):
    """How many predictions are near what was measured."""
    near = [abs(row["predicted"][of] / row["measured"][of] - 1) <= WITHIN for row in rows]
    return f"{sum(near)} of {len(near)}"


def arriving_part(rows):
    first = {row["bytes"]: row["measured"]["p50_us"] for row in rows if row["face"] == "nvme"}
    cells = [(NAMES[row["face"]], row["bytes"], f"{row['measured']['p50_us']:.2f}", f"{row['measured']['p99_us']:.2f}",
              f"{row['measured']['p50_us'] / first[row['bytes']]:.2f}", f"{row['predicted']['p50_us']:.2f}",
              f"{row['predicted']['p50_us'] / row['measured']['p50_us']:.2f}")
             for row in sorted(rows, key=lambda row: row["bytes"])]
    return f"{held(rows)} medians are predicted within {WITHIN:.0%}.\n\n" + table(("interface", "bytes", "p50 us", "p99 us", "NVMe = 1", "predicted us", "ratio"), cells)


def interface_part(rows):
    cells = [(NAMES[row["face"]], row["bytes"], row["depth"], f"{row['measured']['p50_us']:.2f}",
              f"{row['measured']['p99_us']:.2f}", f"{row['measured']['iops'] / 1e3:.0f}",
              f"{row['predicted']['p50_us']:.2f}", f"{row['predicted']['p50_us'] / row['measured']['p50_us']:.2f}",
              f"{row['predicted']['iops'] / row['measured']['iops']:.2f}") for row in rows]
    return (f"{held(rows)} medians and {held(rows, 'iops')} rates are predicted within {WITHIN:.0%}.\n\n" +
            table(("interface", "bytes", "depth", "p50 us", "p99 us", "kIOPS", "predicted us", "p50 ratio",
                   "IOPS ratio"), cells))


def other_part(rows):
    cells = [(NAMES[row["face"]], row["job"], row["size"], row["bytes"], row["depth"],
              f"{row['measured']['p50_us']:.2f}", f"{row['measured']['p99_us']:.2f}",
              f"{row['measured']['iops'] / 1e3:.0f}") for row in rows if "rate" not in row and row not in hot(rows)]
    return table(("interface", "job", "of", "bytes", "depth", "p50 us", "p99 us", "kIOPS"), cells)


def pictures(found):
    """The pictures by file name."""
    def lines(select, x, y, title, x_name, y_name, among, unit=1.0):
        made, colours = [], list(NAMES)
        for face in dict.fromkeys(row["face"] for row in among):
            rows = [row for row in among if row["face"] == face and select(row)]
            if len(rows) > 2:
                colour = colours.index(face)
                made.append(picture.Line(NAMES[face], [(row[x], row["measured"][y] / unit) for row in rows], colour))
                told = [(row[x], row["predicted"][y] / unit) for row in rows if "predicted" in row]
                if len(told) > 2:
                    made.append(picture.Line(NAMES[face], told, colour, dashed=True))
        return picture.chart(title, x_name, y_name, made)

    exchanges = [row for row in found["trials"]["exchanges"] if row["doorbell"] == "cached"]
    kinds = [("doorbell", "entry behind a fence"), ("doorbell", "a tag in each 64 B"), ("entry", "entry behind a fence"),
             ("entry", "tag behind a fence"), ("entry", "a tag in each 64 B")]
    parts = [picture.Line(f"{request}; {completion}",
                          [(row["bytes"], row["p50_ns"] / 1e3) for row in exchanges
                           if (row["request"], row["completion"]) == (request, completion)], number)
             for number, (request, completion) in enumerate(kinds)]
    rows = hot(found["rows"])
    return {
        "gpu-exchange.svg": picture.chart("Request, data and completion", "bytes", "p50, us", parts),
        "gpu-length.svg": lines(lambda row: row["depth"] == 1, "bytes", "p50_us", "Random reads at depth 1",
                                "bytes", "p50, us", rows),
        "gpu-depth.svg": lines(lambda row: row["bytes"] == 4096, "depth", "iops", "Random reads of 4 KiB", "depth",
                               "thousand IOPS", rows, 1e3),
    }


def text(found):
    """The page."""
    on, blocks = found["machine"], sum(found["verified"].values())
    generation, lanes = on["link"]
    name, driver = (word.strip() for word in on["gpu"].split(","))
    return f"""# A GPU as the endpoint: measurements

Generated by `tools/gpu page` from `gpu/results/h100.json`. See [A GPU as the endpoint](gpu.md).

{table(("property", "value"), (("GPU", f"{name}, driver {driver}"), ("link", f"PCIe Gen{generation} x{lanes}"),
                               ("host", f"virtual machine, {on['processors']} cores, {on['processor']}, Linux {on['kernel']}"),
                               ("pinned", "driver and endpoint, a core each"), ("suite", found["suite"]),
                               ("verified before", f"{blocks} blocks, with resets")))}
All of the medium was written before (zeros, and the verified blocks). Data of measured reads are not verified.

## Link

{link_part(found["link"])}
## Request and completion

These trials use no interface of this program. The host stores a request of 64 B and waits for the data; the GPU polls,
stores the data and completes. Requests: *doorbell*: the GPU polls a word, then executes a fence and loads the entry;
*acquired*: it loads the word with acquire and needs no fence; *entry*: it polls the entry itself. All words are
verified. With a tag the last words are stored separately.

{exchange_words(found["trials"]["exchanges"])}
![Request, data and completion](pictures/gpu-exchange.svg)

{exchange_part(found["trials"]["exchanges"])}
## Order of stores

The GPU stores 4 KiB without a fence, always to the same page. The host reads the last packet first, so the counts are
lower bounds.

{order_part(found["trials"]["order"])}
## Bandwidth with polling

The reason for the low rate of a few pollers is unknown.

{load_part(found["trials"]["bandwidth"])}
## Doorbells and wake-ups

Stores back to back, to cached or write-combining memory (each followed by `sfence`), with and without a GPU that polls
them; then a store with a full fence, including the timer. Registers of the GPU were not measured: the driver maps none of
its memory.

{doorbell_part(found["trials"])}
## Controller code

Time of one turn of the controller with all memory on the GPU, after turns without work. Predictions subtract two loads,
one load for each command, and the fence if there is one.

{code_part(found["trials"]["code"])}
## Interfaces, Poisson arrivals

{measure.RATE} reads a second, 16 MiB, one run for each row. With a constant depth of 1 the submission time is locked to the
device's polling loop, so a median shows the phase of that loop. Predictions lack the polls of registers between polls
of commands, and the code of turns without work.

{arriving_part(arriving(found["rows"]))}
## Interfaces, constant depth

![Random reads at depth 1](pictures/gpu-length.svg)

![Random reads of 4 KiB](pictures/gpu-depth.svg)

{interface_part([row for row in hot(found["rows"]) if "predicted" in row])}
## Writes, and reads beyond the GPU's cache

{other_part(found["rows"])}"""


def plans_of_noise():
    """On a busy machine measurements contradict each other: a plan made of them is accepted all the same."""
    found = json.loads(RAW.read_text(encoding="utf-8"))
    for row in found["trials"]["code"]:
        row["p50_ns"] = 1 if row["burst"] > 1 else 5000
    found["link"]["read"]["mean_ns"], found["link"]["echo"]["mean_ns"] = 5000, 10
    for face in ("nvme", "dcx", "block"):
        predict.one(found, {"face": face, "job": "randread", "size": "16m", "bytes": 16384, "depth": 8})


def everything(check):
    """Writes the page and its pictures, or compares them with what would be written."""
    if check:
        plans_of_noise()
    found = json.loads(RAW.read_text(encoding="utf-8"))
    for row in arriving(found["rows"]) + hot(found["rows"]):
        if "rate" in row or (row["bytes"] in LENGTHS and row["depth"] in DEPTHS):
            predict.one(found, row)
    made = {PAGE: text(found)} | {PICTURES / name: body for name, body in pictures(found).items()}
    for path, body in made.items():
        if not check:
            path.write_text(body, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != body:
            raise Problem(f"{path.relative_to(ROOT)} is not what its raw results and this simulator make: "
                          "`tools/gpu page` writes it")
    print(f"{PAGE.relative_to(ROOT)} and {len(made) - 1} pictures {'are' if check else 'were written'} from "
          f"{RAW.relative_to(ROOT)}")
