"""`fwp-report NAME`: builds the tables and figures of the paper from the run records alone."""

import argparse
import shutil
import sys
from pathlib import Path

from fwp_fairseq.reports import REPORTS, ReportError, curves
from fwp_fairseq.reports.everything import build_everything, differences_from_records
from fwp_fairseq.reports.overview import FIRST_LINE, PAGE, cells_of_everything, what_was_run
from fwp_fairseq.reports.report import write_file

DESCRIPTION = """\
Build one of the paper's tables or figures from the records in <results>/runs:
a Markdown table and a PNG, our numbers next to the published ones. Nothing is
trained, and no record is changed."""

EPILOG = """\
reports:
  bench               time and memory of the fast weight rules (fwp-bench ops)
  bench_decode        time of a generated token against its position (fwp-bench decode)
  bench_training      words per second and memory of training (fwp-bench training)
  bench_translation   tokens per second of training and generating translations (fwp-bench translation)
  figure_capacity     synthetic retrieval, sum rule: loss against number of keys
  figure_update_rule  synthetic retrieval, sum, delta and fwm rule
  table_wikitext103   language models: perplexity of each row
  table_wikitext103_ablation
                      language models: positions and normalisations of the delta rule
  table_wikitext103_unbounded
                      language models: context never cut, beside Transformer-XL
  table_wmt14         translation: BLEU of each row, with samples
  table_reordering    translation of an artificial language: BLEU of each row

or one of:
  all     every report that has records, and the page README.md with all of it
  list    for each table and figure of the paper, how many of its cells were run
  curves  the loss during training of any rows on one plot, those still training
          among them; see fwp-report curves --help
  check   whether every table, figure and page in <results> is what the records give

examples:
  fwp-report all
  fwp-report figure_capacity
  fwp-report figure_update_rule --brief
  fwp-report figure_capacity --results /data/my_results --out /tmp/look

Runs at mini scale go in a table and a figure of their own (NAME_mini).
A record that cannot be used is named on stderr and left as it is; the report is
built from the others. Exit status: 0 all is well, 1 nothing to report or some
records were left out, 2 wrong arguments."""


def main(argv=None):
    """Run the command; returns its exit status."""
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] == ["curves"]:
        return curves.main(argv[1:])
    parser = _parser()
    arguments = parser.parse_args(argv)
    if arguments.name == "curves":
        parser.error("curves has options of its own and comes first: fwp-report curves --help")
    results_dir, out_dir = Path(arguments.results), Path(arguments.out or arguments.results)
    try:
        if not results_dir.is_dir():
            raise ReportError(f"--results: there is no folder {results_dir}; run this from the repository root, or name it")
        if arguments.name == "list":
            print(what_was_run(cells_of_everything(results_dir)))
            return 0
        if arguments.name == "check":
            return check(results_dir)
        if arguments.name == "all":
            problems = build_all(results_dir, out_dir, arguments.brief)
        else:
            report = REPORTS[arguments.name](results_dir)
            for part in report.parts:
                write_part(part, out_dir, arguments.brief)
            problems = report.problems
    except ReportError as error:
        print(f"fwp-report: error: {error}", file=sys.stderr)
        return 1
    for problem in problems:
        print(f"fwp-report: left out: {problem}", file=sys.stderr)
    return 1 if problems else 0


def write_part(part, out_dir, brief):
    """Write a table and its figure, and show the table."""
    table = out_dir / "tables" / f"{part.name}.md"
    figure = out_dir / "figures" / f"{part.name}.png"
    write_file(table, part.markdown.encode("utf-8"))
    width = shutil.get_terminal_size(fallback=(100, 24)).columns
    print(part.brief(width) if brief else part.markdown)
    print(f"table:  {table}")
    write_file(figure, part.figure())
    print(f"figure: {figure}")


def build_all(results_dir, out_dir, brief):
    """Write everything that has records; the records that were left out."""
    everything = build_everything(results_dir)
    place = out_dir / PAGE
    if place.exists() and not place.read_text(encoding="utf-8", errors="replace").startswith(FIRST_LINE):
        raise ReportError(f"{place} is no page of results and would be replaced; give --out another folder")
    for part in everything.parts:
        write_part(part, out_dir, brief)
    write_file(place, everything.page.encode("utf-8"))
    print(f"page:   {place}")
    for name in everything.without_records:
        print(f"no records yet: {name}")
    return everything.problems


def check(results_dir):
    """Exit status of `check`: 0 where every file is what the records give."""
    problems = differences_from_records(results_dir)
    for problem in problems:
        print(f"fwp-report: check: {problem}", file=sys.stderr)
    print(f"{results_dir}: " + (f"{len(problems)} differences" if problems else "all is what the records give"))
    return 1 if problems else 0


def _parser():
    parser = argparse.ArgumentParser(
        prog="fwp-report",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = [*sorted(REPORTS), "all", "list", "curves", "check"]
    parser.add_argument("name", metavar="NAME", choices=names, help="which one, see below")
    parser.add_argument(
        "--results",
        metavar="DIR",
        default="results",
        help="folder whose runs/ holds the records (default: results)",
    )
    parser.add_argument(
        "--out",
        metavar="DIR",
        help="write tables/NAME.md and figures/NAME.png here (default: the results folder)",
    )
    parser.add_argument(
        "--brief",
        action="store_true",
        help="print only the numbers that matter most; the files are the same",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
