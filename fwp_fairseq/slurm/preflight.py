"""A few updates of the true size: memory, words a second, and the hours of the whole table or figure."""

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

from fwp_fairseq.cli.sweep import FIGURES
from fwp_fairseq.records import read_records
from fwp_fairseq.reports.published import CHECKOUT_RESULTS, authors_synthetic
from fwp_fairseq.reports.report import markdown_table
from fwp_fairseq.slurm import SlurmError

FIGURE_UPDATES = 100


def measure_table(results, experiment, lines, folder, seeds, processes, say) -> None:
    """Run each line, "row<tab>updates<tab>updates between checkpoints<tab>command"; print and keep what it measured.

    folder: where the commands leave training.json, in a folder a row.
    """
    table, kept, total = [], speeds_path(results, experiment), 0.0
    speeds = _read(kept)
    for line in lines:
        row, updates, interval, command = line.rstrip("\n").split("\t")
        say(f"+ {command}")
        steps = _logged_updates(row, command)
        training = json.loads((Path(folder) / row.split("/")[0] / "training.json").read_text(encoding="utf-8"))
        words = sum(float(step["wpb"]) for step in steps) / len(steps)
        speeds[row] = words * len(steps) / sum(float(step["wpb"]) / float(step["wps"]) for step in steps)
        hours = int(updates) * words / speeds[row] / 3600
        total += hours * seeds
        minutes = int(interval) * words / speeds[row] / 60
        numbers = (f"{training['peak_memory_mb']:,.0f}", f"{speeds[row]:,.0f}", f"{words:,.0f}", f"{int(updates):,}")
        table.append([row, *numbers, f"{minutes:,.1f}", f"{hours:,.1f}"])
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text(json.dumps(speeds, indent=1), encoding="utf-8")
    header = ["row", "MB of a process", "words/s", "words an update", "updates", "minutes between checkpoints", "hours"]
    say("\n" + markdown_table(header, table, text_columns=1))
    say(
        f"\nhours = updates * words an update / words/s / 3600. All rows with {seeds} seed(s): {total:,.1f} hours of "
        f"{processes} process(es), {total * processes:,.1f} process hours, without validation and evaluation."
    )


def measure_figure(figure, launcher, say) -> None:
    """Train the largest cell of each curve for some updates; print hours from the authors' number of updates."""
    shape = FIGURES[figure]
    authors = authors_synthetic(CHECKOUT_RESULTS, figure.removeprefix("figure_"))
    Path("runs").mkdir(exist_ok=True)
    folder = tempfile.mkdtemp(prefix="preflight-", dir="runs")  # seen by compute nodes too, as /tmp is not
    try:
        options = ["--sizes", str(max(shape.sizes)), "--max-update", str(FIGURE_UPDATES), "--jobs", "1"]
        command = [*launcher, "fwp-sweep", figure, *options, "--results", folder]
        say("+ " + " ".join(command))
        if subprocess.run(command).returncode != 0:
            raise SlurmError("the preflight failed; its messages are above")
        records, _ = read_records(folder, figure)
    finally:
        shutil.rmtree(folder)
    table, total = [], 0.0
    for record in records:
        pace = record["wall_seconds"] / record["updates"]
        updates = sum(run.updates for (row, _), run in authors.items() if row == record["row"])
        hours = pace * updates / 3600
        total += hours
        numbers = (f"{record['peak_memory_mb']:,.0f}", f"{1000 * pace:,.1f}", f"{updates:,}", f"{hours:,.1f}")
        table.append([record["row"], *numbers])
    say("\n" + markdown_table(["curve", "MB", "ms an update", "updates", "hours at most"], table, text_columns=1))
    say(
        f"\nmilliseconds: at S = {max(shape.sizes)}, the slowest; updates: what the authors' runs of all sizes took. "
        f"The whole figure: {total:,.1f} hours of one process at most."
    )


def known_speeds(results, experiment) -> dict[str, float]:
    """{row: words a second that a preflight measured}; "": the fastest of the paper, for rows without one."""
    published = yaml.safe_load((CHECKOUT_RESULTS / "paper.yaml").read_text(encoding="utf-8"))["throughput"]
    return {"": max(line["words_per_second"] for line in published), **_read(speeds_path(results, experiment))}


def speeds_path(results, experiment):
    return Path(results) / "slurm" / f"{experiment}.preflight.json"


def _read(path):
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def _logged_updates(row, command):
    """What the training logs of its last updates (the first ones, which compile and allocate, are slower)."""
    process = subprocess.Popen(["bash", "-c", command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    logged, output = [], []
    for line in process.stdout:
        output.append(line)
        if line.startswith('{"epoch"') and '"wps"' in line:  # the lines about whole epochs have train_wps
            logged.append(json.loads(line))
    if process.wait() != 0 or len(logged) < 2:
        sys.stderr.writelines(output[-30:])
        raise SlurmError(f"{row}: the preflight failed, exit status {process.returncode}; its last lines are above")
    return [step for step in logged[len(logged) // 2 :] if float(step["wps"]) > 0]
