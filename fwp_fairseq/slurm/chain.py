"""The jobs of one table or figure: submitted once, remembered in results/slurm/, shown, cancelled, and what failed.

One array for each step (train, evaluate), of which an element starts when the same element of the step before has
succeeded (aftercorr, the afterok of arrays), then the table, whatever became of the rows (afterany).
"""

import contextlib
import fcntl
import json
import os
from pathlib import Path

from fwp_fairseq.records import runs_dir
from fwp_fairseq.reports.failures import write_failures
from fwp_fairseq.slurm import SlurmError, queue
from fwp_fairseq.slurm.tasks import array_file, check_time, is_recorded, table_file

LAST_LINES = 15


class Chain:
    """Everything that was submitted of one experiment."""

    def __init__(self, results, experiment):
        self.results, self.experiment = Path(results), experiment
        self.folder = self.results / "slurm"
        self.logs = self.folder / "logs"
        self.path = self.folder / f"{experiment}.json"
        try:
            self.state = json.loads(self.path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            self.state = {"records": {}, "jobs": []}
        except ValueError as error:
            raise SlurmError(f"{self.path} is damaged ({error}); remove it once squeue shows none of your jobs")

    @classmethod
    @contextlib.contextmanager
    def locked(cls, results, experiment):
        """The chain, for one process at a time: two submissions at once would both find nothing in the queue."""
        folder = Path(results) / "slurm"
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / f".{experiment}.lock", "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield cls(results, experiment)

    def submit(self, tasks, resources, speeds, say) -> None:
        """Submit what is neither finished nor in the queue, the table behind it; `say` takes lines for the user."""
        queue.check_partitions(resources)
        active = queue.active_jobs()
        wanted = [task for task in tasks if not task.finished and not self._places(task.name, active)]
        if len(wanted) < len(tasks):
            say(f"{len(tasks) - len(wanted)} of {len(tasks)} are finished, or in the queue already")
        if not wanted:
            return say("nothing to submit")
        first = next(iter(wanted[0].commands))
        check_time(resources[first], wanted, speeds)
        self.logs.mkdir(parents=True, exist_ok=True)
        submitted, earlier = [], sorted({job for job, _ in active} & {job["job"] for job in self._arrays()}, key=int)
        try:
            for step, text in self.files(wanted, resources, submitted, earlier):
                submitted.append(queue.submit(text))
                count = f", {len(wanted)} tasks" if step != "table" else ""
                say(f"{step}: job {submitted[-1]}{count}")
        except SlurmError:
            if submitted:  # half a chain is of no use
                queue.call("scancel", *submitted)
            raise
        steps = [*wanted[0].commands, "table"]
        for task in wanted:
            self.state["records"][task.name] = task.record
        names = [task.name for task in wanted]
        self.state["jobs"] += [
            {"job": job, "step": step, "tasks": names if step != "table" else [], "cancelled": False}
            for job, step in zip(submitted, steps)
        ]
        self._write()

    def files(self, tasks, resources, submitted, earlier=()):
        """(step, sbatch file) one after the other; the caller adds the id of each job to `submitted` in between."""
        for step in tasks[0].commands:
            dependency = f"aftercorr:{submitted[-1]}" if submitted else None
            yield step, array_file(self.experiment, step, resources[step], tasks, dependency, self.logs)
        dependency = ":".join(["afterany", *submitted, *earlier])
        yield "table", table_file(self.experiment, resources["table"], self.results, dependency, self.logs)

    def status(self) -> list[tuple[str, str]]:
        """(name, what became of it) of every task, and of the latest table."""
        active = queue.active_jobs()
        lines = [(name, self._state(name, active)) for name in self.state["records"]]
        for job in self.state["jobs"][-1:]:  # a table is always the last of its chain
            place = active.get((job["job"], None))
            lines.append(("table", f"{_in_words(*place)}, job {job['job']}" if place else self._ended_table(job)))
        return lines

    def cancel(self) -> list[str]:
        """Cancel what runs and waits; the ids of the jobs."""
        active = {job for job, _ in queue.active_jobs()}
        ids = [job["job"] for job in self.state["jobs"] if job["job"] in active]
        if ids:
            queue.call("scancel", *ids)
            for job in self.state["jobs"]:
                job["cancelled"] = job["cancelled"] or job["job"] in ids
            self._write()
        return ids

    def collect(self) -> int:
        """Write down which runs failed, for the report, and return their number. Called when the jobs have ended."""
        active, failures = queue.active_jobs(), []
        for name, record in self.state["records"].items():
            if is_recorded(record) or self._latest(name)[-1]["cancelled"] or self._places(name, active):
                continue
            row, cell, seed = Path(record).relative_to(runs_dir(self.results, self.experiment)).with_suffix("").parts
            log = self._log(name)
            failures.append(
                {
                    "row": row,
                    "cell": cell,
                    "seed": int(seed.removeprefix("seed")),
                    "log": str(log) if log else None,
                    "last_lines": _last_lines(log) if log else [],
                }
            )
        write_failures(self.results, self.experiment, failures)
        return len(failures)

    def _arrays(self):
        return [job for job in self.state["jobs"] if job["tasks"]]

    def _latest(self, name):
        """The jobs of the task's last submission, a step each."""
        jobs = [job for job in self._arrays() if name in job["tasks"]]
        steps = {job["step"]: job for job in jobs}
        return list(steps.values())

    def _places(self, name, active):
        """{step: (state, reason)} of the jobs of a task that are in the queue."""
        places = {job["step"]: active.get((job["job"], job["tasks"].index(name))) for job in self._latest(name)}
        return {step: place for step, place in places.items() if place}

    def _state(self, name, active):
        if is_recorded(self.state["records"][name]):
            return "finished"
        for step, place in self._places(name, active).items():
            return f"{_in_words(*place)} ({step}), log {self._log(name) or 'not yet there'}"
        if any(job["cancelled"] for job in self._latest(name)):
            return "cancelled"
        return f"failed, log {self._log(name) or 'not there: it never started'}"

    def _ended_table(self, job):
        log = self.logs / f"{self.experiment}-table-{job['job']}.log"
        return "cancelled" if job["cancelled"] else f"ended, in {log}" if log.exists() else "never started"

    def _log(self, name):
        """Of the last step that began."""
        logs = [
            self.logs / f"{self.experiment}-{job['step']}-{job['job']}_{job['tasks'].index(name)}.log"
            for job in self._latest(name)
        ]
        return next((log for log in reversed(logs) if log.exists()), None)

    def _write(self):
        temporary = self.path.with_suffix(".tmp")
        temporary.write_text(json.dumps(self.state, indent=1), encoding="utf-8")
        os.replace(temporary, self.path)


def _in_words(state, reason):
    return f"waiting, {reason}" if state == "PENDING" else state.lower()


def _last_lines(log):
    with open(log, "rb") as file:
        file.seek(max(0, log.stat().st_size - 100_000))
        text = file.read().decode("utf-8", errors="replace")
    return [line.rstrip() for line in text.splitlines() if line.strip()][-LAST_LINES:]
