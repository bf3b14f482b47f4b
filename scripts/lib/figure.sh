# Sourced by the figure scripts: `run_figure NAME OPTIONS` trains what is missing of a synthetic
# figure, then draws it from whatever is finished.

source scripts/lib/slurm.sh

run_figure() {
    local figure=$1 results=results status=0 previous="" argument dry_run="" action=run options=()
    shift
    for argument in "$@"; do
        case $previous in --results) results=$argument ;; esac
        case $argument in
        --results=*) results=${argument#*=} ;;
        --dry-run) dry_run=--dry-run ;;
        --slurm | --status | --cancel | --preflight) action=$(slurm_action "$argument") ;;
        --curves* | --sizes* | --seeds* | --jobs* | --results | --max-update* | --wandb*) ;;
        -*) usage_error "unknown option '$argument'" ;; # before the installation, not after
        esac
        previous=$argument
        slurm_action "$argument" >/dev/null || options+=("$argument")
    done
    # what only prints needs no installation where the commands are there already
    [ -n "$dry_run" ] && command -v fwp-sweep >/dev/null || prepare_environment
    case $action in
    status | cancel)
        fwp-slurm "$action" "$figure" --results "$results"
        return
        ;;
    slurm)
        fwp-sweep "$figure" "${options[@]}" --list-tasks | fwp-slurm submit "$figure" --results "$results" $dry_run
        return
        ;;
    preflight)
        fwp-slurm preflight-figure "$figure" $(! on_login_node || echo --srun)
        return
        ;;
    esac
    FWP_SCRIPT=$$ fwp-sweep "$figure" "${options[@]}" || status=$?
    # Wrong arguments (2) and Ctrl-C (130) leave nothing new to draw; failed cells (1) leave the others.
    if [ -z "$dry_run" ] && [ "$status" -le 1 ]; then
        fwp-report "$figure" --results "$results" --brief || status=1
    fi
    return "$status"
}
