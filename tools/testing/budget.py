"""Budgets, and the machine's speed that they are scaled by."""

import re
import subprocess
import sys
import time

# The loop of `loop_ms`, on two cores at once, where the budgets were measured: an EPYC, CPython 3.11.
REFERENCE_MS = 370

# A function: its names are local, those of a module take half as long again.
LOOP = """
import time

def loop():
    begin, state = time.perf_counter(), 0
    for step in range(4_000_000):
        state = (state * 31 + step) & 0xFFFF_FFFF
    return time.perf_counter() - begin

print(loop())
"""


def hundredths(minutes):
    """0.25, 1.5 or 2 minutes, in hundredths of a minute."""
    if not re.fullmatch(r"[0-9]+(\.[0-9]{1,2})?", minutes):
        raise ValueError(f"found {minutes!r}, expected minutes with at most two decimals")
    whole, _, part = minutes.partition(".")
    return int(whole) * 100 + int((part + "00")[:2])


def minutes(count):
    """Hundredths of a minute, as minutes."""
    return f"{count // 100}.{count % 100:02d}"


def since(begin):
    """Hundredths of a minute since a moment of `time.monotonic`."""
    return int((time.monotonic() - begin) / 0.6)


def scaled(budget, speed):
    """A budget on a machine of this speed, in hundredths of the reference's."""
    return (budget * 100 + speed // 2) // speed


def loop_ms():
    """Milliseconds of a fixed loop, run by two processes at once; None where that can't be measured."""
    try:
        words = [sys.executable or "python3", "-I", "-c", LOOP]
        loops = [subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) for _ in range(2)]
        taken = [float(loop.communicate()[0]) for loop in loops]
    except (OSError, ValueError):
        return None
    return max(1, round(sum(taken) * 500))


def speed(before, after):
    """The machine's speed by two measurements, in hundredths of the reference's; 100 where it is unknown."""
    if before is None or after is None:
        return 100
    return max(1, 2 * REFERENCE_MS * 100 // (before + after))


def verdict_line(name, verdict, took, budget, pace, worked=None, beside=False):
    """A line of the summary. `took`, `budget` and `worked`, the processor time on all cores, are hundredths of
    a minute; `pace` is the machine's speed.

    A part of the background shares its cores, so that its time says little of its budget.
    """
    allowed = scaled(budget, pace)
    line = (f"{name:<12} {verdict:<8} {minutes(took):>6} min of {minutes(budget):>5}, "
            f"{minutes(allowed):>5} at this speed")
    if worked is not None:
        line += f", {minutes(worked):>5} of CPU"
    if beside:
        return f"{line}  in the background"
    return f"{line}  warning: over its budget" if took > allowed else line
