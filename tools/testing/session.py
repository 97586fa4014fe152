"""Runs parts in two columns, and says what came of each.

The foreground runs its parts one after the other, and so does the background, a thread. Each part is a
child process with a log. A part without a verdict is a failed one: whatever goes wrong in here, the
session does not pass by it.
"""

import os
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from . import budget, output, processes

PASSED, PARTLY, SKIPPED, FAILED = "passed", "partly", "skipped", "FAILED"

# Exit statuses of a part that are neither success nor failure; tools/gpu and others share the latter.
PARTLY_STATUS, SKIPPED_STATUS = 76, 77

FOREGROUND, BACKGROUND, NAMED = "foreground", "background", "named"

# Lines of a background part's log that are printed where it did not fail.
LAST_LINES = 12

# Seconds between looks at a foreground part's log.
TURN = 0.1


@dataclass(frozen=True)
class Part:
    """A check: its budget in minutes, on two cores of the reference speed and alone on them."""

    name: str
    budget: str
    check: Callable = None
    column: str = FOREGROUND
    # Parts whose result this one uses, where they run in the same session.
    after: tuple = ()
    # Commands that it uses and that may be installed for it.
    tools: tuple = ()


@dataclass
class Result:
    """What came of a part; `took` is in hundredths of a minute."""

    verdict: str = FAILED
    took: int = 0
    # Processor time, in hundredths of a minute; None where it is not known.
    worked: int | None = None
    reasons: list = field(default_factory=list)


class Session:
    """One run of some parts. `command` gives the words that run a part, `folder` takes the logs."""

    def __init__(self, parts, command, folder, out, root):
        self.parts, self.command, self.out, self.root = list(parts), command, out, root
        self.folder = Path(folder)
        self.results = {}
        self.ended = {part.name: threading.Event() for part in self.parts}
        self.stopping = False
        self.beside = set()

    def run(self, columns):
        """Runs the parts, in two columns or one after the other; true where none failed."""
        self.folder.mkdir(parents=True, exist_ok=True)
        beside = [part for part in self.parts if columns and part.column == BACKGROUND]
        self.beside = {part.name for part in beside}
        thread = threading.Thread(target=self.column, args=(beside,), name="background")
        try:
            try:
                thread.start()
            except RuntimeError:
                # There is no second thread to be had: the same, one after the other.
                self.beside = set()
                self.column(beside)
            self.column([part for part in self.parts if part not in beside])
            if thread.ident:
                thread.join()
        except BaseException:
            self.stop(thread)
            raise
        for part in self.parts:
            self.results.setdefault(part.name, Result(reasons=["it was never run"]))
        return all(result.verdict != FAILED for result in self.results.values())

    def stop(self, thread):
        """Ends what runs."""
        self.stopping = True
        processes.end_all(thread.is_alive)

    def column(self, parts):
        """Runs parts one after the other."""
        try:
            for part in parts:
                if not self.stopping:
                    self.one(part)
        finally:
            for part in parts:
                self.ended[part.name].set()

    def one(self, part):
        """Runs a part and keeps its result, whatever happens."""
        beside, begin = part.name in self.beside, time.monotonic()
        log, result = self.folder / f"{part.name}.log", Result(reasons=["it did not end"])
        mark = ", in the background" if beside else ""
        self.out.say(f"== {part.name}, budget {part.budget} min{mark}")
        try:
            result = self.attempt(part, log, beside)
        except Exception:
            # A part that can't be run has failed, in either column.
            result = Result(reasons=["it could not be run"])
            self.out.say(traceback.format_exc().rstrip())
        finally:
            result.took = budget.since(begin)
            self.results[part.name] = result
            self.ended[part.name].set()
        if beside:
            self.show(part, log, result)
        said = "".join(f"; {reason}" for reason in result.reasons)
        took = budget.minutes(result.took)
        self.out.say(f"-- {part.name}: {result.verdict}, {took} min of {part.budget}{mark}{said}")

    def attempt(self, part, log, beside):
        """Runs a part when what it needs is there."""
        for name in part.after:
            if name in self.ended:
                self.ended[name].wait()
                if self.results.get(name, Result()).verdict == FAILED:
                    return Result(reasons=[f"needs {name}, which failed"])
        left_out = reasons_file(self.folder, part.name)
        log.write_bytes(b"")
        left_out.unlink(missing_ok=True)
        cpu_file(self.folder, part.name).unlink(missing_ok=True)
        process = processes.start(self.command(part), log, self.root)
        status = process.wait() if beside else self.follow(process, log)
        worked = read_cpu(self.folder, part.name)
        reasons = left_out.read_text(encoding="utf-8").splitlines() if left_out.exists() else []
        if status not in (0, PARTLY_STATUS, SKIPPED_STATUS):
            ended = f"exit status {status}" if status > 0 else f"killed by signal {-status}"
            return Result(worked=worked, reasons=reasons or [ended])
        verdict = {0: PASSED, PARTLY_STATUS: PARTLY, SKIPPED_STATUS: SKIPPED}[status]
        return Result(verdict, worked=worked, reasons=reasons)

    def follow(self, process, log):
        """Prints a log as it grows, until its process ends."""
        tail, status = output.Tail(log, self.out), None
        while status is None:
            time.sleep(TURN)
            status = process.poll()
            tail.copy(status is not None)
        return status

    def show(self, part, log, result):
        """Prints the log of a background part: all of it if the part failed."""
        try:
            data = log.read_bytes()
        except OSError:
            return
        lines = data.count(b"\n")
        whole = result.verdict == FAILED or lines <= LAST_LINES
        head = f"== {part.name}, from the background: " + ("" if whole else f"the last {LAST_LINES} of ")
        head += f"{lines} lines of {os.path.relpath(log, self.root)}\n"
        self.out.write(head.encode() + output.last_lines(data, lines + 1 if whole else LAST_LINES))

    def summary(self, pace):
        """Lines that give each part beside its budget, and why something was left out."""
        for part in self.parts:
            result = self.results[part.name]
            yield budget.verdict_line(part.name, result.verdict, result.took,
                                      budget.hundredths(part.budget), pace, result.worked,
                                      part.name in self.beside)
            yield from (f"{'':12} {reason}" for reason in result.reasons)

    def count(self):
        """How many parts there are of each verdict, as the last line."""
        found = [result.verdict for result in self.results.values()]
        passed, failed, partly, skipped = (found.count(one) for one in (PASSED, FAILED, PARTLY, SKIPPED))
        line = f"{passed} passed, {failed} failed"
        line += f", {partly} partly" if partly else ""
        return line + (f", {skipped} skipped" if skipped else "")


def reasons_file(folder, name):
    """Where a part writes what it left out, a line each."""
    return Path(folder) / f"{name}.left-out"


def cpu_file(folder, name):
    """Where a part writes its processor time, in hundredths of a minute."""
    return Path(folder) / f"{name}.cpu"


def write_cpu(folder, name):
    """Writes the processor time of this process and its children that have ended."""
    try:
        cpu_file(folder, name).write_text(f"{int(sum(os.times()[:4]) / 0.6)}\n", encoding="utf-8")
    except OSError:
        # It is told, never needed.
        pass


def read_cpu(folder, name):
    """What `write_cpu` wrote, or None."""
    try:
        return int(cpu_file(folder, name).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
