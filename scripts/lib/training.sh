# Sourced by the scripts that make a table of trainings. Such a script sets
#   experiment all_rows all_settings setting   the table, its rows, its settings and the default one
#   configs batch_field                        folder of configurations; batch_size or max_tokens
# defines
#   row_options ROW        into the array `options`, what makes a row
#   prepare_data           into `data`, a data-bin folder, made if it is missing
#   evaluate CHECKPOINT    numbers and record of a trained row
#   usage                  what it does and its own options, with common_usage for the others
# and calls `run_table OPTIONS`: data, then each row trained, evaluated and recorded, then the table.

source scripts/lib/slurm.sh

# By default glibc returns every large tensor to the system and faults it in again, a third of the
# time of a training on CPU.
export MALLOC_MMAP_THRESHOLD_=${MALLOC_MMAP_THRESHOLD_:-4294967296}
export MALLOC_TRIM_THRESHOLD_=${MALLOC_TRIM_THRESHOLD_:-8589934592}

extra_options="" # names of options that one script has and the others have not
stride=""
overlays="" # folder in $configs with files SETTING/ROW.yaml, where rows have numbers of their own

common_usage() {
    cat <<END
  --rows A,B         some rows only (default: all):
$(fold -sw 78 <<<"$all_rows" | sed 's/^/                     /; s/ *$//')
  --seeds 1,2        several seeds (default: 1)
  --jobs N           rows trained at the same time (default: 1); their output goes to DIR/logs
  --processes N      processes, one a GPU, that share the batch of each row (default: 1)
  --accumulate N     batches added up for an update (default: 1); the batch stays the same
  --precision P      fp32 (default), bf16, or fp16 on GPUs
  --data DIR         a data-bin folder of your own (default: data/..., made if missing)
  --results DIR      where records and table go (default: results; from the repository's root if
                     relative); one row's is in
                     DIR/runs/$experiment/ROW/SETTING/seed1.json
  --max-update N     end each training here (a mini run; needs its own --results)
  --wandb [PROJECT]  log to wandb (fwp_fairseq by default), one run a row; offline without an API key
  --dry-run          print the commands and stop
  -h, --help         show this help
END
}

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

# The words of a list, in their order.
each_once() {
    local word words=""
    for word in ${2//,/ }; do [[ " $words " == *" $word "* ]] || words+=" $word"; done
    [ -n "$words" ] || usage_error "$1: names nothing, got '$2'; leave the option out for its default"
    printf '%s' "${words# }"
}

# A number that the configuration of a row has: `row_value batch_size ROW`.
row_value() {
    local file value
    for file in "$configs/$overlays/$setting/$2.yaml" "$configs/$setting.yaml"; do
        value=$(sed -n "s/^  $1: *//p" "$file" 2>/dev/null) || continue
        [ -z "$value" ] || { printf '%s' "$value" && return; }
    done
}

check_batch() {
    local row
    for row in $rows; do
        if [ "$batch_field" = max_tokens ]; then # a sentence must fit
            [ $(($(row_value max_tokens "$row") / (processes * accumulate))) -ge 250 ] ||
                usage_error "--processes $processes times --accumulate $accumulate leaves less than 250 of the" \
                    "$(row_value max_tokens "$row") tokens of an update to a batch, too few for a sentence"
            continue
        fi
        [ $(($(row_value batch_size "$row") % (processes * accumulate))) = 0 ] ||
            usage_error "--processes $processes times --accumulate $accumulate does not divide the" \
                "batch of $(row_value batch_size "$row") that $row has"
    done
}

parse_options() {
    rows=$all_rows seeds=1 results=results data="" jobs=1 processes=1 accumulate=1 precision=fp32
    max_update="" wandb="" dry_run="" action=run step=""
    while [ $# -gt 0 ]; do
        case $1 in --*=*) set -- "${1%%=*}" "${1#*=}" "${@:2}" ;; esac
        local name=${1#--}
        case $1 in
        --dry-run) dry_run=yes && shift && continue ;;
        --slurm | --status | --cancel | --preflight) action=$(slurm_action "$1") && shift && continue ;;
        --wandb) # the project may be left out
            if [[ ${2:--} == -* ]]; then wandb=fwp_fairseq && shift && continue; fi
            ;;
        --setting | --rows | --seeds | --results | --data | --jobs | --processes | --accumulate | \
            --precision | --max-update | --step) ;;
        *) [[ " $extra_options " == *" $name "* ]] || usage_error "unknown argument '$1'" ;;
        esac
        [ -n "${2:-}" ] || usage_error "$1 needs a value"
        printf -v "${name//-/_}" %s "$2"
        shift 2
    done
    check_in --setting "$all_settings" "$setting"
    rows=$(each_once --rows "$rows") && seeds=$(each_once --seeds "$seeds") || exit
    check_in --rows "$all_rows" "$rows"
    check_in --precision "fp32 bf16 fp16" "$precision"
    [ -z "$step" ] || check_in --step "train evaluate" "$step"
    local name
    for name in jobs processes accumulate $extra_options; do
        [ -z "${!name}" ] || check_number "--$name" "${!name}"
    done
    for name in $seeds; do check_number --seeds "$name"; done
    if [ -n "$max_update" ]; then
        check_number --max-update "$max_update"
        [ "$results" != results ] ||
            usage_error "--max-update makes other runs than the table's: give them their own --results"
        for name in $rows; do
            [ "$max_update" != "$(row_value warmup_updates "$name")" ] ||
                usage_error "--max-update $max_update is the whole warm-up of the learning rate of $name: give a larger" \
                    "or smaller one"
        done
    fi
    check_batch
    if [ "$precision" = fp16 ] && [ "$action" = run ] && ! nvidia-smi -L 2>/dev/null | grep -q GPU; then
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

