#!/usr/bin/env bash
# One small GPU node on EKS in a real account: created, looked at, deleted. Nothing runs this by itself, and it costs money:
# it prints how much first, and does nothing unless DLAMI_SMOKE_AWS=yes is set and the cost is confirmed.
#
#   DLAMI_SMOKE_AWS=yes scripts/smoke-eks.sh 203.0.113.7/32 [region] [instance type]
#
# It proves what the fake cannot: that EKS takes the template, nodes join, add-ons run, kubectl gets in, deletion leaves EFS alone.
# tests/cfn/test_smoke_steps.py runs all of its steps against the fake.
set -euo pipefail
# shellcheck source=scripts/smoke.sh
. "$(dirname "$0")/smoke.sh"

needs=kubectl
begin "a Kubernetes and one" "$@"
export KUBECONFIG=$work/kubeconfig KUBECACHEDIR=$work/cache # yours are left alone
agree eks "$name-eks" "a public address and a key"
"${inv[@]}" eks.create --yes --keep-failed --kubeconfig
"${inv[@]}" eks.status
kubectl wait --for=condition=Ready nodes --all --timeout=300s
kubectl --request-timeout 30s get nodes -o wide
kubectl wait --for=condition=Ready pods --all --all-namespaces --timeout=300s
kubectl --request-timeout 30s get pods --all-namespaces
unchanged eks
look "KUBECONFIG=$KUBECONFIG kubectl"
