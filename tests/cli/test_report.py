"""fwp-report on the two synthetic figures: table, picture and messages, from records alone."""

import csv
import sys
from pathlib import Path

import pytest

from fwp_fairseq.cli.report import main
from fwp_fairseq.records import new_record, record_path, write_record
from fwp_fairseq.reports import REPORTS, figure_capacity, figure_update_rule, synthetic_plot
from fwp_fairseq.reports.synthetic_results import load_results

AUTHORS = Path(__file__).resolve().parents[2] / "results" / "authors_synthetic.csv"


def record_cell(results, figure, row, size, best, last, seed=1, scale="paper", **metrics):
    diverged = last is None
    metrics = {"best_loss": best, "last_loss": last, **metrics}
    if figure == "figure_update_rule":
        metrics = {"best_loss_train_length": best, "last_loss_train_length": last, **metrics}
    record = new_record(
        figure, row, seed, scale, metrics, 700, 60.0, 9000, {}, cell=f"S{size}",
        status="diverged" if diverged else "finished",
    )  # fmt: skip
    return write_record(results, record)


def table_of(results, figure):
    report = REPORTS[figure](results)
    assert report.problems == [] and len(report.parts) == 1
    return report.parts[0].markdown


def authors_line(figure, feature_map, arg, rule, size):
    with open(AUTHORS, newline="") as file:
        for line in csv.DictReader(file):
            key = [line[name] for name in ("figure", "feature_map", "arg", "update_rule", "n_keys")]
            if key == [figure, feature_map, arg, rule, str(size)]:
                return line


