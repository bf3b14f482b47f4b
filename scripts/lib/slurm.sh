# Sourced by training.sh and figure.sh: what the scripts of tables and figures share on a SLURM cluster.

slurm_usage() {
    cat <<'END_OF_USAGE'

On a SLURM cluster (what to set: configs/slurm.yaml; explained: scripts/slurm/README.md):
  --slurm            prepare the data here, then submit what is neither finished nor queued, and the table after it;
                     with --dry-run print the sbatch files and stop
  --status           what of it runs, waits, failed and is finished
  --cancel           cancel what runs and waits
  --preflight        a few updates of the true size first: memory, words a second, hours of the whole
END_OF_USAGE
}

# Prints the action that a flag of slurm_usage stands for, and fails for other words.
slurm_action() {
    case $1 in --slurm | --status | --cancel | --preflight) printf '%s' "${1#--}" ;; *) return 1 ;; esac
}

# Whether jobs can be started from here: there is SLURM, and this is not one of its jobs already.
on_login_node() {
    [ -z "${SLURM_JOB_ID:-}" ] && command -v srun >/dev/null
}
