"""Builds the report of a translation table; `table_wmt14` and `table_reordering` use it."""

from fwp_fairseq.reports import training_plot, translation_table
from fwp_fairseq.reports.report import Part, Report
from fwp_fairseq.reports.training_results import TrainingTable, load_results, training_cells

LINEAR_ROWS = {
    "linear": "linear (elu)",
    "performer_64": "Performer (favor, m = 32)",
    "performer_256": "Performer (favor, m = 128)",
    "performer_512": "Performer (favor, m = 256)",
    "dpfp_256": "dpfp-2",
    "dpfp_512": "dpfp-4",
}


def translation_table_of(**fields):
    """A `TrainingTable` of translation models, with their numbers and their curve."""
    numbers = ("valid_bleu", "valid_bleu_compound_split", "test_bleu", "test_bleu_compound_split")
    return TrainingTable(numbers=numbers, curve="exp of the label-smoothed validation loss", **fields)


def build_translation(results_dir, table, published=None):
    """Report of one table, a part for each scale. published: {(setting, row): PaperScores}, for the paper's scale.

    Raises ReportError where there is no record that can be shown.
    """
    all_results, problems = load_results(results_dir, table, published or {}, None)
    return Report([_part(results, results_dir) for results in all_results], problems)


def _part(results, results_dir):
    return Part(
        name=results.name,
        markdown=translation_table.markdown(results, results_dir),
        brief=lambda width: translation_table.brief(results, width),
        figure=lambda: training_plot.png(results),
    )


def translation_cells(results_dir, table, published=None):
    metrics = {"valid": "valid_bleu_compound_split", "test": "test_bleu_compound_split"}
    return training_cells(results_dir, table, published or {}, metrics)
