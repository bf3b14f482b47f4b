"""Markdown table and short terminal table of language models."""

from fwp_fairseq.reports.failures import failed_section
from fwp_fairseq.reports.report import markdown_table
from fwp_fairseq.reports.training_table import costs, figure, how_to_read, listed, number, title


def markdown(results):
    sections = [title(results), figure(results), how_to_read(results, _way_of_reading(results))]
    for setting in results.settings:
        sections += [f"## {results.table.settings[setting]}", _perplexities(results, setting)]
        comparisons = _comparisons(results, setting)
        if comparisons:
            sections.append(comparisons)
        sections += ["### Cost", costs(results, setting)]
    return "\n\n".join(sections) + "\n" + failed_section(results.failures)


def brief(results, width):
    """Test perplexities, for a terminal."""
    lines = [f"{results.name}: perplexity, valid and test"]
    for setting in results.settings:
        for row, label in results.table.rows.items():
            if (setting, row) in results.runs or results.failed_seeds(setting, row):
                values = (number(results, setting, row, metric) for metric in ("valid_ppl", "test_ppl"))
                lines.append(f"{setting:7} {label:40} {'  '.join(f'{value:>9}' for value in values)}"[:width])
    return "\n".join(lines) + "\n" + failed_section(results.failures)


def _way_of_reading(results):
    contexts = {record["metrics"].get("context") for record in results.records}
    if "stream" in contexts:
        return (
            "Perplexity of each text read as one stream: the state goes from segment to segment, no context is cut, "
            "and each token but the first is predicted once. The curves below are the mean loss in spans of the text."
        )
    strides = sorted({r["metrics"]["stride"] for r in results.records if "stride" in r["metrics"]})
    return (
        f"Perplexity by a sliding window as long as the training's segments, moved by {listed(strides) or 1} token(s): "
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
        cells = [label, number(results, setting, row, "valid_ppl"), number(results, setting, row, "test_ppl")]
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
