#!/usr/bin/env bash
# The paper's capacity figure: how many associations fast weights of a given feature map can hold.
# Sum rule and softmax attention, 20 to 600 keys.
source "$(dirname "$(readlink -f "$0")")/lib/environment.sh"
source scripts/lib/figure.sh

usage() {
    cat <<'END'
Usage: bash scripts/figure_capacity.sh [OPTIONS]

Trains the cells of the figure that have no record yet, then writes the table and the figure below
results/. Interrupted and started again, it trains only what is not finished.

  --curves A,B       some curves only: softmax elu dpfp_1 dpfp_2 dpfp_3
                     favor_64 favor_128 favor_512
  --sizes 20,40      some numbers of keys only (default: 20 to 600 in steps of 20)
  --seeds 1,2        several seeds (default: 1)
  --jobs N           cells trained at the same time (default: one a core)
  --results DIR      where records, table and figure go (default: results; from the repository's
                     root if relative); one cell's result is in
                     DIR/runs/figure_capacity/CURVE/S20/seed1.json
  --max-update N     end runs here that have not ended by themselves (a mini run, kept apart)
  --wandb [PROJECT]  log to wandb (fwp_fairseq by default), one run a cell; offline without an API key
  --dry-run          print the training commands and stop
  -h, --help         show this help

Time: every record holds its wall_seconds. Cells of up to 100 keys take a minute or two of one core, those
of several hundred keys many times that; the whole figure takes hours.
END
}

for argument in "$@"; do
    case $argument in -h | --help) usage && slurm_usage && exit ;; esac
done

run_figure figure_capacity "$@"
