# Sourced by every script: goes to the repository root and offers prepare_environment, which
# finds or makes the virtual environment, installs the pins where they are missing and puts the
# environment first on PATH. Call it after the arguments are parsed, so that --help is instant.
#
#   source "$(dirname "$(readlink -f "$0")")/lib/environment.sh"
#
# The environment: $FWP_VENV, else the active virtual or conda environment, else ./.venv.

set -euo pipefail

# A relative FWP_VENV is meant from where the user stands, so it is resolved before the cd.
FWP_VENV=${FWP_VENV:+$(readlink -m -- "$FWP_VENV")}
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.."

fail() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}

usage_error() {
    printf 'error: %s (see --help)\n' "$*" >&2
    exit 2
}

# Prints "3.11" for a Python 3.11, fails for what is no working Python (an idle pyenv shim, say).
python_version() {
    "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null
}

is_supported() {
    [ "$1" = 3.11 ] || [ "$1" = 3.12 ]
}

# Prints the first Python on PATH that is supported and can make virtual environments.
find_python() {
    local name version others="" without_venv=""
    for name in python3.11 python3.12 python3 python; do
        version=$(python_version "$name") || continue
        if ! is_supported "$version"; then
            others+="$name is $version, "
        elif ! "$name" -c 'import ensurepip, venv' 2>/dev/null; then
            without_venv=$(command -v "$name")
        else
            command -v "$name"
            return
        fi
    done
    if [ -n "$without_venv" ]; then
        fail "$without_venv cannot make virtual environments: it lacks the module venv or" \
            "ensurepip. Install it (Debian and Ubuntu: the package python3-venv), or activate" \
            "a virtual environment with Python 3.11 or 3.12."
    fi
    [ -n "$others" ] || others="there is no python3 at all, "
    fail "Python 3.11 or 3.12 is needed, and PATH has neither: ${others%, }. Install one of the" \
        "two, or activate a virtual or conda environment that has it."
}

make_environment() {
    local folder=$1 python
    # --clear below empties the folder: never one that is not a virtual environment.
    if [ ! -e "$folder/pyvenv.cfg" ] && [ -n "$(ls -A "$folder" 2>/dev/null)" ]; then
        fail "$folder is not empty and is not a virtual environment. Set FWP_VENV to another folder."
    fi
    python=$(find_python)
    printf 'Making a virtual environment in %s with %s.\n' "$folder" "$python"
    "$python" -m venv --clear "$folder" ||
        fail "$python could not make a virtual environment in $folder; its message is above."
}

# Passes pip's output on as one line for each package and for each download.
run_pip() {
    local folder=$1
    shift
    "$folder/bin/python" -m pip install --constraint constraints.txt "$@" 2>&1 |
        tee -a "$folder/fwp-install.log" |
        sed -un -E -e 's/^Collecting ([^ ]+).*/  \1/p' \
            -e 's/^ +Downloading .*\(([0-9.]+ [MG]B)\).*/    downloading \1/p' \
            -e 's/^Installing collected packages: .*,.*/  unpacking (a minute or two)/p'
}

# The stamp is removed first and written last, so an interrupted installation is done again.
install_pins() {
    local folder=$1 wanted=$2 log=$1/fwp-install.log
    rm -f "$folder/fwp-installed" "$log"
    printf 'Installing the versions in constraints.txt into %s.\n' "$folder"
    printf 'This takes some minutes; the log is %s.\n' "$log"
    # setuptools first and no build isolation: what has no wheel is built with the pinned one.
    if ! { run_pip "$folder" setuptools &&
        run_pip "$folder" --no-build-isolation --editable '.[plot,track,test]'; }; then
        grep -v '^WARNING' "$log" | tail -n 20 >&2
        fail "pip could not install the packages; its last lines are above, all of them in $log." \
            "Running this again starts the installation again."
    fi
    printf '%s\n' "$wanted" >"$folder/fwp-installed"
    printf 'Installed.\n'
}

prepare_environment() {
    local folder origin version wanted machine
    machine="$(uname -s) $(uname -m)"
    [ "$machine" = "Linux x86_64" ] ||
        fail "this machine is $machine, and fairseq's wheels exist for Linux x86_64 only."

    if [ -n "$FWP_VENV" ]; then
        folder=$FWP_VENV origin="the environment that FWP_VENV names"
    elif [ -n "${VIRTUAL_ENV:-}" ]; then
        folder=$VIRTUAL_ENV origin="the active virtual environment"
    elif [ -n "${CONDA_PREFIX:-}" ] && [ "${CONDA_DEFAULT_ENV:-}" != base ]; then
        folder=$CONDA_PREFIX origin="the active conda environment"
    else
        folder=$PWD/.venv origin="the virtual environment"
    fi

    # The checkout counts too: the editable installation in a shared environment points to one.
    wanted=$({ cat constraints.txt setup.py && pwd; } | sha256sum | cut -d' ' -f1)

    # Of two scripts started at once the second waits. Some network file systems cannot lock a
    # folder; there it does not wait.
    exec 9<.
    flock 9 2>/dev/null || :
    if ! python_version "$folder/bin/python" >/dev/null; then
        case $origin in
        *active*) fail "$origin, $folder, has no working bin/python. Deactivate it." ;;
        esac
        make_environment "$folder"
    fi
    version=$(python_version "$folder/bin/python") || fail "$folder/bin/python does not start."
    is_supported "$version" ||
        fail "$origin, $folder, has Python $version; Python 3.11 or 3.12 is needed. Deactivate" \
            "it, or set FWP_VENV to another folder."
    if [ "$(cat "$folder/fwp-installed" 2>/dev/null)" != "$wanted" ]; then
        "$folder/bin/python" -c 'import pip' 2>/dev/null ||
            "$folder/bin/python" -m ensurepip >/dev/null ||
            fail "$origin, $folder, has no pip, and ensurepip could not install it."
        install_pins "$folder" "$wanted"
    fi
    exec 9<&-

    export PATH="$folder/bin:$PATH"
}
