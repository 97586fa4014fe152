"""What strace saw of a database server, as reads, writes and syncs of its files.

Input is one strace file per process (strace -ff -y -s 0, absolute times with nanoseconds), see
tools/record-trace. Descriptors are followed through open, dup and fork, positions through read,
write and lseek, and files through rename and link: a log segment that is recycled under a new
name is still the same place on the disk.
"""

import re
import tempfile
import unittest
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

# Offsets are named by the call (pread64, ...), or follow from the descriptor's position.
READS_AT = {"pread64": -1, "preadv": -1, "preadv2": -2}
WRITES_AT = {"pwrite64": -1, "pwritev": -1, "pwritev2": -2}
READS_HERE = {"read", "readv"}
WRITES_HERE = {"write", "writev"}
SYNCS = {"fsync": "sync", "fdatasync": "datasync"}
OPENS = {"open", "openat", "creat"}
COPIES_OF_DESCRIPTORS = {"dup", "dup2", "dup3", "fcntl"}
FORKS = {"clone", "clone3", "fork", "vfork"}
RENAMES = {"rename", "renameat", "renameat2"}
LINKS = {"link", "linkat"}
UNLINKS = {"unlink", "unlinkat"}
# Seen and counted; an iolog has no word for them and no data of theirs reaches the device by it.
LEFT_OUT = {"sync_file_range", "ftruncate", "truncate", "fallocate"}
# These would move data or make it durable in ways this tool does not convert: seeing one on the
# data directory stops it rather than leave a hole in the trace.
REFUSED = {"copy_file_range", "sendfile", "splice", "syncfs", "io_submit", "io_uring_enter"}

CALLS = sorted(
    set(READS_AT) | set(WRITES_AT) | READS_HERE | WRITES_HERE | set(SYNCS) | OPENS | FORKS
    | COPIES_OF_DESCRIPTORS | RENAMES | LINKS | UNLINKS | LEFT_OUT | REFUSED | {"close", "lseek"}
)

LINE = re.compile(r"(\d+)\.(\d{9}) (?:(\w+)\((.*)\)\s+= (-?\d+)(.*)|(.*))$")
DESCRIPTOR = re.compile(r"(\d+)<([^>]*)>(\(deleted\))?")
RETURNED_PATH = re.compile(r"<([^>]*)>(?:\(deleted\))?")
QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')


class Refusal(Exception):
    """The recording holds something this tool can't convert faithfully."""


@dataclass
class Call:
    """One finished system call. Times are nanoseconds since the epoch."""

    where: str
    time_ns: int
    pid: int
    name: str
    args: str
    result: int
    tail: str

    def refuse(self, why):
        raise Refusal(f"{self.where}: {self.name}({self.args}) = {self.result}: {why}")


@dataclass
class File:
    """One file on disk, whatever paths it has had, relative to the data directory."""

    paths: list


@dataclass
class Opened:
    """An open file description: what forks and dups share, its position in bytes included."""

    file: File
    position: int = 0


@dataclass
class Action:
    """One line of the iolog to be; offset and length in bytes as the server asked."""

    time_ns: int
    file: File
    verb: str
    offset: int = 0
    length: int = 0


@dataclass
class Recording:
    actions: list = field(default_factory=list)
    left_out: Counter = field(default_factory=Counter)


def parse_line(where, pid, line):
    """A finished call, or None for one that failed or never returned, a signal, an exit."""
    found = LINE.match(line)
    if not found:
        raise Refusal(f"{where}: expected 'SECONDS.NANOSECONDS CALL(...) = RESULT', got {line!r}")
    seconds, nanos, name, args, result, tail, _other = found.groups()
    if name is None or int(result) < 0:
        return None
    time_ns = int(seconds) * 10**9 + int(nanos)
    return Call(where, time_ns, pid, name, args, int(result), tail)


def read_calls(directory):
    """All calls of all processes in the order in which they were made."""
    calls = []
    for path in sorted(directory.iterdir()):
        pid = int(path.suffix[1:])
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                call = parse_line(f"{path.name}:{number}", pid, line.rstrip("\n"))
                if call:
                    calls.append(call)
    # Python's sort is stable, so equal times keep each process's own order.
    calls.sort(key=lambda call: call.time_ns)
    return calls


