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
  --stride N         tokens the evaluation window moves by (default: 1, the paper's)
END
    common_usage
    cat <<'END'

The name of a row says whether it has positions, and its attention normalisation.
Time: the mini setting takes some 10 minutes of one core a row. The others are 500,000
(small) and 400,000 (medium) updates a row: days on one GPU. Checkpoints are kept in runs/.
END
}

run_table "$@"
