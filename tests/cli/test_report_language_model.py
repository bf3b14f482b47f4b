"""fwp-report on the language modelling tables: our numbers beside the paper's, divergence, and messages."""

import pytest

from fwp_fairseq.cli.report import main
from fwp_fairseq.records import new_record, read_record, write_record
from fwp_fairseq.reports import REPORTS, training_plot
from fwp_fairseq.reports.table_wikitext103 import TABLE
from fwp_fairseq.reports.table_wikitext103_unbounded import TABLE as UNBOUNDED
from fwp_fairseq.reports.training_results import load_results


def write(results, row, test, setting="small", seed=1, scale="paper", table="table_wikitext103", **metrics):
    diverged = test is None
    numbers = {} if diverged else {"valid_ppl": test - 1, "test_ppl": test, "stride": 1}
    record = new_record(
        table, row, seed, scale, {**numbers, "trained_tokens": 7200, **metrics}, 900 if diverged else 2000, 3600.0, 44_018_394,
        {}, cell=setting, status="diverged" if diverged else "finished", state_size=131_072,
        curves={"updates": [1000, 2000], "train_loss": [4.2, 4.1], "valid_loss": [4.0, 3.9]},
    )  # fmt: skip
    write_record(results, record)


def part(results, name):
    report = REPORTS[name](results)
    assert report.problems == [] and len(report.parts) == 1
    return report.parts[0]


def cells(markdown, label, header="| model"):
    """{column: cell} of a row in the first table that has it."""
    lines = [line for line in markdown.splitlines() if line.startswith("|")]
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    titles = next(row for row in table if row[0] == "model")
    return dict(zip(titles, next(row for row in table if row[0] == label)))


def test_ours_stand_next_to_the_paper_and_rows_without_a_run_are_empty(tmp_path, capsys):
    write(tmp_path, "delta", 36.25)
    assert main(["table_wikitext103", "--results", str(tmp_path)]) == 0
    markdown = (tmp_path / "tables" / "table_wikitext103.md").read_text()
    assert cells(markdown, "delta (elu)") == {
        "model": "delta (elu)", "valid": "35.25", "test": "36.25", "test, paper": "35.5", "difference": "+0.75"
    }  # fmt: skip
    performer = cells(markdown, "Performer + delta")
    assert (performer["test"], performer["test, paper"], performer["difference"]) == ("", "37.2", "")
    assert cells(markdown, "dpfp-1, delta (not in the paper)")["test, paper"] == ""
    assert "44,018,394" in markdown and "131,072" in markdown
    assert (tmp_path / "figures" / "table_wikitext103.png").stat().st_size > 10_000
    assert "table_wikitext103.md" in capsys.readouterr().out


def test_settings_are_compared_with_their_own_numbers(tmp_path):
    write(tmp_path, "delta", 32.0, setting="medium")
    assert cells(part(tmp_path, "table_wikitext103").markdown, "delta (elu)")["difference"] == "+0.50"


def test_mini_runs_have_their_own_table_without_the_papers_numbers(tmp_path):
    subwords = {"test_bits_per_byte": 1.81234, "test_bits_per_word": 12.3456, "test_word_ppl": 5204.5}
    write(tmp_path, "delta", 57.0, setting="mini", scale="mini", **subwords)
    write(tmp_path, "linear", 68.0, setting="mini", scale="mini", **subwords)
    write(tmp_path, "performer", 70.0, setting="mini", scale="mini", **subwords)
    write(tmp_path, "performer_delta", 71.0, setting="mini", scale="mini", **subwords)
    mini = part(tmp_path, "table_wikitext103")
    assert mini.name == "table_wikitext103_mini"
    assert "not comparable with the paper" in mini.markdown and "35.5" not in mini.markdown
    assert cells(mini.markdown, "delta (elu)")["test, bits a byte"] == "1.8123"
    assert "delta (elu) 57.00, linear (elu, sum) 68.00: lower, as in the paper" in mini.markdown
    assert "Performer + delta 71.00, Performer (favor, sum) 70.00: not lower, unlike the paper" in mini.markdown
    assert "57.00" in mini.brief(100)


def test_both_scales_are_two_parts(tmp_path):
    write(tmp_path, "delta", 57.0, setting="mini", scale="mini")
    write(tmp_path, "delta", 36.0)
    names = [part.name for part in REPORTS["table_wikitext103"](tmp_path).parts]
    assert names == ["table_wikitext103", "table_wikitext103_mini"]


def test_seeds_are_averaged_and_those_that_diverged_named(tmp_path):
    for seed, test in ((1, 36.0), (2, 37.0), (3, None)):
        write(tmp_path, "delta", test, seed=seed)
    row = cells(part(tmp_path, "table_wikitext103").markdown, "delta (elu)")
    assert row["test"] == "36.50 (36.00 to 37.00), diverged at update 900"
    assert row["difference"] == "+1.00"


@pytest.mark.parametrize("test, words", [(None, "1 of 1 diverged, as in the paper"), (60.0, "0 of 1 diverged, unlike the paper")])
def test_ablation_says_whether_sum_normalisation_can_go(tmp_path, test, words):
    write(tmp_path, "no_positions_none", 31.0, setting="medium", table="table_wikitext103_ablation")
    write(tmp_path, "no_sum_normalization", test, setting="medium", table="table_wikitext103_ablation")
    markdown = part(tmp_path, "table_wikitext103_ablation").markdown
    assert words in markdown and "The paper's finding: Absolute positional encodings" in markdown
    row = cells(markdown, "positions, no sum normalisation")
    assert row["test"] == ("diverged at update 900" if test is None else "60.00")


