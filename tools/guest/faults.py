"""What Linux's driver reports of faults that are injected into our drive, and when: the table of docs/faults.md.

In one guest fio works with verification on a drive. For each row, a fault is injected over the server's control
socket while it works. What the kernel logged after that, what fio ended with, and its longest operation are the row.
Times are the guest's own, and count from the injection.
"""

import base64
import errno
import gzip
import json
import os
import re
import shutil
import socket
import tempfile
import time
import types
import unittest
from dataclasses import dataclass, field
from pathlib import Path

from .problem import Problem
from .programs import ROOT
from .shell import Drives

PAGE = ROOT / "docs/faults.md"
BEGIN, END = "<!-- table of Linux -->\n", "<!-- end of table of Linux -->\n"
# Linux's own time-out for I/O, and what the short form has in its place, milliseconds.
IO_TIMEOUT, IO_TIMEOUT_SHORT = 30_000, 2_000
# Of the work, seconds, if no operation hangs.
RUNTIME, RUNTIME_SHORT = 8, 5
# How long injections are waited for.
INJECTED_S = 10
NAME = "row"

# Each has a server of its own: its plan, keys, and the slot of its function.
DRIVES = {
    "memory": ("live", ["medium.capacity=64MiB"], 0x10),
    "protected": ("live", ["medium.capacity=64MiB", "device.protection=1"], 0x11),
    "flash": ("small-flash", ["medium.keep=everything"], 0x12),
}


@dataclass(frozen=True)
class Row:
    """A fault, and what it must lead to: texts in the kernel's log, and what becomes of fio."""

    name: str
    fault: str
    fio: str = "verified"
    logs: tuple = field(default=())
    drive: str = "memory"
    short: bool = False
    options: str = ""


# In this order: a drive that has lost its link is gone.
ROWS = (
    Row("a write takes 2 s longer", 'what = "delay", span = "2 s", command = "write"'),
    Row("two completions overtake one", 'what = "reorder", behind = 2, span = "1 s"'),
    Row("duplicate interrupt", 'what = "duplicate-interrupt"'),
    Row("lost interrupt, one command at a time", 'what = "lost-interrupt"', logs=("timeout, completion polled",),
        options="--iodepth=1"),
    Row("command lost", 'what = "drop"', logs=("timeout, aborting", "timeout, reset controller")),
    Row("command hangs", 'what = "hang"', logs=("timeout, aborting",)),
    Row("status Write Fault, do not retry", 'what = "status", status = "Write Fault", command = "write", dnr = true',
        "ENODATA at a write", ("critical medium error",)),
    Row("status Write Fault", 'what = "status", status = "Write Fault", command = "write"'),
    Row("status Unrecovered Read Error, do not retry",
        'what = "status", status = "Unrecovered Read Error", command = "read", dnr = true',
        "ENODATA at a read", ("critical medium error",), short=True),
    Row("completion time-out of 50 us", 'what = "completion-timeout", span = "50 us"'),
    Row("poisoned TLP", 'what = "poisoned-tlp"', short=True),
    Row("link retrains for 3 ms", 'what = "link-retrain", span = "3 ms"'),
    Row("bit flips on the way to the host", 'what = "corrupt-data", command = "read"', "corrupt"),
    Row("bit rot", 'what = "corrupt-medium", command = "read"', "corrupt"),
    Row("bit rot, with protection information", 'what = "corrupt-medium", command = "read"', "EILSEQ at a read",
        ("protection error",), drive="protected"),
    Row("bit flips on the way to the host, with protection information", 'what = "corrupt-data", command = "read"',
        "EILSEQ at a read", ("guard tag error",), drive="protected"),
    Row("bit of metadata flips", 'what = "corrupt-metadata", command = "read"', "EILSEQ at a read",
        ("(guard|ref|app) tag error|protection error",), drive="protected"),
    Row("medium stuck for 5 s", 'what = "stuck-medium", span = "5 s"'),
    Row("medium stuck for 40 s", 'what = "stuck-medium", span = "40 s"', logs=("timeout, aborting",)),
    Row("die stuck for 5 s", 'what = "stuck-die", die = 0, span = "5 s"', drive="flash"),
    Row("die at a hundredth of its speed for 2 s", 'what = "slow-die", die = 0, percent = 10000, span = "2 s"',
        drive="flash"),
    Row("die unreadable for 1 s", 'what = "unreadable-die", die = 0, span = "1 s"', "ENODATA at a read",
        ("critical medium error",), drive="flash"),
    Row("flushes are ignored", 'what = "ignore-flush"', options="--fdatasync=16"),
    Row("controller fails", 'what = "fatal"', logs=("controller is down; will reset: CSTS=0x3",)),
    Row("link down", 'what = "link-down"', "EIO at a (read|write)",
        ("controller is down; will reset: CSTS=0xffffffff", "Disabling device after reset failure"), short=True),
)


