"""Plans and jobs as arguments of calls."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from . import _core
from ._errors import ArgumentError

Settings: TypeAlias = Mapping[str, Any]
"""Keys and values: dotted keys, nested dicts, or both."""


@dataclass(frozen=True)
class Sourced:
    """A value of a plan, and where it comes from."""

    key: str
    value: str
    source: str
    assumed: bool
    """The value was not measured."""


class Plan:
    """A machine: link, host, device, medium. It is checked when it is made.

    ``name`` is a built-in plan or the path of a TOML file; ``text`` is the text of a plan, whose name in errors
    is ``name``. ``set`` overrides keys: ``{"link.lanes": 8}`` or ``{"link": {"lanes": 8}}``.

    :raises PlanError: with all errors in the plan.
    """

    def __init__(
        self, name: str | os.PathLike[str], set: Settings | None = None, *, text: str | None = None
    ) -> None:
        self._request: dict[str, Any] = {"name": os.fspath(name), "text": text, "set": dict(set or {})}
        found: dict[str, Any] = json.loads(_core.check_plan(dumped("plan", self._request)))
        self.name: str = found["name"]
        self.about: str = found["about"]
        self.seed: int = found["seed"]
        self.text: str = found["text"]
        """TOML, with its bases merged in, before the settings."""
        self.sources: list[Sourced] = [Sourced(**one) for one in found["sources"]]

    def __repr__(self) -> str:
        return f"Plan({self._request['name']!r}, {self._request['set']!r})"

    def with_(self, set: Settings) -> Plan:
        """This plan with further settings."""
        request = self._request
        return Plan(request["name"], {**request["set"], **set}, text=request["text"])

    def __getitem__(self, key: str) -> Sourced:
        """The value of a key that has a source."""
        for one in self.sources:
            if one.key == key:
                return one
        raise KeyError(f"{self.name}: found no {key!r}, expected a key with a source")


PlanLike: TypeAlias = "str | os.PathLike[str] | Mapping[str, Any] | Plan"
"""A built-in name, a path, a ``Plan``, or a dict: ``base`` is a name or path, other keys override its keys."""

JobLike: TypeAlias = "str | os.PathLike[str] | Mapping[str, Mapping[str, Any]]"
"""A path of a job file or recording, the text of a job file (with a line break), or a dict of sections."""


def dumped(what: str, value: object) -> str:
    """As JSON, without NaN, which no key has."""
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"{what}: found {error}, expected text, numbers, booleans, lists and dicts") from error


def plan_request(plan: PlanLike, set: Settings | None) -> dict[str, Any]:
    more = dict(set or {})
    if isinstance(plan, Plan):
        return {**plan._request, "set": {**plan._request["set"], **more}}
    if isinstance(plan, Mapping):
        keys = dict(plan)
        base = keys.pop("base", None)
        if not isinstance(base, (str, os.PathLike)):
            raise ArgumentError(f"plan: found base {base!r}, expected a name or a path: other keys override its keys")
        return {"name": os.fspath(base), "set": {**keys, **more}}
    return {"name": os.fspath(plan), "set": more}


def job_request(job: JobLike) -> dict[str, str]:
    if isinstance(job, Mapping):
        return {"file": "job.fio", "text": job_text(job)}
    if isinstance(job, str) and "\n" in job:
        return {"file": "job.fio", "text": job}
    return {"file": os.fspath(job)}


def job_text(sections: Mapping[str, Mapping[str, Any]]) -> str:
    """A job file of these sections."""
    lines = []
    for name, settings in sections.items():
        lines.append(f"[{name}]")
        for key, value in settings.items():
            # As fio: a key without a value is on.
            number = int(value) if isinstance(value, bool) else value
            lines.append(f"{key}={number}")
    if any("\n" in line for line in lines):
        raise ArgumentError("job: found a line break in a name, a key or a value, expected one line each")
    return "\n".join(lines) + "\n"


def read_text(path: str | os.PathLike[str]) -> str:
    return Path(path).read_text(encoding="utf-8")
