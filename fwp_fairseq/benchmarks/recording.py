"""What the benchmarks share: where a record goes, the machine it is about, and how its numbers are written."""

import os
import platform
import re
import sys
from pathlib import Path

from fwp_fairseq import records
from fwp_fairseq.benchmarks import BenchError


def add_arguments(parser, report: str):
    """report: the name under which `fwp-report` shows the record."""
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where to run (default: cpu)")
    target = parser.add_mutually_exclusive_group()
    target.add_argument("--results", type=Path, metavar="DIR",
                        help=f"write the record below DIR/runs, where `fwp-report {report} --results DIR` finds it")  # fmt: skip
    target.add_argument("--json", type=Path, metavar="PATH", help="write the record to this file")


def check(options):
    """Ahead of the work: RecordError or BenchError where the record cannot be written or the device is not there."""
    if options.results is not None:
        records.check_writable(options.results)
    if options.json is not None and (options.json.is_dir() or not os.access(options.json.absolute().parent, os.W_OK)):
        raise BenchError(f"--json: {options.json} cannot be written; name a file in a folder that can")
    import torch

    if options.device == "cuda" and not torch.cuda.is_available():
        raise BenchError("--device: torch finds no CUDA device here; use --device cpu")


def quiet_profiler():
    """Ahead of the first import of torch: otherwise its profiler, which counts memory, reports each start and stop."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")


def write(options, record, report: str):
    if options.results is not None:
        print(f"record: {records.write_record(options.results, record)}")
        print(f"its table and figure: fwp-report {report} --results {options.results}")
    elif options.json is not None:
        print(f"record: {records.write_record_file(options.json, record)}")


def machine(device):
    """(row of the record, name of the processor) of a torch device."""
    import torch

    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
        return "cuda-" + re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-"), name
    return "cpu", processor()


def processor() -> str:
    """The CPU's name as Linux gives it, else its architecture."""
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text(encoding="utf-8") if cpuinfo.exists() else ""
    named = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return named[1].strip() if named else platform.machine()


def environment() -> dict:
    """What is set of the variables that change the speed."""
    return {k: v for k, v in sorted(os.environ.items()) if k.startswith(("OMP_", "MKL_", "MALLOC_"))}


def rounded(number):
    """Four digits: more are noise, and records are read by people."""
    return float(f"{number:.4g}")


def say(text):
    print(text, file=sys.stderr, flush=True)
