#!/usr/bin/env bash
# Whether every kind of attention can translate at all: BLEU on an artificial language that a CPU core learns.
source "$(dirname "$(readlink -f "$0")")/lib/environment.sh"
source scripts/lib/training.sh
source scripts/lib/translation.sh

experiment=table_reordering
all_rows="transformer linear performer_256 dpfp_256"
setting=reordering
all_settings="reordering"

prepare_data() {
    corpus_data mini_reordering data_prep/mini_reordering.py
}

usage() {
    cat <<'END'
Usage: bash scripts/table_reordering.sh [OPTIONS]

Makes an artificial language pair, in which words are translated one by one and put in another order,
trains each row on it, translates the validation and test set with the checkpoint that has the lowest
validation loss (beam 4, length penalty 0.6), and prints a table of BLEU. At least 95 is expected of
every row. Rows with a record are skipped, and an interrupted one is resumed.

  --rows A,B         some rows only: transformer linear performer_256 dpfp_256
  --seeds 1,2        several seeds (default: 1)
  --jobs N           rows trained at the same time (default: 1); their output goes to DIR/logs
  --processes N      processes, one a GPU, that share the batch of each row (default: 1)
  --accumulate N     batches added up for an update (default: 1); the batch stays the same
  --precision P      fp32 (default), bf16, or fp16 on GPUs
  --data DIR         a data-bin folder of your own (default: data/..., made if missing)
  --results DIR      where records and table go (default: results); one row's is in
                     DIR/runs/table_reordering/ROW/reordering/seed1.json, its translations beside it
  --max-update N     end each training here (needs its own --results)
  --wandb [PROJECT]  log to wandb (fwp_fairseq by default), one run a row; offline without an API key
  --dry-run          print the commands and stop
  -h, --help         show this help
END
}

for argument in "$@"; do
    case $argument in -h | --help) usage && slurm_usage && exit ;; esac
done

run_table "$@"
