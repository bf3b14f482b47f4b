#!/usr/bin/env bash
# The paper's language modelling table: perplexity on WikiText-103 for each update rule and feature map.
source "$(dirname "$(readlink -f "$0")")/lib/environment.sh"
source scripts/lib/training.sh
source scripts/lib/language_model.sh

experiment=table_wikitext103
all_rows="transformer linear delta performer performer_delta dpfp_sum dpfp_delta"
setting=small
all_settings="small medium mini"
extra_options=stride

row_options() {
    options=("row=$1")
}

usage() {
    cat <<'END'
Usage: bash scripts/table_wikitext103.sh [OPTIONS]

Makes the data if it is missing, trains each row, computes its perplexity on the validation and test
text, and prints the table. Rows with a record are skipped, and an interrupted one is resumed.

  --setting S        small (44M parameters, the default), medium (90M), or mini, which two CPU
                     cores can train
  --stride N         tokens the evaluation window moves by (default: 1, the paper's)
END
    common_usage
    cat <<'END'

Time: the mini setting takes some 10 minutes of one core a row. The others are 500,000
(small) and 400,000 (medium) updates a row: days on one GPU. Checkpoints are kept in runs/.
END
}

run_table "$@"
