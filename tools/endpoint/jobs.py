"""Runs of one row of the measurements: the job file, and the numbers of the report."""

import json


def job(row, limit):
    """A row's job file."""
    rated = f"rate_iops={row['rate']}\nrate_process=poisson\n" if row.get("rate") else ""
    return (f"[r]\nrw={row['job']}\nbs={row['bytes']}\niodepth={row['depth']}\nsize={row['size']}\n"
            f"norandommap=1\n{rated}{limit}\n")


def numbers(path, kind="read"):
    """A run's p50 and p99 in microseconds, its rate, and the distribution by quantile."""
    done = json.loads(path.read_text(encoding="utf-8"))["runs"][0]["jobs"][0]["operations"][kind]
    at = {one["quantile"]: one["ns"] for one in done["latency"]["percentiles"]}
    return {"p50_us": at[0.5] / 1e3, "p99_us": at[0.99] / 1e3, "iops": done["iops"],
            "quantiles_ns": [[quantile, ns] for quantile, ns in sorted(at.items())]}
