"""Markdown table and short terminal table of language models."""

from fwp_fairseq.reports.language_model_results import SETTINGS
from fwp_fairseq.reports.report import markdown_table


def markdown(results):
    table = results.table
    title = f"# {table.title}"
    if results.scale != "paper":
        title += f" ({results.scale} scale, not comparable with the paper)"
    sections = [title, f"![{table.title}](../figures/{results.name}.png)", _how_to_read(results)]
    for setting in results.settings:
        sections += [f"## {SETTINGS[setting]}", _perplexities(results, setting)]
        comparisons = _comparisons(results, setting)
        if comparisons:
            sections.append(comparisons)
        sections += ["### Cost", _costs(results, setting)]
    return "\n\n".join(sections) + "\n"


def brief(results, width):
    """Test perplexities, for a terminal."""
    lines = [f"{results.name}: perplexity, valid and test"]
    for setting in results.settings:
        for row, label in results.table.rows.items():
            if (setting, row) in results.runs:
                values = (_number(results, setting, row, metric) for metric in ("valid_ppl", "test_ppl"))
                lines.append(f"{setting:7} {label:40} {'  '.join(f'{value:>9}' for value in values)}"[:width])
    return "\n".join(lines) + "\n"


def _how_to_read(results):
    seeds = sorted({record["seed"] for record in results.records})
    lines = [
        f"{_way_of_reading(results)} An empty cell was not run; a diverged run has no perplexity.",
        f"Ours: {len(results.records)} runs, seeds {_listed(seeds)}; where there are several, their mean and "
        "(lowest to highest).",
        f"Made with torch {_listed({r['versions'].get('torch') for r in results.records})} on "
        f"{_listed({r['device'] for r in results.records})}, "
        f"{min(r['created'] for r in results.records)[:10]} to {max(r['created'] for r in results.records)[:10]}.",
    ]
    if results.finding:
        lines.insert(0, f"The paper's finding: {results.finding}")
    return "\n\n".join(lines)


def _way_of_reading(results):
    contexts = {record["metrics"].get("context") for record in results.records}
    if "stream" in contexts:
        return (
            "Perplexity of each text read as one stream: the state goes from segment to segment, no context is cut, "
            "and each token but the first is predicted once. The curves below are the mean loss in spans of the text."
        )
    strides = sorted({r["metrics"]["stride"] for r in results.records if "stride" in r["metrics"]})
    return (
        f"Perplexity by a sliding window as long as the training's segments, moved by {_listed(strides) or 1} token(s): "
        "each token but the first is predicted once."
    )


def _perplexities(results, setting):
    subwords = any("test_word_ppl" in r["metrics"] for r in results.records if r["cell"] == setting)
    compared = [
        split
        for split in ("valid", "test")
        if any(getattr(paper, split) is not None for (of, _), paper in results.published.items() if of == setting)
    ]
    header = ["model", "valid", "test"]
    for split in compared:
        header += [f"{split}, paper", "difference"]
    header += ["test, bits a byte", "test, bits a word", "test, a word"] * subwords
    rows = []
    for row, label in results.table.rows.items():
        cells = [label, _number(results, setting, row, "valid_ppl"), _number(results, setting, row, "test_ppl")]
        for split in compared:
            ours = results.mean(setting, row, f"{split}_ppl")
            paper = getattr(results.published.get((setting, row)), split, None)
            comparable = ours is not None and isinstance(paper, (int, float))
            cells.append("" if paper is None else str(paper))
            cells.append(f"{ours - paper:+.2f}" if comparable else "")
        if subwords:
            for metric, digits in (("test_bits_per_byte", 4), ("test_bits_per_word", 3), ("test_word_ppl", 1)):
                mean = results.mean(setting, row, metric)
                cells.append("" if mean is None else f"{mean:.{digits}f}")
        rows.append(cells)
    return markdown_table(header, rows, text_columns=1)


def _comparisons(results, setting):
    """Whether what the paper finds holds here, one line each."""
    lines, labels = [], results.table.rows
    for low, high in results.table.lower:
        a, b = (results.mean(setting, row, "test_ppl") for row in (low, high))
        if a is not None and b is not None:
            verdict = "lower, as in the paper" if a < b else "not lower, unlike the paper"
            lines.append(f"- {labels[low]} {a:.2f}, {labels[high]} {b:.2f}: {verdict}.")
    for row in results.table.expected_to_diverge:
        runs = results.runs.get((setting, row))
        if runs:
            diverged = sum(run["status"] == "diverged" for run in runs)
            verdict = "as in the paper" if diverged == len(runs) else "unlike the paper"
            lines.append(f"- {labels[row]}: {diverged} of {len(runs)} diverged, {verdict}.")
    return "\n".join(lines)


def _costs(results, setting):
    header = ["model", "parameters", "state", "updates", "best at", "hours", "tokens/s", "peak MB", "seeds"]
    rows = []
    for row, label in results.table.rows.items():
        runs = results.runs.get((setting, row), [])
        cells = [label, *[""] * (len(header) - 1)]
        if runs:
            seconds = sum(run["wall_seconds"] for run in runs)
            tokens = sum(run["metrics"].get("trained_tokens", 0) for run in runs)
            cells[1:] = [
                _listed({f"{run['parameters']:,}" for run in runs}),
                _listed({f"{run['state_size']:,}" for run in runs}),
                _listed([run["updates"] for run in runs]),
                _listed([run["metrics"].get("best_update", "-") for run in runs]),
                f"{seconds / 3600:.2f}",
                f"{tokens / seconds:,.0f}" if seconds else "",
                _listed([f"{run['peak_memory_mb']:,.0f}" for run in runs]),
                _listed([run["seed"] for run in runs]),
            ]
        rows.append(cells)
    return markdown_table(header, rows, text_columns=1)


def _number(results, setting, row, metric):
    runs = results.runs.get((setting, row), [])
    values = [run["metrics"][metric] for run in runs if run["status"] == "finished"]
    diverged = [run["updates"] for run in runs if run["status"] == "diverged"]
    text = ""
    if values:
        text = f"{sum(values) / len(values):.2f}"
        if len(values) > 1:
            text += f" ({min(values):.2f} to {max(values):.2f})"
    if diverged:
        text += f"{', ' if text else ''}diverged at update {_listed(diverged)}"
    return text


def _listed(values):
    return ", ".join(str(value) for value in (values if isinstance(values, list) else sorted(values, key=str)))
