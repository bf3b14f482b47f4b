"""Tables and figures of the paper, built from run records; `fwp-report` is the command.

One module a table or figure, with a function `build(results_dir)` that returns a `Report`. A new
one is a new module and a line here.
"""

from fwp_fairseq.reports import (
    bench,
    bench_decode,
    figure_capacity,
    figure_update_rule,
    table_wikitext103,
    table_wikitext103_ablation,
    table_wikitext103_unbounded,
    table_wmt14,
)
from fwp_fairseq.reports.report import Part, Report, ReportError

REPORTS = {
    "bench": bench.build,
    "bench_decode": bench_decode.build,
    "figure_capacity": figure_capacity.build,
    "figure_update_rule": figure_update_rule.build,
    "table_wikitext103": table_wikitext103.build,
    "table_wikitext103_ablation": table_wikitext103_ablation.build,
    "table_wikitext103_unbounded": table_wikitext103_unbounded.build,
    "table_wmt14": table_wmt14.build,
}

__all__ = ["REPORTS", "Part", "Report", "ReportError"]
