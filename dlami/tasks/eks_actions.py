"""Actions of the EKS cluster's tasks: print what will happen, confirm, act."""

import shlex
import subprocess
from typing import Any

from cfn import changes
from cfn.aws import Aws
from cfn.failover import seconds_of
from cfn.stack import Stack, StackError, find, resource_ids
from cluster.clusterfile.model import ClusterFile
from cluster.errors import ClusterError, ConfigError, NothingToDo
from cluster.ssh.onhost.telling_line import telling_line
from dlami.tasks.stack_actions import answer, answer_plan, confirm, load, say
from eks.kubectl import OPERATOR
from eks.stack import life, plan, status
from eks.stack.design import KEY_PENDING_DAYS, file_for_eks

KUBECONFIG_S = 60.0


def show_plan(path: str, as_json: bool) -> None:
    """Print the plan, and for an existing cluster the changes that `eks.create` would make."""
    file = load(path)
    aws = Aws(file.region)
    answer_plan(aws, plan.make(aws, file), as_json)


def make_cluster(
    path: str, yes: bool, dry_run: bool, keep_failed: bool, kubeconfig: bool, as_json: bool, wait: str = ""
) -> None:
    """Create the cluster, or update an existing one to the file, and print the next steps."""
    wait_s = seconds_of(wait)
    file = load(path)
    aws = Aws(file.region)
    made = plan.make(aws, file)
    say("\n".join([str(made), *made.warnings]))
    if made.stack is not None and made.stack.is_usable:
        now = _change(aws, made, made.stack, yes, dry_run)
    elif dry_run:
        now = None
    else:
        if made.stack is None:
            question = f"This starts {plan.counted(made.instances, 'node')} and a Kubernetes ({made.cost})."
            confirm(question, made.design.file.name, yes)
        now = life.make_where_there_is_room(aws, made, say, keep_failed, wait_s)
    if now is None:
        return answer(made.as_json(), True) if as_json else None
    command = kubeconfig_command(file)
    if kubeconfig:
        write_kubeconfig(command)
    if as_json:
        return answer({"outputs": now.outputs, "kubeconfig": shlex.join(command)}, True)
    following = "inv eks.status" if kubeconfig else shlex.join(command)
    print(f"{now.name} is ready: {plan.counted(made.instances, 'node')}\nnext: {following}")
    print(f"once, before the first training: {OPERATOR}")
    return None


def _change(aws: Aws, made: plan.EksPlan, stack: Stack, yes: bool, dry_run: bool) -> Stack | None:
    """Execute the change set after a confirmation and return the stack. Without changes, return it as it is.

    After a dry run, return None.
    """
    proposed = changes.difference(aws, made, stack)
    if proposed is None:
        say("changes   none")
        return stack
    say(str(proposed))
    if dry_run:
        changes.drop(aws, proposed)
        return None
    try:
        confirm("These changes will be made; EKS replaces nodes whose launch template changes.", stack.name, yes)
    except ClusterError:
        changes.drop(aws, proposed)
        raise
    return life.change(aws, proposed, say)


def kubeconfig_command(file: ClusterFile) -> list[str]:
    """Return the command that adds the cluster to kubectl's configuration, in the file's context."""
    name = file.eks_stack
    alias = file.eks.context or name
    return ["aws", "eks", "update-kubeconfig", "--region", file.region, "--name", name, "--alias", alias]


def write_kubeconfig(command: list[str]) -> None:
    """Run the command. Raises StackError with its last output, ConfigError if the AWS CLI is not installed."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=KUBECONFIG_S, check=False)
    except FileNotFoundError as e:
        raise ConfigError(f"there is no AWS CLI here: install it, then {shlex.join(command)}") from e
    except subprocess.TimeoutExpired as e:
        raise StackError(f"the cluster is ready, but this took over {KUBECONFIG_S:.0f} s: {shlex.join(command)}") from e
    if done.returncode:
        said = telling_line(done.stderr) or "no reason given"
        raise StackError(f"the cluster is ready, but {shlex.join(command)} failed: {said}")
    say(done.stdout.strip())


def show_status(path: str, as_json: bool) -> bool:
    """Print the status. Return True if there are no problems."""
    file = load(path)
    now = status.read_status(Aws(file.region), file)
    answer(now, as_json)
    return not now.problems


def remove_cluster(path: str, yes: bool, dry_run: bool, retain: str, as_json: bool) -> None:
    """Delete the cluster after a confirmation, and print what stays, such as the file system."""
    file = load(path)
    own = file_for_eks(file)
    aws = Aws(file.region)
    there = find(aws, own.name)
    if there is None:
        raise NothingToDo(f"there is no stack {own.name} in {file.region}")
    staying, made = life.stays(aws, there), resource_ids(aws, there)
    if dry_run:
        going = sorted({*made} - {*staying, *_given(retain)})
        if as_json:
            return answer({"deletes": going, "keeps": staying, "yours": _yours(file)}, True)
        print(f"would delete {plan.counted(len(going), 'resource')} of {there.name}; kept: {_listed(staying)}")
        return print("\n".join(_still_there(file)))
    question = f"This ends {own.name}: its Kubernetes, all that runs there and every node; kept: {_listed(staying)}."
    confirm(question, own.name, yes)
    kept = life.remove(aws, own, say, _given(retain))
    if as_json:
        return answer({"kept": kept, "yours": _yours(file)}, True)
    has_key = "SecretsKey" in {*made} - {*kept}
    return print(kept_text(file, own, kept, mount_name=there.outputs.get("FastName", ""), has_key=has_key))


def _given(retain: str) -> list[str]:
    return [name for name in retain.split(",") if name]


def _listed(kept: dict[str, Any]) -> str:
    return ", ".join(f"{name} {one}" for name, one in kept.items()) or "nothing of the stack"


def _still_there(file: ClusterFile) -> list[str]:
    return [f"yours, and still there: {one}" for one in _yours(file)]


def _yours(file: ClusterFile) -> list[str]:
    """Return what was made for the cluster but is not part of the stack, and is never removed by us."""
    context = file.eks.context or file.eks_stack
    return [
        f"kubectl's context {context}: kubectl config delete-context {context}",
        *([f"the image {file.eks.image} in its registry"] if file.eks.image else []),
        *([f"objects in {url}" for url in (file.storage.s3, file.storage.fsx_s3, file.results) if url]),
    ]


def kept_text(file: ClusterFile, own: ClusterFile, kept: dict[str, Any], *, mount_name: str, has_key: bool) -> str:
    """Return a text on what a deletion left, what it costs and how to use it.

    Args:
        mount_name: the name by which Lustre is mounted, if there was one.
        has_key: True if the stack had a key for secrets.
    """
    lines = [f"{own.name} is deleted; kept: {_listed(kept)}"]
    if system := kept.get("SharedFileSystem") or own.storage.efs:
        lines.append(
            f'to use the files again: storage.efs = "{system}" in a cluster file, for EKS or for the bare cluster; '
            "until then EFS bills its size"
        )
    if lustre := kept.get("FastFileSystem"):
        lines.append(
            f"FSx bills all of {lustre} until you end it: aws fsx delete-file-system --region {file.region} "
            f'--file-system-id {lustre}; a Kubernetes in its network mounts it by eks.fsx = "{lustre}:{mount_name}"'
        )
    if has_key:
        lines.append(f"the key of its secrets is deleted by AWS in {KEY_PENDING_DAYS} days, and not billed until then")
    lines += _still_there(file)
    lines.append("what else carries our tags: inv stack.orphans")
    return "\n".join(lines)