@dataclass
class Seen:
    """What was seen of one row. Times are the guest's, in seconds; `behind`: how far its clock is behind ours."""

    injected_at: float = 0.0
    behind: float = 0.0
    times: int = 0
    log: list = field(default_factory=list)
    status: str = ""
    state: str = ""
    fio: dict = field(default_factory=dict)
    messages: list = field(default_factory=list)


def stamp(line):
    """The time and the text of a line of the kernel's log."""
    found = re.fullmatch(r"\[\s*(\d+\.\d+)\] (.*)", line)
    if not found:
        raise Problem(f"a line of the kernel's log: found {line!r}, expected [SECONDS] TEXT")
    return float(found.group(1)), found.group(2)


def general(text):
    """A line of the log without what differs from one command to the next."""
    text = re.sub(r"^(nvme nvme\d+: |nvme\d+n\d+: |nvme \S+: )", "", text)
    for pattern, to in ((r"\bnvme\d+n\d+\b", "the disk"), (r"\bnvme\d+\b", "the controller"),
                        (r"tag \d+ \(\w+\)", "tag T"),
                        (r"LBA \d+", "LBA N"), (r"sector \d+", "sector N"), (r"QID \d+", "QID Q"),
                        (r" phys_seg \d+ prio class \d+", ""), (r"\d+ blocks", "B blocks"),
                        (r"logical block \d+", "logical block N")):
        text = re.sub(pattern, to, text)
    return text.rstrip()


def condensed(log, injected_at):
    """The log as the table has it: each general line once, with its first time after the injection and its count."""
    first, counts = {}, {}
    for at, text in log:
        text = general(text)
        first.setdefault(text, at - injected_at)
        counts[text] = counts.get(text, 0) + 1
    return [f"{max(0.0, at):.1f} s: {text}" + (f" ({counts[text]} times)" if counts[text] > 1 else "")
            for text, at in first.items()]


def parse_fio(printed):
    """fio's messages, and its result: what is before the JSON object and the object itself."""
    lines = printed.splitlines()
    begin = next((number for number, line in enumerate(lines) if line == "{"), len(lines))
    end = next((number for number in range(len(lines) - 1, begin, -1) if lines[number] == "}"), begin)
    messages = [line for line in lines[:begin] + lines[end + 1:] if line.strip()]
    try:
        return messages, json.loads("\n".join(lines[begin:end + 1]))
    except ValueError as error:
        raise Problem(f"fio's result is no JSON ({error}): {printed[:300]!r}") from error


def ended(seen):
    """What became of fio, in a word, and its first message about it."""
    text = "\n".join(seen.messages)
    if seen.status == "0":
        return "verified"
    if re.search(r"^verify: |crc32c: verify failed|bad (magic )?header", text, re.MULTILINE):
        return "corrupt"
    if found := re.search(r"io_u error on file \S+: (.*?): (read|write)", text):
        names = [name for number, name in errno.errorcode.items() if os.strerror(number) == found.group(1)]
        return f"{names[0] if names else found.group(1)} at a {found.group(2)}"
    return f"status {seen.status}"


def longest(seen):
    """fio's longest operation, in seconds."""
    job = seen.fio["jobs"][0]
    return max(job[kind]["clat_ns"]["max"] for kind in ("read", "write")) / 1e9


def cells(row, seen):
    """The row of the table."""
    log = "<br>".join(f"`{line}`" for line in condensed(seen.log, seen.injected_at)) or "nothing"
    fio = {"verified": "all verified", "corrupt": "finds corrupt data"}.get(ended(seen), ended(seen))
    return f"| {row.name} | {seen.times} | {log} | {fio} | {longest(seen):.3f} s | {seen.state} |"


