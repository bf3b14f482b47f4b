"""Builds the report of a language modelling table; `table_wikitext103` and its ablation use it."""

from fwp_fairseq.reports import language_model_plot, language_model_table
from fwp_fairseq.reports.language_model_results import load_results
from fwp_fairseq.reports.report import Part, Report


def build_language_model(results_dir, table, published=None, finding=None):
    """Report of one `LanguageModelTable`, a part for each scale.

    published: {(setting, row): PaperPerplexities}; finding: the paper's, in words. They stand beside runs at paper
    scale only. Raises ReportError where there is no record that can be shown.
    """
    all_results, problems = load_results(results_dir, table, published or {}, finding)
    return Report([_part(results) for results in all_results], problems)


def _part(results):
    return Part(
        name=results.name,
        markdown=language_model_table.markdown(results),
        brief=lambda width: language_model_table.brief(results, width),
        figure=lambda: language_model_plot.png(results),
    )
