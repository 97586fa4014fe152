"""A full disk under a state, its journal or an image: a flush fails, or what it answered for is there."""

import os
import time

from . import plans
from .cases import case
from .disks import SmallDisk
from .drive import Writer, flush, wait_for
from .errors import Died, Gone, Hung, LeftOut, Refused
from .ledger import Ledger
from .server import Server

# KiB of room, at least and at most: for a part of what is written, for flash of its states and journal.
ROOM = {"small-flash": (200, 2500), "flash-closer": (6000, 20000), "tlc": (6000, 20000)}


def write_until_full(context, client, ledger, most):
    """Writes and flushes until errors come, or for so many answers; the errors, in words."""
    writer = Writer(client, ledger, context.rng, min(4096, client.blocks), depth=8)
    try:
        while writer.answers < most and len(writer.errors) < 5:
            writer.fill()
            writer.take()
        writer.settle()
    except Gone as error:
        return writer.errors + [f"gone: {error}"]
    return writer.errors


def goes_on(context, server, client, ledger):
    """With room again: the server that met the full disk flushes what is written, or says that it does not."""
    try:
        data, token = ledger.write(0, 1)
        wait_for(client, client.submit_write(0, data))
        ledger.answered(token)
        flushing = ledger.flush()
        flush(client)
        ledger.flushed(flushing)
        context.note("goes on when there is room")
    except (Refused, Gone) as error:
        context.note(f"after the disk was full: {error}")
    except Hung as error:
        context.fail("hung", f"{error}, after the disk was full")


def reconnected(context, server, client, ledger):
    """Its client goes and another comes while the disk is full: what the second flushes counts as any."""
    client.close()
    try:
        other = server.client(30)
        writer = Writer(other, ledger, context.rng, 1024, depth=8)
        writer.run(40)
        writer.settle(flush=True)
        context.note(f"a client that comes while the disk is full: {writer.errors[:1] or 'is served'}")
        return other
    except Gone as error:
        context.note(f"a client that comes while the disk is full: {error}; {server.words()[-300:]}")
    except (Died, Hung) as error:
        context.fail("died" if isinstance(error, Died) else "hung",
                     f"a client that comes while the disk is full: {error}")
    return None


def one_round(context, plan, front_end, sets, disk, size, answers):
    """Until the disk is full, killed then or after there is room again."""
    try:
        server = Server(context.program, context.folder, plan, front_end, sets, limits=disk.limits())
    except Died as error:
        # Not even the first state has room: said, and nothing lost.
        context.note(f"does not start: {error}")
        return
    context.row.tried += 1
    client = server.client()
    ledger = Ledger(client.block_bytes, context.seed)
    errors = write_until_full(context, client, ledger, answers)
    if errors:
        context.note(f"fails: {errors[0]}")
        # ENOSPC, or Capacity Exceeded.
        others = [error for error in errors if "NBD error 28" not in error and "status 81h" not in error]
        if others:
            context.fail("wrong", f"a full disk is answered with {others[0]}, expected NBD error 28 or status 81h")
    elif disk.used() > disk.size // 2:
        context.note(f"no error, {disk.used()} bytes of {disk.size} used")
    if front_end in ("vfio-user", "shm") and server.is_alive():
        client = reconnected(context, server, client, ledger) or client
    if context.rng.random() < 0.5 and server.is_alive():
        disk.grow(size, server)
        goes_on(context, server, client, ledger)
    server.kill()
    client.close()
    disk.grow(size, server)
    after(context, plan, front_end, sets, ledger)


def after(context, plan, front_end, sets, ledger):
    """With room again a new server has all that was flushed, and works."""
    server = Server(context.program, context.folder, plan, front_end, sets, name="after")
    try:
        client = server.client()
        context.check(client, ledger, when="after a full disk: ")
        data, token = ledger.write(0, 1)
        wait_for(client, client.submit_write(0, data))
        ledger.answered(token)
        flush(client)
        context.check(client, ledger, newest=True, when="written after a full disk: ")
        server.expect_alive()
    finally:
        server.kill()


def full(plan, front_end, long_only=False):
    kind = "state and journal" if plan in plans.FLASH else "image"

    @case(f"full-disk/{plan}/{front_end}", f"{kind} of {plan} on a disk that fills up, {front_end}", long_only)
    def campaign(context):
        for number in range(context.count(1 if plan in ("tlc", "flash-closer") else 3, 20)):
            size = context.rng.randrange(*ROOM.get(plan, (300, 3000))) << 10
            disk = SmallDisk(context.path(f"disk{number}"), size)
            try:
                sets = plans.keeping(plan, os.path.join(disk.folder, "contents"))
                one_round(context, plan, front_end, sets, disk, 512 << 20, 3000)
            finally:
                disk.close()
        context.note(f"by {'a small tmpfs' if disk.is_mounted else 'a limit on the length of files'}")


class Ballast:
    """A file beside the contents that leaves only so much room."""

    def __init__(self, folder):
        self.path, self.folder = os.path.join(folder, "ballast"), folder
        with open(self.path, "wb"):
            pass

    def leave(self, room):
        """Adapts the file so that about `room` bytes are free."""
        found = os.statvfs(self.folder)
        free, size = found.f_bavail * found.f_frsize, os.path.getsize(self.path)
        wanted = max(0, size + free - room)
        if wanted < size:
            os.truncate(self.path, wanted)
        elif wanted > size:
            with open(self.path, "r+b") as file:
                os.posix_fallocate(file.fileno(), 0, wanted)


@case("full-disk/small-flash/compaction",
      "room for a journal that grows, and none for the state that it goes into")
def compaction(context):
    disk = SmallDisk(context.path("disk"), 400 << 20)
    if not disk.is_mounted:
        raise LeftOut("no tmpfs can be mounted here")
    try:
        path = os.path.join(disk.folder, "contents")
        sets = plans.keeping("small-flash", path)
        server = Server(context.program, context.folder, "small-flash", "nbd", sets)
        context.row.tried += 1
        client, ballast = server.client(), Ballast(disk.folder)
        ledger = Ledger(client.block_bytes, context.seed)
        writer = Writer(client, ledger, context.rng, client.blocks, most=64, depth=8)
        longest, rounds, end = 0, 0, time.monotonic() + context.count(20, 400)
        # The journal takes a few hundred MiB before it goes into the state.
        while time.monotonic() < end and len(writer.errors) < 5:
            writer.run(4)
            length = os.path.getsize(path + ".journal")
            longest, rounds = max(longest, length), rounds + 1
            if length < longest // 2:
                break
            # What one batch needs, and less than a state.
            ballast.leave(3 << 20)
        writer.run(100)
        writer.settle(flush=True)
        context.note(f"a journal of {longest >> 20} MiB, {writer.answers} answers, errors: {writer.errors[:1]}")
        server.kill()
        client.close()
        ballast.leave(1 << 40)
        disk.grow(2 << 30, server)
        after(context, "small-flash", "nbd", sets, ledger)
    finally:
        disk.close()


full("small-flash", "nbd")
full("small-flash", "vfio-user")
full("flash-closer", "nbd")
full("tlc", "nbd", long_only=True)
full("live", "nbd")
full("live", "vfio-user")
