# Sourced by the translation scripts, on top of training.sh: their rows and their evaluation.

configs=configs/wmt14_en_de
batch_field=max_tokens

row_options() {
    options=("row=$1")
}

evaluate() {
    local split splits=()
    for split in valid test test_filtered; do
        if [ "$split" != test_filtered ] || compgen -G "$data/ref.$split.*" >/dev/null; then
            splits+=(--split "$split")
        fi
    done
    run fwp-eval-translation "$1" "$data" "${splits[@]}" --results "$results"
}
