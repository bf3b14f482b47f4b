"""Table "WikiText-103": perplexity of the small and medium language models (section 6.3)."""

from fwp_fairseq.reports.language_model import (
    build_language_model,
    language_model_cells,
    language_model_table_of,
)
from fwp_fairseq.reports.published import paper_perplexities

TABLE = language_model_table_of(
    name="table_wikitext103",
    title="Language modelling: update rules and feature maps",
    rows={
        "transformer": "Transformer (softmax)",
        "linear": "linear (elu, sum)",
        "delta": "delta (elu)",
        "performer": "Performer (favor, sum)",
        "performer_delta": "Performer + delta",
        "dpfp_sum": "dpfp-1, sum (not in the paper)",
        "dpfp_delta": "dpfp-1, delta (not in the paper)",
    },
    lower=(("delta", "linear"), ("performer_delta", "performer")),
)


def build(results_dir):
    return build_language_model(results_dir, TABLE, published=paper_perplexities(results_dir, TABLE.name))


def cells(results_dir):
    return language_model_cells(results_dir, TABLE, paper_perplexities(results_dir, TABLE.name))
