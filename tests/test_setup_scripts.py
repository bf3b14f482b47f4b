"""The shell scripts: their options and errors, and the set-up all of them share. No package is
installed here: a stand-in plays Python, and writes down what it was asked to do."""

import os
import re
import runpy
import shutil
import subprocess
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "scripts").glob("*.sh"))
SHELL_FILES = [*SCRIPTS, "scripts/lib/environment.sh", ".ci/run"]

# Answers as Python $version does; `-m venv` puts a copy of it into the new environment. It notes
# the pip and pytest commands it gets in $FAKE_LOG, and its pip fails when $FAKE_PIP_FAILS is set.
FAKE_PYTHON = """#!/bin/bash
case "$*" in
"-c import sys;"*) echo VERSION ;;
"-c import ensurepip"*) exit ENSUREPIP_STATUS ;;
"-c import pip") ;;
"-m venv"*) mkdir -p "${@: -1}/bin" && touch "${@: -1}/pyvenv.cfg" && cp "$0" "${@: -1}/bin/python" ;;
"-m pip"*)
    echo "pip in $(dirname "$(dirname "$0")"): $*" >>"$FAKE_LOG"
    echo "Collecting torch==2.13.0"
    if [ -n "$FAKE_PIP_FAILS" ]; then echo "ERROR: no route to the index"; exit 1; fi ;;
"-m pytest"*) echo "pytest in $PWD: $*" >>"$FAKE_LOG" ;;
*) echo "the stand-in for Python was not expected to get: $*" >&2; exit 99 ;;
esac
"""


def write_fake_python(path, version, has_ensurepip=True):
    path.parent.mkdir(parents=True, exist_ok=True)
    text = FAKE_PYTHON.replace("VERSION", version, 1)
    path.write_text(text.replace("ENSUREPIP_STATUS", "0" if has_ensurepip else "1"))
    path.chmod(0o755)