class Recorder:
    """Hears the guest, injects when it is ready, and keeps what it says."""

    def __init__(self, drives, rows, say):
        self.drives, self.rows, self.say = drives, rows, say
        self.seen = [Seen() for _ in rows]

    def inject(self, number):
        """Injects a row's fault, and waits until it was: when that was by this machine's clock."""
        row = self.rows[number]
        drive = self.drives[row.drive]
        drive.request("faults.clear")
        once = "" if "ignore-flush" in row.fault else ", times = 1"
        drive.request("faults.inject", fault=f'{{ name = "{NAME}", {row.fault}{once} }}')
        deadline = time.monotonic() + INJECTED_S
        while drive.injections() == 0 and time.monotonic() < deadline:
            time.sleep(0.01)
        return time.monotonic()

    def hear(self, line):
        """One line of the guest."""
        if not (found := re.fullmatch(r"# fault (\d+) (\w+) ?(.*)", line)):
            self.say(line)
            return
        number, what, rest = int(found.group(1)), found.group(2), found.group(3)
        seen = self.seen[number]
        if what == "ready":
            seen.behind = time.monotonic() - stamp(rest)[0]
            seen.injected_at = self.inject(number)
        elif what == "log":
            seen.log.append(stamp(rest))
        elif what == "fio":
            seen.messages, seen.fio = parse_fio(gzip.decompress(base64.b64decode(rest)).decode())
        elif what in ("status", "state"):
            setattr(seen, what, rest)
        if what == "state":
            seen.times = self.drives[self.rows[number].drive].injections()
            self.say(f"# {self.rows[number].name}: {seen.times} times, fio {ended(seen)}, {len(seen.log)} lines logged")

    def clocks(self):
        """Turns the times of injections into the guest's: a line from there is under way for the shortest time seen."""
        behind = min((seen.behind for seen in self.seen if seen.fio), default=0.0)
        for seen in self.seen:
            seen.injected_at -= behind


class Drive:
    """A server with a drive, several or tenants of one, each in a slot; requests are of the last."""

    def __init__(self, bench, folder, name, made_of, number=1, clients=()):
        plan, keys, self.slot = made_of
        # Not in the folder: a Unix socket's path has at most 107 bytes.
        self.place = Path(tempfile.mkdtemp(prefix="doorbell-"))
        options = types.SimpleNamespace(plan=plan, set=keys, client=list(clients), drives=number, control=None)
        try:
            self.server = Drives(bench.doorbell, self.place, folder / f"{name}.log", options)
        except BaseException:
            shutil.rmtree(self.place, ignore_errors=True)
            raise
        self.name = name

    def request(self, method, **parameters):
        """The result of a request."""
        asked = {"jsonrpc": "2.0", "id": 1, "method": method,
                 "params": {"drive": str(self.server.sockets[-1]), **parameters}}
        with socket.socket(socket.AF_UNIX) as control:
            control.settimeout(60)
            control.connect(str(self.server.control))
            control.sendall(json.dumps(asked).encode() + b"\n")
            with control.makefile("rb") as replies:
                reply = json.loads(replies.readline())
        if "result" not in reply:
            raise Problem(f"{method} of drive {self.name}: {reply}")
        return reply["result"]

    def injections(self):
        """How often the fault of the row was injected."""
        listed = self.request("faults.list")["drives"][0]["faults"]
        return next((fault["injected"] for fault in listed if fault["name"] == NAME), 0)

    def devices(self):
        """QEMU's arguments, from its slot on."""
        words = self.server.devices()
        for number, device in enumerate(words[1::2]):
            place = {"id": f"{self.name}{number}", "addr": f"{self.slot + number:x}"}
            words[2 * number + 1] = json.dumps({**json.loads(device), **place})
        return words

    def end(self):
        """Ends the server, and removes its sockets."""
        self.server.end()
        shutil.rmtree(self.place, ignore_errors=True)


def rows_file(rows):
    """The rows as the guest reads them."""
    return "".join(f"{number} 0000:00:{DRIVES[row.drive][2]:02x}.0 {row.options}\n"
                   for number, row in enumerate(rows)).encode()


