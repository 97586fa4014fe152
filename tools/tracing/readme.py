"""The page about a recorded trace. Every number on it comes from the recording."""

import textwrap
import unittest
from collections import Counter

from tracing.iolog import Row, Summary

PAGE = """\
# Traces

`pgbench.iolog` is the file I/O of a PostgreSQL server at work, recorded for this project. It and
this page are written by `tools/record-trace`; record again rather than edit.

Licence: MIT OR Apache-2.0, like the rest of the project. It holds times, names, offsets and
lengths, no data.

## What it holds

| | actions | bytes |
|---|---:|---:|
{actions}

{size:,} bytes of text; {seconds} s from the first action to the last; {files} files.
{cut}

Included are all regular files under the data directory: tables, indexes, catalogs as each backend
starts, the write-ahead log, commit status, the control file, and the small configuration files
the server reads there. Not included are programs, libraries, sockets and the server's messages.

{lengths}

## How to read it

The format is fio's iolog, version 3: `TIME FILE ACTION [OFFSET LENGTH]`, offsets and lengths in
bytes. Times are microseconds since the start, when the server asked, in the order in which
it asked: fio 3.33 takes a version 3 time as microseconds (a log with a step of 1,000,000 takes
it one second), and ignores the wait after a line of time 0, so the first action has time 1.
Whole milliseconds would lose the arrivals: {same_ms:,} of {total:,} actions share their
millisecond with the action before, {same_us:,} their microsecond.

- `sync` is fsync, `datasync` is fdatasync. A name ending in `.dir` is a directory, which the
  server syncs after it renames a file; it has no bytes, and a replay syncs an empty file.
- Names are flat, so that a replay needs no directories. The benchmark's tables and indexes go by
  their name, other databases' by `DATABASE.NAME`, shared ones by `global.NAME`; `_fsm`, `_vm` are
  their free-space and visibility maps; `pg_wal.T.L.S` is log segment S of log L, timeline T, in
  hexadecimal. A file keeps the name that it had first: a recycled log segment is overwritten
  in place, so it stays one file here.
- Offsets and lengths are as issued (a read's is what it returned), rounded outward to sectors
  of 512 bytes: {rounded_reads:,} reads and {rounded_writes:,} writes were rounded.
- Left out, having no word in an iolog or moving no byte:
  {left_out}.

fio fails a read past a file's end, so a replay onto files first makes them, as holes, in the
directory in which it runs (fio 3.33 crashes on an iolog when `directory=` is set):

```sh
awk 'NF == 5 {{ end = $4 + $5; if (end > ends[$2]) ends[$2] = end }}
     END {{ for (file in ends) print ends[file] + 0, file }}' TRACE | xargs -n 2 truncate -s
fio --name=replay --read_iolog=TRACE
```

The server asked the operating system's page cache, not a device: a device under that cache would
see fewer reads, and the writes later, at a sync or when the kernel writes back. A replay with
direct I/O is the server's own order and lengths without that cache.

## How it was recorded

```text
{command}
```

{machine}

{server}

The database was made and the server stopped first; it ran under strace from start to stop.
Checkpoints completed while recorded: {checkpoints}, the one at the stop included.

## What strace did to the times

strace stops a process at each recorded call, so the trace arrives later and more spread out than
the server would ask by itself. The same number of transactions, in transactions per second:

| before, untraced | under strace | after, untraced |
|---:|---:|---:|
| {tps_before} | {tps_traced} | {tps_after} |

The recorded run was {slowdown} times slower than the mean of the other two. Order, offsets and
lengths are the server's; gaps are the recording's. fio's `replay_time_scale={time_scale}` replays
at about the untraced rate; it shrinks all gaps alike, which only restores the mean.

## Checked

{checked}

## Files

`end` is one past the last byte that the trace touches.

| file | end | reads | writes | syncs |
|---|---:|---:|---:|---:|
{table}
"""

MACHINE = (
    "{postgres}; strace {strace}; {system}; {cpu}; the data directory on {filesystem}.")

SERVER = (
    "pgbench's TPC-B-like transactions, scale {scale}, {clients} clients with {transactions} each, "
    "random seed {seed}. `shared_buffers = {shared_buffers}`, `fsync = on`, `wal_sync_method = "
    "fdatasync`, `max_wal_size` and `min_wal_size` {max_wal_size}, no huge pages, all else as "
    "PostgreSQL ships it.")

CHECKED = (
    "{fio} replayed the whole file and counted the reads, writes, bytes and syncs (of both kinds) "
    "above: with its null engine in {null} ms, with its psync engine onto files in {psync} ms. Its "
    "text report calls the datasyncs short reads; the samples of its sync latency are the true "
    "count.")


def hundredths(numerator, denominator):
    """`numerator / denominator`, rounded to two decimals, from whole numbers."""
    value = (numerator * 200 + denominator) // (2 * denominator)
    return f"{value // 100}.{value % 100:02}"


def micros(tps):
    """A decimal number of pgbench's, in millionths."""
    whole, _, fraction = tps.partition(".")
    return int(whole) * 10**6 + int(f"{fraction:0<6}"[:6])