class Machine:
    """A copy of the scripts, and a PATH with the system's small tools and no Python."""

    def __init__(self, folder):
        self.bin = folder / "bin"
        self.bin.mkdir()
        for tool in (
            "bash cat cp cut dirname flock grep ls mkdir mv readlink rm sed sha256sum tail tee touch uname"
        ).split():
            (self.bin / tool).symlink_to(shutil.which(tool))
        self.log = folder / "log.txt"
        self.checkout = folder / "check out"  # a blank in the path is no trouble
        shutil.copytree(ROOT / "scripts", self.checkout / "scripts")
        for name in ("constraints.txt", "setup.py"):
            shutil.copy(ROOT / name, self.checkout / name)

    def run(self, script, *arguments, cwd=None, **environment):
        return subprocess.run(
            [shutil.which("bash"), self.checkout / script, *arguments],
            cwd=cwd or self.checkout,
            env={"PATH": str(self.bin), "FAKE_LOG": str(self.log), **environment},
            capture_output=True,
            text=True,
            timeout=60,
        )

    def commands(self, start):
        """What the stand-ins were asked to do since the last call, as far as it begins so."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        self.log.unlink(missing_ok=True)
        return [line for line in lines if line.startswith(start)]


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


@pytest.mark.parametrize("path", SHELL_FILES)
def test_shell_file_parses(path):
    subprocess.run(["bash", "-n", ROOT / path], check=True)


@pytest.mark.parametrize("script", SCRIPTS)
def test_help_names_the_options_and_sets_nothing_up(machine, script):
    result = machine.run(script, "--help")  # there is no Python here that it could start
    assert result.returncode == 0, result.stderr
    assert f"Usage: bash {script}" in result.stdout
    assert "--help" in result.stdout
    options_taken = set(re.findall(r"^ +(?:-h \| )?(--[a-z-]+)\)", (ROOT / script).read_text(), re.M))
    assert options_taken <= set(re.findall(r"--[a-z-]+", result.stdout))
    assert not (machine.checkout / ".venv").exists()


def test_quickstart_rejects_an_unknown_argument(machine):
    result = machine.run("scripts/quickstart.sh", "--fast")
    assert result.returncode == 2
    assert "'--fast'" in result.stderr and "--help" in result.stderr


def test_first_run_makes_the_environment_and_the_second_uses_it(machine):
    write_fake_python(machine.bin / "python3.12", "3.12")
    first = machine.run("scripts/test.sh", "-k", "delta or sum")
    assert first.returncode == 0, first.stderr
    assert "Making a virtual environment" in first.stdout and "torch==2.13.0" in first.stdout
    commands = machine.commands("p")
    assert all(f"pip in {machine.checkout}/.venv: " in line for line in commands[:-1])
    assert any("--constraint constraints.txt" in line and "--editable" in line for line in commands)
    assert commands[-1].startswith(f"pytest in {machine.checkout}: ")
    assert commands[-1].endswith("-k delta or sum")

    second = machine.run("scripts/test.sh")
    assert second.returncode == 0, second.stderr
    assert second.stdout == ""
    assert machine.commands("pip") == []


def test_changed_pins_are_installed(machine):
    write_fake_python(machine.bin / "python3.11", "3.11")
    machine.run("scripts/test.sh")
    machine.commands("pip")
    with open(machine.checkout / "constraints.txt", "a") as file:
        file.write("another==1.0\n")
    machine.run("scripts/test.sh")
    assert machine.commands("pip") != []


def test_failed_installation_is_reported_and_done_again(machine):
    write_fake_python(machine.bin / "python3.11", "3.11")
    failed = machine.run("scripts/test.sh", FAKE_PIP_FAILS="1")
    assert failed.returncode == 1
    assert "error: pip could not install" in failed.stderr
    assert "no route to the index" in failed.stderr
    assert machine.commands("pytest") == []

    again = machine.run("scripts/test.sh")
    assert again.returncode == 0, again.stderr
    assert machine.commands("pip") != []


@pytest.mark.parametrize("option", ["--slow", "-h"])
def test_test_script_keeps_its_own_options_from_pytest(machine, option):
    write_fake_python(machine.bin / "python3.11", "3.11")
    assert machine.run("scripts/test.sh", option).returncode == 0
    assert not any(option in line.split() for line in machine.commands("pytest"))


def test_only_the_slow_option_lifts_the_choice_of_quick_tests(machine):
    write_fake_python(machine.bin / "python3.11", "3.11")
    machine.run("scripts/test.sh")
    machine.run("scripts/test.sh", "--slow")
    quick, slow = machine.commands("pytest")
    assert " -m " not in quick.removeprefix(f"pytest in {machine.checkout}: -m")
    assert slow == quick + " -m "


@pytest.mark.parametrize("version", ["3.9", "3.10", "3.13"])
def test_wrong_python_is_named_with_those_that_work(machine, version):
    write_fake_python(machine.bin / "python3", version)
    result = machine.run("scripts/test.sh")
    assert result.returncode == 1
    assert f"python3 is {version}" in result.stderr
    assert "Python 3.11 or 3.12 is needed" in result.stderr
    assert not (machine.checkout / ".venv").exists()


def test_no_python_at_all(machine):
    result = machine.run("scripts/test.sh")
    assert result.returncode == 1
    assert "Python 3.11 or 3.12 is needed" in result.stderr


def test_python_without_ensurepip_is_passed_over_or_explained(machine):
    write_fake_python(machine.bin / "python3.11", "3.11", has_ensurepip=False)
    result = machine.run("scripts/test.sh")
    assert result.returncode == 1
    assert "python3-venv" in result.stderr

    write_fake_python(machine.bin / "python3.12", "3.12")
    result = machine.run("scripts/test.sh")
    assert result.returncode == 0, result.stderr


def test_active_environment_is_used(machine, tmp_path):
    active = tmp_path / "active"
    write_fake_python(active / "bin" / "python", "3.11")
    result = machine.run("scripts/test.sh", VIRTUAL_ENV=str(active))
    assert result.returncode == 0, result.stderr
    assert machine.commands(f"pip in {active}:") != []
    assert not (machine.checkout / ".venv").exists()


@pytest.mark.parametrize("name, used", [("research", True), ("base", False)])
def test_active_conda_environment_is_used_unless_it_is_base(machine, tmp_path, name, used):
    active = tmp_path / "conda"
    write_fake_python(active / "bin" / "python", "3.12")
    write_fake_python(machine.bin / "python3.11", "3.11")
    result = machine.run("scripts/test.sh", CONDA_PREFIX=str(active), CONDA_DEFAULT_ENV=name)
    assert result.returncode == 0, result.stderr
    assert (machine.commands(f"pip in {active}:") != []) == used


def test_active_environment_with_the_wrong_python(machine, tmp_path):
    active = tmp_path / "active"
    write_fake_python(active / "bin" / "python", "3.10")
    result = machine.run("scripts/test.sh", VIRTUAL_ENV=str(active))
    assert result.returncode == 1
    assert str(active) in result.stderr and "has Python 3.10" in result.stderr
    assert machine.commands("p") == []


def test_active_environment_that_is_gone(machine, tmp_path):
    write_fake_python(machine.bin / "python3.11", "3.11")
    result = machine.run("scripts/test.sh", VIRTUAL_ENV=str(tmp_path / "gone"))
    assert result.returncode == 1
    assert "has no working bin/python" in result.stderr


def test_fwp_venv_comes_before_the_active_environment_and_is_relative_to_the_user(machine, tmp_path):
    write_fake_python(machine.bin / "python3.11", "3.11")
    write_fake_python(tmp_path / "active" / "bin" / "python", "3.11")
    result = machine.run(
        "scripts/test.sh", cwd=tmp_path, FWP_VENV="mine", VIRTUAL_ENV=str(tmp_path / "active")
    )
    assert result.returncode == 0, result.stderr
    commands = machine.commands("p")
    assert commands[0].startswith(f"pip in {tmp_path}/mine:")
    assert commands[-1].startswith(f"pytest in {machine.checkout}:")


def test_folder_that_is_no_environment_is_never_emptied(machine, tmp_path):
    write_fake_python(machine.bin / "python3.11", "3.11")
    precious = tmp_path / "home" / "thesis.tex"
    precious.parent.mkdir()
    precious.write_text("do not lose me")
    result = machine.run("scripts/test.sh", FWP_VENV=str(precious.parent))
    assert result.returncode == 1
    assert "not a virtual environment" in result.stderr
    assert precious.read_text() == "do not lose me"


def test_every_pin_is_exact_and_every_direct_dependency_is_pinned(monkeypatch):
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[a-z0-9-]+==[0-9][0-9a-z.]*", pin) for pin in pins)
    package = {}
    monkeypatch.setattr("setuptools.setup", package.update)
    runpy.run_path(str(ROOT / "setup.py"))
    wanted = [*package["install_requires"], *sum(package["extras_require"].values(), [])]
    versions = dict(pin.split("==") for pin in pins)
    for requirement in map(Requirement, wanted):
        assert requirement.specifier.contains(versions[requirement.name]), requirement


def test_a_clone_has_no_file_that_the_commands_write():
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    written = ["runs/quickstart/x.json", ".venv/bin/python", "outputs/a.log", "wandb/run/x"]
    result = subprocess.run(
        ["git", "check-ignore", *written], cwd=ROOT, capture_output=True, text=True
    )
    assert result.stdout.splitlines() == written