# The training of one row with one seed, into the array `train`, and the folder of its checkpoints, into `folder`.
training_command() {
    local row=$1 seed=$2 options=() batch
    folder=runs/$experiment/$row/$setting/seed$seed${max_update:+-$max_update-updates}
    [ "$precision" = fp32 ] || folder+=-$precision
    row_options "$row"
    batch=$(row_value "$batch_field" "$row")
    train=(fairseq-hydra-train --config-dir "$configs" --config-name "$setting" "${options[@]}")
    train+=("common.seed=$seed" "task.data='$data'" "checkpoint.save_dir=$folder")
    train+=("dataset.$batch_field=$((batch / (processes * accumulate)))" "optimization.update_freq=[$accumulate]")
    [ "$precision" = fp32 ] || train+=("common.$precision=true")
    [ -z "$max_update" ] || train+=("optimization.max_update=$max_update")
    [ -z "$wandb" ] || train+=("common.wandb_project='$wandb'")
    local launcher=()
    if [ -n "${srun_options:-}" ]; then
        launcher=(srun --kill-on-bad-exit=1 "${srun_options[@]}")
    elif [ "$processes" -gt 1 ] && [ "${SLURM_NTASKS:-}" = "$processes" ]; then
        # a job that has a task for each process, on all of its nodes
        launcher=(srun --kill-on-bad-exit=1)
    elif [ "$processes" -gt 1 ]; then
        launcher=(torchrun --standalone "--nproc_per_node=$processes" --no-python)
    fi
    [ "$processes" = 1 ] || launcher+=(bash scripts/lib/process.sh)
    train=("${launcher[@]}" "${train[@]}")
}