def section_rows(markdown, title):
    """{first cell: {column: cell}} of the table under a heading; of two same-named columns the last."""
    section = markdown.split(f"## {title}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {cells[0]: dict(zip(table[0], cells)) for cells in table[2:]}


def test_ours_stand_next_to_the_authors_and_cells_without_a_run_are_empty(tmp_path, capsys):
    record_cell(tmp_path, "figure_capacity", "dpfp_2", 280, best=0.0521, last=0.0633)
    assert main(["figure_capacity", "--results", str(tmp_path)]) == 0
    table = (tmp_path / "tables" / "figure_capacity.md").read_text()
    authors = authors_line("capacity", "dpfp", "2", "sum", 280)
    row = section_rows(table, "dpfp-2")["280"]
    assert row["best, ours"] == "0.0521" and row["last, ours"] == "0.0633"
    assert float(row["best, authors'"]) == pytest.approx(float(authors["best_eval_loss"]), abs=5e-5)
    assert float(row["last, authors'"]) == pytest.approx(float(authors["last_eval_loss"]), abs=5e-5)
    assert float(row["difference"]) == pytest.approx(0.0633 - float(authors["last_eval_loss"]), abs=6e-5)
    assert row["updates, ours"] == "700" and row["updates, authors'"] == authors["steps_run"]
    assert row["seeds"] == "1"
    not_run = section_rows(table, "elu")["280"]
    assert not_run["best, ours"] == not_run["last, ours"] == not_run["updates, ours"] == ""
    assert not_run["best, authors'"] != ""

    output = capsys.readouterr().out
    assert table in output
    assert str(tmp_path / "figures" / "figure_capacity.png") in output


@pytest.mark.parametrize("name", ["list", "check", "all", "figure_capacity"])
def test_a_folder_that_is_not_there_is_named(tmp_path, capsys, name):
    assert main([name, "--results", str(tmp_path / "nowhere")]) == 1
    assert f"there is no folder {tmp_path / 'nowhere'}" in capsys.readouterr().err


def test_curves_with_options_ahead_of_it_is_an_error_that_says_so(capsys):
    with pytest.raises(SystemExit):
        main(["--brief", "curves"])
    assert "comes first" in capsys.readouterr().err


def test_agreement_counts_the_cells_that_were_run(tmp_path):
    # The authors solved elu at S=20 and dpfp-1 at S=20, 40; elu at S=200 they did not (about 0.34).
    record_cell(tmp_path, "figure_capacity", "elu", 20, best=0.0008, last=0.001)
    record_cell(tmp_path, "figure_capacity", "dpfp_1", 20, best=0.0099, last=0.02)
    record_cell(tmp_path, "figure_capacity", "dpfp_1", 40, best=0.0101, last=0.02)
    authors = float(authors_line("capacity", "elu", "", "sum", 200)["best_eval_loss"])
    record_cell(tmp_path, "figure_capacity", "elu", 200, best=authors + 0.049, last=0.9)
    record_cell(tmp_path, "figure_capacity", "elu", 220, best=0.9, last=0.9)
    record_cell(tmp_path, "figure_capacity", "favor_64", 200, best=0.9, last=0.9)
    table = table_of(tmp_path, "figure_capacity")
    section = table.split("## Agreement")[1].split("\n## ")[0]
    shares = [line.split("|")[2].strip() for line in section.splitlines() if "%" in line]
    assert shares == ["2 / 3", "1 / 2", "0 / 1"]
    disagreeing = section.split("do not agree")[1]
    listed = [[c.strip() for c in line.split("|")[1:3]] for line in disagreeing.splitlines() if "0." in line]
    assert listed == [["dpfp-1", "40"], ["elu", "220"], ["favor-64", "200"]]


def test_cells_where_the_authors_had_no_finite_loss_are_named_and_not_counted(tmp_path):
    record_cell(tmp_path, "figure_update_rule", "favor_64_delta", 20, best=0.1, last=0.1)
    for size in (140, 160):
        record_cell(tmp_path, "figure_update_rule", "favor_64_delta", size, best=0.5, last=0.5)
    section = table_of(tmp_path, "figure_update_rule").split("## Agreement")[1].split("\n## ")[0]
    assert [line.split("|")[2].strip() for line in section.splitlines() if "%" in line] == ["1 / 1"]
    assert "do not agree" not in section
    assert "no loss of the authors' run was finite: favor-64 delta at S = 140, 160." in section


def test_divergence_is_shown_and_the_guarded_division_explained(tmp_path):
    record_cell(tmp_path, "figure_update_rule", "dpfp_1_delta", 40, best=0.3, last=None)
    # The authors' favor-64 delta became NaN at 60 and 80, not at 20.
    record_cell(tmp_path, "figure_update_rule", "favor_64_delta", 20, best=0.1, last=0.1)
    record_cell(tmp_path, "figure_update_rule", "favor_64_delta", 60, best=0.4, last=0.41)
    record_cell(tmp_path, "figure_update_rule", "favor_64_delta", 80, best=0.5, last=None)
    table = table_of(tmp_path, "figure_update_rule")
    assert section_rows(table, "dpfp-1 delta")["40"]["last, ours"] == "NaN"
    assert section_rows(table, "favor-64 delta")["60"]["last, authors'"] == "NaN"
    notes = [line for line in table.splitlines() if line.startswith("Note on")]
    assert len(notes) == 1
    assert notes[0].startswith("Note on favor-64 delta: at S = 60 the authors' loss became NaN")


def test_several_seeds_are_averaged_and_the_diverged_ones_counted(tmp_path):
    for seed, last in ((1, 0.2), (2, 0.4), (3, None)):
        record_cell(tmp_path, "figure_update_rule", "elu_delta", 100, best=0.2, last=last, seed=seed)
    table = table_of(tmp_path, "figure_update_rule")
    row = section_rows(table, "elu delta")["100"]
    assert row["last, ours"] == "0.3000 (0.2000 to 0.4000), 1 of 3 NaN"
    assert row["seeds"] == "1, 2, 3"


def lines_of(figure):
    return figure.axes[0].get_lines()


def test_the_picture_shows_the_last_losses_solid_and_the_authors_dashed(tmp_path):
    for size, last in ((40, 0.02), (80, 0.15), (120, 0.28)):
        record_cell(tmp_path, "figure_capacity", "elu", size, best=0.01, last=last)
    [results], problems = load_results(tmp_path, figure_capacity.FIGURE)
    figure = synthetic_plot.draw(results)
    assert problems == []
    solid = [line for line in lines_of(figure) if line.get_linestyle() == "-" and len(line.get_xdata())]
    assert [(list(line.get_xdata()), list(line.get_ydata())) for line in solid] == [
        ([40, 80, 120], [0.02, 0.15, 0.28])
    ]
    dashed = [line for line in lines_of(figure) if line.get_linestyle() == "--"]
    with_its_colour = [line for line in dashed if line.get_color() == solid[0].get_color()]
    assert len(dashed) == 8 and len(with_its_colour) == 1
    last = [float(authors_line("capacity", "elu", "", "sum", s)["last_eval_loss"]) for s in range(20, 601, 20)]
    assert list(with_its_colour[0].get_ydata()) == last
    marks = [line.get_xdata()[0] for line in lines_of(figure) if line.get_linestyle() == ":"]
    assert marks == [64, 128, 256, 384]
    assert figure.axes[0].get_yscale() == "linear"


def test_diverged_cells_are_crosses_above_the_axes_of_a_log_scale(tmp_path):
    record_cell(tmp_path, "figure_update_rule", "favor_64_delta", 60, best=0.4, last=0.41)
    record_cell(tmp_path, "figure_update_rule", "favor_64_delta", 80, best=0.5, last=None)
    [results], _ = load_results(tmp_path, figure_update_rule.FIGURE)
    figure = synthetic_plot.draw(results)
    assert figure.axes[0].get_yscale() == "log"
    crosses = [line for line in lines_of(figure) if line.get_marker() in ("X", "x")]
    assert [list(line.get_xdata()) for line in crosses] == [
        [80],  # ours
        list(range(40, 201, 20)),  # the authors' favor-64 delta
        list(range(40, 201, 20)),  # and favor-128 delta
    ]
    assert min(line.get_ydata()[0] for line in crosses) > 1
    labels = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert "diverged (NaN), ours" in labels and "diverged (NaN), authors" in labels


def test_the_same_records_give_the_same_bytes_and_others_do_not(tmp_path):
    def built(out):
        assert main(["figure_capacity", "--results", str(tmp_path), "--out", str(tmp_path / out)]) == 0
        names = ("figures/figure_capacity.png", "tables/figure_capacity.md")
        return [(tmp_path / out / name).read_bytes() for name in names]

    record_cell(tmp_path, "figure_capacity", "elu", 80, best=0.1, last=0.1)
    first, second = built("a"), built("b")
    assert first[0].startswith(b"\x89PNG")
    assert first == second
    record_cell(tmp_path, "figure_capacity", "elu", 80, best=0.1, last=0.3)
    third = built("c")
    assert third[0] != first[0] and third[1] != first[1]


def test_mini_runs_have_their_own_table_without_the_papers_numbers(tmp_path):
    record_cell(tmp_path, "figure_capacity", "elu", 40, best=0.1, last=0.1)
    record_cell(tmp_path, "figure_capacity", "elu", 80, best=0.7531, last=0.7531, scale="mini")
    assert main(["figure_capacity", "--results", str(tmp_path)]) == 0
    paper = (tmp_path / "tables" / "figure_capacity.md").read_text()
    mini = (tmp_path / "tables" / "figure_capacity_mini.md").read_text()
    assert "0.7531" not in paper
    assert section_rows(mini, "elu")["80"]["last, ours"] == "0.7531"
    assert "authors" not in "".join(section_rows(mini, "elu")["80"])
    assert "not comparable with the paper" in mini
    assert (tmp_path / "figures" / "figure_capacity_mini.png").is_file()


def test_brief_prints_only_what_was_run_side_by_side(tmp_path, capsys):
    for size in (40, 60, 80):
        record_cell(tmp_path, "figure_capacity", "elu", size, best=0.1, last=0.1234)
    assert main(["figure_capacity", "--results", str(tmp_path), "--brief"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["S=40", "S=60", "S=80"]
    authors = float(authors_line("capacity", "elu", "", "sum", 80)["last_eval_loss"])
    assert lines[2].split()[0] == "elu"
    assert lines[2].split()[-3:] == ["0.1234", "/", f"{authors:.4f}"]
    assert not any(line.startswith("softmax") for line in lines)


def test_a_size_the_authors_did_not_publish_is_shown_alone(tmp_path):
    record_cell(tmp_path, "figure_capacity", "elu", 50, best=0.1, last=0.1234)
    row = section_rows(table_of(tmp_path, "figure_capacity"), "elu")["50"]
    assert row["last, ours"] == "0.1234" and row["last, authors'"] == ""


def test_no_records_names_the_folder_and_the_script(tmp_path, capsys):
    assert main(["figure_update_rule", "--results", str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert str(tmp_path / "runs" / "figure_update_rule") in error
    assert "scripts/figure_update_rule.sh" in error
    assert list(tmp_path.iterdir()) == []


def test_a_curve_of_ones_own_stands_beside_the_papers(tmp_path, capsys):
    record_cell(tmp_path, "figure_capacity", "elu", 40, best=0.1, last=0.1234)
    for name in ("mine", "yours"):
        record_cell(tmp_path, "figure_capacity", name, 40, best=0.01, last=0.0567)
    assert main(["figure_capacity", "--results", str(tmp_path)]) == 0
    table = (tmp_path / "tables/figure_capacity.md").read_text()
    assert "## mine" in table and "0.0567" in table
    [results], _ = load_results(tmp_path, figure_capacity.FIGURE)
    legend = [text.get_text() for text in synthetic_plot.draw(results).axes[0].get_legend().get_texts()]
    assert {"mine", "yours", "elu"} <= set(legend)


@pytest.mark.parametrize(
    "row, cell, metrics, reason",
    [
        ("elu", "forty", {"best_loss": 0.1, "last_loss": 0.1}, "such as S40"),
        ("elu", "S60", {"best_loss": 0.1}, "last_loss is missing"),
        ("elu", "S60", {"best_loss": "low", "last_loss": 0.1}, "best_loss must be a number"),
    ],
)
def test_a_record_that_does_not_belong_is_named_and_the_rest_reported(
    tmp_path, capsys, row, cell, metrics, reason
):
    record_cell(tmp_path, "figure_capacity", "elu", 40, best=0.1, last=0.1234)
    foreign = new_record("figure_capacity", row, 2, "paper", metrics, 1, 1.0, 1, {}, cell=cell)
    path = write_record(tmp_path, foreign)
    corrupt = record_path(tmp_path, "figure_capacity", "elu", 3, "S40")
    corrupt.write_text("{")
    assert main(["figure_capacity", "--results", str(tmp_path)]) == 1
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 2
    assert any(str(corrupt) in line for line in errors)
    assert any(str(path) in line and reason in line for line in errors)
    table = (tmp_path / "tables" / "figure_capacity.md").read_text()
    assert section_rows(table, "elu")["40"]["last, ours"] == "0.1234"
    assert path.is_file() and corrupt.read_text() == "{"


def test_without_matplotlib_the_table_is_written_and_the_extra_named(tmp_path, capsys, monkeypatch):
    record_cell(tmp_path, "figure_capacity", "elu", 40, best=0.1, last=0.1)
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["figure_capacity", "--results", str(tmp_path)]) == 1
    assert "fwp_fairseq[plot]" in capsys.readouterr().err
    assert (tmp_path / "tables" / "figure_capacity.md").is_file()


def test_an_output_folder_that_cannot_be_written_is_named(tmp_path, capsys):
    record_cell(tmp_path, "figure_capacity", "elu", 40, best=0.1, last=0.1)
    in_the_way = tmp_path / "out"
    in_the_way.write_text("a file")
    assert main(["figure_capacity", "--results", str(tmp_path), "--out", str(in_the_way)]) == 1
    assert f"{in_the_way}/tables/figure_capacity.md cannot be written" in capsys.readouterr().err


def test_an_unknown_name_lists_the_known_ones(capsys):
    with pytest.raises(SystemExit) as exit_info:
        main(["figure_eight"])
    assert exit_info.value.code == 2
    error = capsys.readouterr().err
    assert "figure_eight" in error and "figure_capacity" in error and "figure_update_rule" in error


def test_the_authors_results_are_complete():
    for figure, rows, sizes in (("capacity", 8, range(20, 601, 20)), ("update_rule", 8, range(20, 201, 20))):
        with open(AUTHORS, newline="") as file:
            lines = [line for line in csv.DictReader(file) if line["figure"] == figure]
        curves = {(line["feature_map"], line["arg"], line["update_rule"]) for line in lines}
        cells = {(line["feature_map"], line["arg"], line["update_rule"], int(line["n_keys"])) for line in lines}
        assert len(curves) == rows
        assert cells == {(*curve, size) for curve in curves for size in sizes}
