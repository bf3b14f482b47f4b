"""`fwp-report curves EXPERIMENT`: the loss during training of any rows on one plot, those still training among them."""

import argparse
import json
import sys
from pathlib import Path

from fwp_fairseq.records import read_records
from fwp_fairseq.reports.curves_plot import Curve, png
from fwp_fairseq.reports.report import ReportError, markdown_table, write_file

DESCRIPTION = """\
Draw the loss during training of the rows of an experiment on one plot: from the
records in <results>/runs, and from the training.json below <runs> for trainings
without a record, such as those still running. For the curves of wandb runs see
scripts/compare_wandb.py."""

EPILOG = """\
examples:
  fwp-report curves table_wikitext103 --setting mini
  fwp-report curves table_wikitext103 --rows delta,transformer --x tokens
  fwp-report curves figure_capacity --rows elu,dpfp_1 --setting S60

Losses are those of the records: nats a token, or the squared error of synthetic
retrieval. --x tokens takes every update of a run to have equally many tokens.
Exit status: 0 all is well, 1 nothing to draw or some files were left out,
2 wrong arguments."""

METRICS = {"train_loss": "training loss", "valid_loss": "validation loss"}


def main(argv) -> int:
    """Run the command; returns its exit status."""
    options = _parser().parse_args(argv)
    out = options.out or options.runs / f"curves_{options.experiment}.png"
    try:
        runs, problems = find_runs(options.results, options.runs, options.experiment)
        chosen = choose(runs, "rows", "row", options.rows)
        chosen = choose(chosen, "setting", "cell", options.setting)
        curves = [curve_of(run, options.metric, options.x) for run in in_order(chosen, options.rows)]
        drawn = [curve for curve in curves if curve.y]
        if not drawn:
            raise ReportError(f"no run chosen of {options.experiment} has a point of {options.metric} yet")
        print(table(curves, options.x))
        write_file(out, png(drawn, options.experiment, options.x, METRICS[options.metric]))
        print(f"figure: {out}")
    except ReportError as error:
        print(f"fwp-report: error: {error}", file=sys.stderr)
        return 1
    for problem in problems:
        print(f"fwp-report: left out: {problem}", file=sys.stderr)
    return 1 if problems else 0


def find_runs(results_dir: Path, runs_dir: Path, experiment: str):
    """The runs of an experiment as records, or as as much of one as training.json has, and what cannot be used.

    Raises ReportError where there is none.
    """
    found, problems = {}, []
    for path in sorted(runs_dir.rglob("training.json")):
        if path.is_relative_to(runs_dir / "preflight"):  # a few updates for their speed
            continue
        try:
            log = json.loads(path.read_text())
            if log["experiment"] == experiment:
                # scripts put what is made with other options in folders of other names: seed1-50-updates, seed1-bf16
                _, _, options = path.parent.name.partition(f"seed{log['seed']}-")
                cell = f"{log['setting']} ({options})" if options else log["setting"]
                log |= {"cell": cell, "metrics": {"trained_tokens": log["tokens"]}}
                found[log["row"], cell, log["seed"]] = log
        except (ValueError, KeyError, TypeError, OSError) as error:
            problems.append(f"{path}: is no log of a training ({type(error).__name__}: {error})")
    records, wrong = read_records(results_dir, experiment)
    for record in records:
        found[record["row"], record["cell"], record["seed"]] = record
    if not found:
        places = f"neither records in {results_dir / 'runs' / experiment} nor trainings below {runs_dir}"
        text = f"no run of {experiment}: {places}"
        raise ReportError("\n".join([text, *problems, *wrong]))
    return list(found.values()), problems + wrong


def choose(runs: list, option: str, field: str, names) -> list:
    """The runs that have one of the names, all without names; ReportError where a name has no run."""
    if names is None:
        return runs
    there = sorted({run[field] for run in runs})
    for name in names:
        if name not in there:
            raise ReportError(f"--{option}: no run of {name}; there are runs of {', '.join(there)}")
    return [run for run in runs if run[field] in names]


def in_order(runs: list, rows) -> list:
    """As the rows were asked for, else by name."""
    rows = list(rows or sorted({run["row"] for run in runs}))
    # shorter names first: S20, S40, S100
    return sorted(runs, key=lambda run: (rows.index(run["row"]), len(run["cell"] or ""), run["cell"], run["seed"]))


def curve_of(run: dict, metric: str, x: str) -> Curve:
    name = f"{run['row']}/{run['cell']}/seed{run['seed']}"
    curves = run["curves"]
    # synthetic runs have the loss of their evaluations alone
    losses = curves.get("loss") if metric == "valid_loss" and metric not in curves else curves.get(metric)
    if losses is None:
        raise ReportError(f"--metric {metric}: {name} has none, only {', '.join(curves)}")
    scale = 1
    if x == "tokens" and run["updates"]:
        if "trained_tokens" not in run["metrics"]:
            raise ReportError(f"--x tokens: {name} does not say how many tokens it was trained on")
        scale = run["metrics"]["trained_tokens"] / run["updates"]
    points = [(update * scale, loss) for update, loss in zip(curves["updates"], losses) if loss is not None]
    return Curve(run["row"], run["cell"], run["seed"], run["status"], [at for at, _ in points], [y for _, y in points])


def table(curves: list, x: str) -> str:
    header = ["run", "status", x, "last", "best", f"best at {x}"]
    lines = []
    for curve in curves:
        numbers = [""] * 4
        if curve.y:
            best = min(curve.y)
            best_at = curve.x[curve.y.index(best)]
            numbers = [f"{curve.x[-1]:,.0f}", f"{curve.y[-1]:.4f}", f"{best:.4f}", f"{best_at:,.0f}"]
        lines.append([curve.name, curve.status, *numbers])
    return markdown_table(header, lines, text_columns=2)


def _names(text):
    return tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip())) or None


def _parser():
    parser = argparse.ArgumentParser(
        prog="fwp-report curves",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("experiment", metavar="EXPERIMENT", help="a table or figure, such as table_wikitext103")
    parser.add_argument("--rows", type=_names, metavar="A,B", help="which rows (default: all)")
    parser.add_argument("--setting", type=_names, metavar="S", help="which settings, comma-separated (default: all)")
    parser.add_argument("--x", choices=("updates", "tokens"), default="updates", help="x axis (default: updates)")
    parser.add_argument("--metric", choices=METRICS, default="valid_loss", help="which loss (default: valid_loss)")
    parser.add_argument("--results", type=Path, default=Path("results"), metavar="DIR", help="has the records in runs/")
    parser.add_argument("--runs", type=Path, default=Path("runs"), metavar="DIR", help="has the trainings' folders")
    parser.add_argument("--out", type=Path, metavar="PNG", help="the picture (default: <runs>/curves_EXPERIMENT.png)")
    return parser
