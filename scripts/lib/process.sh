# Started by torchrun once a process: hands torchrun's numbers to the fairseq command it is given.
# With these, and no guessing of its own, fairseq trains one model on N processes, on CPUs too.
backend=gloo device=0
if nvidia-smi -L 2>/dev/null | grep -q GPU; then
    backend=nccl device=$LOCAL_RANK
fi
exec "$@" distributed_training.distributed_init_method=env:// \
    "distributed_training.distributed_world_size=$WORLD_SIZE" \
    "distributed_training.distributed_rank=$RANK" \
    distributed_training.distributed_no_spawn=true \
    "distributed_training.distributed_backend=$backend" \
    "distributed_training.device_id=$device"
