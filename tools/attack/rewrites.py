"""Clients that come and go: the server writes what changed, and not the whole state."""

import os

from . import plans
from .cases import case
from .drive import Writer
from .ledger import Ledger
from .server import Server


def rewrites(plan, front_end, long_only=False):
    @case(f"rewrites/{plan}/{front_end}",
          f"bytes that the server of {plan} writes for clients that come and go, {front_end}", long_only)
    def campaign(context):
        path = context.path("contents")
        server = Server(context.program, context.folder, plan, front_end, plans.keeping(plan, path))
        client = server.client()
        ledger = Ledger(client.block_bytes, context.seed)
        writer = Writer(client, ledger, context.rng, client.blocks, most=16)
        writer.run(context.count(2000 if plan != "tlc" else 400, 4000))
        writer.settle(flush=True)
        client.close()
        # The one that wrote has gone, and whatever its going makes the server write is written.
        server.client().close()
        clients = context.count(3, 20)
        server.function().close() if front_end != "shm" else server.client().close()
        before = server.written()
        state = sum(os.path.getsize(one) for one in (path, path + ".journal"))
        for _ in range(clients):
            context.row.tried += 1
            server.client().close()
        last = server.client()
        written = server.written() - before
        context.note(f"{written} bytes for {clients} clients, a state and journal of {state}")
        if written > clients * state // 4 + (64 << 10):
            context.fail("wrong", f"{written} bytes were written for {clients} clients that changed nothing: "
                                  f"state and journal have {state}")
        context.check(last, ledger, newest=True)
        server.expect_alive()
        server.kill()


for _front_end in ("vfio-user", "shared", "shm"):
    rewrites("small-flash", _front_end)
rewrites("flash-closer", "vfio-user")
rewrites("tlc", "vfio-user", long_only=True)
