"""SIGTERM and SIGINT under writes and flushes: what was answered is there afterwards, and the exit code is 0."""

import os
import signal

from . import plans
from .cases import case
from .drive import Writer
from .errors import Gone
from .ledger import Ledger
from .server import Server

SPAN = 1024
# Decides that a stop hangs.
PATIENCE = 60.0
LAST = "stopped: what was written is flushed and saved"


def take_late_answers(writer):
    """What was answered before the connection ended may still arrive."""
    try:
        for _ in range(1000):
            writer.take(0.01)
            if not writer.under_way:
                break
    except Gone:
        pass


def expect_stopped(context, server, code=0):
    found = server.wait(PATIENCE)
    if found is None:
        context.fail("hung", f"{server.front_end} of {server.plan} has not stopped within {PATIENCE:.0f} s")
        server.kill()
    elif found != code:
        context.fail("wrong", f"expected exit code {code}: {server.how_it_ended()}")
    elif code == 0:
        lines = server.log().decode(errors="replace").splitlines()
        if not lines or not lines[-1].endswith(LAST):
            context.fail("wrong", f"the last line is {lines[-1:]}, expected {LAST!r}")


def stop_campaign(context, plan, front_end, sets, stops, answers):
    """A stop after up to so many answers, again and again; the next start has all that was answered, flushed or not."""
    ledger = None
    for number in range(stops + 1):
        server = Server(context.program, context.folder, plan, front_end, sets, name=f"stop{number}")
        try:
            client = server.client()
            if ledger is None:
                ledger = Ledger(client.block_bytes, context.seed)
            context.check(client, ledger, newest=True, when=f"after stop {context.row.tried}: ")
            if number == stops:
                client.close()
                server.process.send_signal(signal.SIGTERM)
                expect_stopped(context, server)
                break
            writer = Writer(client, ledger, context.rng, min(SPAN, client.blocks))
            writer.run(context.rng.randrange(1, answers))
            server.process.send_signal([signal.SIGTERM, signal.SIGINT][number % 2])
            take_late_answers(writer)
            client.close()
            expect_stopped(context, server)
            context.row.tried += 1
        finally:
            server.kill()


def one(plan, front_end):
    @case(f"stops/{plan}/{front_end}", f"SIGTERM and SIGINT under writes and flushes, {plan}, {front_end}")
    def campaign(context):
        sets = plans.keeping(plan, context.path("contents"))
        stop_campaign(context, plan, front_end, sets, context.count(2, 50), context.count(400, 2000))


for _front_end in ("nbd", "nbd-tcp", "vfio-user", "shared", "shm"):
    one("small-flash", _front_end)
    one("live", _front_end)


@case("stops/idle", "SIGTERM without a client, at every front end")
def idle(context):
    for front_end in ("nbd", "nbd-tcp", "vfio-user", "shared", "shm"):
        server = Server(context.program, context.folder, "live", front_end, name=f"idle-{front_end}")
        try:
            server.process.send_signal(signal.SIGTERM)
            expect_stopped(context, server)
            context.row.tried += 1
            if front_end != "nbd-tcp" and os.path.exists(server.address):
                context.fail("wrong", f"{front_end}: its socket is left behind")
        finally:
            server.kill()


@case("stops/unread", "SIGTERM with a client that reads no replies: it is dropped, and the drive stops")
def unread(context):
    server = Server(context.program, context.folder, "live", "nbd")
    try:
        client = server.client()
        for number in range(64):
            client.submit_read(number, 2048)
        context.row.tried += 1
        server.process.send_signal(signal.SIGTERM)
        expect_stopped(context, server)
    finally:
        server.kill()


@case("stops/second-signal", "a second signal ends the process at once, though a client holds the first one up")
def second(context):
    server = Server(context.program, context.folder, "live", "nbd")
    try:
        client = server.client()
        for number in range(64):
            client.submit_read(number, 2048)
        context.row.tried += 1
        # Replies that nobody reads hold the stop up for 5 s; two signals at once would be one.
        for _ in range(40):
            server.process.send_signal(signal.SIGTERM)
            found = server.wait(0.1)
            if found is not None:
                break
        if found != 128 + signal.SIGTERM:
            context.fail("wrong", f"expected exit code 143: {server.how_it_ended()}")
    finally:
        server.kill()
