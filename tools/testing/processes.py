"""Child processes: each leads a session, and none outlives this process."""

import ctypes
import os
import signal
import subprocess
import time
from pathlib import Path

PR_SET_PDEATHSIG = 1

# Seconds between asking processes to end and killing them.
GRACE = 5


class Stopped(BaseException):
    """A signal asked this process to end."""

    def __init__(self, number):
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.status = 128 + number


def raise_on_signals():
    """Turns signals that end a process into `Stopped`, but for those that the caller had ignored (nohup)."""
    ending = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def handler(number, _frame):
        for each in ending:
            # What ends the children is not interrupted, and takes seconds.
            signal.signal(each, signal.SIG_IGN)
        raise Stopped(number)

    for number in ending:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, handler)


def start(words, log, folder, environment=None):
    """A child of its own session, so that it and its children are ended by one signal.

    `log` takes its output, after what is already there.
    """
    with open(log, "ab") as file:
        return subprocess.Popen(words, cwd=folder, stdin=subprocess.DEVNULL, stdout=file, stderr=file,
                                env=environment, start_new_session=True)


def logged(words, log, folder, limit, environment):
    """Runs a command for at most `limit` seconds; its exit status, or None where it can't be run."""
    try:
        process = start(words, log, folder, environment)
    except OSError:
        return None
    try:
        return process.wait(limit)
    except subprocess.TimeoutExpired:
        signal_group(process.pid, signal.SIGKILL)
        process.wait()
        return 124


def signal_group(leader, number):
    """Signals a process group; one that is gone is none."""
    try:
        os.killpg(leader, number)
    except (ProcessLookupError, PermissionError):
        pass


def parents():
    """The parent of each process that has not ended."""
    found = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            # Behind the name, which may hold anything: state, parent.
            state, parent = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
        except (OSError, ValueError):
            continue
        if state not in "ZX":
            found[int(folder.name)] = int(parent)
    return found


def descendants(root):
    """The children of a process, their children, and so on."""
    table, found, level = parents(), [], {root}
    while level:
        level = {process for process, parent in table.items() if parent in level}
        found += level
    return found


def end_all(still=lambda: False):
    """Ends all descendants of this process and their groups. `still` says whether more may be started."""
    own, begin, asked = os.getpgrp(), time.monotonic(), set()
    while time.monotonic() < begin + 2 * GRACE:
        living = descendants(os.getpid())
        if not living and not still():
            return
        kill = time.monotonic() > begin + GRACE
        for process in living:
            # Asked once: a program that cleans up is not disturbed again.
            if kill or process not in asked:
                asked.add(process)
                end(process, own, signal.SIGKILL if kill else signal.SIGTERM)
        time.sleep(0.1)


def end(process, own_group, number):
    """Signals a process, with its group where that is not ours."""
    try:
        group = os.getpgid(process)
        os.kill(process, number) if group == own_group else os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        pass


def end_with_parent():
    """Called in a child that leads a session: it and its group end when told to, or with its parent."""
    if os.getpgrp() != os.getpid():
        return

    def handler(_number, _frame):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal_group(os.getpid(), signal.SIGTERM)
        begin = time.monotonic()
        while descendants(os.getpid()) and time.monotonic() < begin + GRACE / 2:
            time.sleep(0.05)
        signal_group(os.getpid(), signal.SIGKILL)

    signal.signal(signal.SIGTERM, handler)
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    except (OSError, AttributeError):
        # Without it, only a kill of the parent that it can't catch leaves children behind.
        pass
