"""Contents with two names: they are the same contents, for whoever serves them next and for a second server."""

import os

from . import plans
from .cases import case
from .drive import Writer
from .errors import Died
from .flips import state_tool
from .ledger import Ledger
from .server import Server

# A link to the file; a link to its folder; a link that is there before the file is.
KINDS = ["link", "folder", "dangling"]


class Named:
    """Contents in a folder of their own, with their real name and another."""

    def __init__(self, context, plan, kind, what):
        self.context, self.plan, self.kind = context, plan, kind
        top = f"{what}-{kind}-{context.row.tried}"
        folder = os.path.realpath(context.fresh(top))
        self.real = os.path.join(folder, "contents")
        if kind == "folder":
            os.symlink(folder, folder + "-too")
            self.other = os.path.join(folder + "-too", "contents")
        else:
            self.other = os.path.join(context.fresh(top + "-too"), "other")
            os.symlink(self.real, self.other)
        self.ledger = None

    def server(self, path, **more):
        return Server(self.context.program, self.context.folder, self.plan, "nbd",
                      plans.keeping(self.plan, path), **more)

    def serve(self, path, when):
        """A server and a client by this name, and all that was flushed is there: or none, and it is said."""
        server = self.server(path)
        client = server.client()
        self.ledger = self.ledger or Ledger(client.block_bytes, self.context.seed)
        good = self.context.check(client, self.ledger, when=f"{self.kind}: {when}: ")
        return server, client, good

    def write(self, client, unflushed=0):
        """Writes and flushes; then writes more, of which some stays under way."""
        writer = Writer(client, self.ledger, self.context.rng, 256)
        writer.run(60)
        writer.settle(flush=True)
        writer.run(unflushed)
        if writer.errors:
            self.context.fail("wrong", f"{self.kind}: {writer.errors[0]}")


def killed(context, plan, kind):
    """Served by one name and killed, then by the other: what was flushed is there."""
    named = Named(context, plan, kind, "killed")
    first = [named.other] if kind == "dangling" else [named.real, named.other]
    for path in first + [named.real, named.other, named.real]:
        context.row.tried += 1
        server, client, good = named.serve(path, f"served as {os.path.basename(path)}, after a kill")
        if good:
            named.write(client, unflushed=30)
        server.kill()
        client.close()
        if not good:
            return


def follows(context, plan):
    """Whether a link to a file that is not there yet is followed; if not it is named, and nothing is made."""
    named = Named(context, plan, "dangling", "first")
    context.row.tried += 1
    try:
        named.server(named.other).kill()
        return True
    except Died as error:
        if named.other not in str(error):
            context.fail("wrong", f"a link to no file is refused without its name: {error}")
        folders = [os.path.dirname(path) for path in (named.real, named.other)]
        found = [name for folder in folders for name in os.listdir(folder)]
        if found != [os.path.basename(named.other)]:
            context.fail("wrong", f"a link to no file is refused, and there is {found}")
        context.note("a link to a file that is not there is refused")
        return False


def refused(context, error, paths, what):
    """It has to say that the contents are in use, by one of their names."""
    words = str(error)
    if "in use" not in words or not any(path in words for path in paths):
        context.fail("wrong", f"{what}: refused without \"in use\" and the name of the file: {words}")


def in_use(context, plan, kind, real_first):
    """While a server has it by one name, nothing else has it by the other."""
    named = Named(context, plan, kind, "real" if real_first else "other")
    names = [named.real, named.other]
    taken, tried = names if real_first else reversed(names)
    if kind != "dangling":
        named.server(named.real).kill()
    server, client, _ = named.serve(taken, "new")
    named.write(client)
    what = f"{kind}: {tried} while a server has {taken}"
    context.row.tried += 1
    second = named.server(tried, name="second", start=False)
    try:
        second.start()
        context.fail("wrong", f"{what}: a second server started")
    except Died as error:
        refused(context, error, names, what)
    finally:
        second.kill()
    if plan in plans.FLASH:
        context.row.tried += 1
        done = state_tool(context, "repair", tried)
        if done is None or done[0] == 0:
            context.fail("wrong", f"{what}: `state repair` went on beside it")
        else:
            refused(context, done[1], names, f"{what}: `state repair`")
    server.expect_alive()
    named.write(client)
    server.kill()
    client.close()
    server, client, _ = named.serve(taken, "after a second server was tried")
    server.kill()
    client.close()


def names(plan):
    @case(f"names/{plan}", f"contents of {plan} by a symbolic link and by their name: the same, used once")
    def campaign(context):
        for _ in range(context.count(1, 10)):
            for kind in KINDS if follows(context, plan) else KINDS[:-1]:
                context.guarded(killed, context, plan, kind)
                context.guarded(in_use, context, plan, kind, False)
                # A link to a file that was served by its own name dangles no more.
                if kind != "dangling":
                    context.guarded(in_use, context, plan, kind, True)


for _plan in ("small-flash", "flash-closer", "live"):
    names(_plan)
