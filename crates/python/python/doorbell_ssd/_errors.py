"""Exceptions. Their text names the file, the key, the LBA or the command, and what was expected."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class DoorbellError(Exception):
    """Base of all exceptions of this package."""


class ArgumentError(DoorbellError, ValueError):
    """An argument of a call has a value that it cannot have."""


class PlanItem(NamedTuple):
    """One error in a plan."""

    key: str
    """As in ``link.lanes``; empty if the error is not of one key."""
    found: str
    expected: str
    place: str
    """File, line and column, or the setting."""


class PlanError(DoorbellError, ValueError):
    """Errors in a plan: all of them."""

    def __init__(self, text: str, items: Sequence[tuple[str, str, str, str]] = ()) -> None:
        super().__init__(text)
        self.items = [PlanItem(*item) for item in items]

    @property
    def key(self) -> str:
        """Key of the first error."""
        return self.items[0].key if self.items else ""


class JobError(DoorbellError, ValueError):
    """Errors in a job file or a recording."""


class RunError(DoorbellError, RuntimeError):
    """A run could not begin, or did not end."""


class SweepError(DoorbellError, RuntimeError):
    """A sweep file is wrong, points cannot run, or results cannot be kept."""
