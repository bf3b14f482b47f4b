"""Markdown table and short terminal table of translation models: BLEU, and sample translations."""

from fwp_fairseq.records import record_path
from fwp_fairseq.reports.failures import failed_section
from fwp_fairseq.reports.report import markdown_table
from fwp_fairseq.reports.training_table import costs, figure, how_to_read, listed, number, title

SPLITS = {"valid": "valid", "test": "test", "test_filtered": "test, filtered"}


def markdown(results, results_dir):
    sections = [title(results), figure(results), how_to_read(results, _measured(results))]
    for setting in results.settings:
        sections += [f"## {results.table.settings[setting]}", _scores(results, setting)]
        sections += ["### Cost", costs(results, setting)]
        samples = _samples(results, setting, results_dir)
        if samples:
            sections += ["### Samples", samples]
    return "\n\n".join(sections) + "\n" + failed_section(results.failures)


def brief(results, width):
    """sacreBLEU and compound-split BLEU of the test set, for a terminal."""
    lines = [f"{results.name}: test BLEU, sacreBLEU and tokenised with compounds split"]
    for setting in results.settings:
        for row, label in results.table.rows.items():
            if (setting, row) in results.runs or results.failed_seeds(setting, row):
                values = (number(results, setting, row, metric) for metric in ("test_bleu", "test_bleu_compound_split"))
                lines.append(f"{setting:7} {label:40} {'  '.join(f'{value:>9}' for value in values)}"[:width])
    return "\n".join(lines) + "\n" + failed_section(results.failures)


def _measured(results):
    metrics = [record["metrics"] for record in results.records]
    beams = {(m["beam"], m["length_penalty"]) for m in metrics if "beam" in m}
    signatures = {value for m in metrics for name, value in m.items() if name.endswith("bleu_signature")}
    search = listed([f"beam {beam}, length penalty {penalty}" for beam, penalty in sorted(beams)])
    return (
        f"BLEU of the checkpoint with the lowest validation loss ({search}): sacreBLEU (signature "
        f"{listed({f'`{signature}`' for signature in signatures})}), and beside it BLEU of the tokenised text with "
        "hyphenated compounds split, which most published numbers on WMT14 are; differences to the paper are of the latter."
    )


def _scores(results, setting):
    splits = [s for s in SPLITS if any(f"{s}_bleu" in r["metrics"] for r in results.records if r["cell"] == setting)]
    compared = bool(results.published)
    header = ["model"]
    for split in splits:
        header += [SPLITS[split], f"{SPLITS[split]}, split"]
        header += [f"{SPLITS[split]}, paper", "difference"] * (compared and split != "test_filtered")
    rows = []
    for row, label in results.table.rows.items():
        cells = [label]
        for split in splits:
            cells += [number(results, setting, row, f"{split}_{name}") for name in ("bleu", "bleu_compound_split")]
            if compared and split != "test_filtered":
                paper = getattr(results.published.get((setting, row)), split, None)
                ours = results.mean(setting, row, f"{split}_bleu_compound_split")
                cells.append("" if paper is None else f"{paper:.1f}")
                cells.append("" if paper is None or ours is None else f"{ours - paper:+.2f}")
        rows.append(cells)
    return markdown_table(header, rows, text_columns=1)


def _samples(results, setting, results_dir):
    """The translations that each row's first run kept, sentence by sentence."""
    kept = {}
    for row, label in results.table.rows.items():
        for record in results.runs.get((setting, row), [])[:1]:
            path = record_path(results_dir, record["experiment"], row, record["seed"], setting).with_suffix(".samples.tsv")
            if path.exists():
                lines = path.read_text(encoding="utf-8").splitlines()[1:]
                kept[label] = [line.split("\t") for line in lines]
    blocks = []
    for sentences in zip(*kept.values()):
        source, reference, _ = sentences[0]
        lines = [("source", source), ("reference", reference)]
        lines += [(label, hypothesis) for label, (_, _, hypothesis) in zip(kept, sentences)]
        blocks.append("\n".join(f"- {name}: `{text}`" for name, text in lines))
    return "\n\n".join(f"{i}.\n{block}" for i, block in enumerate(blocks, 1))
