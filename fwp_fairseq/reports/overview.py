"""All results on one page: the paper's number, ours, the difference, seeds, scale, date and record of every cell."""

import statistics
from pathlib import Path

from fwp_fairseq.records import record_path
from fwp_fairseq.reports import CELLS
from fwp_fairseq.reports.report import markdown_table

PAGE = "README.md"
SCALES = ("paper", "mini")  # of trainings; benchmarks have tables alone

FIRST_LINE = "# Results\n"
INTRODUCTION = f"""\
{FIRST_LINE}
Built from the records by `fwp-report all`; never edited by hand. Where the numbers come from that ours stand
beside, and what is known about our runs, is in [about.md](about.md).

| path | what it is |
|---|---|
| `runs/` | one JSON record for each finished run, `<experiment>/<row>[/<cell>]/seed<N>.json` |
| `tables/`, `figures/` | the tables and figures, from the records alone |
| `paper.yaml` | every number of the paper that the tables are set against; `null` where we have no source |
| `authors_synthetic.csv` | the outcome of the authors' own synthetic runs |

Only runs at paper scale stand beside the paper's numbers. Differences are ours minus the paper's; where there are
several seeds, ours is their mean and standard deviation."""

LONG = 40  # cells from which on a section is folded


def cells_of_everything(results_dir):
    """{report: its cells} of everything the paper has."""
    return {name: cells_of(results_dir) for name, cells_of in CELLS.items()}


def what_was_run(everything):
    """How many of the cells of each report were run, in Markdown, which reads well in a terminal too."""
    rows = []
    for name, cells in everything.items():
        row = [name]
        for scale in SCALES:
            of_scale = [cell for cell in cells if cell.scale == scale]
            row.append(f"{sum(bool(cell.records) for cell in of_scale)} of {len(of_scale)}" if of_scale else "")
        rows.append(row)
    return markdown_table(["cells that were run", *(f"{scale} scale" for scale in SCALES)], rows, text_columns=1)


def page(results_dir):
    """The Markdown page, the same for the same records."""
    everything = cells_of_everything(results_dir)
    sections = [INTRODUCTION, "## What was run", what_was_run(everything)]
    for name, all_cells in everything.items():
        cells = [cell for cell in all_cells if cell.records]
        if not cells:
            continue
        table = _cells_table(results_dir, name, cells)
        if len(cells) > LONG:
            table = f"<details><summary>{len(cells)} cells</summary>\n\n{table}\n\n</details>"
        parts = [name if scale == "paper" else f"{name}_{scale}" for scale in SCALES if scale in {c.scale for c in cells}]
        links = ", ".join(f"[{part}](tables/{part}.md)" for part in parts)
        sections += [f"## {name}", f"In full: {links}.", table]
    return "\n\n".join(sections) + "\n"


def _cells_table(results_dir, name, cells):
    header = ["model", "cell", "metric", "paper", "ours", "difference", "seeds", "scale", "date", "record"]
    rows = []
    for cell in cells:
        values = [r["metrics"].get(cell.metric) for r in cell.records if r["status"] == "finished"]
        values = [value for value in values if value is not None]
        newest = max(cell.records, key=lambda record: (record["created"], record["seed"]))
        path = record_path(results_dir, name, newest["row"], newest["seed"], newest["cell"])
        compared = values and isinstance(cell.published, (int, float))
        rows.append(
            [
                cell.row,
                cell.place,
                cell.metric,
                "" if cell.published is None else str(cell.published),
                _ours(values, len(cell.records)),
                f"{statistics.mean(values) - cell.published:+.3g}" if compared else "",
                str(len(cell.records)),
                cell.scale,
                newest["created"][:10],
                f"[{path.name}]({path.relative_to(Path(results_dir)).as_posix()})",
            ]
        )
    return markdown_table(header, rows, text_columns=3)


def _ours(values, runs):
    text = f"{statistics.mean(values):.4g}" if values else ""
    if len(values) > 1:
        text += f" ± {statistics.stdev(values):.2g}"
    if len(values) < runs:
        text += f"{', ' if text else ''}{runs - len(values)} diverged"
    return text
