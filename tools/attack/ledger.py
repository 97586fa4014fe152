"""What must be on a drive: every version of every block that a reader may find.

A block begins with zeros. Each write gives it a version of its own, and each version has content that no
other block and no other version has. A flush that is answered makes the newest answered version of each
block, as of the moment when the flush was sent, the oldest one that may be found. What was written and not
flushed may be there or not after a power cut, block by block. What is found after a power cut is what the
block holds from then on.
"""

import os
import struct

MAGIC = 0x6b63_6174  # "tack"
HEADER = struct.Struct("<IIQ")


def content(block, version, size):
    """The bytes of a version of a block: 16 bytes that name both, repeated."""
    return HEADER.pack(MAGIC, version, block) * (size // HEADER.size)


def describe(data):
    """What a block seems to hold, in words."""
    magic, version, block = HEADER.unpack_from(data)
    if magic == MAGIC:
        whole = data == content(block, version, len(data))
        return f"version {version} of block {block}" + ("" if whole else ", torn")
    return "zeros" if not any(data) else f"unknown bytes {data[:16].hex()}"


class Ledger:
    """The versions of each block that may be found; version 0 is what was there before, all zeros."""

    def __init__(self, block_bytes, seed=0):
        self.block_bytes = block_bytes
        self.next_version = 1 + (seed & 0xff) * 0x10_0000
        # Of each block, oldest first: [version, answered].
        self.versions = {}
        self.checked = 0

    def write(self, lba, count):
        """A write begins: returns its bytes, and a token for `answered`."""
        version = self.next_version
        self.next_version += 1
        token = []
        for block in range(lba, lba + count):
            entry = [version, False]
            self.versions.setdefault(block, [[0, True]]).append(entry)
            token.append(entry)
        data = b"".join(content(block, version, self.block_bytes) for block in range(lba, lba + count))
        return data, token

    @staticmethod
    def answered(token):
        """The write was answered with success."""
        for entry in token:
            entry[1] = True

    def durable(self, lba, token):
        """A write with FUA was answered: nothing older of its blocks may be found."""
        self.answered(token)
        for block, entry in enumerate(token, lba):
            versions = self.versions[block]
            for index, other in enumerate(versions):
                if other is entry:
                    del versions[:index]
                    break

    def flush(self):
        """A flush is sent: returns a token for `flushed`.

        It covers what is answered by now, also of a block to which a newer write is under way or has failed.
        """
        return {block: next(entry for entry in reversed(versions) if entry[1])
                for block, versions in self.versions.items()}

    def flushed(self, token):
        """That flush was answered with success."""
        for block, entry in token.items():
            versions = self.versions[block]
            for index, other in enumerate(versions):
                if other is entry:
                    del versions[:index]
                    break

    def blocks(self):
        return sorted(self.versions)

    def newest(self, lba, data):
        """Checks blocks that were read while nothing was under way and without a power cut."""
        def allowed(versions):
            answered = [index for index, (_, done) in enumerate(versions) if done]
            # Behind the newest that was answered, writes that failed may be there or not.
            return versions[answered[-1]:]
        return self._check(lba, data, allowed)

    def after_power_cut(self, lba, data):
        """Checks blocks that were read after a power cut. What was found is what they hold from now on."""
        return self._check(lba, data, lambda versions: versions)

    def _check(self, lba, data, allowed):
        wrong = []
        size = self.block_bytes
        for number in range(len(data) // size):
            block, found = lba + number, data[number * size:(number + 1) * size]
            versions = self.versions.get(block)
            if versions is None:
                continue
            self.checked += 1
            for version, _ in allowed(versions):
                good = bytes(size) if version == 0 else content(block, version, size)
                if found == good:
                    self.versions[block] = [[version, True]]
                    break
            else:
                words = ", ".join(str(version) for version, _ in allowed(versions))
                wrong.append(f"block {block}: found {describe(found)}, expected one of versions {words}")
                # Counted once: from now on nothing is asked of it.
                del self.versions[block]
        return wrong

    def in_memory(self, checked):
        """What this checked copy has found is what the blocks hold, and is not durable before the next flush.

        Until then the end of the process may bring back any other version, and a flush covers none of them.
        """
        for block, ((found, _),) in checked.versions.items():
            others = [[version, False] for version, _ in self.versions[block] if version != found]
            self.versions[block] = others + [[found, True]]

    def unreadable(self, lba, count):
        """Blocks that could not be read: lost, if anything was flushed to them."""
        wrong = []
        for block in range(lba, lba + count):
            versions = self.versions.pop(block, None)
            if versions is not None:
                self.checked += 1
                wrong.append(f"block {block}: unreadable, expected version {versions[0][0]}")
        return wrong


class History(Ledger):
    """Knows too what was flushed before the journal of the drive had a length."""

    def __init__(self, block_bytes, seed, journal):
        super().__init__(block_bytes, seed)
        self.journal, self.written, self.marks = journal, {}, []

    def begin(self):
        """A server has started: what was flushed until now is in its state, and its journal is new."""
        self.marks = [(0, self._floors())]

    def _floors(self):
        return {block: versions[0][0] for block, versions in self.versions.items()}

    def write(self, lba, count):
        data, token = super().write(lba, count)
        for block, entry in enumerate(token, lba):
            self.written.setdefault(block, [0]).append(entry[0])
        return data, token

    def flushed(self, token):
        super().flushed(token)
        # The flush was answered: what it covers is before the end that the journal has by now.
        self.marks.append((os.path.getsize(self.journal), self._floors()))

    def before(self, byte):
        """A ledger of what must be on the drive when its journal is good as far as this byte.

        What was flushed before the journal was so long, or anything that was written to a block since.
        """
        floors = [floors for length, floors in self.marks if length <= byte][-1]
        one = Ledger(self.block_bytes)
        one.versions = {block: [[version, True] for version in written if version >= floors.get(block, 0)]
                        for block, written in self.written.items()}
        return one


def copy_of(ledger):
    """One that can be asked again."""
    one = Ledger(ledger.block_bytes)
    one.versions = {block: [list(entry) for entry in versions] for block, versions in ledger.versions.items()}
    return one


def self_test():
    """The ledger sees what it is there to see."""
    size = 512
    one = Ledger(size)
    data, token = one.write(10, 2)
    one.answered(token)
    one.flushed(one.flush())
    assert not one.after_power_cut(10, data)
    assert one.checked == 2
    # Lost: flushed, and zeros are found.
    data, token = one.write(10, 2)
    one.answered(token)
    one.flushed(one.flush())
    assert len(one.after_power_cut(10, bytes(size) + data[size:])) == 1
    assert "zeros" in _loss(size)
    # Not flushed: old or new, and nothing else.
    for found, good in [("old", True), ("new", True), ("torn", False), ("other", False)]:
        two = Ledger(size)
        old, token = two.write(5, 1)
        two.answered(token)
        two.flushed(two.flush())
        new, token = two.write(5, 1)
        two.answered(token)
        other = content(6, 3, size)
        data = {"old": old, "new": new, "torn": old[:256] + new[256:], "other": other}[found]
        assert (two.after_power_cut(5, data) == []) == good, found
        # Once it was found it stays.
        if good:
            stays = old if found == "new" else new
            assert len(two.after_power_cut(5, stays)) == 1
    # A flush that was sent before the write was answered does not cover it.
    three = Ledger(size)
    data, token = three.write(1, 1)
    flush = three.flush()
    three.answered(token)
    three.flushed(flush)
    assert not three.after_power_cut(1, bytes(size))
    # FUA needs no flush.
    four = Ledger(size)
    data, token = four.write(1, 1)
    four.durable(1, token)
    assert len(four.after_power_cut(1, bytes(size))) == 1
    # What a power cut has lost on a full disk is not made durable by the next flush; what it has left is.
    six = Ledger(size)
    old, token = six.write(1, 1)
    six.answered(token)
    six.flushed(six.flush())
    lost, token = six.write(1, 1)
    six.answered(token)
    checked = copy_of(six)
    assert not checked.after_power_cut(1, old)
    six.in_memory(checked)
    assert not copy_of(six).after_power_cut(1, lost), "the process may end before the flush"
    six.flushed(six.flush())
    assert not copy_of(six).after_power_cut(1, old) and len(six.after_power_cut(1, lost)) == 1
    # Without a power cut only the newest is right.
    five = Ledger(size)
    old, token = five.write(1, 1)
    five.answered(token)
    new, token = five.write(1, 1)
    five.answered(token)
    assert len(five.newest(1, old)) == 1


def _loss(size):
    lost = Ledger(size)
    _, token = lost.write(0, 1)
    lost.durable(0, token)
    return lost.after_power_cut(0, bytes(size))[0]
