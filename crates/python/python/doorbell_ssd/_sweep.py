"""Sweeps: on the cores of this machine, or in other processes."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent import futures
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from . import _core
from ._arguments import dumped, read_text
from ._errors import ArgumentError, SweepError
from ._results import frame_of, optional

if TYPE_CHECKING:
    import pandas as pd

SweepLike: TypeAlias = "str | os.PathLike[str] | Mapping[str, Any]"
"""Path of a sweep file, its text (with a line break), or the same as a dict."""

SweepProgress: TypeAlias = Callable[[int, int, int], object]

POINTS_OF_A_BATCH = 16
"""Most points that another process runs before it gives them back: what a killed one costs."""

# Names of columns end in their unit.
UNITS = {"ps": "_ps", "B": "_bytes", "B/s": "_bytes_per_second"}


class SweepResult:
    """Results of a sweep: those of ``doorbell sweep``, by docs/sweep.schema.json."""

    def __init__(self, text: str) -> None:
        self._text = text
        lines = text.splitlines()
        self.header: dict[str, Any] = json.loads(lines[0])
        if self.header.get("schema") != "doorbell-sweep" or self.header.get("schema_version") != 1:
            raise ArgumentError("results: expected a doorbell-sweep of schema_version 1")
        self.points: list[dict[str, Any]] = [json.loads(line) for line in lines[1:]]

    @staticmethod
    def load(path: str | os.PathLike[str]) -> SweepResult:
        return SweepResult(read_text(path))

    def jsonl(self) -> str:
        """The results as JSON lines, byte for byte as the command writes them."""
        return self._text

    @property
    def failed(self) -> dict[int, str]:
        """Points that failed, with the reason."""
        return {point["point"]: point["failed"] for point in self.points if "failed" in point}

    def frame(self) -> pd.DataFrame:
        """A row for each point and kind of operation. An axis has its values as text, and as numbers in a column
        with the unit; without a unit the numbers alone. Needs pandas."""
        return frame_of([row for point in self.points for row in self._rows(point)])

    def _rows(self, point: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        at: dict[str, Any] = {"point": point["point"]}
        for axis in self.header["axes"]:
            name, number = axis["name"], point.get("number", {}).get(axis["name"])
            suffix = UNITS.get(axis["unit"], "")
            if suffix or number is None:
                at[name] = point["at"][name]
            if number is not None:
                at[name + suffix] = number
        at["failed"] = point.get("failed") or point.get("left_out")
        operations = point.get("result", {}).get("operations", {})
        for kind, numbers in operations.items():
            yield {**at, "kind": kind, **{key: value for key, value in numbers.items() if key != "waits"}}
        if not operations:
            yield at

    def to_parquet(self, path: str | os.PathLike[str]) -> None:
        """Writes :meth:`frame`. Needs pandas and pyarrow."""
        optional("pyarrow", "parquet")
        self.frame().to_parquet(os.fspath(path), engine="pyarrow", index=False)


class _Spec:
    """The text of a sweep and the path that its files are sought beside."""

    def __init__(self, spec: SweepLike) -> None:
        self.is_json = isinstance(spec, Mapping)
        if isinstance(spec, Mapping):
            self.path, self.text = "sweep", dumped("spec", dict(spec))
        elif isinstance(spec, str) and "\n" in spec:
            self.path, self.text = "sweep", spec
        else:
            self.path = os.fspath(spec)
            try:
                self.text = read_text(spec)
            except (OSError, UnicodeDecodeError) as error:
                raise SweepError(f"{self.path}: cannot be read: {error}") from error


def sweep(
    spec: SweepLike,
    out: str | os.PathLike[str] | None = None,
    *,
    pool: Any = "local",
    restart: bool = False,
    full: bool = False,
    jobs: int | None = None,
    memory_bytes: int | None = None,
    progress: SweepProgress | None = None,
) -> SweepResult:
    """Simulates all points of a sweep; docs/sweeps.md has its keys.

    ``out`` is the file of the results: a sweep that was stopped goes on there. Without it they are kept in
    memory. ``pool`` is ``"local"``, ``jobs`` threads of this process; a ``distributed.Client`` of Dask; an
    executor of ``concurrent.futures``; or ``"ray"``, the cluster of ``ray.init()``, or one of this machine. The
    results are the same, byte for byte. Workers need the files of the sweep at the same paths. A worker that Dask
    or Ray loses costs only the points of its batch, which another one runs.
    ``progress`` is called with the points that are done, all points, and those that failed.

    :raises SweepError: points cannot run, or results cannot be kept. A point that fails is a result.
    """
    source = _Spec(spec)
    is_named = isinstance(pool, str) and pool in ("local", "ray")
    if not is_named and not isinstance(pool, futures.Executor) and not hasattr(pool, "scheduler_info"):
        raise ArgumentError(f"pool: found {pool!r}, expected 'local', 'ray', a Dask client or an executor")
    if jobs is not None and jobs < 1:
        raise ArgumentError(f"jobs: found {jobs}, expected 1 or more")
    core = _core.Sweep(source.path, source.text, source.is_json, full, None)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "results.jsonl") if out is None else Path(out)
        results = _core.Results(path, core, restart)
        try:
            if pool == "local":
                core.run(results, jobs, memory_bytes, progress)
            else:
                _elsewhere(source, core, results, pool, full, progress)
        finally:
            results.close()
        return SweepResult(read_text(path))


def find(
    spec: SweepLike,
    search: str,
    *,
    jobs: int | None = None,
    memory_bytes: int | None = None,
) -> list[dict[str, Any]]:
    """Searches along an axis by bisection: ``"highest first_byte where mean <= 90% of interface=nvme"``.

    One dict for each combination of the other axes: ``at``, ``value`` (None: nowhere), ``is_monotone``, ``tried``.
    """
    source = _Spec(spec)
    core = _core.Sweep(source.path, source.text, source.is_json, False, None)
    with tempfile.TemporaryDirectory() as folder:
        results = _core.Results(Path(folder, "results.jsonl"), core, False)
        try:
            found: list[dict[str, Any]] = json.loads(core.find(results, search, jobs, memory_bytes))
        finally:
            results.close()
    return found


def _elsewhere(
    source: _Spec,
    core: _core.Sweep,
    results: _core.Results,
    pool: Any,
    full: bool,
    progress: SweepProgress | None,
) -> None:
    header: dict[str, Any] = json.loads(core.header())
    # A small sweep is divided as well.
    batches = core.batches(results, min(max(header["points"] // 8, 1), POINTS_OF_A_BATCH))
    spec = (source.path, source.text, source.is_json, full, header)

    def report() -> None:
        if progress is not None:
            done, failed = results.counts()
            progress(done, header["points"], failed)

    report()
    for lines in _as_completed(pool, spec, batches):
        for line in lines:
            results.append(core, line)
        report()
    results.finish()


def _as_completed(pool: Any, spec: tuple[Any, ...], batches: list[list[int]]) -> Iterator[list[str]]:
    if isinstance(pool, futures.Executor):
        submitted = [pool.submit(run_points, batch, spec) for batch in batches]
        try:
            for done in futures.as_completed(submitted):
                yield done.result()
        finally:
            for future in submitted:
                future.cancel()
        return
    if pool == "ray":
        yield from _as_completed_on_ray(spec, batches)
        return
    distributed = optional("distributed", "dask")
    mapped = pool.map(run_points, batches, spec=spec, pure=False)
    try:
        for _, lines in distributed.as_completed(mapped, with_results=True):
            yield lines
    finally:
        pool.cancel(mapped)


def _as_completed_on_ray(spec: tuple[Any, ...], batches: list[list[int]]) -> Iterator[list[str]]:
    ray = optional("ray", "ray")
    # A batch whose worker is lost runs again, as often as it takes.
    remote = ray.remote(max_retries=-1)(run_points)
    shared = ray.put(spec)
    waiting = [remote.remote(batch, shared) for batch in batches]
    try:
        while waiting:
            done, waiting = ray.wait(waiting)
            for lines in done:
                yield ray.get(lines)
    finally:
        for task in waiting:
            ray.cancel(task)


def run_points(points: list[int], spec: tuple[Any, ...]) -> list[str]:
    """Runs points of a sweep in a worker: their lines."""
    path, text, is_json, full, header = spec
    core = _core.Sweep(path, text, is_json, full, points)
    found: dict[str, Any] = json.loads(core.header())
    if found != header:
        keys = [key for key in header if found.get(key) != header[key]]
        text = "; ".join(f"{key}: found {found.get(key)}, expected {header[key]}" for key in keys)
        raise SweepError(f"{path}: the worker in {os.getcwd()} has another sweep: {text}")
    return core.lines(points, 1, None)
