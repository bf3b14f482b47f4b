"""Markdown table and short terminal table of a synthetic figure."""

from fwp_fairseq.reports.failures import failed_section
from fwp_fairseq.reports.report import markdown_table
from fwp_fairseq.reports.synthetic_results import REACHED, TOLERANCE, agreements, mean

GROUPS = {  # name of the group -> what it counts
    "solved": f"the authors' best loss is at most {REACHED}: ours is too",
    "unsolved": f"elsewhere: the best losses differ by at most {TOLERANCE}",
    "by shape": f"elsewhere, curves too random to compare cell by cell: differ by at most {TOLERANCE}",
}


def markdown(results):
    """The whole table: how it was made, agreement, all last losses at a glance, then each curve."""
    figure = results.figure
    if results.scale == "paper":
        title = f"# {figure.title}"
        overview = "## Last loss, ours / authors'"
    else:
        title = f"# {figure.title} ({results.scale} scale, not comparable with the paper)"
        overview = "## Last loss"
    sections = [title, f"![{figure.title}](../figures/{results.name}.png)", _how_to_read(results)]
    if results.scale == "paper":
        sections += ["## Agreement with the authors' published runs", _agreement(results)]
    sections += [overview, _overview(results)]
    for curve in figure.curves:
        sections += [f"## {curve.label}", _curve_table(results, curve)]
    return "\n\n".join(sections) + "\n" + failed_section(results.failures)


