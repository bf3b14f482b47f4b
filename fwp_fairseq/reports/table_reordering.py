"""Table "Reordering": BLEU on an artificial language, which shows that every kind of attention can translate at all."""

from fwp_fairseq.reports.translation import LINEAR_ROWS, build_translation, translation_table_of

ROWS = ("linear", "performer_256", "dpfp_256")
TABLE = translation_table_of(
    name="table_reordering",
    title="Translation of an artificial language: the same words in another order",
    rows={"transformer": "Transformer (softmax)", **{row: LINEAR_ROWS[row] for row in ROWS}},
    settings={"reordering": "D = 64, 2 + 2 layers, one head; sentences of up to 30 words"},
)


def build(results_dir):
    return build_translation(results_dir, TABLE)