# Trains (or resumes) one row with one seed unless that is done, and evaluates it; --step: one of the two.
run_cell() {
    local train folder ended='"status": "(finished|diverged)"'
    training_command "$1" "$2"
    if [ "$step" != evaluate ] && ! grep -qsE "$ended" "$folder/training.json"; then
        run "${train[@]}" || return 1
    fi
    [ "$step" != train ] || return 0
    if [ -z "$dry_run" ] && ! grep -qsE "$ended" "$folder/training.json"; then
        printf 'error: %s: the training has not ended\n' "$folder" >&2
        return 1
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

# One line for fwp-slurm submit: what a cell is called, its record, its folder, the words between two checkpoints, and
# the commands of its two steps.
slurm_task() {
    local train folder row=$1 seed=$2 command option words
    training_command "$row" "$seed"
    words=$(($(row_value "$batch_field" "$row") * $(row_value validate_interval_updates "$row")))
    [ "$batch_field" = max_tokens ] || words=$((words * $(row_value tokens_per_sample "$row")))
    command=(bash "scripts/${0##*/}" --setting "$setting" --rows "$row" --seeds "$seed" --data "$data")
    command+=(--results "$results" --accumulate "$accumulate" --precision "$precision")
    for option in max_update wandb $extra_options; do
        [ -z "${!option}" ] || command+=("--${option//_/-}" "${!option}")
    done
    printf '%s\t%s\t%s\t%s\t%s\t%s\n' "$row/$setting/seed$seed" \
        "$results/runs/$experiment/$row/$setting/seed$seed.json" "$folder" "$words" \
        "train=$(printf '%q ' "${command[@]}" --processes "$processes" --step train)" \
        "evaluate=$(printf '%q ' "${command[@]}" --step evaluate)"
}

# One line for fwp-slurm preflight: the name of a row, its updates, the updates between two checkpoints, and a command
# that trains it for as few updates as show its speed.
preflight_task() {
    local train folder row=$1 wandb="" updates options option
    updates=$(row_value max_update "$row")
    row_options "$row"
    for option in "${options[@]}"; do
        case $option in optimization.max_update=*) updates=${option#*=} ;; esac
    done
    updates=${max_update:-$updates}
    local max_update=10
    training_command "$row" "${seeds%% *}"
    train+=("checkpoint.save_dir=$preflight_folder/$row" checkpoint.no_save=true dataset.max_valid_steps=1)
    train+=(common.log_format=json common.log_interval=2)
    printf '%s\t%s\t%s\t%s\n' "$row/$setting" "$updates" "$(row_value validate_interval_updates "$row")" \
        "$(printf '%q ' "${train[@]}")"
}

preflight() {
    local row srun_options=() preflight_folder=runs/preflight/$experiment tasks
    if on_login_node; then mapfile -t srun_options < <(fwp-slurm srun-options); fi
    tasks=$(for row in $rows; do preflight_task "$row"; done)
    if [ -n "$dry_run" ]; then
        sed 's/.*\t/+ /' <<<"$tasks"
    else
        fwp-slurm preflight "$experiment" --results "$results" --folder "$preflight_folder" \
            --seeds "$(wc -w <<<"$seeds")" --processes "$processes" <<<"$tasks"
    fi
}

# On a cluster configs/slurm.yaml says on how many processes a row is trained.
take_processes_from_slurm() {
    [ "$processes" = 1 ] && [ "$jobs" = 1 ] ||
        usage_error "--$action: the processes of a row are nodes times GPUs in configs/slurm.yaml, and the rows that" \
            "run at a time are max_running there; leave --processes and --jobs out"
    processes=$(fwp-slurm processes) || exit 2
    check_batch
}

run_table() {
    local argument
    for argument in "$@"; do
        case $argument in -h | --help) usage && slurm_usage && exit ;; esac
    done
    parse_options "$@"
    [ -n "$dry_run" ] && [ "$action" = run ] || prepare_environment
    case $action in
    status | cancel) exec fwp-slurm "$action" "$experiment" --results "$results" ;;
    slurm) take_processes_from_slurm ;;
    preflight) ! on_login_node || take_processes_from_slurm ;;
    esac
    if [ "$action" = preflight ]; then
        prepare_data
        preflight
        return
    fi
    local row seed record cells=() status=0
    for seed in $seeds; do
        for row in $rows; do
            record=$results/runs/$experiment/$row/$setting/seed$seed.json
            if [ -e "$record" ]; then
                printf '%s seed %s: finished, see %s\n' "$row" "$seed" "$record"
            else
                cells+=("$row $seed")
            fi
        done
    done
    [ ${#cells[@]} = 0 ] || prepare_data
    if [ "$action" = slurm ] && [ ${#cells[@]} -gt 0 ]; then
        local cell
        for cell in "${cells[@]}"; do slurm_task $cell; done |
            fwp-slurm submit "$experiment" --results "$results" ${dry_run:+--dry-run} || exit
        return
    fi
    if [ ${#cells[@]} -gt 0 ]; then
        [ -z "$dry_run" ] || jobs=1
        [ "$jobs" = 1 ] || export OMP_NUM_THREADS=$(($(nproc) / jobs > 0 ? $(nproc) / jobs : 1))
        export experiment configs overlays batch_field setting results data jobs processes accumulate precision
        export stride max_update wandb dry_run step
        export -f run row_options row_value evaluate training_command run_cell run_cell_logged
        # xargs keeps the cells in the foreground, so that Ctrl-C reaches them. What it starts would die of the USR1 that
        # a job sends to its training.
        printf '%s\n' "${cells[@]}" | xargs -P "$jobs" -L 1 bash -c 'trap "" USR1 && run_cell_logged "$@"' cell || status=1
    fi
    [ -n "$step" ] || run fwp-report "$experiment" --results "$results" --brief || status=1
    return "$status"
}