class Follower:
    """Follows descriptors, positions and names, and collects the actions."""

    def __init__(self, data, directories):
        self.data = str(data).rstrip("/")
        self.directories = set(directories)
        self.files = {}  # path relative to the data directory: File
        self.descriptors = {}  # pid: {number: Opened}
        self.recording = Recording()

    def relative(self, path):
        """The path below the data directory, "" for itself, None for anything else."""
        if path == self.data:
            return ""
        if path.startswith(self.data + "/"):
            return path[len(self.data) + 1:]
        if path.startswith("/") or ":[" in path:
            return None
        return path.removeprefix("./")  # the server's working directory is its data directory

    def file_at(self, path):
        return self.files.setdefault(path, File([path]))

    def descriptor(self, call):
        """(number, path below the data directory or None) of the call's first argument."""
        found = DESCRIPTOR.match(call.args)
        if not found:
            call.refuse("expected a descriptor with its path; was strace run with -y?")
        return int(found[1]), self.relative(found[2])

    def table(self, pid):
        return self.descriptors.setdefault(pid, {})

    def follow(self, call):
        if call.name in FORKS:
            # Descriptions are shared, the table is not.
            self.descriptors[call.result] = dict(self.table(call.pid))
        elif call.name in OPENS:
            self.open(call)
        elif call.name in RENAMES | LINKS | UNLINKS:
            self.rename(call)
        elif call.name == "truncate":
            self.leave_out(call, self.relative(QUOTED.findall(call.args)[0]))
        else:
            self.follow_descriptor(call)

    def follow_descriptor(self, call):
        number, path = self.descriptor(call)
        if call.name == "close":
            self.table(call.pid).pop(number, None)
        elif call.name in COPIES_OF_DESCRIPTORS:
            if call.name != "fcntl" or "F_DUPFD" in call.args:
                self.copy_descriptor(call, number)
        elif path is None:
            return
        elif call.name in REFUSED:
            call.refuse("this tool does not know how to convert it")
        elif call.name in LEFT_OUT:
            self.leave_out(call, path)
        elif call.name == "lseek":
            self.opened(call, number).position = call.result
        elif call.name in SYNCS:
            self.sync(call, path)
        else:
            self.transfer(call, number, path)

    def open(self, call):
        found = RETURNED_PATH.match(call.tail)
        if not found:
            call.refuse("expected the opened path; was strace run with -y?")
        path = self.relative(found[1])
        if path is None:
            self.table(call.pid).pop(call.result, None)
            return
        if "O_APPEND" in call.args:
            call.refuse("appending needs the file's size, which is not tracked")
        self.table(call.pid)[call.result] = Opened(self.file_at(path))

    def copy_descriptor(self, call, number):
        table = self.table(call.pid)
        if number in table:
            table[call.result] = table[number]
        else:
            table.pop(call.result, None)

    def rename(self, call):
        """Moves, adds or drops a name. The file, and with it its name in the trace, stays."""
        paths = [self.relative(path) for path in QUOTED.findall(call.args)]
        file = self.files.get(paths[0])
        if call.name not in LINKS:
            self.files.pop(paths[0], None)
        if call.name in UNLINKS:
            return
        self.files.pop(paths[1], None)  # what had that name, if anything, has it no more
        if file:
            file.paths.append(paths[1])
            self.files[paths[1]] = file

    def leave_out(self, call, path):
        if path is not None:
            self.recording.left_out[call.name] += 1

    def opened(self, call, number):
        opened = self.table(call.pid).get(number)
        if opened is None:
            call.refuse("its position is unknown: the opening was not recorded")
        return opened

    def sync(self, call, path):
        if path in self.directories:
            path = f"{path or 'data'}.dir"
        self.recording.actions.append(Action(call.time_ns, self.file_at(path), SYNCS[call.name]))

    def transfer(self, call, number, path):
        verb = "read" if call.name in READS_HERE or call.name in READS_AT else "write"
        at = READS_AT.get(call.name) or WRITES_AT.get(call.name)
        if at is None:
            opened = self.opened(call, number)
            file, offset = opened.file, opened.position
            opened.position += call.result
        else:
            file, offset = self.file_at(path), int(call.args.rsplit(", ", -at)[at])
        if call.result == 0:
            self.recording.left_out[f"{call.name} at the end of the file"] += 1
            return
        self.recording.actions.append(Action(call.time_ns, file, verb, offset, call.result))


def record(calls, data, directories):
    follower = Follower(data, directories)
    for call in calls:
        follower.follow(call)
    return follower.recording


