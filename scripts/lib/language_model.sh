# Sourced by the language modelling scripts, on top of training.sh: their data and their evaluation.

configs=configs/wikitext103
batch_field=batch_size

prepare_data() {
    local corpus=wikitext103
    [ "$setting" != mini ] || corpus=mini_lm
    corpus_data "$corpus" "data_prep/$corpus.py"
}

evaluate() {
    run fwp-eval-lm "$1" "$data" --split valid --split test ${stride:+--stride "$stride"} --results "$results"
}