def judge(bench, row, seen):
    """Checks of one row."""
    if not seen.fio:
        bench.check(f"fault: {row.name}", False, "the guest said nothing of it")
        return
    log = "\n".join(condensed(seen.log, seen.injected_at))
    bench.check(f"fault: {row.name}: it was injected", seen.times > 0, "never")
    missing = [text for text in row.logs if not re.search(text, log)]
    unexpected = log if not row.logs else ""
    expected = ", ".join(row.logs) or "nothing"
    bench.check(f"fault: {row.name}: Linux logs {expected}", not missing and not unexpected, log or "nothing")
    bench.check(f"fault: {row.name}: fio: {row.fio}", re.fullmatch(row.fio, ended(seen)),
                f"{ended(seen)}: {seen.messages[:2]}")


def kernel_of(said):
    """The kernel's version, of the guest's first note."""
    notes = [note.split()[1].rstrip(",") for note in said.notes if note.startswith("Linux ")]
    if not notes:
        raise Problem("the guest did not name its kernel")
    return notes[0]


def table(rows, seen, kernel, io_timeout):
    """The generated part of the page."""
    lines = [f"Recorded with Linux {kernel}, `io_timeout` {io_timeout // 1000} s:", "",
             "| injected | times | Linux logs, and when after the injection | fio | longest operation | controller |",
             "|---|---|---|---|---|---|", *(cells(row, one) for row, one in zip(rows, seen, strict=True))]
    return "\n".join(lines) + "\n"


