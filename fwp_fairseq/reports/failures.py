"""Runs that a cluster was given and that left no record: fwp-slurm writes them down, reports show them."""

import json
import os
from pathlib import Path

from fwp_fairseq.records import record_path


def failures_path(results_dir, experiment):
    return Path(results_dir) / "slurm" / f"{experiment}.failures.json"


def write_failures(results_dir, experiment, failures):
    """failures: [{row, cell, seed, log, last_lines}]; they take the place of those of before."""
    path = failures_path(results_dir, experiment)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(failures, indent=1), encoding="utf-8")
    os.replace(temporary, path)


def read_failures(results_dir, experiment):
    """Those that have no record to this day."""
    path = failures_path(results_dir, experiment)
    failures = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    return [
        failure
        for failure in failures
        if not record_path(results_dir, experiment, failure["row"], failure["seed"], failure["cell"]).exists()
    ]


def failed_section(failures):
    """Markdown, nothing where nothing failed: each run, its log and the last lines of it."""
    if not failures:
        return ""
    blocks = ["## Failed runs", "They left no record; their rows lack these seeds. Submitted again, they resume."]
    for failure in failures:
        log = f"`{failure['log']}`, its last lines:" if failure["log"] else "no log: the job never started."
        blocks.append(f"### {failed_run(failure)}\n\n{log}")
        if failure["last_lines"]:
            blocks.append("\n".join(["```text", *failure["last_lines"], "```"]))
    return "\n" + "\n\n".join(blocks) + "\n"


def failed_run(failure):
    return f"{failure['row']} {failure['cell']} seed {failure['seed']}"
