#!/usr/bin/env bash
# The paper's translation table: BLEU on WMT14 English-German for each kind of attention.
source "$(dirname "$(readlink -f "$0")")/lib/environment.sh"
source scripts/lib/training.sh
source scripts/lib/translation.sh

experiment=table_wmt14
all_rows="transformer linear performer_64 performer_256 performer_512 dpfp_256 dpfp_512 elu_delta dpfp_256_delta"
setting=base
all_settings="base mini"

prepare_data() {
    local corpus=wmt14_en_de
    [ "$setting" != mini ] || corpus=mini_mt
    corpus_data "$corpus" "data_prep/$corpus.py"
}

usage() {
    cat <<'END'
Usage: bash scripts/table_wmt14.sh [OPTIONS]

Makes the data if it is missing, trains each row, translates the validation and test set with the
checkpoint that has the lowest validation loss (beam 4, length penalty 0.6), computes sacreBLEU and
tokenised compound-split BLEU, and prints the table. Rows with a record are skipped, and an
interrupted one is resumed.

  --setting S        base (Transformer base on WMT14, the default), or mini, which two CPU cores
                     can train
  --rows A,B         some rows only: transformer linear performer_64 performer_256 performer_512
                     dpfp_256 dpfp_512 elu_delta dpfp_256_delta
  --seeds 1,2        several seeds (default: 1)
  --jobs N           rows trained at the same time (default: 1); their output goes to DIR/logs
  --processes N      processes, one a GPU, that share the batch of each row (default: 1)
  --accumulate N     batches added up for an update (default: 1); an update has about 25,000 target
                     tokens all the same
  --precision P      fp32 (default), bf16, or fp16 on GPUs
  --data DIR         a data-bin folder of your own (default: data/..., made if missing)
  --results DIR      where records and table go (default: results); one row's is in
                     DIR/runs/table_wmt14/ROW/SETTING/seed1.json, its translations beside it
  --max-update N     end each training here (a mini run; needs its own --results)
  --wandb [PROJECT]  log to wandb (fwp_fairseq by default), one run a row; offline without an API key
  --dry-run          print the commands and stop
  -h, --help         show this help

Checkpoints, and what fairseq-generate printed, are kept in runs/.
END
}

for argument in "$@"; do
    case $argument in -h | --help) usage && slurm_usage && exit ;; esac
done

run_table "$@"
