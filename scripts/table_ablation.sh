#!/usr/bin/env bash
# The paper's ablation of the delta rule: positions, attention normalisation, sum normalisation.
source "$(dirname "$(readlink -f "$0")")/lib/environment.sh"
source scripts/lib/training.sh
source scripts/lib/language_model.sh

experiment=table_wikitext103_ablation
all_rows="positions_none positions_output positions_both no_positions_none no_positions_output \
no_positions_both no_sum_normalization"
setting=medium
all_settings="small medium mini"
extra_options=stride

row_options() {
    options=(row=delta "+ablation=$1")
}

usage() {
    cat <<'END'
Usage: bash scripts/table_ablation.sh [OPTIONS]

Makes the data if it is missing, trains each row, computes its perplexity on the validation and test
text, and prints the table. A row that diverges is stopped and recorded as such. Rows with a record
are skipped, and an interrupted one is resumed.

  --setting S        medium (90M parameters, the paper's and the default), small (44M), or mini,
                     which two CPU cores can train
  --rows A,B         some rows only: positions_none positions_output positions_both
                     no_positions_none no_positions_output no_positions_both no_sum_normalization;
                     the second part is the attention normalisation
  --seeds 1,2        several seeds (default: 1)
  --jobs N           rows trained at the same time (default: 1); their output goes to DIR/logs
  --processes N      processes, one a GPU, that share the batch of each row (default: 1)
  --accumulate N     batches added up for an update (default: 1); the batch stays the paper's
  --precision P      fp32 (the paper's, default), bf16, or fp16 on GPUs
  --stride N         tokens the evaluation window moves by (default: 1, the paper's)
  --data DIR         a data-bin folder of your own (default: data/..., made if missing)
  --results DIR      where records and table go (default: results); one row's is in
                     DIR/runs/table_wikitext103_ablation/ROW/SETTING/seed1.json
  --max-update N     end each training here (a mini run; needs its own --results)
  --wandb [PROJECT]  log to wandb (fwp_fairseq by default), one run a row; offline without an API key
  --dry-run          print the commands and stop
  -h, --help         show this help

Time: the mini setting takes some 10 minutes of one core a row. The others are 500,000
(small) and 400,000 (medium) updates a row: days on one GPU. Checkpoints are kept in runs/.
END
}

for argument in "$@"; do
    case $argument in -h | --help) usage && slurm_usage && exit ;; esac
done

run_table "$@"
