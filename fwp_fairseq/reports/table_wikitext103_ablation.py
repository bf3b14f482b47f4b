"""Table "ablation": the delta rule without positions, with attention normalisation, without sum normalisation."""

from fwp_fairseq.reports.language_model import (
    build_language_model,
    language_model_cells,
    language_model_table_of,
)
from fwp_fairseq.reports.published import paper_finding

TABLE = language_model_table_of(
    name="table_wikitext103_ablation",
    title="Ablation of the delta rule",
    rows={
        "positions_none": "positions, no attention normalisation",
        "positions_output": "positions, normalised output",
        "positions_both": "positions, normalised output and removal",
        "no_positions_none": "no positions, no attention normalisation",
        "no_positions_output": "no positions, normalised output",
        "no_positions_both": "no positions, normalised output and removal",
        "no_sum_normalization": "positions, no sum normalisation",
    },
    expected_to_diverge=("no_sum_normalization",),
)


def build(results_dir):
    return build_language_model(results_dir, TABLE, finding=paper_finding(results_dir, TABLE.name))


def cells(results_dir):
    return language_model_cells(results_dir, TABLE)
