#!/usr/bin/env bash
# Whether every kind of attention can translate at all: BLEU on an artificial language that a CPU core learns.
source "$(dirname "$(readlink -f "$0")")/lib/environment.sh"
source scripts/lib/training.sh
source scripts/lib/translation.sh

experiment=table_reordering
all_rows="transformer linear performer_256 dpfp_256"
setting=reordering
all_settings="reordering"

# FAVOR+ draws new features at every update, and needs more of them to come as far.
row_options() {
    options=("row=$1")
    [ "$1" != performer_256 ] || options+=(optimization.max_update=12000)
}

prepare_data() {
    corpus_data mini_reordering data_prep/mini_reordering.py
}

usage() {
    cat <<'END'
Usage: bash scripts/table_reordering.sh [OPTIONS]

Makes an artificial language pair, in which words are translated one by one and put in another order,
trains each row on it, translates the validation and test set with the checkpoint that has the lowest
validation loss (beam 4, length penalty 0.6), and prints a table of BLEU. At least 95 is expected of
every row; performer_256 is trained twice as long as the others. Rows with a record are skipped, and
an interrupted one is resumed.

END
    common_usage
}

run_table "$@"
