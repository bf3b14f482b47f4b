# Sourced by the jobs that fwp-slurm submits: `run_step FOLDER COMMAND` runs one step of a row (its training, say).
#
# Ahead of the time limit SLURM sends USR1 to this shell (--signal=B:USR1@SECONDS). It goes on to the training, which
# saves after the update it is at and exits; then the job requeues itself, and the same command resumes. SIGTERM, which
# SLURM sends to every process, makes the training save too; whether the job comes back is up to who sent it (a
# preemption requeues it, scancel does not).

# wait_to_save, which the job sets, is how many seconds the step has to end after USR1.

# Since 22.05 srun takes no notice of the job's --cpus-per-task.
export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1}
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$SRUN_CPUS_PER_TASK} # not one for each core of the node
export WANDB_MODE=${WANDB_MODE:-offline} # compute nodes seldom reach the internet

run_step() {
    local folder=$1 command=$2 started limit="" status=0 signalled=yes
    started=$(mktemp)
    printf 'job %s on %s, start %s: %s\n' "$SLURM_JOB_ID" "$(hostname)" "$((${SLURM_RESTART_COUNT:-0} + 1))" "$command"
    trap 'signalled=yes limit=yes; pass_on_usr1' USR1
    trap 'signalled=yes' TERM
    # The shells between here and the training ignore both signals, or they would die and leave it alone.
    (trap '' USR1 TERM && exec bash -c "$command") &
    step=$!
    while [ -n "$signalled" ]; do # a signal ends `wait` before the step has ended
        signalled="" status=0
        wait "$step" || status=$?
    done
    if [ -n "$limit" ] && [ "$status" != 0 ]; then
        requeue "$folder" "$started"
    fi
    rm -f "$started"
    [ "$status" = 0 ] || printf 'the step failed, exit status %s\n' "$status"
    exit "$status"
}

pass_on_usr1() {
    trap '' USR1 # this shell belongs to the process group too
    kill -USR1 0
    local second
    for ((second = 0; second < wait_to_save; second++)); do
        kill -0 "$step" 2>/dev/null || return 0
        sleep 1
    done
    kill -KILL "$step"
}

# A job that saves nothing between two starts would be requeued for ever.
requeue() {
    local id=$SLURM_JOB_ID
    [ -z "${SLURM_ARRAY_JOB_ID:-}" ] || id=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID # the bare id can mean the array
    if [ -z "$(find "$1" -newer "$2" \( -name 'checkpoint*.pt' -o -name 'seed*.json' \) -print -quit 2>/dev/null)" ]; then
        printf 'the time limit came before anything was saved in %s: raise `time` in configs/slurm.yaml\n' "$1"
    elif scontrol requeue "$id"; then
        printf 'the time limit is near: saved, and requeued\n'
        exec sleep 60 # until SLURM ends this job
    else
        printf 'the job could not be requeued; submit it again with the same command, it resumes\n'
    fi
}
