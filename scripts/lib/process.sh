# Started once a process by torchrun, or by srun: hands its numbers to the fairseq command it is given. With these, and
# no guessing of its own, fairseq trains one model on N processes, on CPUs too.
if [ -n "${LOCAL_RANK:-}" ]; then
    init=env:// size=$WORLD_SIZE rank=$RANK local_rank=$LOCAL_RANK
else
    nodes=$(scontrol show hostnames "$SLURM_STEP_NODELIST")
    init=tcp://${nodes%%$'\n'*}:$((20000 + SLURM_JOB_ID % 40000))
    size=$SLURM_NTASKS rank=$SLURM_PROCID local_rank=$SLURM_LOCALID
    # srun passes the job's signals on; only a training that listens is to take them, not one that is still loading.
    trap '' USR1
fi
backend=gloo device=0
if nvidia-smi -L 2>/dev/null | grep -q GPU; then
    backend=nccl device=$local_rank
fi
exec "$@" "distributed_training.distributed_init_method='$init'" \
    "distributed_training.distributed_world_size=$size" \
    "distributed_training.distributed_rank=$rank" \
    distributed_training.distributed_no_spawn=true \
    "distributed_training.distributed_backend=$backend" \
    "distributed_training.device_id=$device"