def listing(counter, say):
    ordered = sorted(counter.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(say(key, number) for key, number in ordered) or "nothing"


def actions_table(summary):
    verbs = (("read", "reads"), ("write", "writes"), ("datasync", "datasyncs"), ("sync", "syncs"))
    return "\n".join(
        f"| {plural} | {summary.counts[verb]:,} | {summary.bytes[verb]:,} |"
        for verb, plural in verbs)


def lengths_table(summary, most=8):
    ordered = sorted(summary.lengths.items(), key=lambda item: (-item[1], item[0]))
    lines = [f"| {verb} | {length:,} | {number:,} |" for (verb, length), number in ordered[:most]]
    rest = sum(number for _, number in ordered[most:])
    if rest:
        lines.append(f"| either | any other | {rest:,} |")
    return "\n".join(["| action | bytes each | actions |", "|---|---:|---:|", *lines])


def fill(template, values):
    return textwrap.fill(template.format(**values), 100, break_on_hyphens=False)


def page(facts, left_out, summary, replayed_ms):
    """The README's text. `facts` are record-trace's, `left_out` counts calls by name,
    `replayed_ms` is fio's time by engine."""
    untraced = micros(facts["tps_before"]) + micros(facts["tps_after"])
    traced = micros(facts["tps_traced"])
    whole = summary.cut == 0
    rates = {name: hundredths(micros(facts[name]), 10**6)
             for name in ("tps_before", "tps_traced", "tps_after")}
    return PAGE.format(
        **rates,
        checkpoints=facts["checkpoints"],
        actions=actions_table(summary),
        size=summary.size,
        seconds=hundredths(summary.span_us, 10**6),
        files=len(summary.files),
        cut="The run is whole: from a cold start of the server (its own cache empty) to its stop."
        if whole else "It begins with a cold start of the server (its own cache empty); the run's "
        f"last {summary.cut:,} actions were cut off to stay within the size.",
        lengths=lengths_table(summary),
        command=facts["command"].replace(" --", " \\\n    --"),
        machine=fill(MACHINE, facts),
        server=fill(SERVER, facts),
        checked=fill(CHECKED, {
            "fio": facts["fio"], "null": f"{replayed_ms['null']:,}",
            "psync": f"{replayed_ms['psync']:,}"}),
        same_ms=summary.same_ms,
        same_us=summary.same_us,
        total=sum(summary.counts.values()),
        rounded_reads=summary.rounded["read"],
        rounded_writes=summary.rounded["write"],
        left_out=listing(left_out, lambda name, number: f"{number:,} {name}"),
        slowdown=hundredths(untraced, 2 * traced),
        time_scale=(untraced * 100 + traced) // (2 * traced),
        table="\n".join(
            f"| {name} | {row.end:,} | {row.reads:,} | {row.writes:,} | {row.syncs:,} |"
            for name, row in sorted(summary.files.items())),
    )


class Tests(unittest.TestCase):
    FACTS = {name: name.upper() for name in (
        "command", "postgres", "strace", "fio", "system", "cpu", "filesystem", "scale",
        "clients", "transactions", "shared_buffers", "max_wal_size", "seed", "checkpoints")}

    def test_the_page_states_the_slowdown_and_the_counts(self):
        summary = Summary(
            files={"accounts": Row(8192, 2, 1, 1)},
            counts=Counter(read=2, write=1, datasync=1), bytes=Counter(read=16384, write=8192),
            lengths=Counter({("read", 8192): 2, ("write", 8192): 1}), span_us=2_345_678)
        facts = self.FACTS | {
            "tps_before": "300.5", "tps_traced": "100.000000", "tps_after": "299.5"}
        text = page(facts, Counter(lseek=3), summary, {"null": 17, "psync": 18})
        for expected in (
                "| reads | 2 | 16,384 |", "| datasyncs | 1 | 0 |", "2.35 s", "The run is whole:",
                "| read | 8,192 | 2 |\n| write | 8,192 | 1 |", "3.00 times slower",
                "| 300.50 | 100.00 | 299.50 |", "replay_time_scale=300", "3 lseek.",
                "| accounts | 8,192 | 2 | 1 | 1 |"):
            self.assertIn(expected, text)

    def test_a_cut_run_says_so(self):
        facts = self.FACTS | {"tps_before": "3", "tps_traced": "2", "tps_after": "1"}
        text = page(facts, Counter(), Summary(cut=1234), {"null": 1, "psync": 2})
        self.assertIn("last 1,234 actions were cut off", text)
        self.assertNotIn("whole:", text)

    def test_hundredths_round_to_nearest(self):
        self.assertEqual([hundredths(*pair) for pair in ((1, 3), (2, 3), (1005, 10), (1, 200))],
                         ["0.33", "0.67", "100.50", "0.01"])

    def test_a_rate_without_decimals_is_read(self):
        self.assertEqual((micros("12"), micros("12.5"), micros("0.0000019")),
                         (12_000_000, 12_500_000, 1))
