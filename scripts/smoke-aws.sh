#!/usr/bin/env bash
# The one paid run: two GPU hosts in a real account, from nothing to nothing, and the evidence of each step in a folder.
# Nothing runs this by itself, and it costs money: it says how much at most, and does nothing unless DLAMI_SMOKE_AWS=yes is
# set and that is agreed to.
#
#   DLAMI_SMOKE_AWS=yes scripts/smoke-aws.sh 203.0.113.7/32 [region] [instance type]
#   DLAMI_SMOKE_AWS=yes scripts/smoke-aws.sh --resume FOLDER      # after a lost connection, or a step that was mended
#
# Two ends: this script's own, after `hours`, and the guard's (guard.max_hours), which ends the nodes if this machine is gone.
# A step that fails ends in the deletion, unless DLAMI_SMOKE_KEEP=yes keeps what is there for --resume.
# SMOKE_STEPS names other steps than all, in their order; an empty SMOKE_SOURCE leaves the nodes bare. tests/cfn/test_smoke_run.py runs them against stand-ins, docs/stack.md
# ("What no fake proves") says what the run is to settle.
set -euo pipefail
# shellcheck source=scripts/smoke.sh
. "$(dirname "$0")/smoke.sh"

hours=3
steps=${SMOKE_STEPS:-identity create status unchanged hosts machines efa guard health train heal replace halt start tags}

# The cluster file of the run: two hosts, this checkout and its runtime on them, a guard, NCCL that says which network it uses.
write_cluster_file() {
    ssh-keygen -q -t ed25519 -N '' -C "$name" -f key
    printf '%s\n' "name = \"$name\"" "region = \"$region\"" "[nodes]" "instance_type = \"$kind\"" 'workers = 1' "source = \"${SMOKE_SOURCE-checkout}\"" \
        'boot_minutes = 60' '[guard]' "max_hours = $hours" 'idle_minutes = 0' '[access]' "ssh_from = \"$from\"" \
        "public_key = \"$(cat key.pub)\"" '[ssh]' "key = \"$PWD/key\"" >cluster.toml
}

# What the hours cost at most, by the plan's own price: instances, two public addresses, NAT gateway, two disks.
say_price() {
    local plan
    "${inv[@]}" stack.plan
    plan=$("${inv[@]}" stack.plan --json)
    "$root/.venv/bin/python" -c 'if True:
        import json, sys
        usd, hours = json.load(sys.stdin)["usd_per_hour"], float(sys.argv[1])
        usd or sys.exit("no price is known for this instance type: choose another, or set nodes.usd_per_hour")
        print(f"at most {usd * hours + 0.08 * hours + 0.50:.2f} USD: {hours:g} hours of {usd:.2f}, network and disks for the rest")' "$hours" <<<"$plan"
}

left_s() { echo $(($(cat "$work/deadline") - $(date +%s))); }

# within COMMAND...: as long as the run may take, and no longer
within() {
    local left
    left=$(left_s)
    [ "$left" -gt 0 ] || { echo "the $hours hours of this run are over"; return 124; }
    timeout --foreground "$left" "$@"
}

# run STEP: once; what it says is kept, and whether it was well
run() {
    local step=$1 log status
    [ ! -e "done/$step" ] || { echo "$step    done before"; return 0; }
    log=$(printf '%s/%02d-%s.log' evidence "$(($(find evidence -name '[0-9]*.log' | wc -l) + 1))" "$step")
    [ "$(left_s)" -gt 0 ] || { echo "$step    not begun: the $hours hours of this run are over"; return 124; }
    echo "$step    $(date -u +%FT%TZ), $(($(left_s) / 60)) minutes are left"
    set +e
    (set -e; "step_${step//-/_}") >"$log" 2>&1
    status=$?
    set -e
    echo "$step $status $(date -u +%FT%TZ)" >>evidence/summary.txt
    if [ "$status" != 0 ]; then
        tail -n 15 "$log" | sed 's/^/    /'
        echo "$step    FAILED ($status); all that it said: $work/$log"
        return "$status"
    fi
    touch "done/$step"
    tail -n 2 "$log" | sed 's/^/    /'
}

