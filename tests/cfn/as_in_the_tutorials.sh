#!/bin/bash
# In the shape of the references' own scripts: the names they read, the loops they write. Run in a login of the master.
set -e
function runclust(){ while read -u 10 host; do host=${host%% slots*}; ssh -o BatchMode=yes "$host" "$2"; done 10<"$1"; }

runclust "$DEEPLEARNING_WORKERS_PATH" hostname
for ((i = 1; i <= DEEPLEARNING_WORKERS_COUNT; i++)); do
    echo "deeplearning-worker$i slots=$DEEPLEARNING_WORKER_GPU_COUNT"
done >/tmp/hostfile
while read -r line; do [[ $line =~ ^[^\ ]+\ slots=$DEEPLEARNING_WORKER_GPU_COUNT$ ]] || exit 1; done <hosts
echo "ranks on $(mpirun --allow-run-as-root -np "$DEEPLEARNING_WORKERS_COUNT" --hostfile /tmp/hostfile --map-by node \
    -mca plm_rsh_no_tree_spawn 1 hostname | sort | xargs)"
touch "$EFS_MOUNT/health.check"
echo "$(wc -l <"$DEEPLEARNING_WORKERS_PATH") nodes of $EFS_MOUNT"
