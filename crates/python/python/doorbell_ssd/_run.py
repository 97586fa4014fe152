"""Runs."""

from __future__ import annotations

import os
from typing import Any

from . import _core
from ._arguments import JobLike, PlanLike, Settings, dumped, job_request, plan_request
from ._errors import ArgumentError
from ._results import Progress, Result


def simulate(
    job: JobLike,
    plan: PlanLike = "live",
    *,
    set: Settings | None = None,
    interface: str = "nvme",
    seed: int | None = None,
    job_set: Settings | None = None,
    modulo: bool = False,
    series: str | None = None,
    resets: int = 0,
    progress: Progress | None = None,
) -> Result:
    """Runs jobs in virtual time: the same result on every machine.

    ``set`` overrides keys of the plan, ``job_set`` keys of every job. ``series`` is the interval of a time
    series: ``"10 ms"``. ``progress`` is called about every 50 ms with the number of operations. Other threads
    run meanwhile. KeyboardInterrupt, or an exception of ``progress``, ends the run.

    :raises PlanError: names the keys of the plan; :raises JobError: names file, line and key;
    :raises RunError: the run did not end.
    """
    request = _request(job, plan, set, interface, seed, job_set, modulo, series, resets)
    return Result(_core.run(dumped("request", {**request, "simulated": True}), progress))


def run_live(
    job: JobLike,
    plan: PlanLike = "live",
    *,
    set: Settings | None = None,
    interface: str = "nvme",
    seed: int | None = None,
    job_set: Settings | None = None,
    modulo: bool = False,
    series: str | None = None,
    resets: int = 0,
    threads: int = 1,
    socket: str | os.PathLike[str] | None = None,
    vfio_user: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Result:
    """Runs jobs on real memory, in wall-clock time: on a device in a thread of this process, or on one that
    ``doorbell serve`` serves at a socket. Otherwise as :func:`simulate`."""
    if socket is not None and vfio_user is not None:
        raise ArgumentError("socket: found vfio_user beside it, expected one of them")
    request = _request(job, plan, set, interface, seed, job_set, modulo, series, resets)
    request["threads"] = threads
    request["socket"] = None if socket is None else os.fspath(socket)
    request["vfio_user"] = None if vfio_user is None else os.fspath(vfio_user)
    return Result(_core.run(dumped("request", {**request, "simulated": False}), progress))


def _request(
    job: JobLike,
    plan: PlanLike,
    set: Settings | None,
    interface: str,
    seed: int | None,
    job_set: Settings | None,
    modulo: bool,
    series: str | None,
    resets: int,
) -> dict[str, Any]:
    return {
        "plan": plan_request(plan, set),
        "seed": seed,
        **job_request(job),
        "job_set": dict(job_set or {}),
        "modulo": modulo,
        "interface": interface,
        "resets": resets,
        "series": series,
    }
