"""The published facts that our numbers are set against: the paper's, and the authors' own runs."""

import csv
import math
from dataclasses import dataclass
from pathlib import Path

import yaml

from fwp_fairseq.reports.report import ReportError

CHECKOUT_RESULTS = Path(__file__).resolve().parents[2] / "results"


@dataclass(frozen=True)
class AuthorsRun:
    """Outcome of one of the authors' runs. None: not finite (the run diverged)."""

    best: float | None
    last: float | None
    updates: int

    @property
    def diverged(self):
        return self.last is None


def paper_finding(results_dir, name):
    """The paper's finding for the figure `name`, one line."""
    facts = yaml.safe_load(_published_file(results_dir, "paper.yaml").read_text(encoding="utf-8"))
    return " ".join(facts[name]["finding"].split())


@dataclass(frozen=True)
class PaperScores:
    """Of one row, in the paper: perplexity or BLEU as a number, a text such as ">260", or None where our sources give
    none."""

    valid: float | str | None
    test: float | str | None


def paper_perplexities(results_dir, name):
    """{(setting, row): PaperScores} of the paper's language modelling table `name`."""
    facts = yaml.safe_load(_published_file(results_dir, "paper.yaml").read_text(encoding="utf-8"))
    return {
        (setting, line["row"]): PaperScores(line["valid"], line["test"])
        for setting, lines in facts[name].items()
        for line in lines
    }


def paper_unbounded(results_dir, name):
    """{(row, state size as "0.13M"): PaperScores} of the paper's table of unbounded context."""
    facts = yaml.safe_load(_published_file(results_dir, "paper.yaml").read_text(encoding="utf-8"))
    return {(line["row"], line["state_size"]): PaperScores(line["valid"], line["test"]) for line in facts[name]}


def paper_bleu(results_dir):
    """{row: PaperScores} of the paper's translation table."""
    facts = yaml.safe_load(_published_file(results_dir, "paper.yaml").read_text(encoding="utf-8"))
    return {line["row"]: PaperScores(line["valid"], line["test"]) for line in facts["table_wmt14_en_de"]}


@dataclass(frozen=True)
class PaperThroughput:
    """Of training, on the paper's GPUs."""

    words_per_second: float
    memory_gb: float


def paper_throughput(results_dir):
    """{row: PaperThroughput}; our source does not name the setting."""
    facts = yaml.safe_load(_published_file(results_dir, "paper.yaml").read_text(encoding="utf-8"))
    return {line["row"]: PaperThroughput(line["words_per_second"], line["memory_gb"]) for line in facts["throughput"]}


def authors_synthetic(results_dir, figure):
    """{(row, S): AuthorsRun} of one synthetic figure, "capacity" or "update_rule"."""
    runs = {}
    with open(_published_file(results_dir, "authors_synthetic.csv"), newline="") as file:
        for line in csv.DictReader(file):
            if line["figure"] != figure:
                continue
            parts = [line["feature_map"], line["arg"]]
            if figure == "update_rule":
                parts.append(line["update_rule"])
            row = "_".join(part for part in parts if part)
            runs[row, int(line["n_keys"])] = AuthorsRun(
                best=_finite(line["best_eval_loss"]),
                last=_finite(line["last_eval_loss"]),
                updates=int(line["steps_run"]),
            )
    return runs


def _finite(text):
    return float(text) if text and math.isfinite(float(text)) else None


def _published_file(results_dir, name):
    """`name` in the results folder, else in that of the checkout the package lies in."""
    for folder in (Path(results_dir), CHECKOUT_RESULTS):
        if (folder / name).is_file():
            return folder / name
    raise ReportError(
        f"{name} (published numbers) is neither in {results_dir} nor in {CHECKOUT_RESULTS}; "
        "copy it from the results/ folder of the repository"
    )
