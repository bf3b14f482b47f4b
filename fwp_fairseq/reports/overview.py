"""All results on one page: the paper's number, ours, the difference, seeds, scale, date and record of every cell."""

import statistics
from pathlib import Path

from fwp_fairseq.records import record_path
from fwp_fairseq.reports import CELLS
from fwp_fairseq.reports.report import markdown_table

PAGE = "README.md"

INTRODUCTION = """\
# Results

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


def count_runs(results_dir):
    """{report: {scale: (cells that were run, cells)}} of everything the paper has."""
    counts = {}
    for name, cells_of in CELLS.items():
        for cell in cells_of(results_dir):
            run, total = counts.setdefault(name, {}).get(cell.scale, (0, 0))
            counts[name][cell.scale] = (run + bool(cell.records), total + 1)
    return counts


def what_was_run(results_dir):
    """A table of `count_runs`, in Markdown, which reads well in a terminal too."""
    rows = []
    for name, scales in count_runs(results_dir).items():
        shown = {scale: f"{run} of {total}" for scale, (run, total) in scales.items()}
        rows.append([name, shown.get("paper", ""), shown.get("mini", "")])
    return markdown_table(["cells that were run", "paper scale", "mini scale"], rows, text_columns=1)


def page(results_dir):
    """The Markdown page, the same for the same records."""
    counts, sections = count_runs(results_dir), [INTRODUCTION, "## What was run", what_was_run(results_dir)]
    for name, cells_of in CELLS.items():
        cells = [cell for cell in cells_of(results_dir) if cell.records]
        if not cells:
            continue
        table = _cells_table(results_dir, name, cells)
        if len(cells) > LONG:
            table = f"<details><summary>{len(cells)} cells</summary>\n\n{table}\n\n</details>"
        links = [f"[{part}](tables/{part}.md)" for part in _parts(name, counts[name])]
        sections += [f"## {name}", f"In full: {', '.join(links)}.", table]
    return "\n\n".join(sections) + "\n"


def _parts(name, counts):
    names = {"paper": name, "mini": f"{name}_mini"}
    return [names[scale] for scale, (run, _) in counts.items() if run]


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
