"""Builds the report of a synthetic figure; `figure_capacity` and `figure_update_rule` use it."""

from fwp_fairseq.reports import synthetic_plot, synthetic_table
from fwp_fairseq.reports.published import authors_synthetic
from fwp_fairseq.reports.report import Cell, Part, Report, ReportError
from fwp_fairseq.reports.synthetic_results import load_results


def build_synthetic(results_dir, figure):
    """Report of one `SyntheticFigure`, a part for each scale.

    Raises ReportError where there is no record that can be shown.
    """
    all_results, problems = load_results(results_dir, figure)
    return Report([_part(results) for results in all_results], problems)


def _part(results):
    return Part(
        name=results.name,
        markdown=synthetic_table.markdown(results),
        brief=lambda width: synthetic_table.brief(results, width),
        figure=lambda: synthetic_plot.png(results),
    )


def synthetic_cells(results_dir, figure):
    """Every `Cell` of the authors' figure. The published numbers are their runs' best losses."""
    try:
        all_results, _ = load_results(results_dir, figure)
    except ReportError:
        all_results = []  # nothing was run yet
    runs = {}
    for results in all_results:
        for record in results.records:
            runs.setdefault((results.scale, record["row"], int(record["cell"][1:])), []).append(record)
    labels = {curve.row: curve.label for curve in figure.curves}
    cells = []
    for (row, size), authors in authors_synthetic(results_dir, figure.authors_name).items():
        published = "diverged" if authors.best is None else authors.best
        cells.append(Cell(labels[row], f"S = {size}", "best_loss", published, "paper", runs.get(("paper", row, size), [])))
    return cells
