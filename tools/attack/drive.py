"""What every client of a drive has: calls that wait, on top of those that submit.

A drive has `block_bytes` and `blocks`; `submit_write(lba, data, fua)`, `submit_read(lba, count)` and
`submit_flush()`, which return a tag; `poll(wait)`, which returns (tag, error or None, data) of what has ended; and
`close()`.
"""

import time

from .errors import Hung, Refused

# Decides that something hangs, and nothing else.
PATIENCE = 60.0


def wait_for(drive, tag, patience=PATIENCE):
    """Waits for one request while nothing else is under way."""
    end = time.monotonic() + patience
    while time.monotonic() < end:
        for other, error, data in drive.poll(0.5):
            if other == tag:
                if error is not None:
                    raise Refused(error)
                return data
    raise Hung(f"a request was not answered within {patience:.0f} s")


def write(drive, lba, data, fua=False):
    wait_for(drive, drive.submit_write(lba, data, fua))


def read(drive, lba, count):
    return wait_for(drive, drive.submit_read(lba, count))


def flush(drive):
    wait_for(drive, drive.submit_flush())


def runs(blocks, most=64):
    """Sorted block numbers as (first, count)."""
    found = []
    for block in blocks:
        if found and found[-1][0] + found[-1][1] == block and found[-1][1] < most:
            found[-1][1] += 1
        else:
            found.append([block, 1])
    return found


def check_all(drive, ledger, newest=False, depth=16):
    """Reads every block that the ledger knows; returns what is wrong, in words."""
    wrong, waiting = [], list(reversed(runs(ledger.blocks(), 16)))
    under_way = {}
    check = ledger.newest if newest else ledger.after_power_cut
    since = time.monotonic()
    while waiting or under_way:
        while waiting and len(under_way) < depth:
            lba, count = waiting.pop()
            under_way[drive.submit_read(lba, count)] = (lba, count)
        replies = drive.poll(0.5)
        for tag, error, data in replies:
            lba, count = under_way.pop(tag)
            if error is None:
                wrong += check(lba, data)
            elif count > 1:
                waiting += [[block, 1] for block in range(lba, lba + count)]
            else:
                wrong += [f"{line} ({error})" for line in ledger.unreadable(lba, count)]
            since = time.monotonic()
        if time.monotonic() > since + PATIENCE:
            raise Hung(f"{len(under_way)} reads were not answered within {PATIENCE:.0f} s")
    return wrong


class Writer:
    """Writes and flushes at random, many at once, and keeps the ledger; `durable` is how often it flushes."""

    def __init__(self, drive, ledger, rng, blocks, most=8, depth=16, durable=0.05):
        self.durable = durable
        self.drive, self.ledger, self.rng = drive, ledger, rng
        self.blocks, self.most, self.depth = blocks, most, depth
        self.under_way, self.busy = {}, set()
        self.answers, self.errors, self.flushes = 0, [], 0
        self.since = time.monotonic()

    def _write(self):
        rng = self.rng
        count = rng.randrange(1, self.most + 1)
        # Some blocks are hot.
        span = self.blocks if rng.random() < 0.5 else max(self.most, self.blocks // 8)
        lba = rng.randrange(0, max(1, span - count))
        these = range(lba, lba + count)
        if not self.busy.isdisjoint(these):
            return
        data, token = self.ledger.write(lba, count)
        fua = rng.random() < self.durable
        self.busy.update(these)
        self.under_way[self.drive.submit_write(lba, data, fua)] = ("write", lba, count, token, fua)

    def fill(self):
        """Keeps `depth` requests under way."""
        while len(self.under_way) < self.depth:
            if self.rng.random() < self.durable:
                self.under_way[self.drive.submit_flush()] = ("flush", self.ledger.flush())
            else:
                self._write()

    def take(self, wait=0.5):
        """Takes what has been answered."""
        for tag, error, _ in self.drive.poll(wait):
            what = self.under_way.pop(tag)
            self.since = time.monotonic()
            if what[0] == "write":
                _, lba, count, token, fua = what
                self.busy.difference_update(range(lba, lba + count))
            if error is not None:
                self.errors.append(f"{what[0]}: {error}")
                continue
            self.answers += 1
            if what[0] == "flush":
                self.ledger.flushed(what[1])
                self.flushes += 1
            elif fua:
                self.ledger.durable(lba, token)
            else:
                self.ledger.answered(token)
        if self.under_way and time.monotonic() > self.since + PATIENCE:
            raise Hung(f"{len(self.under_way)} requests were not answered within {PATIENCE:.0f} s")

    def run(self, answers):
        """Until so many more were answered; leaves requests under way."""
        end = self.answers + answers
        while self.answers < end and len(self.errors) < 20:
            self.fill()
            self.take()

    def settle(self, flush=False):
        """Waits for all that is under way; then flushes, if it is told to."""
        while self.under_way:
            self.take()
        if flush:
            self.under_way[self.drive.submit_flush()] = ("flush", self.ledger.flush())
            while self.under_way:
                self.take()
