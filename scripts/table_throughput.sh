#!/usr/bin/env bash
# The paper's comparison of speed: words per second and memory of training, as ratios to the transformer.
source "$(dirname "$(readlink -f "$0")")/lib/environment.sh"
source scripts/lib/training.sh

usage() {
    cat <<'END'
Usage: bash scripts/table_throughput.sh [OPTIONS]

Times full training steps of the medium language models (full size, the paper's vocabulary, random
words) for each row at several lengths in turn, measures their memory, takes a step of the delta rule
apart, and prints all of it as ratios to the transformer beside the paper's. Nothing else should run
on the machine meanwhile. A new run replaces the record of an earlier one.

  --setting S        medium (the default), small, or mini, which takes a minute
  --rows A,B         transformer and some of linear delta performer performer_delta dpfp_sum dpfp_delta
                     (default: transformer linear delta performer dpfp_delta)
  --lengths N,N      words of a sequence (default: 384,1024,4096)
  --tokens N         words of a step, the same at all lengths (default: 4096 on a CPU, 24576 on a GPU)
  --rounds N         steps timed of each row and length (default: 3)
  --device D         cpu (the default) or cuda
  --threads N        CPU threads (default: torch's choice)
  --results DIR      where record, table and figure go (default: results)
  --dry-run          print the commands and stop
  --slurm            submit it as one job (see configs/slurm.yaml and scripts/slurm/README.md) unless
                     there is a record already; with --dry-run print the sbatch file and stop
  --status           what became of the job
  --cancel           cancel it
  -h, --help         show this help

It takes some 6 GB of memory; most of the time goes into the longest --lengths, and --rounds 1 is the quickest.
END
}

setting=medium device=cpu results=results dry_run="" action=run options=()
while [ $# -gt 0 ]; do
    case $1 in --*=*) set -- "${1%%=*}" "${1#*=}" "${@:2}" ;; esac
    case $1 in
    -h | --help) usage && exit ;;
    --dry-run) dry_run=yes && shift && continue ;;
    --slurm | --status | --cancel) action=${1#--} && shift && continue ;;
    --setting | --rows | --lengths | --tokens | --rounds | --device | --threads | --results) ;;
    *) usage_error "unknown argument '$1'" ;;
    esac
    [ -n "${2:-}" ] || usage_error "$1 needs a value"
    case $1 in
    --setting) check_in "$1" "medium small mini" "$2" ;;
    --rows) check_in "$1" "transformer linear delta performer performer_delta dpfp_sum dpfp_delta" "$2" ;;
    --device) check_in "$1" "cpu cuda" "$2" ;;
    --tokens | --rounds | --threads) check_number "$1" "$2" ;;
    --lengths) for length in ${2//,/ }; do check_number "$1" "$length"; done ;;
    esac
    case $1 in
    --results) results=$2 ;;
    --setting | --device) printf -v "${1#--}" %s "$2" ;;&
    *) options+=("$1" "$2") ;;
    esac
    shift 2
done

# One line for fwp-slurm submit: the name, the record, a folder, no checkpoints, and the command.
slurm_task() {
    local step=cells machine=cpu # a step without GPUs
    [ "$device" = cpu ] || step=evaluate machine='cuda-*'
    printf '%s\t%s\t%s\t0\t%s\n' "$machine/$setting" \
        "$results/runs/bench_training/$machine/$setting/seed1.json" "$results/runs" \
        "$step=$(printf '%q ' bash "scripts/${0##*/}" "${options[@]}" --results "$results")"
}

[ -n "$dry_run" ] && [ "$action" = run ] || prepare_environment
case $action in
status | cancel) exec fwp-slurm "$action" bench_training --results "$results" ;;
slurm) slurm_task | fwp-slurm submit bench_training --results "$results" ${dry_run:+--dry-run}; exit ;;
esac
run fwp-bench training "${options[@]}" --results "$results"
run fwp-report bench_training --results "$results" --brief
