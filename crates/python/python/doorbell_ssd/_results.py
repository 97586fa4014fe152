"""Results of runs as objects: views of the document that ``doorbell run --json`` writes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ._errors import ArgumentError

if TYPE_CHECKING:
    import pandas as pd

Numbers: TypeAlias = NDArray[np.uint64]
Shares: TypeAlias = NDArray[np.float64]


class Histogram:
    """Latencies in nanoseconds. Without samples all numbers are 0."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        self.data = data
        self.count: int = data["count"]
        self.min_ns: int = data["min_ns"]
        self.max_ns: int = data["max_ns"]
        self.mean_ns: float = data["mean_ns"]
        self.stddev_ns: float = data["stddev_ns"]
        self.percentiles: dict[float, int] = {one["quantile"]: one["ns"] for one in data["percentiles"]}

    @cached_property
    def _bins(self) -> Numbers:
        return np.array(self.data["bins"], dtype=np.uint64).reshape(-1, 2)

    @property
    def upper_ns(self) -> Numbers:
        """Upper bounds of the bins that are not empty, in order."""
        return self._bins[:, 0]

    @property
    def counts(self) -> Numbers:
        """Number of latencies in each of these bins."""
        return self._bins[:, 1]

    def cdf(self) -> tuple[Numbers, Shares]:
        """Latencies, and the share of operations that took at most this long."""
        return self.upper_ns, np.cumsum(self.counts) / max(self.count, 1)

    def at(self, quantile: float) -> int:
        """The latency at a quantile from 0 to 1, from the bins."""
        if not 0 <= quantile <= 1:
            raise ArgumentError(f"quantile: found {quantile}, expected 0 to 1: 0.99 for p99")
        if self.count == 0:
            return 0
        rank = min(max(int(np.ceil(quantile * self.count)), 1), self.count)
        return int(self.upper_ns[np.searchsorted(np.cumsum(self.counts), rank)])


class Breakdown:
    """Latency by stage, of the operations that were traced. Stages and ``unexplained`` add up to the total."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        self.data = data
        self.traced: int = data["traced"]
        self.stage_names: list[str] = data["stages"]

    def _by_stage(self, shares: Mapping[str, Any]) -> dict[str, float]:
        stages: dict[str, float] = dict(zip(self.stage_names, shares["stages_ns"], strict=True))
        return {**stages, "unexplained": shares["unexplained_ns"]}

    @property
    def total_ns(self) -> float:
        return float(self.data["mean"]["total_ns"])

    @property
    def stages_ns(self) -> dict[str, float]:
        """The mean by stage."""
        return self._by_stage(self.data["mean"])

    @property
    def quantiles(self) -> list[float]:
        """Quantiles of which there is a breakdown."""
        return [around["quantile"] for around in self.data["at"]]

    def at(self, quantile: float) -> dict[str, float]:
        """By stage, of the operations around a quantile: one of ``quantiles``."""
        for around in self.data["at"]:
            if around["quantile"] == quantile:
                return self._by_stage(around["shares"])
        raise ArgumentError(f"quantile: found {quantile}, expected one of {self.quantiles}")


class Windows:
    """Operations by the time of their completion."""

    def __init__(self, end_ps: Numbers, windows: Sequence[Mapping[str, int]]) -> None:
        def column(name: str) -> Numbers:
            return np.array([window[name] for window in windows], dtype=np.uint64)

        self.end_ps = end_ps
        """End of each window, from the beginning."""
        self.count = column("count")
        self.bytes = column("bytes")
        self.latency_sum_ps = column("latency_sum_ps")
        self.latency_max_ps = column("latency_max_ps")

    @property
    def mean_ns(self) -> Shares:
        """Mean latency of each window; NaN without operations."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(self.latency_sum_ps / self.count / 1e3)