def test_the_picture_has_a_line_a_run_and_a_cross_where_one_diverged(tmp_path):
    write(tmp_path, "delta", 36.0)
    write(tmp_path, "linear", None)
    [results], _ = load_results(tmp_path, TABLE, {}, None)
    [axes] = training_plot.draw(results).axes
    lines = {line.get_label(): line for line in axes.get_lines()}
    assert list(lines["delta (elu)"].get_xdata()) == [1000, 2000]
    assert lines["delta (elu)"].get_ydata()[1] == pytest.approx(49.40, abs=0.01)
    assert "linear (elu, sum), diverged" in lines
    assert [line.get_xdata()[0] for line in axes.get_lines() if line.get_marker() == "X"] == [900]


def test_a_row_of_ones_own_stands_below_the_papers(tmp_path, capsys):
    write(tmp_path, "delta", 36.0, setting="mini", scale="mini")
    write(tmp_path, "mine", 31.5, setting="mini", scale="mini")
    assert main(["table_wikitext103", "--results", str(tmp_path)]) == 0
    table = (tmp_path / "tables" / "table_wikitext103_mini.md").read_text()
    assert "31.50" in cells(table, "mine").values() and "36.00" in cells(table, "delta (elu)").values()
    [results], _ = load_results(tmp_path, TABLE, {}, None)
    assert "mine" in [line.get_label() for line in training_plot.draw(results).axes[0].get_lines()]
    assert main(["all", "--brief", "--results", str(tmp_path)]) == 0
    assert main(["check", "--results", str(tmp_path)]) == 0


def test_a_stream_that_blows_up_leaves_a_gap(tmp_path):
    write(tmp_path, "delta", 36.0, setting="mini", scale="mini", table="table_wikitext103_unbounded")
    path = tmp_path / "runs/table_wikitext103_unbounded/delta/mini/seed1.json"
    record = read_record(path)
    record["curves"] |= {"test_position": [64, 128], "test_position_loss": [3.0, None]}
    record["state_size"], record["status"] = None, "diverged"
    write_record(tmp_path, record)
    assert main(["table_wikitext103_unbounded", "--results", str(tmp_path)]) == 0
    assert (tmp_path / "figures/table_wikitext103_unbounded_mini.png").stat().st_size > 10_000


def test_records_that_cannot_be_shown_are_named_and_the_rest_reported(tmp_path, capsys):
    write(tmp_path, "delta", 36.0)
    write(tmp_path, "linear", 36.0, setting="large")
    write(tmp_path, "performer", 36.0, test_ppl="fast")
    assert main(["table_wikitext103", "--results", str(tmp_path)]) == 1
    error = capsys.readouterr().err
    for words in ("got 'large'", "test_ppl must be a number, got 'fast'"):
        assert words in error
    assert "36.00" in (tmp_path / "tables" / "table_wikitext103.md").read_text()


def test_no_records_is_one_message(tmp_path, capsys):
    assert main(["table_wikitext103", "--results", str(tmp_path)]) == 1
    assert "no record of table_wikitext103" in capsys.readouterr().err


# Unbounded context


def write_unbounded(results, row, test, setting="medium", scale="paper"):
    record = new_record(
        "table_wikitext103_unbounded", row, 1, scale,
        {"valid_ppl": test - 1, "test_ppl": test, "context": "stream", "stride": 384, "trained_tokens": 7200},
        2000, 3600.0, 89_866_202, {}, cell=setting, state_size=131_072,
        curves={"updates": [1000, 2000], "train_loss": [4.2, 4.1], "valid_loss": [4.0, 3.9],
                "test_position": [64, 128, 1000], "test_position_loss": [4.4, 4.1, 3.9]},
    )  # fmt: skip
    write_record(results, record)


def test_models_without_a_cut_context_stand_beside_the_papers_of_their_state_size(tmp_path):
    for row, test in (("linear", 300.0), ("delta", 30.0), ("transformer_xl_1x", 60.0), ("transformer_xl_48x", 25.0)):
        write_unbounded(tmp_path, row, test)
    unbounded = part(tmp_path, "table_wikitext103_unbounded")
    delta = next(line for line in unbounded.markdown.splitlines() if line.startswith("| delta (elu)"))
    assert [cell.strip() for cell in delta.split("|")[2:8]] == ["29.00", "30.00", "27.8", "+1.20", "29.4", "+0.60"]
    linear = next(line for line in unbounded.markdown.splitlines() if line.startswith("| linear"))
    assert [cell.strip() for cell in linear.split("|")[2:8]] == ["299.00", "300.00", "", "", ">260", ""]
    assert "read as one stream" in unbounded.markdown and "sliding window" not in unbounded.markdown
    assert "65.7" in unbounded.markdown and "25.5" in unbounded.markdown
    assert "delta (elu) 30.00, linear (elu, sum) 300.00: lower, as in the paper" in unbounded.markdown


def test_the_loss_by_position_is_a_panel_of_its_own(tmp_path):
    write_unbounded(tmp_path, "delta", 30.0)
    [results], _ = load_results(tmp_path, UNBOUNDED, {}, None)
    training, position = training_plot.draw(results).axes
    assert "position in the test text" in position.get_xlabel() and position.get_xscale() == "log"
    [line] = position.lines
    assert list(line.get_xdata()) == [64, 128, 1000]
    assert len(training.lines) == 1
