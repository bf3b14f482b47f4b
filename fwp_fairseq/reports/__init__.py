"""Tables and figures of the paper, built from run records; `fwp-report` is the command.

One module a table or figure, with a function `build(results_dir)` that returns a `Report`, and where the
paper has numbers `cells(results_dir)`, a list of `Cell`. A new one is a new module and a line here.
"""

from fwp_fairseq.reports import (
    bench,
    bench_decode,
    bench_training,
    bench_translation,
    figure_capacity,
    figure_update_rule,
    table_reordering,
    table_wikitext103,
    table_wikitext103_ablation,
    table_wikitext103_unbounded,
    table_wmt14,
)
from fwp_fairseq.reports.report import Part, Report, ReportError

REPORTS = {
    "bench": bench.build,
    "bench_decode": bench_decode.build,
    "bench_training": bench_training.build,
    "bench_translation": bench_translation.build,
    "figure_capacity": figure_capacity.build,
    "figure_update_rule": figure_update_rule.build,
    "table_reordering": table_reordering.build,
    "table_wikitext103": table_wikitext103.build,
    "table_wikitext103_ablation": table_wikitext103_ablation.build,
    "table_wikitext103_unbounded": table_wikitext103_unbounded.build,
    "table_wmt14": table_wmt14.build,
}

# what the paper has, in the order of the page that shows all of it
CELLS = {
    "figure_capacity": figure_capacity.cells,
    "figure_update_rule": figure_update_rule.cells,
    "table_wmt14": table_wmt14.cells,
    "table_wikitext103": table_wikitext103.cells,
    "table_wikitext103_ablation": table_wikitext103_ablation.cells,
    "table_wikitext103_unbounded": table_wikitext103_unbounded.cells,
}

__all__ = ["CELLS", "REPORTS", "Part", "Report", "ReportError"]