class Operations:
    """Operations of one kind of a job. Failed ones are counted by ``errors`` alone."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        self.data = data
        self.count: int = data["count"]
        self.bytes: int = data["bytes"]
        self.errors: int = data["errors"]
        self.iops: float = data["iops"]
        self.bytes_per_second: float = data["bytes_per_second"]

    @cached_property
    def latency(self) -> Histogram:
        return Histogram(self.data["latency"])

    @cached_property
    def breakdown(self) -> Breakdown | None:
        """None: no operation was traced."""
        return Breakdown(self.data["breakdown"]) if "breakdown" in self.data else None

    @cached_property
    def windows(self) -> Windows:
        of = self.data["windows"]
        ends = np.arange(1, len(of["windows"]) + 1, dtype=np.uint64) * np.uint64(of["width_ps"])
        return Windows(ends, of["windows"])


class Job:
    def __init__(self, data: Mapping[str, Any]) -> None:
        self.data = data
        self.name: str = data["name"]
        self.errors: int = data["errors"]
        self.messages: list[str] = data.get("messages", [])
        self.measured_ps: int = data["measured_ps"]
        self.operations: dict[str, Operations] = {kind: Operations(of) for kind, of in data["operations"].items()}

    def __getitem__(self, kind: str) -> Operations:
        """Operations of a kind: ``read``, ``write``, ``flush`` or ``trim``."""
        if kind not in self.operations:
            raise KeyError(f"job {self.name}: found no {kind}, expected one of {', '.join(self.operations)}")
        return self.operations[kind]


class TimeSeries:
    """Rates, latencies and resources over time; complete intervals only."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        self.data = data
        self.interval_ps: int = data["interval_ps"]
        points: list[dict[str, Any]] = data["points"]
        self._points = points
        self.at_ps: Numbers = np.array([point["at_ps"] for point in points], dtype=np.uint64)
        self.read = Windows(self.at_ps, [point["read"] for point in points])
        self.write = Windows(self.at_ps, [point["write"] for point in points])

    def column(self, name: str) -> Shares:
        """``host_units``, ``programmed_units``, ``host_memory_bytes`` or ``host_cores_per_mille``; NaN where it
        is not counted."""
        names = ("host_units", "programmed_units", "host_memory_bytes", "host_cores_per_mille")
        if name not in names:
            raise ArgumentError(f"column: found {name!r}, expected one of {', '.join(names)}")
        return np.array([point.get(name, np.nan) for point in self._points], dtype=np.float64)

    @property
    def write_amplification(self) -> Shares:
        """Units programmed for each one that the host wrote; NaN where it wrote none, or without flash."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(self.column("programmed_units") / self.column("host_units"))


class Result:
    """The result of a run. ``json()`` is the document, which ``doorbell replay`` takes."""

    def __init__(self, text: str) -> None:
        self._text = text
        self.data: dict[str, Any] = json.loads(text)
        if len(self.data.get("runs", [])) != 1:
            found = len(self.data.get("runs", []))
            raise ArgumentError(f"result: found {found} runs, expected one: load() gives one result for each")
        self.run: dict[str, Any] = self.data["runs"][0]
        self.world: str = self.run["world"]
        self.interface: str = self.run["interface"]
        self.plan_name: str = self.run["plan"]["name"]
        self.seed: int = self.run["plan"]["seed"]
        self.jobs: list[Job] = [Job(job) for job in self.run["jobs"]]
        self.warnings: list[str] = [warning["text"] for warning in self.run.get("warnings", [])]

    def __repr__(self) -> str:
        return f"<Result: {self.world}, plan {self.plan_name}, {self.interface}, {len(self.jobs)} jobs>"

    def json(self) -> str:
        """The document, by docs/result.schema.json."""
        return self._text

    def save(self, path: str | os.PathLike[str]) -> None:
        Path(path).write_text(self._text, encoding="utf-8")

    @property
    def errors(self) -> int:
        """Failed operations, verification errors and other failures."""
        return sum(job.errors for job in self.jobs)

    def __getitem__(self, name: str) -> Job:
        """The first job of this name."""
        for job in self.jobs:
            if job.name == name:
                return job
        raise KeyError(f"found no job {name!r}, expected one of {', '.join(job.name for job in self.jobs)}")

    def operations(self, kind: str) -> Operations:
        """Operations of a kind, of the one job that has them."""
        having = [job for job in self.jobs if kind in job.operations]
        if len(having) != 1:
            raise ArgumentError(f"kind: found {kind!r} in {len(having)} jobs, expected one: result[JOB][{kind!r}]")
        return having[0].operations[kind]

    @property
    def read(self) -> Operations:
        return self.operations("read")

    @property
    def write(self) -> Operations:
        return self.operations("write")

    @cached_property
    def series(self) -> TimeSeries | None:
        """None: no time series was asked for."""
        return TimeSeries(self.run["series"]) if "series" in self.run else None

    def frame(self) -> pd.DataFrame:
        """A row for each job and kind. Needs pandas."""
        rows = [
            {"job": job.name, "kind": kind, **numbers_of(operations)}
            for job in self.jobs
            for kind, operations in job.operations.items()
        ]
        return frame_of(rows)

    def breakdown_frame(self) -> pd.DataFrame:
        """A row for each job, kind, quantile (``mean`` or a number) and stage. Needs pandas."""
        rows = []
        for job in self.jobs:
            for kind, operations in job.operations.items():
                breakdown = operations.breakdown
                if breakdown is None:
                    continue
                each: list[tuple[str | float, dict[str, float]]] = [("mean", breakdown.stages_ns)]
                each += [(quantile, breakdown.at(quantile)) for quantile in breakdown.quantiles]
                for at, stages in each:
                    rows += [
                        {"job": job.name, "kind": kind, "at": at, "stage": stage, "ns": ns}
                        for stage, ns in stages.items()
                    ]
        return frame_of(rows, ["job", "kind", "at", "stage", "ns"])


def numbers_of(operations: Operations) -> dict[str, int | float]:
    latency = operations.latency
    return {
        "count": operations.count,
        "bytes": operations.bytes,
        "errors": operations.errors,
        "iops": operations.iops,
        "bytes_per_second": operations.bytes_per_second,
        "mean_ns": latency.mean_ns,
        "p50_ns": latency.at(0.5),
        "p99_ns": latency.at(0.99),
        "p99_9_ns": latency.at(0.999),
        "max_ns": latency.max_ns,
    }


def load(path: str | os.PathLike[str]) -> list[Result]:
    """Results from a file that ``doorbell run --json`` or :meth:`Result.save` wrote, one for each run."""
    text = Path(path).read_text(encoding="utf-8")
    try:
        data = json.loads(text)
    except ValueError as error:
        raise ArgumentError(f"{os.fspath(path)}: found {error}, expected a result as JSON") from error
    if not isinstance(data, dict) or data.get("schema") != "doorbell-result" or data.get("schema_version") != 1:
        raise ArgumentError(f"{os.fspath(path)}: expected a doorbell-result of schema_version 1")
    runs = data.get("runs", [])
    if len(runs) == 1:
        return [Result(text)]
    return [Result(json.dumps({**data, "runs": [run]}, indent=2) + "\n") for run in runs]


def frame_of(rows: Sequence[Mapping[str, Any]], columns: Sequence[str] | None = None) -> pd.DataFrame:
    frame: pd.DataFrame = optional("pandas", "pandas").DataFrame(rows, columns=columns)
    return frame


def optional(module: str, extra: str) -> Any:
    """A module of an extra of this package."""
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"{module}: not found; pip install 'doorbell-ssd[{extra}]' installs it") from error


Progress: TypeAlias = Callable[[int], object]
