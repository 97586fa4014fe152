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
    names = (("a load of host memory", "read"), ("a load of the GPU's own memory, after it was stored", "own_read"),
             ("a word there and one back, each looked for", "echo"), ("a fence with nothing to order", "fence_alone"),
             ("128 B stored to host memory, then a fence", "fence"),
             ("128 B stored to its own memory, then a fence", "own_fence"),
             ("4 KiB to host memory, not waited for", "copy"))
    rows = [(text, *(f"{found[key][part]:.0f}" for part in ("p50_ns", "p99_ns", "mean_ns"))) for text, key in names]
    sent = found["entry"]["rounds"] + found["page"]["rounds"] + found["entry_at_once"]["rounds"]
    once = found["entry_at_once"]
    return (table(("ns", "p50", "p99", "mean"), rows) +
            f"\n{sent} payloads of 64 B and 4 KiB went each way behind a flag; no word came after its flag.\n"
            f"Looked at whole, without a fence, {once['too_early_there']} words of {once['rounds']} entries of 64 B were "
            "older than their flag.\n")


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
    return (table(("command", "end", *(f"{picture.short(length)}B, us" for length in lengths), "words too late"), cells)
            + "\n" + table(("command", "end", "doorbell in memory", "512 B, p50 us", "p99 us"), lone))


def exchange_words(rows):
    """What a round is, which the trials have had in two ways."""
    if "pause_ns" in rows[0]:
        return (f"Before each the host pauses, for up to {rows[0]['pause_ns']} ns. The time is that until all data are "
                "loaded, which\ntags in packets load while others come.\n")
    return ("The host is done before the GPU's next look but one, so a round is two loads and what the GPU does besides: "
            "what the\nhost does meanwhile does not show. All data are loaded within the time, and tags in packets load "
            "them while others come.\n")


def order_part(rows):
    cells = [(row["stores"], row["packet"], f"{row['overtaken']} of {row['rounds']}",
              f"{row['torn']} of {row['packets']}") for row in rows]
    return table(("4 KiB stored without a fence", "packet, B", "rounds with a later packet first", "packets torn"), cells)


def load_part(rows):
    cells = [(f"{row['copiers']} x {picture.short(row['bytes'])}B", row["to"], row["pollers"],
              f"{row['gb_per_s']:.1f}", f"{row['looks_per_s'] / 1e6:.1f}") for row in rows]
    return table(("warps that copy", "to the", "that poll", "GB/s", "M looks/s"), cells)


def doorbell_part(found):
    cells = [(row["memory"], "yes" if row["watched"] else "no", row["line"], row["cores"], f"{row['ns_a_store']:.1f}",
              row["settled"]["p50_ns"], row["settled"]["p99_ns"]) for row in found["doorbells"]]
    ends = "; ".join(f"{row['wait']}, after {row['p50_ns'] / 1e3:.1f} us (p99 {row['p99_ns'] / 1e3:.1f})"
                     for row in found["wakes"])
    return (table(("memory", "polled", "line", "cores", "ns a store", "then a full fence, ns", "p99"), cells) +
            f"\nThe host learns that a kernel has ended: {ends}, counted from its last store.\n")


def code_part(rows):
    cells = [(NAMES[row["interface"] + (", packets" if row["packet"] else "")], row["burst"], row["bytes"],
              f"{row['p50_ns'] / 1e3:.2f}") for row in rows]
    return table(("interface", "commands", "bytes", "us a turn"), cells)


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
        "gpu-exchange.svg": picture.chart("A command there, its data and their end back", "bytes", "p50, us", parts),
        "gpu-length.svg": lines(lambda row: row["depth"] == 1, "bytes", "p50_us", "Random reads, one at a time",
                                "bytes", "p50, us", rows),
        "gpu-depth.svg": lines(lambda row: row["bytes"] == 4096, "depth", "iops", "Random reads of 4 KiB", "in flight",
                               "thousand IOPS", rows, 1e3),
    }


def text(found):
    """The page."""
    on, blocks = found["machine"], sum(found["verified"].values())
    generation, lanes = on["link"]
    return f"""# A GPU as the endpoint, measured

Generated by `tools/gpu page` from `gpu/results/h100.json`: {on["gpu"].split(",")[0]}, driver {on["gpu"].split(",")[1].strip()}, on
PCIe Gen{generation} x{lanes}; {on["processors"]} cores of a virtual machine ({on["processor"]}, Linux {on["kernel"]}), otherwise
idle, driver and endpoint on cores of their own. Before, the suite: {found["suite"]};
and {blocks} blocks were written and verified, with resets.
[The page of the endpoint](gpu.md) says what it is.

## The link

{link_part(found["link"])}
## A command and its end, one cause at a time

No interface of this program: the host stores 64 B and waits for the data, the GPU polls, fills and ends. *doorbell*: it
polls a word, then a fence and a load of the entry; *acquired*: the word is loaded with acquire, without the fence;
*entry*: it polls the entry itself. All words are checked. With a tag, the last words are stored apart.

{exchange_words(found["trials"]["exchanges"])}
![A command there, its data and their end back](pictures/gpu-exchange.svg)

{exchange_part(found["trials"]["exchanges"])}
## Whether stores land in order

The host looks at the last packet first, so a count is of what was caught, not of all. One page, again and again.

{order_part(found["trials"]["order"])}
## What polling takes from a copy

Why few pollers look so seldom is not known.

{load_part(found["trials"]["bandwidth"])}
## Doorbells and interrupts

Stores one after the other, to memory that is cached or combines writes (each driven out by `sfence`), while the GPU
polls it or not; then a store with a full fence, timer included. Registers of the GPU itself are out of a processor's
reach here: this driver maps none of its memory.

{doorbell_part(found["trials"])}
## The controller's own code

A turn of the controller with all memory on the GPU, after turns without work. The prediction takes off it two loads
there, one for each command, and the fence where there is one:

{code_part(found["trials"]["code"])}
## The interfaces, reads that arrive at random

{measure.RATE} reads a second with Poisson arrivals, 16 MiB: a host that submits as soon as a read has ended meets the
device always at one point of its round of polls, and its median says where that is rather than how long a read takes.
One run of each, in this order. The prediction leaves out the looks at registers between, and the code of turns without
work.

{arriving_part(arriving(found["rows"]))}
## The interfaces, so many reads in flight

![Random reads, one at a time](pictures/gpu-length.svg)

![Random reads of 4 KiB](pictures/gpu-depth.svg)

{interface_part([row for row in hot(found["rows"]) if "predicted" in row])}
## Writes, and reads of more than the GPU's cache

{other_part(found["rows"])}"""


def everything(check):
    """Writes the page and its pictures, or compares them with what would be written."""
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