step_identity() {
    within aws sts get-caller-identity --region "$region"
    within "${inv[@]}" stack.policy >evidence/policy.json
    if within aws iam list-users --max-items 1 >/dev/null 2>&1; then
        echo "this user may list users: more than 'inv stack.policy' gives, so the run does not show that the policy is enough"
    else
        echo "this user may not list users, as by 'inv stack.policy' alone"
    fi
}
step_create() { within "${inv[@]}" stack.create --yes --keep-failed; }
step_status() { within "${inv[@]}" stack.status; }
step_unchanged() { unchanged stack; }
step_hosts() {
    within "${inv[@]}" hosts.write --source stack --force || [ -s hosts ]
    within "${inv[@]}" run -- hostname
    within "${inv[@]}" sync
    within "${inv[@]}" setup
}
step_machines() { within "${inv[@]}" run -- 'uname -r; nvidia-smi -L; df -h / /efs; ls -d /usr/local/cuda-*; ip -br addr; mpirun --version | head -1'; }
step_efa() {
    within "${inv[@]}" run -- 'if ls /sys/class/infiniband 2>/dev/null | grep -q .; then /opt/amazon/efa/bin/fi_info -p efa -t FI_EP_RDM; else echo "no EFA on this host"; fi'
}
step_guard() {
    local found
    found=$(within aws autoscaling describe-scheduled-actions --region "$region" --scheduled-action-names dlami-guard --output json)
    echo "$found"
    [ "$(grep -c "\"$name-" <<<"$found")" -ge 2 ]
}
step_health() { within "${inv[@]}" health; }
step_train() {
    within "${inv[@]}" train.resnet50 --np 2 --env NCCL_DEBUG=INFO -- --synthetic --batch-size 32 --num-batches 50
    within "${inv[@]}" jobs.logs last >evidence/train.log
    grep -m3 -E 'NET/OFI|Using network|NCCL version' evidence/train.log || echo "NCCL did not say which network it uses"
}
# One rank is killed once the training has saved; the job must end well all the same.
step_heal() {
    local job
    within "${inv[@]}" train.resnet50 --detach --np 2 -- --synthetic --batch-size 32 --num-batches 400 --checkpoint-every 20
    job=$(within "${inv[@]}" jobs.list --json | "$root/.venv/bin/python" -c 'import json, sys; print(json.load(sys.stdin)[0]["id"])')
    within bash -c "until ls_out=\$(${inv[*]@Q} run --hosts 0 -- 'ls /efs/jobs/$job/checkpoints 2>/dev/null') && grep -q step- <<<\"\$ls_out\"; do sleep 5; done"
    within "${inv[@]}" run --hosts 1 -- 'pkill -9 -o -f trainer.resnet50'
    within "${inv[@]}" jobs.logs "$job" --follow || true
    within "${inv[@]}" jobs.show "$job" --json >evidence/healed.json
    "$root/.venv/bin/python" -c 'if True:
        import json
        job = json.load(open("evidence/healed.json"))
        print(job["id"], job["state"], "attempts:", len(job["attempts"]))
        assert job["state"] == "succeeded" and len(job["attempts"]) > 1, "it was not healed"'
}
step_replace() {
    within "${inv[@]}" stack.replace 1 --yes
    within "${inv[@]}" hosts.write --source stack --force
    within "${inv[@]}" run -- hostname
}
step_halt() { within "${inv[@]}" stack.stop --yes; }
step_start() {
    within "${inv[@]}" stack.start --yes
    within "${inv[@]}" run -- hostname
}
# whether CreateStack took the tags of the stack without cloudformation:TagResource
step_tags() {
    within aws cloudformation describe-stacks --region "$region" --stack-name "$name" --query 'Stacks[0].Tags' --output json | tee evidence/tags.json
    grep -q dlami-cluster:cluster evidence/tags.json
}

# Also where a step has failed: the log of the stack, before it is gone.
gather() {
    "${inv[@]}" stack.status >evidence/status.txt 2>&1 || true
    aws cloudformation describe-stack-events --region "$region" --stack-name "$name" --output json >evidence/events.json 2>&1 || true
    echo "the evidence is in $work/evidence: attach it to an issue"
}

finish() {
    local status=$?
    trap '' INT HUP PIPE
    gather
    if [ "$status" != 0 ] && [ "${DLAMI_SMOKE_KEEP:-}" = yes ] && [ "$(left_s)" -gt 0 ]; then
        trap - EXIT
        heard "kept, and it costs: $name in $region, until $(date -ud "@$(cat "$work/deadline")" +%FT%TZ), when its guard ends its nodes."
        heard "go on: DLAMI_SMOKE_AWS=yes $0 --resume $work"
        heard "or end it: cd $work && ${inv[*]} stack.delete, then ${inv[*]} stack.orphans --delete --region $region"
        exit "$status"
    fi
    rm -f key
    keeps=yes
    remove stack "$name" "$status"
}

if [ "${1:-}" = --resume ]; then
    resume "${2:?the folder that the first run named}"
else
    begin two "${1:-}" "${2:-us-east-1}" "${3:-g6.8xlarge}"
    keep_folder
    write_cluster_file
    say_price
    asks "Type $name to spend it: "
    date -d "+$hours hours" +%s >deadline
fi
mkdir -p evidence 'done'
trap finish EXIT
for step in $steps; do run "$step"; done
