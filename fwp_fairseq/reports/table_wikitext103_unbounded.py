"""Table "unbounded": fast weights carried through the whole text beside Transformer-XLs of several state sizes."""

from fwp_fairseq.reports.language_model import (
    build_language_model,
    language_model_cells,
    language_model_table_of,
)
from fwp_fairseq.reports.published import paper_unbounded

TABLE = language_model_table_of(
    name="table_wikitext103_unbounded",
    title="Unbounded context: the state goes on, no text is cut",
    rows={
        "linear": "linear (elu, sum)",
        "delta": "delta (elu)",
        "dpfp_delta": "dpfp-1, delta (not in the paper)",
        "transformer_xl_1x": "Transformer-XL, state of the fast weights",
        "transformer_xl_8x": "Transformer-XL, 8 times the state",
        "transformer_xl_16x": "Transformer-XL, 16 times the state",
        "transformer_xl_48x": "Transformer-XL, 48 times the state",
    },
    lower=(("delta", "linear"), ("delta", "transformer_xl_1x"), ("transformer_xl_48x", "delta")),
)
# The paper tells its models apart by their state, which is that of the medium setting.
STATES = {"0.13M": "transformer_xl_1x", "6.29M": "transformer_xl_48x"}


def build(results_dir):
    return build_language_model(results_dir, TABLE, published=published(results_dir))


def cells(results_dir):
    return language_model_cells(results_dir, TABLE, published(results_dir))


def published(results_dir):
    """{("medium", row): PaperScores}."""
    return {
        ("medium", STATES[state] if row == "transformer_xl" else row): scores
        for (row, state), scores in paper_unbounded(results_dir, TABLE.name).items()
    }