class Tests(unittest.TestCase):
    """Lines are as strace 6.1 prints them."""

    def record(self, files, directories=("",)):
        """Actions of {pid: [line without its time]}; lines take turns a microsecond apart."""
        with tempfile.TemporaryDirectory() as directory:
            for pid, lines in files.items():
                text = "".join(f"5.{at:06}000 {line}\n" for at, line in lines)
                (Path(directory) / f"pid.{pid}").write_text(text, encoding="utf-8")
            recording = record(read_calls(Path(directory)), "/d", directories)
        return recording, [
            (action.time_ns - 5 * 10**9, action.file.paths[0], action.verb, action.offset,
             action.length) for action in recording.actions]

    def test_a_named_offset_needs_no_position(self):
        _, actions = self.record({7: [
            (1, 'pread64(3</d/base/5/9>, ""..., 8192, 16384) = 8192'),
            (2, 'pwritev(3</d/base/5/9>, [{iov_base=""..., iov_len=8192}, '
                '{iov_base=""..., iov_len=8192}], 2, 24576) = 16384'),
            (3, 'preadv2(3</d/base/5/9>, [{iov_base=""..., iov_len=8}], 1, 40, 0) = 8'),
        ]})
        self.assertEqual(actions, [
            (1000, "base/5/9", "read", 16384, 8192),
            (2000, "base/5/9", "write", 24576, 16384),
            (3000, "base/5/9", "read", 40, 8)])

    def test_positions_move_with_read_and_lseek_and_are_shared_by_forks_and_dups(self):
        _, actions = self.record({
            7: [(1, 'openat(AT_FDCWD</d>, "f", O_RDWR) = 3</d/f>'),
                (2, 'read(3</d/f>, ""..., 100) = 100'),
                (3, 'clone(child_stack=NULL, flags=SIGCHLD) = 8'),
                (6, 'write(3</d/f>, ""..., 10) = 10'),
                (7, 'lseek(3</d/f>, 4096, SEEK_SET) = 4096'),
                (8, 'read(3</d/f>, ""..., 100) = 1')],
            8: [(4, 'dup(3</d/f>) = 9</d/f>'), (5, 'read(9</d/f>, ""..., 28) = 28')]})
        self.assertEqual(actions, [
            (2000, "f", "read", 0, 100), (5000, "f", "read", 100, 28),
            (6000, "f", "write", 128, 10), (8000, "f", "read", 4096, 1)])

    def test_a_read_without_a_known_position_is_refused_with_its_line(self):
        with self.assertRaisesRegex(Refusal, r"^pid\.7:1: read.*position is unknown"):
            self.record({7: [(1, 'read(3</d/f>, ""..., 100) = 100')]})

    def test_a_call_that_would_leave_a_hole_is_refused(self):
        with self.assertRaisesRegex(Refusal, "copy_file_range"):
            self.record({7: [(1, "copy_file_range(3</d/f>, NULL, 4</d/g>, NULL, 9, 0) = 9")]})

    def test_a_recycled_file_keeps_its_first_name(self):
        _, actions = self.record({7: [
            (1, 'openat(AT_FDCWD</d>, "pg_wal/A", O_RDWR) = 3</d/pg_wal/A>'),
            (2, 'rename("pg_wal/A", "pg_wal/B") = 0'),
            (3, 'pwrite64(3</d/pg_wal/B>, ""..., 512, 0) = 512'),
            (4, 'link("pg_wal/B", "pg_wal/C") = 0'),
            (5, 'unlink("pg_wal/B") = 0'),
            (6, 'fdatasync(3</d/pg_wal/C>) = 0')]})
        self.assertEqual([action[1:3] for action in actions],
                         [("pg_wal/A", "write"), ("pg_wal/A", "datasync")])

    def test_a_name_taken_again_is_another_file(self):
        recording, _ = self.record({7: [
            (1, 'pwrite64(3</d/f>, ""..., 512, 0) = 512'),
            (2, 'unlink("/d/f") = 0'),
            (3, 'pwrite64(3</d/f>, ""..., 512, 0) = 512')]})
        first, second = recording.actions
        self.assertIsNot(first.file, second.file)

    def test_what_an_iolog_cannot_say_is_counted(self):
        recording, actions = self.record({7: [
            (1, "sync_file_range(3</d/f>, 0, 8192, SYNC_FILE_RANGE_WRITE) = 0"),
            (2, "ftruncate(3</d/f>, 0) = 0"),
            (3, "ftruncate(4</dev/shm/x>, 4096) = 0"),
            (4, 'pread64(3</d/f>, ""..., 8192, 0) = 0'),
        ]})
        self.assertEqual(actions, [])
        self.assertEqual(recording.left_out, {
            "sync_file_range": 1, "ftruncate": 1, "pread64 at the end of the file": 1})

    def test_a_directory_sync_is_a_sync_of_the_directory(self):
        _, actions = self.record({7: [(1, "fsync(3</d/pg_wal>) = 0"), (2, "fsync(4</d>) = 0")]},
                                 directories=("", "pg_wal"))
        self.assertEqual([action[1:3] for action in actions],
                         [("pg_wal.dir", "sync"), ("data.dir", "sync")])

    def test_failures_signals_and_other_files_are_no_actions(self):
        _, actions = self.record({7: [
            (1, 'pread64(3</d/f>, ""..., 8192, 0) = -1 EIO (Input/output error)'),
            (2, "--- SIGUSR1 {si_signo=SIGUSR1} ---"),
            (3, 'write(1<socket:[12]>, ""..., 5) = 5'),
            (4, 'pread64(3</dd/f>, ""..., 8192, 0) = 8192'),
            (5, "+++ exited with 0 +++")]})
        self.assertEqual(actions, [])

    def test_a_line_that_is_not_strace_is_refused(self):
        with self.assertRaisesRegex(Refusal, r"pid\.7:1: expected"):
            parse_line("pid.7:1", 7, "what is this")
