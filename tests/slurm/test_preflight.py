"""The arithmetic of --preflight, with stand-ins for the trainings whose speed is known."""

import csv
import json
import sys

from .conftest import ROOT

# Logs five intervals as fairseq does, the first ones slower, and leaves training.json where it is told to save.
TRAINING = """#!{python}
import json, pathlib, sys
options = dict(word.split("=", 1) for word in sys.argv if "=" in word)
for update, speed in ((2, 10), (4, 20), (6, 5000), (8, 5000), (10, 5000)):
    print("[config] then", json.dumps({{"epoch": 1, "wps": "1"}}))
    print(json.dumps({{"epoch": 1, "update": 0.1, "wps": str(speed), "wpb": "2500", "num_updates": str(update)}}))
folder = pathlib.Path(options["checkpoint.save_dir"])
folder.mkdir(parents=True, exist_ok=True)
(folder / "training.json").write_text(json.dumps({{"peak_memory_mb": 1234.0}}))
"""

SWEEP = """#!{python}
import sys
from fwp_fairseq.records import new_record, write_record
figure, options = sys.argv[1], dict(zip(sys.argv[2::2], sys.argv[3::2]))
metrics = {{"best_loss": 0.5, "last_loss": 0.6}}
cell = f"S{{options['--sizes']}}"
write_record(options["--results"], new_record(figure, "elu", 1, "mini", metrics, 100, 7.2, 10, {{}}, cell=cell))
"""


def stand_in(checkout, name, text):
    path = checkout.folder / "bin" / name
    path.unlink(missing_ok=True)
    path.write_text(text.format(python=sys.executable))
    path.chmod(0o755)


def numbers(result, row):
    [line] = [line for line in result.stdout.splitlines() if line.startswith(f"| {row}")]
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


def test_hours_of_a_table_follow_from_updates_words_and_speed(checkout):
    stand_in(checkout, "fairseq-hydra-train", TRAINING)
    (checkout.folder / "text_stats.json").write_text("{}")
    arguments = ["--setting", "small", "--rows", "linear,delta", "--seeds", "1,2,3", "--data", checkout.folder]
    result = checkout.run("table_wikitext103.sh", "--preflight", *arguments, SLURM_JOB_ID="1")
    assert result.returncode == 0, result.stderr
    # 500,000 updates of 2,500 words at 5,000 words a second: 250,000 seconds; a checkpoint every 4,000 updates
    for row in ("linear/small", "delta/small"):
        assert numbers(result, row) == ["1,234", "5,000", "2,500", "500,000", "33.3", "69.4"]
    assert "All rows with 3 seed(s): 416.7 hours" in result.stdout
    kept = json.loads((checkout.folder / "results/slurm/table_wikitext103.preflight.json").read_text())
    assert kept == {"linear/small": 5000.0, "delta/small": 5000.0}


def test_a_row_that_is_trained_longer_counts_its_own_updates(checkout):
    stand_in(checkout, "fairseq-hydra-train", TRAINING)
    (checkout.folder / "text_stats.json").write_text("{}")
    arguments = ["--rows", "transformer,performer_256", "--data", checkout.folder]
    result = checkout.run("table_reordering.sh", "--preflight", *arguments, SLURM_JOB_ID="1")
    assert result.returncode == 0, result.stderr
    assert numbers(result, "transformer/")[3] == "6,000" and numbers(result, "performer_256/")[3] == "12,000"
    ended = checkout.run("table_reordering.sh", "--preflight", *arguments, "--max-update", "50", "--results", "r", SLURM_JOB_ID="1")
    assert numbers(ended, "performer_256/")[3] == "50"


def test_a_training_that_fails_ends_the_preflight_with_its_output(checkout):
    stand_in(checkout, "fairseq-hydra-train", "#!/bin/sh\necho CUDA out of memory\nexit 1\n")
    (checkout.folder / "text_stats.json").write_text("{}")
    arguments = ["--setting", "mini", "--rows", "delta", "--data", checkout.folder]
    result = checkout.run("table_wikitext103.sh", "--preflight", *arguments, SLURM_JOB_ID="1")
    assert result.returncode == 2
    assert "CUDA out of memory" in result.stderr and "delta/mini: the preflight failed, exit status 1" in result.stderr


def test_hours_of_a_figure_follow_from_the_authors_updates(checkout):
    stand_in(checkout, "fwp-sweep", SWEEP)
    result = checkout.run("figure_capacity.sh", "--preflight", SLURM_JOB_ID="1")
    assert result.returncode == 0, result.stderr
    with open(ROOT / "results" / "authors_synthetic.csv", newline="") as file:
        lines = [line for line in csv.DictReader(file) if (line["figure"], line["feature_map"]) == ("capacity", "elu")]
    updates = sum(int(line["steps_run"]) for line in lines)
    assert "--sizes 600" in result.stdout
    assert numbers(result, "elu")[1:] == ["72.0", f"{updates:,}", f"{0.072 * updates / 3600:.1f}"]
    assert not list((checkout.folder / "runs").iterdir())