def placed(page, text):
    """The page with this between the marks."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise Problem(f"{PAGE}: expected the marks {BEGIN.strip()} and {END.strip()}")
    return before + begin + text + end + after


def faults(bench):
    """The rows, in one guest."""
    begun = time.monotonic()
    rows = [row for row in ROWS if row.short or not bench.short]
    io_timeout, runtime = (IO_TIMEOUT_SHORT, RUNTIME_SHORT) if bench.short else (IO_TIMEOUT, RUNTIME)
    folder = bench.folder("faults")
    drives = {}
    recorder = Recorder(drives, rows, bench.say)
    try:
        for name in dict.fromkeys(row.drive for row in rows):
            drives[name] = Drive(bench, folder, name, DRIVES[name])
        facts = f"IO_TIMEOUT={io_timeout}\nRUNTIME={runtime}\n".encode()
        guest = bench.guest("faults", "faults", {"facts": facts, "rows": rows_file(rows)},
                            devices=[word for drive in drives.values() for word in drive.devices()])
        try:
            guest.follow(120 + len(rows) * (runtime + 4 * io_timeout // 1000), recorder.hear)
        finally:
            guest.kill()
    finally:
        for drive in drives.values():
            drive.end()
    recorder.clocks()
    bench.count("faults", guest, begun)
    for row, seen in zip(rows, recorder.seen, strict=True):
        judge(bench, row, seen)
    if bench.bless:
        if bench.short or not all(seen.fio for seen in recorder.seen):
            raise Problem("the table is taken of a whole run in which every row was seen")
        text = table(rows, recorder.seen, kernel_of(guest.said), io_timeout)
        PAGE.write_text(placed(PAGE.read_text(encoding="utf-8"), text), encoding="utf-8")
        bench.say(f"the table in {PAGE.relative_to(ROOT)} is new")


# Of runs. fio's JSON without what is not read.
SAMPLE_LOG = """[   29.148140] nvme1n1: I/O Cmd(0x2) @ LBA 3000, 8 blocks, I/O Error (sct 0x2 / sc 0x82) MORE DNR 
[   29.149498] protection error, dev nvme1n1, sector 3000 op 0x0:(READ) flags 0x810000 phys_seg 1 prio class 2
[   29.151000] protection error, dev nvme1n1, sector 4008 op 0x0:(READ) flags 0x810000 phys_seg 1 prio class 2"""
SAMPLE_FIO = """fio: io_u error on file /dev/nvme1n1: Input/output error: read offset=1536000, buflen=4096
{
  "jobs" : [{ "read" : { "clat_ns" : { "max" : 5 } }, "write" : { "clat_ns" : { "max" : 2000000000 } } }]
}
"""
SAMPLE_CORRUPT = """crc32c: verify failed at file /dev/nvme0n1 offset 73728, length 4096
fio: pid=0, err=84/file:io_u.c:2328, func=io_u_sync_complete, error=Invalid or incomplete multibyte or wide character
"""


class Tests(unittest.TestCase):
    """What is made of what the guest says."""

    def seen(self, log="", fio=SAMPLE_FIO, status="1"):
        messages, result = parse_fio(fio)
        return Seen(injected_at=28.5, times=1, log=[stamp(line) for line in log.splitlines()], status=status,
                    state="live", fio=result, messages=messages)

    def test_lines_that_differ_in_numbers_are_one_with_its_first_time(self):
        self.assertEqual(condensed(self.seen(SAMPLE_LOG).log, 28.5), [
            "0.6 s: I/O Cmd(0x2) @ LBA N, B blocks, I/O Error (sct 0x2 / sc 0x82) MORE DNR",
            "0.6 s: protection error, dev the disk, sector N op 0x0:(READ) flags 0x810000 (2 times)"])

    def test_a_line_without_a_time_is_refused(self):
        with self.assertRaisesRegex(Problem, "SECONDS"):
            stamp("nvme0: noise")

    def test_what_became_of_fio(self):
        self.assertEqual(ended(self.seen()), "EIO at a read")
        self.assertEqual(ended(self.seen(status="0")), "verified")
        self.assertEqual(ended(self.seen(fio=SAMPLE_CORRUPT + SAMPLE_FIO.partition("\n")[2])), "corrupt")
        self.assertEqual(ended(self.seen(fio="{\n}\n", status="7")), "status 7")
        self.assertEqual(longest(self.seen()), 2.0)
        for cut in ("", "{\n", SAMPLE_FIO[:150]):
            with self.assertRaisesRegex(Problem, "JSON"):
                parse_fio(cut)

    def test_a_row_is_what_its_run_says(self):
        row = Row("bit rot", "", "EIO at a read", ("protection error",))
        found = cells(row, self.seen(SAMPLE_LOG.splitlines()[1]))
        self.assertEqual(found, "| bit rot | 1 | `0.6 s: protection error, dev the disk, sector N op 0x0:(READ) flags "
                         "0x810000` | EIO at a read | 2.000 s | live |")

    def test_a_row_is_judged_by_injection_log_and_fio(self):
        for row, seen, failures in (
                (Row("a", "", "EIO at a read", ("protection",)), self.seen(SAMPLE_LOG), 0),
                (Row("a", "", "EIO at a read", ("polled",)), self.seen(SAMPLE_LOG), 1),
                (Row("a", "", "EIO at a read"), self.seen(SAMPLE_LOG), 1),
                (Row("a", "", "verified"), self.seen(), 1),
                (Row("a", "", "EIO at a read"), self.seen(), 0),
                (Row("a", ""), Seen(), 1)):
            verdicts = []
            judge(types.SimpleNamespace(check=lambda name, good, why, to=verdicts: to.append(bool(good))), row, seen)
            self.assertEqual(verdicts.count(False), failures, (row, verdicts))
        seen = self.seen()
        seen.times = 0
        verdicts = []
        judge(types.SimpleNamespace(check=lambda name, good, why: verdicts.append(bool(good))),
              Row("a", "", "EIO at a read"), seen)
        self.assertEqual(verdicts.count(False), 1)

    def test_the_table_goes_between_the_marks(self):
        self.assertEqual(placed(f"a\n{BEGIN}old\n{END}b\n", "new\n"), f"a\n{BEGIN}new\n{END}b\n")
        with self.assertRaisesRegex(Problem, "marks"):
            placed("a\n", "new\n")

    def test_injections_count_by_the_clock_of_the_guest(self):
        recorder = Recorder({}, ROWS[:2], None)
        for seen, injected, behind in zip(recorder.seen, (110.0, 120.0), (100.5, 100.0), strict=True):
            seen.fio, seen.injected_at, seen.behind = {"jobs": []}, injected, behind
        recorder.clocks()
        self.assertEqual([seen.injected_at for seen in recorder.seen], [10.0, 20.0])

    def test_names_are_one_of_a_kind_and_the_page_has_the_rows(self):
        names = [row.name for row in ROWS]
        self.assertEqual(len(names), len(set(names)))
        page = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
        self.assertEqual([line.split(" | ")[0][2:] for line in page.splitlines()[4:]], names)
