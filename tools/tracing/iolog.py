"""A recording as a fio iolog, version 3, and what it holds in numbers.

The format as fio 3.33 reads it (HOWTO, "Trace file format v3", and by replaying): times are whole
microseconds since the start; a file is added and opened before it is used; sync and datasync
carry "0 0"; and the wait before a line is lost where the line before it has time 0, so the first
action is given time 1.
"""

import json
import re
import subprocess
import tempfile
import unittest
from collections import Counter
from dataclasses import dataclass, field

from tracing.calls import Action, File, Recording, Refusal

SECTOR = 512  # bytes; transfers are rounded outward to whole sectors

WAL_NAME = re.compile(r"pg_wal/([0-9A-F]{8})([0-9A-F]{8})([0-9A-F]{8})$")
TEMPORARY = re.compile(r"pg_wal/xlogtemp\.\d+$|\.tmp$|pg_internal\.init\.\d+$")
RELATION = re.compile(r"(.*/\d+)((?:_fsm|_vm|_init)?(?:\.\d+)?)$")


def short_name(file, names):
    """The file's name in the trace: flat, so that a replay needs no directories."""
    path = next((path for path in file.paths if not TEMPORARY.search(path)), file.paths[0])
    if wal := WAL_NAME.match(path):
        return "pg_wal." + ".".join(f"{int(part, 16):X}" for part in wal.groups())
    relation = RELATION.match(path)
    if relation and relation[1] in names:
        return names[relation[1]] + relation[2]
    return re.sub(r"[^A-Za-z0-9_.-]", ".", path)


@dataclass
class Row:
    """What the README's table says of one file; `end` is one past its last byte used."""

    end: int = 0
    reads: int = 0
    writes: int = 0
    syncs: int = 0


@dataclass
class Summary:
    files: dict = field(default_factory=dict)  # name: Row
    counts: Counter = field(default_factory=Counter)  # verb: lines
    bytes: Counter = field(default_factory=Counter)  # verb: bytes
    lengths: Counter = field(default_factory=Counter)  # (verb, bytes): lines
    rounded: Counter = field(default_factory=Counter)  # verb: lines
    span_us: int = 0
    same_ms: int = 0
    same_us: int = 0
    cut: int = 0
    size: int = 0


