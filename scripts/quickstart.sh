#!/usr/bin/env bash
# Makes the environment and trains both synthetic figures at reduced size, which takes 6 to 7
# minutes on two cores. Started again, it goes on where it stopped.
source "$(dirname "$(readlink -f "$0")")/lib/environment.sh"

results=runs/quickstart

usage() {
    cat <<END
Usage: bash scripts/quickstart.sh

Makes the environment if it is missing (see README.md), trains both synthetic figures of the
paper at reduced size (6 to 7 minutes on two cores), prints our numbers next to the authors'
and writes the figures under $results/figures. What has been trained is not trained again.

  -h, --help  show this help

The whole figures: scripts/figure_capacity.sh and scripts/figure_update_rule.sh.
END
}

case ${1:-} in
"") ;;
-h | --help) usage && exit ;;
*) usage_error "unknown argument '$1'" ;;
esac

prepare_environment

# Each prints its table and where it wrote the table and the figure.
bash scripts/figure_capacity.sh --results "$results" --jobs 2 \
    --curves softmax,elu,dpfp_1,dpfp_2,favor_64 --sizes 20,60,100
bash scripts/figure_update_rule.sh --results "$results" --jobs 2 \
    --curves dpfp_1_sum,dpfp_1_delta,elu_delta --sizes 20,40,60
