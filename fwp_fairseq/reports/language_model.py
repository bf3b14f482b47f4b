"""Builds the report of a language modelling table; `table_wikitext103` and the others of its kind use it."""

from fwp_fairseq.reports import language_model_table, training_plot
from fwp_fairseq.reports.training_results import TrainingTable, load_results, training_cells
from fwp_fairseq.reports.report import Part, Report


SETTINGS = {
    "small": "small: D = 128, segments of 256 tokens",
    "medium": "medium: D = 256, segments of 384 tokens",
    "mini": "mini: D = 64, segments of 128 tokens, documentation corpus in 2,000 subwords",
}


def language_model_table_of(**fields):
    """A `TrainingTable` of language models, with their settings and numbers."""
    return TrainingTable(settings=SETTINGS, numbers=("valid_ppl", "test_ppl"), **fields)


def build_language_model(results_dir, table, published=None, finding=None):
    """Report of one `TrainingTable`, a part for each scale.

    published: {(setting, row): PaperScores}; finding: the paper's, in words. They stand beside runs at paper
    scale only. Raises ReportError where there is no record that can be shown.
    """
    all_results, problems = load_results(results_dir, table, published or {}, finding)
    return Report([_part(results) for results in all_results], problems)


def _part(results):
    return Part(
        name=results.name,
        markdown=language_model_table.markdown(results),
        brief=lambda width: language_model_table.brief(results, width),
        figure=lambda: training_plot.png(results),
    )


def language_model_cells(results_dir, table, published=None):
    return training_cells(results_dir, table, published or {}, {"valid": "valid_ppl", "test": "test_ppl"})
