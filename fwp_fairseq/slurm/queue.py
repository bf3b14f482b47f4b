"""SLURM's own commands, asked and their refusals put in words."""

import subprocess

from fwp_fairseq.slurm import SlurmError


def call(*command, **options) -> str:
    """Output of one of SLURM's commands. Raises SlurmError where there is none, or where it refuses."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, **options)
    except FileNotFoundError:
        raise SlurmError(
            f"there is no {command[0]} on the path: run this on the login node of a SLURM cluster, or without --slurm"
        )
    if done.returncode != 0:
        raise SlurmError(f"{command[0]} refused: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def active_jobs() -> dict[tuple[str, int | None], tuple[str, str]]:
    """{(job, index in its array): (state, reason)} of this user's jobs that wait or run."""
    jobs = {}
    for line in call("squeue", "--me", "--array", "--noheader", "--format=%F|%K|%T|%r").splitlines():
        job, index, state, reason = line.split("|")
        if state != "COMPLETING":  # its script has ended
            jobs[job, int(index) if index.isdecimal() else None] = state, reason
    return jobs


def submit(text: str) -> str:
    """Submit an sbatch file and return the job's id."""
    return call("sbatch", "--parsable", input=text).strip().split(";")[0]


def check_partitions(resources) -> None:
    """Raise SlurmError where a step names a partition that the cluster does not have."""
    known = call("sinfo", "--noheader", "--format=%R").split()
    for step, each in resources.items():
        for name in (each.partition or "").split(","):
            if name and name not in known:
                raise SlurmError(
                    f"configs/slurm.yaml: partition: the cluster has no {name!r} ({step}), it has {', '.join(known)}"
                )
