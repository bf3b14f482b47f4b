# Sourced by the scripts that make a table of trainings. Such a script sets
#   experiment all_rows all_settings setting   the table, its rows, its settings and the default one
#   configs batch_field                        folder of configurations; batch_size or max_tokens
# defines
#   row_options ROW        into the array `options`, what makes a row
#   prepare_data           into `data`, a data-bin folder, made if it is missing
#   evaluate CHECKPOINT    numbers and record of a trained row
# and calls `run_table OPTIONS`: data, then each row trained, evaluated and recorded, then the table.

# By default glibc returns every large tensor to the system and faults it in again, a third of the
# time of a training on CPU.
export MALLOC_MMAP_THRESHOLD_=${MALLOC_MMAP_THRESHOLD_:-4294967296}
export MALLOC_TRIM_THRESHOLD_=${MALLOC_TRIM_THRESHOLD_:-8589934592}

extra_options="" # names of options that one script has and the others have not
stride=""

# Prints a command, and runs it unless this is a dry run.
run() {
    printf '+ %s\n' "$*"
    [ -n "$dry_run" ] || "$@"
}

check_in() {
    local name=$1 word allowed=" $2 "
    for word in ${3//,/ }; do
        [[ $allowed == *" $word "* ]] || usage_error "$name: there is no '$word', only$allowed"
    done
}

check_number() {
    [[ $2 =~ ^[1-9][0-9]*$ ]] || usage_error "$1: expected a whole number >= 1, got '$2'"
}

# The rows of text, or the tokens, of an update of one row of the table, as its configuration has them.
row_batch() {
    local file
    for file in "$configs/unbounded/$setting/$1.yaml" "$configs/$setting.yaml"; do
        if [ -e "$file" ]; then
            sed -n "s/^  $batch_field: *//p" "$file"
            return
        fi
    done
}

parse_options() {
    rows=$all_rows seeds=1 results=results data="" jobs=1 processes=1 accumulate=1 precision=fp32
    max_update="" wandb="" dry_run=""
    while [ $# -gt 0 ]; do
        case $1 in --*=*) set -- "${1%%=*}" "${1#*=}" "${@:2}" ;; esac
        local name=${1#--}
        case $1 in
        --dry-run) dry_run=yes && shift && continue ;;
        --setting | --rows | --seeds | --results | --data | --jobs | --processes | --accumulate | \
            --precision | --max-update | --wandb) ;;
        *) [[ " $extra_options " == *" $name "* ]] || usage_error "unknown argument '$1'" ;;
        esac
        [ -n "${2:-}" ] || usage_error "$1 needs a value"
        printf -v "${name//-/_}" %s "$2"
        shift 2
    done
    check_in --setting "$all_settings" "$setting"
    check_in --rows "$all_rows" "$rows"
    check_in --precision "fp32 bf16 fp16" "$precision"
    local name row
    for name in jobs processes accumulate $extra_options; do
        [ -z "${!name}" ] || check_number "--$name" "${!name}"
    done
    for name in ${seeds//,/ }; do check_number --seeds "$name"; done
    if [ -n "$max_update" ]; then
        check_number --max-update "$max_update"
        [ "$results" != results ] ||
            usage_error "--max-update makes other runs than the table's: give them their own --results"
    fi
    for row in ${rows//,/ }; do
        [ "$batch_field" = max_tokens ] || [ $(($(row_batch "$row") % (processes * accumulate))) = 0 ] ||
            usage_error "--processes $processes times --accumulate $accumulate does not divide the" \
                "batch of $(row_batch "$row") that $row has"
    done
    if [ "$precision" = fp16 ] && ! nvidia-smi -L 2>/dev/null | grep -q GPU; then
        usage_error "--precision fp16 is for GPUs, and there is none here; bf16 runs on CPUs"
    fi
}

# prepare_data for a corpus of data_prep/: `corpus_data CORPUS SCRIPT`.
corpus_data() {
    if [ -n "$data" ]; then
        [ -e "$data/text_stats.json" ] || [ -n "$dry_run" ] ||
            fail "--data $data: no text_stats.json there; name a data-bin folder made by $2"
        return
    fi
    data=data/$1/data-bin
    [ -e "$data/text_stats.json" ] || run python "$2" --dest "data/$1"
}

# Trains (or resumes) one row with one seed unless that is done, and evaluates it.
run_cell() {
    local row=$1 seed=$2 options=() batch
    local folder=runs/$experiment/$row/$setting/seed$seed${max_update:+-$max_update-updates}
    row_options "$row"
    batch=$(row_batch "$row")
    local train=(fairseq-hydra-train --config-dir "$configs" --config-name "$setting" "${options[@]}")
    train+=("common.seed=$seed" "task.data='$data'" "checkpoint.save_dir=$folder")
    train+=("dataset.$batch_field=$((batch / (processes * accumulate)))" "optimization.update_freq=[$accumulate]")
    [ "$precision" = fp32 ] || train+=("common.$precision=true")
    [ -z "$max_update" ] || train+=("optimization.max_update=$max_update")
    [ -z "$wandb" ] || train+=("common.wandb_project='$wandb'")
    if [ "$processes" -gt 1 ]; then
        train=(torchrun --standalone "--nproc_per_node=$processes" --no-python bash scripts/lib/process.sh "${train[@]}")
    fi
    if ! grep -qsE '"status": "(finished|diverged)"' "$folder/training.json"; then
        run "${train[@]}" || return 1
    fi
    local checkpoint=best
    ! grep -qs '"status": "diverged"' "$folder/training.json" || checkpoint=last
    evaluate "$folder/checkpoint_$checkpoint.pt" || return 1
}

# What xargs starts: one cell, its output in a file of its own where several run at once.
run_cell_logged() {
    local log=$results/logs/$experiment-$1-$setting-seed$2.log
    if [ "$jobs" = 1 ]; then
        run_cell "$1" "$2"
    else
        mkdir -p "$results/logs"
        printf '%s seed %s: started, see %s\n' "$1" "$2" "$log"
        run_cell "$1" "$2" >>"$log" 2>&1 || { printf '%s seed %s: FAILED, see %s\n' "$1" "$2" "$log" && return 1; }
        printf '%s seed %s: done\n' "$1" "$2"
    fi
}

run_table() {
    parse_options "$@"
    [ -n "$dry_run" ] || prepare_environment
    prepare_data
    local row seed record cells=() status=0
    for seed in ${seeds//,/ }; do
        for row in ${rows//,/ }; do
            record=$results/runs/$experiment/$row/$setting/seed$seed.json
            if [ -e "$record" ]; then
                printf '%s seed %s: finished, see %s\n' "$row" "$seed" "$record"
            else
                cells+=("$row $seed")
            fi
        done
    done
    if [ ${#cells[@]} -gt 0 ]; then
        [ -z "$dry_run" ] || jobs=1
        [ "$jobs" = 1 ] || export OMP_NUM_THREADS=$(($(nproc) / jobs > 0 ? $(nproc) / jobs : 1))
        export experiment configs batch_field setting results data jobs processes accumulate precision
        export stride max_update wandb dry_run
        export -f run row_options row_batch evaluate run_cell run_cell_logged
        # xargs keeps the cells in the foreground, so that Ctrl-C reaches them.
        printf '%s\n' "${cells[@]}" | xargs -P "$jobs" -L 1 bash -c 'run_cell_logged "$@"' cell || status=1
    fi
    run fwp-report "$experiment" --results "$results" --brief || status=1
    return "$status"
}
