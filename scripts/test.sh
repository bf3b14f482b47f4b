#!/usr/bin/env bash
# Makes the environment if it is missing and runs the tests.
source "$(dirname "$(readlink -f "$0")")/lib/environment.sh"

usage() {
    cat <<'END'
Usage: bash scripts/test.sh [--slow] [PYTEST ARGUMENTS]

Makes the environment if it is missing (see README.md) and runs the tests.

  --slow      run the slow tests too: those that start real commands or several processes
  -h, --help  show this help

Everything else goes to pytest: `-k delta`, `-x`, `tests/test_setup_scripts.py`. Up to four
processes share the tests, a file to each at a time; `-n 0` runs them in one, as --pdb needs.
END
}

arguments=()
for argument in "$@"; do
    case $argument in
    -h | --help) usage && exit ;;
    --slow) arguments+=(-m "") ;;
    *) arguments+=("$argument") ;;
    esac
done

prepare_environment
# One thread a process: the processes share the cores, and several threads each would fight.
export OMP_NUM_THREADS=1
exec python -m pytest -n auto --maxprocesses=4 --dist=loadfile "${arguments[@]}"
