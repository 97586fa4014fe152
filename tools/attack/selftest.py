"""What checks the checker: drives in memory, honest ones and ones that lose what they acknowledged."""

import os
import random
import tempfile

from . import ledger
from .cases import Case, Row
from .drive import Writer, check_all
from .errors import Hung
from .ledger import History, Ledger, copy_of


class Fake:
    """A drive with a volatile cache. `fault` names what it does wrong."""

    block_bytes, blocks = 512, 256

    def __init__(self, fault=None):
        self.fault, self.cache, self.durable = fault, {}, {}
        self.replies, self.tag = [], 0

    def _ended(self, data=b""):
        self.tag += 1
        self.replies.append((self.tag, None, data))
        return self.tag

    def submit_write(self, lba, data, fua=False):
        for number in range(len(data) // self.block_bytes):
            block = data[number * self.block_bytes:(number + 1) * self.block_bytes]
            self.cache[lba + number] = block
            if fua and self.fault != "FUA":
                self.durable[lba + number] = block
        return self._ended()

    def submit_flush(self):
        if self.fault != "flush":
            self.durable.update(self.cache)
        return self._ended()

    def submit_read(self, lba, count):
        held = {**self.durable, **self.cache}
        return self._ended(b"".join(held.get(block, bytes(512)) for block in range(lba, lba + count)))

    def poll(self, _wait=0.0):
        replies, self.replies = self.replies, []
        return replies

    def power_cut(self, rng):
        """Of the cache anything may arrive."""
        self.durable.update({block: data for block, data in self.cache.items() if rng.random() < 0.5})
        self.cache = {}
        blocks = sorted(self.durable)
        if self.fault == "torn":
            self.durable[blocks[0]] = self.durable[blocks[0]][:100] + bytes(412)
        elif self.fault == "swapped":
            first, second = blocks[0], blocks[-1]
            self.durable[first], self.durable[second] = self.durable[second], self.durable[first]
        elif self.fault == "one block":
            del self.durable[rng.choice(blocks)]


def campaign(fault):
    """What the checker finds on such a drive over some power cuts."""
    rng, drive, book, wrong = random.Random(1), Fake(fault), Ledger(512), []
    for _ in range(6):
        writer = Writer(drive, book, rng, 200)
        writer.run(150)
        drive.power_cut(rng)
        drive.poll()
        wrong += check_all(drive, book)
    return wrong


def hot_block():
    """A flush covers what was answered when it was sent, also where a newer write is under way."""
    for late in (False, True):
        book = Ledger(512)
        first, token = book.write(7, 1)
        book.answered(token)
        second, newer = book.write(7, 1)
        flush = book.flush()
        if late:
            # Answered before the flush was, and sent beside it: it need not be there.
            book.answered(newer)
        book.flushed(flush)
        asked = {"version 0": bytes(512), "version 1": first, "version 2": second}
        for version, found in asked.items():
            cut = copy_of(book)
            lost = bool(cut.after_power_cut(7, found))
            assert lost == (version == "version 0"), f"{version} of a block with a write under way: lost {lost}"


def short_journal():
    """Of a damaged journal all is asked that was flushed before the damage, and nothing behind it."""
    with tempfile.NamedTemporaryFile() as journal:
        book, found = History(512, 0, journal.name), [bytes(512)]
        book.begin()
        for length in (100, 200):
            data, token = book.write(3, 1)
            found.append(data)
            book.answered(token)
            os.truncate(journal.name, length)
            book.flushed(book.flush())
        for damage, oldest in ((0, 0), (99, 0), (100, 1), (199, 1), (200, 2), (10_000, 2)):
            for version, data in enumerate(found):
                lost = bool(book.before(damage).after_power_cut(3, data))
                assert lost == (version < oldest), f"damage at byte {damage}, version {version}: lost {lost}"
        # What was flushed before a server started is in its state, whatever becomes of the journal.
        book.begin()
        assert book.before(0).after_power_cut(3, found[1])


def hangs(_context):
    raise Hung("on purpose")


def run(line):
    """Raises if the checker does not see what it must; `line` is what is printed of a row."""
    ledger.self_test()
    hot_block()
    short_journal()
    assert campaign(None) == [], "an honest drive is found guilty"
    for fault in ("flush", "FUA", "torn", "swapped", "one block"):
        assert campaign(fault), f"{fault}: not seen"
    row = Row("one", "a row")
    assert not row.failed()
    row.lost = 1
    assert row.failed() and "lost 1" in line(row) and "FAILED" in line(row)
    lost = Case("self", "a lost block", lambda context: context.fail("lost", "on purpose"))
    assert lost.run("", "", "", 1, True).lost == 1
    assert Case("self", "a hang", hangs).run("", "", "", 1, True).hung == 1
    print("self-test: what is lost, torn, swapped or not flushed is seen, and an honest drive passes")
