"""doorbell for Python: simulated and live SSDs, results as arrays and frames, sweeps.

>>> import doorbell_ssd as db
>>> job = {"reads": {"rw": "randread", "bs": "4k", "size": "1m", "number_ios": 100}}
>>> result = db.simulate(job, "dc-express", interface="dcx")
>>> result.read.count
100
"""

from ._arguments import JobLike, Plan, PlanLike, Settings, Sourced
from ._core import interfaces, plans, version
from ._errors import ArgumentError, DoorbellError, JobError, PlanError, PlanItem, RunError, SweepError
from ._fio import Measured, load_fio
from ._results import Breakdown, Histogram, Job, Operations, Result, TimeSeries, Windows, load
from ._run import run_live, simulate
from ._sweep import SweepLike, SweepResult, find, sweep

__version__ = version()

__all__ = [
    "ArgumentError",
    "Breakdown",
    "DoorbellError",
    "Histogram",
    "Job",
    "JobError",
    "JobLike",
    "Measured",
    "Operations",
    "Plan",
    "PlanError",
    "PlanItem",
    "PlanLike",
    "Result",
    "RunError",
    "Settings",
    "Sourced",
    "SweepError",
    "SweepLike",
    "SweepResult",
    "TimeSeries",
    "Windows",
    "find",
    "interfaces",
    "load",
    "load_fio",
    "plans",
    "run_live",
    "simulate",
    "sweep",
    "version",
]
