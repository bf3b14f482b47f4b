"""A SLURM of one node on the loopback address, and a checkout whose scripts need no installation."""

import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = {"munged", "slurmctld", "slurmd", "sbatch", "srun"}

# No accounting, no cgroups, as root: what a container without systemd allows. A requeued job waits for cred_expire.
SLURM_CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=20
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/pgid
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=bf_interval=1,sched_interval=2
SlurmdParameters=config_overrides
MpiDefault=none
JobRequeue=1
ReturnToService=2
KillWait=5
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN
PartitionName=main Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


class Checkout:
    """The scripts, with commands that run this working tree, and small resources."""

    def __init__(self, folder, environment):
        self.folder = folder
        for name in ("configs", "scripts"):
            shutil.copytree(ROOT / name, folder / name)
        (folder / "fwp_fairseq").symlink_to(ROOT / "fwp_fairseq")
        with open(folder / "scripts" / "lib" / "environment.sh", "a") as file:
            file.write("prepare_environment() { :; }\n")
        commands = folder / "bin"
        commands.mkdir()
        for name in ("slurm", "sweep", "report", "eval_lm", "bench"):
            command = commands / f"fwp-{name.replace('_', '-')}"
            command.write_text(f'#!/bin/sh\nexec {sys.executable} -m fwp_fairseq.cli.{name} "$@"\n')
            command.chmod(0o755)
        self.environment = {
            **os.environ, **environment, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "",
            "PATH": f"{commands}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        }  # fmt: skip
        self.resources(processes_per_node=1)

    def resources(self, **fields):
        fields = {"time": "00:20:00", "signal_seconds": 120, "cpus_per_task": 1, **fields}
        lines = [f"{name}: {value!r}\n" for name, value in fields.items()]
        steps = "steps: {evaluate: {processes_per_node: 1}, cells: {processes_per_node: 1}, table: {processes_per_node: 1}}\n"
        (self.folder / "configs" / "slurm.yaml").write_text("".join(lines) + steps)

    def run(self, script, *arguments, **environment):
        return subprocess.run(
            ["bash", f"scripts/{script}", *map(str, arguments)],
            cwd=self.folder,
            env={**self.environment, **environment},
            capture_output=True,
            text=True,
            timeout=300,
        )


@pytest.fixture
def checkout(tmp_path):
    """Without a SLURM, whatever the machine has."""
    return Checkout(tmp_path, {"SLURM_CONF": "/nowhere"})


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Starts munged, slurmctld and slurmd in a folder of their own, gives the environment that reaches them, and stops
    them. Where SLURM is not installed the tests are skipped, which the summary says by name, or fail with
    FWP_REQUIRE_SLURM=1."""
    missing = sorted(name for name in COMMANDS if shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") is None)
    reason = f"no {', '.join(missing)} (Debian: slurm-wlm and munge)" if missing else "" if os.getuid() == 0 else "not root"
    if reason:
        if os.environ.get("FWP_REQUIRE_SLURM") == "1":
            pytest.fail(f"FWP_REQUIRE_SLURM=1, and SLURM cannot be started here: {reason}")
        pytest.skip(f"SLURM cannot be started here: {reason}")
    folder = tmp_path_factory.mktemp("slurm")
    for name in ("state", "spool"):
        (folder / name).mkdir()
    (folder / "munge.key").write_bytes(os.urandom(1024))
    (folder / "munge.key").chmod(0o600)
    conf = folder / "slurm.conf"
    conf.write_text(SLURM_CONF.format(host=socket.gethostname().split(".")[0], ports=free_ports(), folder=folder))
    environment = {"SLURM_CONF": str(conf)}
    munge = [f"--{name}={folder}/munge.{name.removesuffix('-file')}" for name in ("socket", "pid-file", "log-file", "seed-file")]
    daemons = [
        ["munged", "--foreground", "--force", f"--key-file={folder}/munge.key", *munge],
        ["slurmctld", "-D", "-f", str(conf)],
        ["slurmd", "-D", "-f", str(conf)],
    ]
    with open(folder / "daemons.log", "w") as log:
        env = {**os.environ, **environment, "PATH": f"{os.environ['PATH']}:/usr/sbin"}
        running = []
        try:
            for command in daemons:
                running.append(subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True))
                time.sleep(1)
            deadline = time.monotonic() + 60
            while "idle" not in subprocess.run(["sinfo", "-h", "-o", "%T"], env=env, capture_output=True, text=True).stdout:
                assert time.monotonic() < deadline, (folder / "daemons.log").read_text()
                time.sleep(1)
            yield environment
            subprocess.run(["scancel", "--me"], env=env)
            time.sleep(2)
        finally:
            for process in reversed(running):
                process.terminate()
                process.wait(timeout=30)


def free_ports():
    sockets = [socket.socket() for _ in range(2)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()
