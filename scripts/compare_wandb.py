#!/usr/bin/env python
"""Sets the wandb runs of a table or figure next to each other: their numbers, the settings in which they differ, and
their curves on one plot. Reads a project on a server, or the folder that offline runs were written to."""

import argparse
import math
import sys
from pathlib import Path

from fwp_fairseq.reports.curves_plot import Curve, png
from fwp_fairseq.reports.report import ReportError, markdown_table, write_file
from fwp_fairseq.wandb_files import LoggedRun, WandbFileError, read_runs

EPILOG = """\
examples:
  python scripts/compare_wandb.py table_wikitext103 --offline wandb --setting mini
  python scripts/compare_wandb.py table_wikitext103 --entity my-team --x tokens
  python scripts/compare_wandb.py figure_update_rule --rows dpfp_1_delta,dpfp_1_sum \\
      --metric train/loss --out loss.png

Exit status: 0 done, 1 no such runs or no way to them, 2 wrong arguments."""

# what differs between any two runs and says nothing
NO_SETTINGS = ("_wandb", "experiment", "row", "cell", "task.row", "task.setting", "checkpoint.save_dir")


class CompareError(Exception):
    """The runs cannot be compared; the text says why and what to do."""


def main(argv=None) -> int:
    """Run the command; returns its exit status."""
    options = _parser().parse_args(argv)
    try:
        runs = read_runs(options.offline) if options.offline else runs_on_server(options)
        runs = choose(runs, options)
        print(numbers(runs, options.metric))
        print(f"\n{different_settings(runs)}")
        curves = [curve for run in runs if (curve := curve_of(run, options.metric, options.x)).y]
        if not curves:
            raise CompareError(f"--metric {options.metric}: no run has it; there are {', '.join(metrics(runs))}")
        write_file(options.out, png(curves, options.experiment, options.x, options.metric))
        print(f"\nfigure: {options.out}")
    except (CompareError, WandbFileError, ReportError) as error:
        print(f"compare_wandb: error: {error}", file=sys.stderr)
        return 1
    return 0


def runs_on_server(options) -> list[LoggedRun]:
    """The runs of the experiment, through wandb's API."""
    try:
        import wandb
    except ImportError as error:
        raise CompareError(f"reading runs needs wandb ({error}): pip install 'fwp_fairseq[track]'")
    if not wandb.login(prompt=False, verify=False):
        raise CompareError("there is no wandb API key: run `wandb login`, or read offline runs with --offline DIR")
    path = f"{options.entity}/{options.project}" if options.entity else options.project
    try:
        return [
            LoggedRun(
                run.id,
                name=run.name,
                group=run.group,
                state=run.state,
                config=run.config,
                summary=run.summary_metrics,
                history=list(run.scan_history()),
            )
            for run in wandb.Api().runs(path, filters={"config.experiment": options.experiment})
        ]
    except (wandb.Error, ValueError) as error:  # ValueError: no such project
        raise CompareError(f"wandb has no runs of {path} for us: {error}")


def choose(runs: list, options) -> list:
    """The runs of the experiment that were asked for; of those with the same name the one that went on the longest."""
    found = {}
    for run in runs:
        if run.group == options.experiment and options.setting in (None, run.config.get("cell")):
            before = found.get(run.name)
            if before is None or len(before.history) <= len(run.history):
                found[run.name] = run
    there = sorted({run.config.get("row") for run in found.values()} - {None})
    for row in options.rows or ():
        if row not in there:
            raise CompareError(f"--rows: no run of {row}; there are runs of {', '.join(there) or 'nothing'}")
    chosen = [run for run in found.values() if options.rows is None or run.config.get("row") in options.rows]
    if not chosen:
        of = options.experiment + (f" at setting {options.setting}" if options.setting else "")
        groups = sorted({run.group for run in runs if run.group})
        raise CompareError(f"no run of {of}; there are runs of {', '.join(groups) or 'nothing'}")
    return sorted(chosen, key=lambda run: run.name)


