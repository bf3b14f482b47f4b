"""What the records of a synthetic figure say: the outcome of each cell and its agreement with the
authors' runs. Shown by `synthetic_table` and `synthetic_plot`.
"""

import re
from dataclasses import dataclass, replace

from fwp_fairseq.records import SCALES, read_records, record_path, runs_dir
from fwp_fairseq.reports.failures import failed_section, read_failures
from fwp_fairseq.reports.published import authors_synthetic, paper_finding
from fwp_fairseq.reports.report import ReportError

REACHED = 0.01  # a best loss at or below this counts as solved
TOLERANCE = 0.05  # where not solved, best losses this close agree


@dataclass(frozen=True)
class Curve:
    row: str
    label: str
    capacity: int | None = None  # dimensions of the feature map at d_key 64, where it has a limit
    by_shape: bool = False  # so random that single cells need not agree with the authors'


@dataclass(frozen=True)
class SyntheticFigure:
    name: str
    authors_name: str  # its name in authors_synthetic.csv
    title: str
    setting: str
    curves: tuple[Curve, ...]
    log_scale: bool
    longer_training: bool  # training sequences are longer than the evaluated ones


@dataclass
class Outcome:
    """What the runs of one cell, one for each seed, came to. Losses in the order of the seeds."""

    seeds: list[int]
    best: list[float | None]
    last: list[float | None]
    best_train_length: list[float | None]
    last_train_length: list[float | None]
    updates: list[int]

    @property
    def diverged(self):
        return None in self.last


@dataclass
class Agreement:
    """How many of the compared cells agree with the authors', and which do not."""

    total: int
    disagreeing: list[tuple[Curve, int]]


@dataclass
class SyntheticResults:
    """All that a table or figure shows: {(row, S): ...} of ours and of the authors'."""

    figure: SyntheticFigure
    scale: str
    finding: str
    records: list[dict]
    ours: dict[tuple[str, int], Outcome]
    authors: dict  # (row, S) -> AuthorsRun; empty at mini scale, which is not comparable
    failures: list  # of the jobs whose runs left no record

    @property
    def name(self):
        return self.figure.name if self.scale == "paper" else f"{self.figure.name}_{self.scale}"

    @property
    def sizes(self):
        return sorted({size for _, size in [*self.ours, *self.authors]})

    @property
    def our_sizes(self):
        return sorted({size for _, size in self.ours})


def load_results(results_dir, figure):
    """(results of each scale that was run, problems) from the records of one figure.

    Raises ReportError where there is no record that can be shown.
    """
    records, problems = read_records(results_dir, figure.name)
    usable = []
    for record in records:
        wrong = _what_is_wrong(record, figure)
        if wrong is None:
            usable.append(record)
        else:
            place = (record[field] for field in ("experiment", "row", "seed", "cell"))
            problems.append(f"{record_path(results_dir, *place)}: {wrong}")
    failures = read_failures(results_dir, figure.name)
    if not usable:
        left_out = "".join(f"\n  left out: {problem}" for problem in problems)
        raise ReportError(
            f"no records of {figure.name} in {runs_dir(results_dir, figure.name)}; "
            f"make them with `bash scripts/{figure.name}.sh`, or name their folder with --results"
            + left_out
            + failed_section(failures)
        )
    finding = paper_finding(results_dir, figure.name)
    results = []
    for scale in SCALES:
        of_scale = [record for record in usable if record["scale"] == scale]
        if of_scale:
            comparable = scale == "paper"
            authors = authors_synthetic(results_dir, figure.authors_name) if comparable else {}
            results.append(
                SyntheticResults(
                    with_own_curves(figure, of_scale), scale, finding, of_scale, _outcomes(of_scale), authors, failures
                )
            )
    return results, problems


def with_own_curves(figure, records):
    """The figure with a curve for every row of the records that is none of the paper's: an idea beside them."""
    known = {curve.row for curve in figure.curves}
    own = sorted({record["row"] for record in records} - known)
    return replace(figure, curves=(*figure.curves, *(Curve(row, row) for row in own)))


def mean(losses):
    """Mean of the finite losses, None where there is none."""
    finite = [loss for loss in losses if loss is not None]
    return sum(finite) / len(finite) if finite else None


def agreements(results):
    """Agreement of the best losses with the authors', over the cells that were run here.

    Three groups: "solved", cells the authors solved (best loss <= REACHED), which must be solved
    here too; "unsolved", the others, which must agree within TOLERANCE; "by shape", the same for
    curves that are too random for it. Cells without a finite loss of the authors are not compared.
    """
    groups = {name: Agreement(0, []) for name in ("solved", "unsolved", "by shape")}
    for curve in results.figure.curves:
        for size in results.our_sizes:
            ours, authors = results.ours.get((curve.row, size)), results.authors.get((curve.row, size))
            if ours is None or authors is None or authors.best is None:
                continue
            best = mean(ours.best)
            if authors.best <= REACHED:
                group, agrees = "solved", best is not None and best <= REACHED
            else:
                group = "by shape" if curve.by_shape else "unsolved"
                agrees = best is not None and abs(best - authors.best) <= TOLERANCE
            groups[group].total += 1
            if not agrees:
                groups[group].disagreeing.append((curve, size))
    return groups


def _what_is_wrong(record, figure):
    """Why a valid record cannot be shown in this figure; None where it can."""
    if record["cell"] is None or not re.fullmatch(r"S[1-9]\d*", record["cell"]):
        return f"cell: expected S and the number of keys, such as S40, got {record['cell']!r}"
    required = ["best_loss", "last_loss"]
    if figure.longer_training:
        required += ["best_loss_train_length", "last_loss_train_length"]
    for metric in required:
        if metric not in record["metrics"]:
            return f"metrics: {metric} is missing"
    for metric, value in record["metrics"].items():
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if "loss" in metric and value is not None and not is_number:
            return f"metrics: {metric} must be a number or null, got {value!r}"
    return None


def _outcomes(records):
    by_cell = {}
    for record in sorted(records, key=lambda record: record["seed"]):
        key = record["row"], int(record["cell"][1:])
        by_cell.setdefault(key, []).append(record)
    return {
        key: Outcome(
            seeds=[record["seed"] for record in runs],
            best=[record["metrics"]["best_loss"] for record in runs],
            # A run that diverged has no last loss, whatever was logged before it broke off.
            last=[
                None if record["status"] == "diverged" else record["metrics"]["last_loss"]
                for record in runs
            ],
            best_train_length=[record["metrics"].get("best_loss_train_length") for record in runs],
            last_train_length=[record["metrics"].get("last_loss_train_length") for record in runs],
            updates=[record["updates"] for record in runs],
        )
        for key, runs in by_cell.items()
    }
