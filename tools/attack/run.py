"""The command line, the processes that cases run in, and the table."""

import argparse
import json
import os
import pathlib
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback

import building

from . import selftest
from .cases import CASES, Row
from .server import die_with_parent

ROOT = pathlib.Path(__file__).resolve().parents[2]
# No case takes so long by itself.
LONGEST_S = {True: 900, False: 3600}


def arguments():
    parser = argparse.ArgumentParser(prog="tools/attacks", description=__doc__.splitlines()[0])
    parser.add_argument("--list", action="store_true", help="the cases, and what each does")
    parser.add_argument("--only", action="append", metavar="PART", help="cases whose name has this in it")
    parser.add_argument("--seed", type=int, default=1, help="of all that is random: 1")
    parser.add_argument("--short", action="store_true", help="few of everything (without --long it is so)")
    parser.add_argument("--long", action="store_true", help="many of everything")
    parser.add_argument("--json", metavar="FILE", help="the table as JSON")
    parser.add_argument("--doorbell", metavar="PATH", help="the program: target/debug/doorbell, built first")
    parser.add_argument("--library", metavar="PATH", help="target/debug/libfnvme.so, built first")
    parser.add_argument("--jobs", type=int, default=4, help="cases at a time: 4, as many of them wait")
    parser.add_argument("--keep", action="store_true", help="keep the folders of cases that fail")
    parser.add_argument("--self-test", action="store_true", help="the checker sees what is wrong on purpose")
    return parser.parse_args()


def programs(asked):
    """The program and the library, built unless they were named."""
    if asked.doorbell is None or asked.library is None:
        wanted = ["-p", "doorbell"] if asked.doorbell is None else []
        wanted += ["-p", "doorbell-fnvme"] if asked.library is None else []
        building.build(*wanted)
    return (os.path.abspath(asked.doorbell or building.folder() / "doorbell"),
            os.path.abspath(asked.library or building.folder() / "libfnvme.so"))