def points(run: LoggedRun, metric: str, x: str = "updates") -> list:
    """(x, y) of the rows that have both, as numbers."""
    rows = [(row.get(x), row.get(metric)) for row in run.history]
    return [(at, y) for at, y in rows if is_finite(at) and is_finite(y)]


def is_finite(value) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


def metrics(runs: list) -> list[str]:
    return sorted({name for run in runs for row in run.history for name in row if "/" in name})


def short_name(run: LoggedRun) -> str:
    return run.name.removeprefix(f"{run.group}/")


def curve_of(run: LoggedRun, metric: str, x: str) -> Curve:
    config, found = run.config, points(run, metric, x)
    status = run.summary.get("record/status", run.state)
    place = (config.get("row") or run.name, config.get("cell"), config.get("seed") or 1, status)
    return Curve(*place, [at for at, _ in found], [y for _, y in found])


def numbers(runs: list, metric: str) -> str:
    """A line a run: how far it came, the metric, its speed, and what its evaluation found."""
    found = {name for run in runs for name, value in run.summary.items() if is_finite(value)}
    evaluated = sorted(name for name in found if name.startswith("record/") and name.endswith(("ppl", "bleu", "_loss")))
    header = ["run", "state", "updates", "tokens", f"best {metric}", "last", "words/s", "peak MB"]
    header += [name.removeprefix("record/") for name in evaluated]
    lines = []
    for run in runs:
        values = [y for _, y in points(run, metric)]
        updates = [last(run, name) for name in ("updates", "tokens")]
        shown = [*updates, min(values, default=None), values[-1] if values else None]
        shown += [last(run, "train/words_per_second"), last(run, "train/peak_memory_mb")]
        shown += [run.summary.get(name) for name in evaluated]
        lines.append([short_name(run), run.state, *map(text, shown)])
    return markdown_table(header, lines, text_columns=2)


def last(run: LoggedRun, name: str):
    """The last number logged under a name, None where there is none."""
    return next((row[name] for row in reversed(run.history) if is_finite(row.get(name))), None)


def text(value) -> str:
    if not is_finite(value):
        return ""
    return f"{value:,.0f}" if value >= 1000 or float(value).is_integer() else f"{value:.4g}"


def different_settings(runs: list) -> str:
    """A line for each setting that is not the same in all runs."""
    settings = [flat(run.config) for run in runs]
    names = sorted(set().union(*settings))
    names = [name for name in names if name not in NO_SETTINGS and not name.startswith("_wandb.")]
    names = [name for name in names if len({str(one.get(name)) for one in settings}) > 1]
    if not names:
        return "The settings are the same."
    lines = [[name, *(str(one.get(name, "")) for one in settings)] for name in names]
    return markdown_table(["setting", *map(short_name, runs)], lines, text_columns=len(runs) + 1)


def flat(config: dict, prefix: str = "") -> dict:
    """{"model.layers": 4, ...} of a nested configuration."""
    found = {}
    for name, value in config.items():
        found |= flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return found


def _parser():
    parser = argparse.ArgumentParser(
        prog="compare_wandb.py",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("experiment", metavar="EXPERIMENT", help="a table or figure, such as table_wikitext103")
    parser.add_argument("--project", default="fwp_fairseq", metavar="NAME", help="project (default: fwp_fairseq)")
    parser.add_argument("--entity", metavar="NAME", help="user or team (default: that of the API key)")
    parser.add_argument("--offline", type=Path, metavar="DIR", help="read the runs in this folder of wandb's instead")
    parser.add_argument("--rows", type=lambda names: names.split(","), metavar="A,B", help="which rows (default: all)")
    parser.add_argument("--setting", metavar="S", help="which setting (default: all)")
    parser.add_argument("--metric", default="valid/loss", metavar="NAME", help="what to draw (default: valid/loss)")
    parser.add_argument("--x", choices=("updates", "tokens"), default="updates", help="x axis (default: updates)")
    out = Path("runs/compare_wandb.png")
    parser.add_argument("--out", type=Path, default=out, metavar="PNG", help=f"the picture (default: {out})")
    return parser


if __name__ == "__main__":
    sys.exit(main())
