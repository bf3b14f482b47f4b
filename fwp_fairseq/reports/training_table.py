"""What the tables of all trainings share: how to read them, what the rows cost, numbers over seeds."""

from fwp_fairseq.reports.report import markdown_table


def title(results):
    text = f"# {results.table.title}"
    return text if results.scale == "paper" else f"{text} ({results.scale} scale, not comparable with the paper)"


def figure(results):
    return f"![{results.table.title}](../figures/{results.name}.png)"


def how_to_read(results, measured):
    """measured: what the numbers of the table are, in words."""
    seeds = sorted({record["seed"] for record in results.records})
    lines = [
        f"{measured} An empty cell was not run; a diverged run has no number.",
        f"Ours: {len(results.records)} runs, seeds {listed(seeds)}; where there are several, their mean and "
        "(lowest to highest).",
        f"Made with torch {listed({r['versions'].get('torch') for r in results.records})} on "
        f"{listed({r['device'] for r in results.records})}, "
        f"{min(r['created'] for r in results.records)[:10]} to {max(r['created'] for r in results.records)[:10]}.",
    ]
    if results.finding:
        lines.insert(0, f"The paper's finding: {results.finding}")
    return "\n\n".join(lines)


def costs(results, setting):
    header = ["model", "parameters", "state", "updates", "best at", "hours", "tokens/s", "peak MB", "seeds"]
    rows = []
    for row, label in results.table.rows.items():
        runs = results.runs.get((setting, row), [])
        cells = [label, *[""] * (len(header) - 1)]
        if runs:
            seconds = sum(run["wall_seconds"] for run in runs)
            tokens = sum(run["metrics"].get("trained_tokens", 0) for run in runs)
            cells[1:] = [
                listed({f"{run['parameters']:,}" for run in runs}),
                listed({f"{run['state_size']:,}" for run in runs if run["state_size"] is not None}),
                listed([run["updates"] for run in runs]),
                listed([run["metrics"].get("best_update", "-") for run in runs]),
                f"{seconds / 3600:.2f}",
                f"{tokens / seconds:,.0f}" if seconds else "",
                listed([f"{run['peak_memory_mb']:,.0f}" for run in runs]),
                listed([run["seed"] for run in runs]),
            ]
        rows.append(cells)
    return markdown_table(header, rows, text_columns=1)


def number(results, setting, row, metric):
    """Mean and range over the seeds, and where a run diverged or its job failed, as text."""
    runs = results.runs.get((setting, row), [])
    values = [run["metrics"][metric] for run in runs if run["status"] == "finished"]
    diverged = [run["updates"] for run in runs if run["status"] == "diverged"]
    failed = results.failed_seeds(setting, row)
    parts = []
    if values:
        several = f" ({min(values):.2f} to {max(values):.2f})" if len(values) > 1 else ""
        parts.append(f"{sum(values) / len(values):.2f}{several}")
    if diverged:
        parts.append(f"diverged at update {listed(diverged)}")
    if failed:
        parts.append(f"failed, seed {listed(failed)}")
    return ", ".join(parts)


def listed(values):
    return ", ".join(str(value) for value in (values if isinstance(values, list) else sorted(values, key=str)))
