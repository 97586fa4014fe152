"""Ready pictures. Each takes axes or makes them, and returns them. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ._results import Result, optional
from ._sweep import SweepResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def _axes(ax: Axes | None) -> Axes:
    if ax is not None:
        return ax
    made: Axes = optional("matplotlib.pyplot", "plot").subplots()[1]
    return made


def _named(results: Result | Mapping[str, Result]) -> Mapping[str, Result]:
    return {results.interface: results} if isinstance(results, Result) else results


def cdf(results: Result | Mapping[str, Result], kind: str = "read", ax: Axes | None = None) -> Axes:
    """Cumulative distribution of latencies: one curve for each result, by name."""
    ax = _axes(ax)
    for name, result in _named(results).items():
        latency = result.operations(kind).latency
        ns, share = latency.cdf()
        # From the least latency on, where the share begins to rise.
        ax.step([latency.min_ns / 1e3, *(ns / 1e3)], [0.0, *share], where="post", label=name)
    ax.set(xlabel=f"{kind} latency (us)", ylabel="share of operations", xscale="log", ylim=(0, 1.02))
    ax.legend()
    return ax


def breakdown(results: Result | Mapping[str, Result], kind: str = "read", ax: Axes | None = None) -> Axes:
    """Mean latency by stage: one bar for each result, by name."""
    ax = _axes(ax)
    named = _named(results)
    stages: dict[str, dict[str, float]] = {}
    for name, result in named.items():
        found = result.operations(kind).breakdown
        for stage, ns in (found.stages_ns if found else {}).items():
            stages.setdefault(stage, {})[name] = ns / 1e3
    left = {name: 0.0 for name in named}
    for stage, by_name in stages.items():
        widths = [by_name.get(name, 0.0) for name in named]
        if any(widths):
            ax.barh(list(named), widths, left=list(left.values()), label=stage)
            left = {name: left[name] + width for name, width in zip(named, widths, strict=True)}
    ax.invert_yaxis()
    ax.set(xlabel=f"mean {kind} latency (us)")
    ax.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1, 1))
    return ax


def curves(result: SweepResult, x: str, y: str = "mean_ns", by: str | None = None, ax: Axes | None = None) -> Axes:
    """Numbers of a sweep over an axis: columns of its frame, a curve for each value of ``by``. Needs pandas."""
    ax = _axes(ax)
    frame = result.frame().sort_values(x, kind="stable")
    groups = [("", frame)] if by is None else [(str(name), group) for name, group in frame.groupby(by, sort=False)]
    for name, group in groups:
        ax.plot(group[x], group[y], marker="o", label=name)
    ax.set(xlabel=x, ylabel=y)
    if by is not None:
        ax.legend(title=by)
    return ax
