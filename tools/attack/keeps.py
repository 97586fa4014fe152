"""Every plan as it comes, at every front end: what is written is read back, or the key is named that hinders."""

from . import drive, plans
from .cases import case
from .drive import Writer, check_all
from .errors import Died, Gone, Hung, Refused
from .fnvme import Fnvme, Library
from .ledger import Ledger
from .server import FRONT_ENDS, Server


def one(context, plan, front_end, sets):
    """Bytes of our own, written and read back."""
    context.row.tried += 1
    try:
        server = Server(context.program, context.folder, plan, front_end, sets)
    except Died as error:
        if "keep" in str(error):
            context.note(f"{front_end}: refused, with the key medium.keep")
        else:
            context.fail("wrong", f"{front_end}: refused without the key's name: {error}")
        return
    try:
        client = server.client()
        ledger = Ledger(client.block_bytes, context.seed)
        # At both ends and in between.
        for lba in {0, 8, client.blocks // 2, client.blocks - 8}:
            data, token = ledger.write(lba, 8)
            drive.write(client, lba, data)
            ledger.answered(token)
        before = ledger.checked
        wrong = check_all(client, ledger, newest=True)
        context.row.checked += ledger.checked - before
        if wrong:
            context.fail("lost", f"{front_end}: {wrong[0]} (and {len(wrong) - 1} others)", len(wrong))
        client.close()
        server.expect_alive()
    except (Hung, Refused, Gone, Died) as error:
        column = {Hung: "hung", Refused: "wrong"}.get(type(error), "died")
        context.fail(column, f"{front_end}: {error}")
    finally:
        server.kill()


def keep(plan):
    @case(f"keep/{plan}", f"bytes written to {plan} as it comes, every front end: the same, or refused")
    def as_it_comes(context):
        # A drive of this size takes its time to start.
        for front_end in ("nbd", "vfio-user") if plan == "tlc" and context.short else FRONT_ENDS:
            one(context, plan, front_end, [])

    @case(f"keep-stamps/{plan}", f"{plan} told to keep stamps, every front end: refused")
    def stamps(context):
        for front_end in FRONT_ENDS:
            one(context, plan, front_end, ["medium.keep=stamps"])


for _plan in plans.ALL:
    keep(_plan)


@case("keep/libfnvme", "bytes written through libfnvme to a drive in the same process: the same")
def library(context):
    client = Fnvme(Library(context.library), "memory:16m", 1 << 20, 512)
    ledger = Ledger(512, context.seed)
    writer = Writer(client, ledger, context.rng, client.blocks, depth=4)
    writer.run(context.count(100, 5000))
    context.row.tried += writer.answers
    if writer.errors:
        context.fail("wrong", writer.errors[0])
    context.check(client, ledger, newest=True)
    client.close()
