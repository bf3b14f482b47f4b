"""What the records of a table of trainings say: the outcome of each row in each setting, by scale."""

from dataclasses import dataclass, field, replace

from fwp_fairseq.records import SCALES, read_records, record_path, runs_dir
from fwp_fairseq.reports.failures import failed_section, read_failures
from fwp_fairseq.reports.report import Cell, ReportError


@dataclass(frozen=True)
class TrainingTable:
    """A table of trainings. rows and settings: name in the records -> label; numbers: the metrics that a finished run
    must have; lower: pairs of rows of which the paper finds the first to have the lower perplexity."""

    name: str
    title: str
    rows: dict
    settings: dict
    numbers: tuple
    lower: tuple = ()
    curve: str = "validation perplexity"
    expected_to_diverge: tuple = ()


@dataclass
class Results:
    """The runs of one scale: {(setting, row): records, one a seed}; failures: of the jobs whose runs left no record;
    published: {(setting, row): what the paper has there}."""

    table: TrainingTable
    scale: str
    runs: dict
    failures: list = field(default_factory=list)
    published: dict = field(default_factory=dict)
    finding: str | None = None

    @property
    def name(self):
        return self.table.name if self.scale == "paper" else f"{self.table.name}_{self.scale}"

    @property
    def settings(self):
        return [setting for setting in self.table.settings if any(key[0] == setting for key in self.runs)]

    @property
    def records(self):
        return [record for records in self.runs.values() for record in records]

    def failed_seeds(self, setting, row):
        return [failure["seed"] for failure in self.failures if (failure["cell"], failure["row"]) == (setting, row)]

    def mean(self, setting, row, metric):
        """Mean over the seeds that did not diverge, None where there is none."""
        values = [r["metrics"].get(metric) for r in self.runs.get((setting, row), []) if r["status"] == "finished"]
        values = [value for value in values if value is not None]
        return sum(values) / len(values) if values else None


def load_results(results_dir, table, published, finding):
    """The runs of each scale that has any, and what is wrong with the records left out.

    Raises ReportError where there is no record that can be shown.
    """
    records, problems = read_records(results_dir, table.name)
    usable = []
    for record in records:
        reason = _what_is_wrong(record, table)
        if reason is None:
            usable.append(record)
        else:
            path = record_path(results_dir, table.name, record["row"], record["seed"], record["cell"])
            problems.append(f"{path}: {reason}")
    failures = read_failures(results_dir, table.name)
    if not usable:
        text = f"no record of {table.name} in {runs_dir(results_dir, table.name)}; run its script first"
        raise ReportError("\n".join([text, *problems, failed_section(failures)]))
    all_results = []
    for scale in SCALES:
        runs = {}
        for record in sorted(usable, key=lambda record: record["seed"]):
            if record["scale"] == scale:
                runs.setdefault((record["cell"], record["row"]), []).append(record)
        if runs:
            compared = {"published": published, "finding": finding} if scale == "paper" else {}
            all_results.append(Results(with_own_rows(table, runs), scale, runs, failures, **compared))
    return all_results, problems


def with_own_rows(table, runs):
    """The table with every row of the runs that is none of the paper's, by its name: an idea beside them."""
    own = sorted({row for _, row in runs} - table.rows.keys())
    return replace(table, rows={**table.rows, **{row: row for row in own}})


def training_cells(results_dir, table, published, metrics):
    """Every `Cell` of a table: each row in each setting, by the metric of each split of the paper.

    published: {(setting, row): PaperScores}; metrics: {"valid": name, "test": name}. A setting "mini" is never compared.
    """
    try:
        all_results, _ = load_results(results_dir, table, published, None)
    except ReportError:
        all_results = []  # nothing was run yet
    cells = []
    for setting in table.settings:
        scale = "mini" if setting == "mini" else "paper"
        for row, label in table.rows.items():
            records = [r for results in all_results if results.scale == scale for r in results.runs.get((setting, row), [])]
            paper = published.get((setting, row))
            for split, metric in metrics.items():
                number = getattr(paper, split, None) if scale == "paper" else None
                cells.append(Cell(label, f"{setting}, {split}", metric, number, scale, records))
    return cells


def _what_is_wrong(record, table):
    """Why a valid record cannot be shown in this table; None where it can."""
    if record["cell"] not in table.settings:
        return f"cell: expected one of {', '.join(table.settings)}, got {record['cell']!r}"
    for metric in table.numbers if record["status"] == "finished" else ():
        value = record["metrics"].get(metric)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return f"metrics: {metric} must be a number, got {value!r}; evaluate both splits, as the table's script does"
    return None
