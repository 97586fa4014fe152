"""kill -9 under writes and flushes: what was flushed is there afterwards, and the drive starts."""

import os

from . import plans
from .cases import case
from .drive import Writer
from .errors import Died, Gone
from .fnvme import Fnvme, Library
from .ledger import Ledger
from .server import Server

# Blocks that are written: few enough to be checked after each kill.
SPAN = 1024


def kill_round(context, server, ledger, answers):
    """Checks what an earlier kill left, writes until it is killed."""
    client = server.client()
    if getattr(client, "ready_s", 0) > getattr(client, "timeout_s", 1e9):
        context.fail("hung", f"ready after {client.ready_s:.1f} s, CAP.TO says {client.timeout_s:.1f} s")
    if ledger is None:
        ledger = Ledger(client.block_bytes, context.seed)
    context.check(client, ledger, when=f"after kill {context.row.tried}: ")
    writer = Writer(client, ledger, context.rng, min(SPAN, client.blocks))
    writer.run(answers)
    if writer.errors:
        context.fail("wrong", f"{len(writer.errors)} errors before the kill: {writer.errors[0]}")
    server.kill()
    try:
        # What was answered before the kill may still arrive.
        for _ in range(1000):
            writer.take(0.01)
            if not writer.under_way:
                break
    except Gone:
        pass
    client.close()
    return ledger


def kill_campaign(context, plan, front_end, sets, kills, answers):
    """So many kills, each after up to so many answers, then a last look."""
    ledger, slowest = None, 0.0
    for number in range(kills + 1):
        server = Server(context.program, context.folder, plan, front_end, sets, name=f"kill{number}")
        slowest = max(slowest, server.start_s)
        try:
            if number == kills:
                context.check(server.client(), ledger, when=f"after kill {context.row.tried}: ")
                server.expect_alive()
                break
            ledger = kill_round(context, server, ledger, context.rng.randrange(1, answers))
            context.row.tried += 1
        finally:
            server.kill()
    context.note(f"listens after {slowest:.1f} s at most")


def one(plan, front_end):
    kind = "state" if plan in plans.FLASH else "image"

    @case(f"kills/{plan}/{front_end}", f"kill -9 under writes and flushes, {kind} of {plan}, {front_end}")
    def campaign(context):
        sets = plans.keeping(plan, context.path("contents"))
        # The fewest where a start is long.
        many = plan in plans.FLASH and (plan != "tlc" or front_end == "nbd")
        kills = context.count(1 if plan == "tlc" else 2, 100 if many else 25)
        kill_campaign(context, plan, front_end, sets, kills, context.count(400, 2000))


for _plan in plans.FLASH:
    for _front_end in ("nbd", "vfio-user", "shared", "shm"):
        one(_plan, _front_end)
for _plan in plans.IMAGES:
    one(_plan, "nbd" if _plan != "gen4" else "vfio-user")
one("live", "vfio-user")
one("live", "shared")
one("live", "shm")
one("live", "nbd-tcp")


def protected(plan):
    @case(f"kills/{plan}/protected", f"kill -9 of {plan}, a protected cache and a state: kept, or refused")
    def campaign(context):
        sets = plans.keeping(plan, context.path("contents")) + ["medium.flash.cache=protected"]
        try:
            Server(context.program, context.folder, plan, "nbd", sets).kill()
        except Died as error:
            context.row.tried += 1
            if "cache" in str(error):
                context.note(f"refused: {error}")
                return
            raise
        kill_campaign(context, plan, "nbd", sets, context.count(4, 50), context.count(400, 2000))


for _plan in plans.FLASH:
    protected(_plan)


@case("kills/flash-bridge/state", "a state behind a bridge is refused, and the key is named")
def bridged(context):
    context.row.tried += 1
    path = context.path("contents")
    sets = ["medium.keep=everything", f"medium.flash.state={path}"]
    try:
        server = Server(context.program, context.folder, "flash-bridge", "nbd", sets)
    except Died as error:
        if "state" not in str(error):
            context.fail("wrong", f"refused without the key's name: {error}")
        if os.path.exists(path):
            context.fail("wrong", f"refused, and {path} was made")
        context.note("refused")
        return
    server.kill()
    kill_campaign(context, "flash-bridge", "nbd", sets, context.count(2, 25), 1000)


def with_library(plan):
    @case(f"kills/{plan}/libfnvme", f"kill -9 of the server of libfnvme, {plan}; the library goes on")
    def campaign(context):
        library, ledger = Library(context.library), None
        sets = plans.keeping(plan, context.path("contents"))
        block_bytes = 512 if plan != "tlc" else 4096
        # Two processes that poll share few cores: each call takes its time.
        span = context.count(64, SPAN)
        kills = context.count(1, 25)
        for number in range(kills + 1):
            server = Server(context.program, context.folder, plan, "shm", sets, name=f"kill{number}")
            client = Fnvme(library, f"shm:{server.address}", span * block_bytes, block_bytes)
            ledger = ledger or Ledger(block_bytes, context.seed)
            context.check(client, ledger, when=f"after kill {number}: ")
            if number < kills:
                writer = Writer(client, ledger, context.rng, span, depth=4)
                writer.run(context.rng.randrange(1, context.count(50, 2000)))
                if writer.errors:
                    context.fail("wrong", f"{len(writer.errors)} errors before the kill: {writer.errors[0]}")
                server.kill()
                context.row.tried += 1
                # The calls end, with an error.
                _, error, _ = client.poll()[-1] if client.submit_read(0, 1) else None
                if error is None:
                    context.fail("wrong", "a read was answered by a server that was killed")
            client.close()
            server.kill()


with_library("live")
with_library("small-flash")