def brief(results, width=100):
    """Last losses of the curves and sizes that were run, ours / authors', for a terminal."""
    rows = {row for row, _ in results.ours}
    curves = [curve for curve in results.figure.curves if curve.row in rows]
    title = f"{results.name}: last loss"
    if results.scale == "paper":
        title += ", ours / authors'"
    cells = {
        (curve, size): _side_by_side(results, curve, size)
        for curve in curves
        for size in results.our_sizes
    }
    label_width = max(len(curve.label) for curve in curves)
    cell_width = max(len(text) for text in cells.values()) + 2
    per_block = max(1, (width - label_width) // cell_width)
    lines = [title]
    for start in range(0, len(results.our_sizes), per_block):
        sizes = results.our_sizes[start : start + per_block]
        lines.append("".join(["".ljust(label_width), *(f"S={size}".rjust(cell_width) for size in sizes)]))
        for curve in curves:
            texts = [cells[curve, size].rjust(cell_width) for size in sizes]
            lines.append("".join([curve.label.ljust(label_width), *texts]))
    return "\n".join(line.rstrip() for line in lines) + "\n" + failed_section(results.failures)


def _how_to_read(results):
    figure, records = results.figure, results.records
    lines = [figure.setting]
    if results.scale == "paper":
        lines[0] += f" The paper's finding: {results.finding}"
    seeds = sorted({record["seed"] for record in records})
    one_each = all(len(outcome.seeds) == 1 for outcome in results.ours.values())
    lines.append(
        "Losses are ½‖v − v̂‖² on fresh sequences, evaluated every 100 updates: the best, and the last "
        "before the run stopped, which the authors plot. NaN: the run diverged. An empty cell was not run."
    )
    ours = f"Ours: {len(results.ours)} cells, {len(records)} runs, "
    if one_each:
        ours += f"one a cell (seed {_listed(seeds)})."
    else:
        ours += f"seeds {_listed(seeds)}; means over a cell's seeds, (lowest to highest) beside them."
    if results.scale == "paper":
        ours += " Authors': one published run a cell."
    lines.append(ours)
    lines.append(
        f"Made with torch {_listed({r['versions'].get('torch') for r in records})} on "
        f"{_listed({r['device'] for r in records})}, "
        f"{sum(r['wall_seconds'] for r in records) / 3600:.1f} hours in all, "
        f"{min(r['created'] for r in records)[:10]} to {max(r['created'] for r in records)[:10]}."
    )
    return "\n\n".join(lines)


def _agreement(results):
    rows, lists = [], []
    for name, group in agreements(results).items():
        if group.total == 0:
            continue
        agreeing = group.total - len(group.disagreeing)
        rows.append([GROUPS[name], f"{agreeing} / {group.total}", f"{100 * agreeing / group.total:.0f}%"])
        for curve, size in group.disagreeing:
            ours, authors = results.ours[curve.row, size], results.authors[curve.row, size]
            lists.append([curve.label, str(size), _loss(mean(ours.best)), _loss(authors.best)])
    text = markdown_table(["cells", "agree", "share"], rows, text_columns=1)
    if lists:
        header = ["curve", "S", "best, ours", "best, authors'"]
        text += "\n\nCells that do not agree:\n\n" + markdown_table(
            header, lists, text_columns=1
        )
    return "\n\n".join([text, *_not_compared(results), *_guard_notes(results)])


def _not_compared(results):
    """Which cells the agreement leaves out."""
    left_out = []
    for curve in results.figure.curves:
        cells = [(curve.row, size) for size in results.our_sizes]
        both = [cell for cell in cells if cell in results.ours and cell in results.authors]
        sizes = [size for row, size in both if results.authors[row, size].best is None]
        if sizes:
            left_out.append(f"{curve.label} at S = {_listed(sizes)}")
    return [f"Not compared, as no loss of the authors' run was finite: {'; '.join(left_out)}."] if left_out else []


def _guard_notes(results):
    """Where the authors' loss became NaN and ours did not, and why."""
    notes = []
    for curve in results.figure.curves:
        sizes = [
            str(size)
            for size in results.our_sizes
            if _diverged(results.authors, curve, size)
            and (curve.row, size) in results.ours
            and not _diverged(results.ours, curve, size)
        ]
        if sizes:
            notes.append(
                f"Note on {curve.label}: at S = {', '.join(sizes)} the authors' loss became NaN and ours "
                "did not. Sum normalisation divides φ by the sum of its components, which underflows for "
                "FAVOR+; here that division is guarded, in the authors' code it is not."
            )
    return notes


def _diverged(outcomes, curve, size):
    return (curve.row, size) in outcomes and outcomes[curve.row, size].diverged


def _overview(results):
    header = ["S", *(curve.label for curve in results.figure.curves)]
    rows = [
        [str(size), *(_side_by_side(results, curve, size) for curve in results.figure.curves)]
        for size in results.our_sizes
    ]
    return markdown_table(header, rows)


def _curve_table(results, curve):
    compare = results.scale == "paper"
    header = ["S", "best, ours"] + ["best, authors'", "difference"] * compare
    header += ["last, ours"] + ["last, authors'", "difference"] * compare
    if results.figure.longer_training:
        header += ["best, training length", "last, training length"]
    header += ["updates, ours"] + ["updates, authors'"] * compare + ["seeds"]
    rows = []
    for size in results.sizes:
        ours, authors = results.ours.get((curve.row, size)), results.authors.get((curve.row, size))
        cells = [str(size)]
        for kind in ("best", "last"):
            losses = getattr(ours, kind) if ours else []
            cells.append(_losses(losses))
            if compare:
                cells += _comparison(mean(losses), authors, kind)
        if results.figure.longer_training:
            cells += [_losses(ours.best_train_length), _losses(ours.last_train_length)] if ours else ["", ""]
        cells.append(_listed(ours.updates) if ours else "")
        if compare:
            cells.append(str(authors.updates) if authors else "")
        cells.append(_listed(ours.seeds) if ours else "")
        rows.append(cells)
    return markdown_table(header, rows)


def _comparison(ours, authors, kind):
    """The authors' best or last loss and the difference to ours, as two cells."""
    if authors is None:  # a size they did not publish
        return ["", ""]
    theirs = getattr(authors, kind)
    comparable = ours is not None and theirs is not None
    return [_loss(theirs), f"{ours - theirs:+.4f}" if comparable else ""]


def _side_by_side(results, curve, size):
    ours = results.ours.get((curve.row, size))
    text = _losses(ours.last, with_range=False) if ours else ""
    if (curve.row, size) in results.authors:
        text = f"{text} / {_loss(results.authors[curve.row, size].last)}"
    return text


def _losses(losses, with_range=True):
    """Loss of a cell's seeds: the mean, the range where there are several, and how many diverged."""
    if not losses:
        return ""
    finite = [loss for loss in losses if loss is not None]
    text = _loss(mean(losses))
    if with_range and len(finite) > 1:
        text += f" ({_loss(min(finite))} to {_loss(max(finite))})"
    if finite and len(finite) < len(losses):
        text += f", {len(losses) - len(finite)} of {len(losses)} NaN"
    return text


def _loss(loss):
    if loss is None:
        return "NaN"
    return f"{loss:.6f}" if loss < 0.001 else f"{loss:.4f}" if loss < 10 else f"{loss:.2f}"


def _listed(values):
    return ", ".join(str(value) for value in (values if isinstance(values, list) else sorted(values, key=str)))
