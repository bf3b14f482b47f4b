#!/usr/bin/env bash
# The paper's unbounded-context table: fast weights carried through the whole text, and Transformer-XL.
source "$(dirname "$(readlink -f "$0")")/lib/environment.sh"
source scripts/lib/training.sh
source scripts/lib/language_model.sh

experiment=table_wikitext103_unbounded
all_rows="linear delta dpfp_delta transformer_xl_1x transformer_xl_8x transformer_xl_16x transformer_xl_48x"
setting=medium
all_settings="medium mini"
overlays=unbounded

row_options() {
    case $1 in
    transformer_xl_*) options=(recipe=authors row=transformer_xl "+unbounded/$setting=$1") ;;
    *) options=("row=$1" +unbounded=fast_weights) ;;
    esac
}

usage() {
    cat <<'END'
Usage: bash scripts/table_unbounded.sh [OPTIONS]

Language models whose context is never cut: fast weights are carried from segment to segment, in
training and through the whole validation and test text, and stand beside Transformer-XLs with as
much state (1x) and more (8x, 16x, 48x). Makes the data if it is missing, trains each row, reads both
texts in one stream, and prints the table; its figure shows the loss against the position in the
text. Rows with a record are skipped, and an interrupted one is resumed where it was, state and all.

  --setting S        medium (90M parameters, the paper's and the default), or mini, which two CPU
                     cores can train
END
    common_usage
    cat <<'END'

Checkpoints are kept in runs/. The medium setting is 400,000 updates a row (Transformer-XL:
200,000): days on one GPU.
END
}

run_table "$@"