class Running:
    """A case in a process of its own, with all that it starts in one process group."""

    def __init__(self, one, program, library, folder, asked):
        self.case, self.folder, self.begin = one, folder, time.monotonic()
        os.makedirs(folder)
        reader, writer = os.pipe()
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            os.setpgid(0, 0)
            die_with_parent()
            os.close(reader)
            status = 1
            try:
                row = one.run(program, library, folder, asked.seed, not asked.long)
                with os.fdopen(writer, "w") as pipe:
                    json.dump(row.__dict__, pipe)
                status = 0
            except BaseException:
                with open(os.path.join(folder, "traceback"), "w", encoding="utf-8") as file:
                    traceback.print_exc(file=file)
                traceback.print_exc()
            finally:
                os._exit(status)
        os.close(writer)
        os.set_blocking(reader, False)
        self.pipe, self.text = reader, b""

    def read(self):
        """Whether it has ended."""
        try:
            some = os.read(self.pipe, 1 << 20)
        except BlockingIOError:
            return False
        self.text += some
        return not some

    def end(self, why=None):
        """Its row; all that it has left running is killed."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        os.waitpid(self.pid, 0)
        os.close(self.pipe)
        row = Row(self.case.name, self.case.what)
        row.seconds = time.monotonic() - self.begin
        try:
            row.__dict__.update(json.loads(self.text))
        except ValueError:
            column = "hung" if why else "wrong"
            setattr(row, column, 1)
            row.failures.append(f"{column}: {why or 'the case itself has failed; its traceback is above'}")
        return row


def unmount(folder):
    """What a case that was killed may have left mounted."""
    with open("/proc/mounts", encoding="utf-8") as mounts:
        for line in mounts:
            point = line.split()[1]
            if point.startswith(folder + "/"):
                subprocess.run(["umount", "-l", point], check=False)


def carry_out(chosen, program, library, top, asked):
    """Runs the cases, so many at a time; yields their rows as they end."""
    waiting, running = list(chosen), {}
    selector = selectors.DefaultSelector()
    longest = LONGEST_S[not asked.long]
    try:
        while waiting or running:
            while waiting and len(running) < asked.jobs:
                one = waiting.pop(0)
                # Short: the path of a Unix socket has 107 bytes at most.
                folder = os.path.join(top, str(len(chosen) - len(waiting)))
                job = Running(one, program, library, folder, asked)
                running[job.pipe] = job
                selector.register(job.pipe, selectors.EVENT_READ)
            ended = [key.fd for key, _ in selector.select(1.0) if running[key.fd].read()]
            late = [fd for fd, job in running.items() if time.monotonic() > job.begin + longest]
            for fd in {*ended, *late}:
                job = running.pop(fd)
                selector.unregister(fd)
                why = None if fd in ended else f"the case did not end within {longest} s"
                row = job.end(why)
                unmount(job.folder)
                if not (asked.keep and row.failed()):
                    shutil.rmtree(job.folder, ignore_errors=True)
                yield row
    finally:
        for job in running.values():
            job.end("interrupted")
            unmount(job.folder)


def repeat(row, asked):
    long = " --long" if asked.long else ""
    return f"tools/attacks --only {row.name} --seed {asked.seed}{long}"


def line(row):
    """What is printed when a case has ended."""
    verdict = "FAILED" if row.failed() else "left out" if row.left_out else "ok"
    words = [f"{name} {getattr(row, name)}" for name in Row.FAILURES if getattr(row, name)]
    return (f"{verdict:8} {row.name:32} {row.seconds:6.1f} s  {row.tried} tried, {row.checked} blocks checked"
            + (": " + ", ".join(words) if words else ""))


def table(rows):
    """The rows as text."""
    heads = f"{'tried':>6} {'blocks':>8} {'lost':>5} {'hung':>5} {'died':>5} {'wrong':>5}"
    lines = [f"{'what was tried':<82} {heads}"]
    for row in rows:
        counts = f"{row.tried:>6} {row.checked:>8} {row.lost:>5} {row.hung:>5} {row.died:>5} {row.wrong:>5}"
        lines.append(f"{row.what:<82} {counts}" + ("  left out" if row.left_out else ""))
    sums = [sum(getattr(row, name) for row in rows) for name in ("tried", "checked", *Row.FAILURES)]
    lines.append(f"{'all':<82} {sums[0]:>6} {sums[1]:>8} " + " ".join(f"{one:>5}" for one in sums[2:]))
    return "\n".join(lines)


def tell(rows, asked, seconds):
    """Prints the table, what has failed, and how to see it again."""
    print()
    print(table(rows))
    for row in rows:
        if row.left_out:
            print(f"left out: {row.name}: {row.left_out}")
    failed = [row for row in rows if row.failed()]
    for row in failed:
        print(f"\n{row.name}: {row.what}")
        for text in row.failures:
            print(f"  {text}")
        print(f"  again: {repeat(row, asked)}")
    print(f"\n{len(rows)} cases, {len(failed)} failed, seed {asked.seed}, {seconds:.0f} s")
    if asked.json:
        shown = [dict(row.__dict__, again=repeat(row, asked)) for row in rows]
        report = {"seed": asked.seed, "long": asked.long, "seconds": seconds, "cases": shown}
        with open(asked.json, "w", encoding="utf-8") as file:
            json.dump(report, file, indent=1)
    return not failed


def main():
    asked = arguments()
    if asked.self_test:
        selftest.run(line)
        return 0
    parts = asked.only or [""]
    # A whole name is that case alone.
    names = {one.name for one in CASES}
    chosen = [one for one in CASES
              if any(one.name == part if part in names else part in one.name for part in parts)]
    if not asked.only and not asked.long:
        chosen = [one for one in chosen if not one.long_only]
    if asked.list:
        for one in chosen:
            print(f"{one.name:<32} {one.what}")
        return 0
    if not chosen:
        print(f"tools/attacks: found --only {' '.join(asked.only)}, expected a part of a name of --list",
              file=sys.stderr)
        return 2
    # As by the interrupt key: what runs is ended, and what is mounted goes.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    selftest.run(line)
    program, library = programs(asked)
    begin, rows = time.monotonic(), []
    top = tempfile.mkdtemp(prefix="attacks-")
    try:
        for row in carry_out(chosen, program, library, top, asked):
            rows.append(row)
            print(f"{len(rows):>3}/{len(chosen)} {line(row)}", flush=True)
        order = {one.name: number for number, one in enumerate(chosen)}
        rows.sort(key=lambda row: order[row.name])
        return 0 if tell(rows, asked, time.monotonic() - begin) else 1
    finally:
        if asked.keep and any(row.failed() for row in rows):
            print(f"kept: {top}")
        else:
            shutil.rmtree(top, ignore_errors=True)
