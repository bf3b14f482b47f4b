"""Builds the report of a synthetic figure; `figure_capacity` and `figure_update_rule` use it."""

from fwp_fairseq.reports import synthetic_plot, synthetic_table
from fwp_fairseq.reports.report import Part, Report
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
