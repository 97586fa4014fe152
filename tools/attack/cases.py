"""What a case is, what it is given, and what it finds."""

import os
import random
import time

from . import drive
from .errors import Died, Gone, Hung, LeftOut, Refused

CASES = []


class Row:
    """A row of the table. All but `tried`, `checked` and `notes` are counts of failures."""

    FAILURES = ("lost", "hung", "died", "wrong")

    def __init__(self, name, what):
        self.name, self.what = name, what
        self.tried = self.checked = self.lost = self.hung = self.died = self.wrong = 0
        self.notes, self.failures, self.left_out, self.seconds = [], [], None, 0.0

    def failed(self):
        return any(getattr(self, column) for column in self.FAILURES)


class Context:
    """What a case is given."""

    def __init__(self, row, program, library, folder, seed, short):
        self.row, self.program, self.library, self.folder = row, program, library, folder
        self.seed, self.short = seed, short
        self.rng = random.Random(f"{seed}/{row.name}")
        self.servers = []

    def count(self, short, long):
        return short if self.short else long

    def path(self, name):
        return os.path.join(self.folder, name)

    def fresh(self, name):
        """An empty folder of its own."""
        path = self.path(name)
        os.makedirs(path, exist_ok=True)
        return path

    def note(self, text):
        if text not in self.row.notes:
            self.row.notes.append(text)

    def fail(self, column, text, times=1):
        """Counts a failure, and keeps its words."""
        setattr(self.row, column, getattr(self.row, column) + times)
        if len(self.row.failures) < 12:
            self.row.failures.append(f"{column}: {text}")

    def guarded(self, attempt, *arguments):
        """Does something of which each bad end is counted; none then, else what it returns."""
        try:
            return attempt(*arguments)
        except Hung as error:
            self.fail("hung", str(error))
        except (Died, Gone) as error:
            self.fail("died", str(error))
        except Refused as error:
            self.fail("wrong", str(error))
        return None

    def check(self, client, ledger, newest=False, when=""):
        """Checks all that the ledger knows; what is wrong is lost."""
        before = ledger.checked
        wrong = drive.check_all(client, ledger, newest)
        self.row.checked += ledger.checked - before
        if wrong:
            self.fail("lost", f"{when}{wrong[0]} (and {len(wrong) - 1} others)", len(wrong))
        return not wrong


class Case:
    """A name, what it does in words, and the function that does it.

    Those that are `long_only` run in long runs, and when they are named.
    """

    def __init__(self, name, what, function, long_only=False):
        self.name, self.what, self.function, self.long_only = name, what, function, long_only

    def run(self, program, library, folder, seed, short):
        row = Row(self.name, self.what)
        context = Context(row, program, library, folder, seed, short)
        begin = time.monotonic()
        try:
            context.guarded(self.function, context)
        except LeftOut as reason:
            row.left_out = str(reason)
        row.seconds = time.monotonic() - begin
        return row


def case(name, what, long_only=False):
    """Puts a function of a context into the list of cases."""
    def add(function):
        CASES.append(Case(name, what, function, long_only))
        return function
    return add
