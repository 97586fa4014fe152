"""A drive whose queues several device threads serve: power cuts, resets and clients that disappear, under writes."""

from . import drive
from .cases import case
from .control import again, controlled, expect, expect_refused
from .drive import Writer
from .errors import Gone, Hung, Refused
from .ledger import Ledger

THREADS = 4
SPAN = 512


def take_rest(writer):
    """What was answered before the connection ended."""
    try:
        while writer.under_way:
            before = len(writer.under_way)
            writer.take(0.05)
            if len(writer.under_way) == before:
                break
    except Gone:
        pass


def without_power(context, server, rpc):
    """Cuts, finds no client served, and restores."""
    rpc.call("power.cut")
    expect(context, rpc.call("stats")["drives"][0]["powered"], False, "power after a cut")
    try:
        server.client(1.0)
        context.fail("wrong", "a client was served without power")
    except (Gone, Hung, Refused, OSError):
        pass


def interrupted(context, server, rpc, client, writer, what):
    """Ends the session, or the controller's work, with writes under way. Returns the client that goes on."""
    writer.fill()
    if what == "reset":
        client.disable()
        client.enable()
        client.create_queues()
        return client
    if what == "cut":
        without_power(context, server, rpc)
    if what == "cut in a pause":
        rpc.call("pause")
        without_power(context, server, rpc)
        rpc.call("resume")
    take_rest(writer)
    client.close()
    if what != "close":
        rpc.call("power.restore")
    return again(server, queues=THREADS)


def one(front_end):
    @case(f"device-threads/{front_end}",
          f"{THREADS} device threads over {front_end}: cuts, resets, lost clients, and counts of all threads")
    def campaign(context):
        server, rpc, _ = controlled(context, "live", front_end, extra=["--device-threads", str(THREADS)])
        try:
            client = server.client(queues=THREADS)
            ledger = Ledger(client.block_bytes, context.seed)
            # In turn to each queue, and so to each thread: another number for each.
            block = b"t" * client.block_bytes
            for lba in range(30):
                drive.write(client, SPAN + lba, block)
            for lba in range(21):
                drive.read(client, SPAN + lba, 1)
            drive.flush(client)
            counts = rpc.commands()
            found = [counts[kind]["commands"] for kind in ("write", "read", "flush", "other")]
            expect(context, found, [30, 21, 1, 0], "commands of all threads")
            expect(context, counts["write"]["bytes"], 30 * client.block_bytes, "bytes of all threads")
            expect_refused(context, f"found {THREADS} device threads", rpc.call, "save")
            for number in range(context.count(8, 200)):
                what = ("cut", "reset", "close", "cut in a pause")[number % 4]
                writer = Writer(client, ledger, context.rng, SPAN)
                writer.run(context.rng.randrange(1, 200))
                client = interrupted(context, server, rpc, client, writer, what)
                context.check(client, ledger, newest=True, when=f"after {what}, {number}: ")
                context.row.tried += 1
            server.expect_alive()
            rpc.call("stop")
            expect(context, server.wait(60.0), 0, "exit code after stop")
        finally:
            server.kill()


for _front_end in ("shm", "vfio-user"):
    one(_front_end)
