"""All reports at once: built anew from the records, and compared with the files that are there."""

import io
from dataclasses import dataclass, field
from pathlib import Path

from fwp_fairseq.records import runs_dir
from fwp_fairseq.reports import REPORTS
from fwp_fairseq.reports.overview import PAGE, page
from fwp_fairseq.reports.report import Part, ReportError

# mean difference of colour values (0 to 1) up to which two pictures are the same: fonts are drawn a little
# differently by other builds of matplotlib
SAME_PICTURE = 0.002


@dataclass
class Everything:
    """The parts of all reports that have records, the page, and what could not be used."""

    parts: list[Part] = field(default_factory=list)
    page: str = ""
    without_records: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def build_everything(results_dir):
    """`Everything` from the records. Raises ReportError where a report cannot be built though it has records."""
    everything = Everything(page=page(results_dir))
    for name, build in REPORTS.items():
        if not any(runs_dir(results_dir, EXPERIMENTS.get(name, name)).rglob("*.json")):
            everything.without_records.append(name)
            continue
        report = build(results_dir)
        everything.parts += report.parts
        everything.problems += report.problems
    return everything


# reports that are not named as the experiment in their records
EXPERIMENTS = {"bench": "bench_ops"}


def differences_from_records(results_dir):
    """What in `tables/`, `figures/` and the page is not what the records give, a text each; and unusable records."""
    results_dir = Path(results_dir)
    try:
        everything = build_everything(results_dir)
    except ReportError as error:
        return [str(error)]
    found = list(everything.problems)
    expected = {results_dir / PAGE: everything.page.encode("utf-8")}
    for part in everything.parts:
        expected[results_dir / "tables" / f"{part.name}.md"] = part.markdown.encode("utf-8")
        expected[results_dir / "figures" / f"{part.name}.png"] = part.figure()
    for path, content in expected.items():
        if not path.exists():
            found.append(f"{path} is missing; make it with fwp-report all")
        elif not _same(path, content):
            found.append(f"{path} is not what the records give; make it anew with fwp-report all")
    for path in sorted([*results_dir.glob("tables/*"), *results_dir.glob("figures/*")]):
        if path not in expected:
            found.append(f"{path} belongs to no report that has records")
    return found


def _same(path, content):
    there = path.read_bytes()
    if there == content or path.suffix != ".png":
        return there == content
    import matplotlib.image
    import numpy

    ours, theirs = (matplotlib.image.imread(io.BytesIO(data), format="png") for data in (content, there))
    return ours.shape == theirs.shape and numpy.abs(ours - theirs).mean() < SAME_PICTURE
