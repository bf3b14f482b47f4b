"""Table "WMT14 En-De": BLEU of translation models with linear attention (section 6.2)."""

from fwp_fairseq.reports.published import paper_bleu
from fwp_fairseq.reports.translation import LINEAR_ROWS, build_translation, translation_cells, translation_table_of

TABLE = translation_table_of(
    name="table_wmt14",
    title="Translation, English to German",
    rows={
        "transformer": "Transformer (softmax)",
        **LINEAR_ROWS,
        "elu_delta": "elu, delta in the decoder (not in the paper)",
        "dpfp_256_delta": "dpfp-2, delta in the decoder (not in the paper)",
    },
    settings={
        "base": "base: WMT14, Transformer base",
        "mini": "mini: D = 128, 3 + 3 layers, program messages in 4,000 subwords",
    },
)


def build(results_dir):
    return build_translation(results_dir, TABLE, published=published(results_dir))


def cells(results_dir):
    return translation_cells(results_dir, TABLE, published(results_dir))


def published(results_dir):
    """{("base", row): PaperScores}."""
    return {("base", row): scores for row, scores in paper_bleu(results_dir).items()}
