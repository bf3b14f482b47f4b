"""Time and memory of the fast weight rules, from the records of `fwp-bench ops`."""

from fwp_fairseq.reports import bench_plot, bench_table
from fwp_fairseq.reports.bench_results import load_runs
from fwp_fairseq.reports.report import Part, Report


def build(results_dir):
    """Report with a section for each device and dtype that was measured.

    Raises ReportError where there is no record that can be shown.
    """
    runs, problems = load_runs(results_dir)
    part = Part(
        name="bench",
        markdown=bench_table.markdown(runs),
        brief=lambda width: bench_table.brief(runs),
        figure=lambda: bench_plot.png(runs),
    )
    return Report([part], problems)
