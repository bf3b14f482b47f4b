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
END
    common_usage
    cat <<'END'

Checkpoints, and what fairseq-generate printed, are kept in runs/.
END
}

run_table "$@"
