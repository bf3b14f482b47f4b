#!/usr/bin/env bash
# The paper's update-rule figure: which rule can overwrite an association.
# Keys come back with new values, 20 to 200 of them.
source "$(dirname "$(readlink -f "$0")")/lib/environment.sh"
source scripts/lib/figure.sh

usage() {
    cat <<'END'
Usage: bash scripts/figure_update_rule.sh [OPTIONS]

Trains the cells of the figure that have no record yet, then writes the table and the figure below
results/. Interrupted and started again, it trains only what is not finished.

  --curves A,B       some curves only: dpfp_1_sum dpfp_1_delta dpfp_1_fwm
                     tanh_fwm dpfp_2_delta elu_delta favor_64_delta favor_128_delta
  --sizes 20,40      some numbers of keys only (default: 20 to 200 in steps of 20)
  --seeds 1,2        several seeds (default: 1)
  --jobs N           cells trained at the same time (default: one a core)
  --results DIR      where records, table and figure go (default: results; from the repository's
                     root if relative); one cell's result is in
                     DIR/runs/figure_update_rule/CURVE/S20/seed1.json
  --max-update N     end runs here that have not ended by themselves (a mini run, kept apart)
  --wandb [PROJECT]  log to wandb (fwp_fairseq by default), one run a cell; offline without an API key
  --dry-run          print the training commands and stop
  -h, --help         show this help

Time: every record holds its wall_seconds. Most cells take minutes of one core; tanh_fwm, which stops late,
takes longest.
END
}

for argument in "$@"; do
    case $argument in -h | --help) usage && slurm_usage && exit ;; esac
done

run_figure figure_update_rule "$@"