def to_iolog(recording, names, max_bytes):
    """The iolog's text and its summary. Past `max_bytes` the rest of the run is left off.

    Files are not closed in the log: fio closes them at the end, whenever that is.
    """
    if not recording.actions:
        raise Refusal("the recording holds no read, write or sync of the data directory")
    summary = Summary()
    header = ["fio version 3 iolog"]
    body = []
    size = len(header[0]) + 1
    start_us = recording.actions[0].time_ns // 1000 - 1
    for index, action in enumerate(recording.actions):
        name = short_name(action.file, names)
        time_us = action.time_ns // 1000 - start_us
        first = action.offset // SECTOR * SECTOR
        end = -(-(action.offset + action.length) // SECTOR) * SECTOR
        line = f"{time_us} {name} {action.verb} {first} {end - first}"
        opening = [] if name in summary.files else [f"0 {name} add", f"0 {name} open"]
        size += sum(len(text) + 1 for text in [line, *opening])
        if size > max_bytes:
            summary.cut = len(recording.actions) - index
            break
        header += opening
        body.append(line)
        count(summary, action, name, first, end)
        summary.same_ms += index > 0 and time_us // 1000 == summary.span_us // 1000
        summary.same_us += index > 0 and time_us == summary.span_us
        summary.span_us = time_us
    text = "\n".join(header + body) + "\n"
    summary.size = len(text)
    return text, summary


def count(summary, action, name, first, end):
    row = summary.files.setdefault(name, Row())
    row.end = max(row.end, end)
    summary.counts[action.verb] += 1
    if action.verb in ("read", "write"):
        summary.bytes[action.verb] += end - first
        summary.lengths[action.verb, end - first] += 1
        summary.rounded[action.verb] += (first, end) != (
            action.offset, action.offset + action.length)
    row.reads += action.verb == "read"
    row.writes += action.verb == "write"
    row.syncs += action.verb in ("sync", "datasync")


def replay(iolog, summary, engine):
    """Replays the iolog with stock fio and compares what fio counted.

    fio fails a read past the end of a file, so the files are made first, as holes of the length
    that the trace needs. Returns how long fio took, in milliseconds of its own clock.
    """
    with tempfile.TemporaryDirectory() as directory:
        for name, row in summary.files.items():
            with open(f"{directory}/{name}", "wb") as file:
                file.truncate(row.end)
        done = subprocess.run(
            ["fio", "--name=replay", f"--read_iolog={iolog.resolve()}", f"--ioengine={engine}",
             "--output-format=json"],
            cwd=directory, capture_output=True, text=True, check=False)
    if done.returncode or done.stderr:
        raise Refusal(f"fio --ioengine={engine} refused {iolog}: {done.stderr or done.stdout}")
    job = json.loads(done.stdout)["jobs"][0]
    seen = {verb: (job[verb]["total_ios"], job[verb]["io_bytes"]) for verb in ("read", "write")}
    meant = {verb: (summary.counts[verb], summary.bytes[verb]) for verb in ("read", "write")}
    # fio's total_ios leaves datasyncs out; each sync of either kind is one latency sample.
    seen["sync"] = job["sync"]["lat_ns"]["N"]
    meant["sync"] = summary.counts["sync"] + summary.counts["datasync"]
    if seen != meant:
        raise Refusal(f"fio --ioengine={engine} replayed {seen}, {iolog} holds {meant}")
    return job["job_runtime"]


class Tests(unittest.TestCase):
    def recording(self, *actions):
        """Actions of (time in us, path, verb, offset, length)."""
        files = {}
        return Recording([
            Action(9 * 10**9 + time_us * 1000 + 999, files.setdefault(path, File([path])), *rest)
            for time_us, path, *rest in actions])

    def test_an_iolog_opens_its_files_then_lists_actions_from_time_one(self):
        text, _ = to_iolog(self.recording(
            (500, "base/5/16401", "read", 8192, 8192),
            (502, "pg_wal/00000001000000000000002A", "write", 0, 16384),
            (1700, "pg_wal/00000001000000000000002A", "datasync", 0, 0)),
            {"base/5/16401": "accounts"}, 10**6)
        self.assertEqual(text.splitlines(), [
            "fio version 3 iolog",
            "0 accounts add",
            "0 accounts open",
            "0 pg_wal.1.0.2A add",
            "0 pg_wal.1.0.2A open",
            "1 accounts read 8192 8192",
            "3 pg_wal.1.0.2A write 0 16384",
            "1201 pg_wal.1.0.2A datasync 0 0"])

    def test_a_transfer_is_rounded_outward_to_sectors_and_counted(self):
        text, summary = to_iolog(self.recording(
            (0, "f", "read", 511, 2), (0, "f", "write", 512, 512), (0, "f", "write", 1, 8191)),
            {}, 10**6)
        self.assertEqual(text.splitlines()[3:],
                         ["1 f read 0 1024", "1 f write 512 512", "1 f write 0 8192"])
        self.assertEqual(summary.rounded, {"read": 1, "write": 1})
        self.assertEqual(summary.files["f"], Row(end=8192, reads=1, writes=2, syncs=0))
        self.assertEqual((summary.same_us, summary.same_ms), (2, 2))

    def test_the_cut_is_at_the_end_of_the_run_and_within_the_limit(self):
        recording = self.recording(*((at, f"f{at % 3}", "read", 0, 512) for at in range(99)))
        whole, _ = to_iolog(recording, {}, 10**6)
        text, summary = to_iolog(recording, {}, 1000)
        self.assertLessEqual(len(text), 1000)
        self.assertGreater(len(text), 1000 - 20)
        self.assertEqual(len(text.splitlines()) - 7 + summary.cut, 99)
        self.assertTrue(whole.startswith(text))

    def test_names_are_flat_and_follow_relations_forks_and_segments(self):
        names = {"base/5/9": "accounts", "global/1": "global.pg_database"}
        for paths, name in (
                (["base/5/9"], "accounts"),
                (["base/5/9.1"], "accounts.1"),
                (["base/5/9_fsm"], "accounts_fsm"),
                (["base/5/99"], "base.5.99"),
                (["global/1_vm"], "global.pg_database_vm"),
                (["pg_xact/0000"], "pg_xact.0000"),
                (["global/pg_internal.init.77", "global/pg_internal.init"],
                 "global.pg_internal.init"),
                (["pg_wal/xlogtemp.7", "pg_wal/000000010000000100000003"], "pg_wal.1.1.3"),
                (["pg_wal/xlogtemp.7"], "pg_wal.xlogtemp.7")):
            self.assertEqual(short_name(File(paths), names), name)

    def test_an_empty_recording_is_refused(self):
        with self.assertRaises(Refusal):
            to_iolog(Recording(), {}, 10**6)
