"""Actions of the stack tasks: print what will happen, confirm, act."""

import os
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

from cfn import (
    changes,
    create,
    failover,
    guard_deadline,
    hostfile,
    in_stack,
    init_values,
    named_resources,
    plan,
    rollback,
    stack,
    status,
    update,
)
from cfn import hosts as members
from cfn.aws import Aws
from cfn.checkout import Checkout
from cfn.stack import StackError
from cluster import written
from cluster.clusterfile import text
from cluster.clusterfile.model import ClusterFile, is_of_a_stack
from cluster.clusterfile.nodes import CHECKOUT
from cluster.clusterfile.reader import decode
from cluster.errors import ClusterError, ConfigError, NothingToDo
from cluster.hosts import hostfile as text_of
from cluster.hosts import parse_hostfile, totals
from cluster.inventory import load_cluster
from cluster.locate import LABS, cluster_file, lab_names
from cluster.printable import printable
from cluster.ssh.login import check_agent
from cluster.terminal import answer_to, counted, print_json


def say(line: str) -> None:
    """Print a progress line to stderr. stdout is for results."""
    print(printable(line), file=sys.stderr, flush=True)


def answer(value: Any, as_json: bool) -> None:
    """Print a result, as JSON or for a reader."""
    if as_json:
        print_json(value.as_json() if hasattr(value, "as_json") else value)
    else:
        print(value, flush=True)


def confirm(question: str, wanted: str, yes: bool) -> None:
    """Return if `yes`, or if the operator types `wanted`. Raises NothingToDo for any other answer.

    Raises ConfigError if it has to ask without a terminal.
    """
    if not yes and answer_to(f"{question} Type {wanted} to go on: ", question) != wanted:
        raise NothingToDo("nothing was changed")


def load(path: str) -> ClusterFile:
    """Return the cluster file with the path of its set-up script made absolute."""
    found = cluster_file(path)
    file = text.read(found)
    if not file.setup:
        return file
    return replace(file, setup=str(found.resolve().parent / Path(file.setup).expanduser()))


def write_file(path: str, from_stack: str = "", **given: Any) -> None:
    """Write a new cluster file, or that of a running stack. Print which fields the operator has to fill in."""
    if from_stack:
        region = given.get("region") or init_values.region()
        aws = Aws(region)
        values, script = in_stack.stack_values(aws, from_stack), in_stack.setup_of(aws, from_stack)
        beside = Path(path).parent / script.name if script else None
        if script and beside and not (beside.is_file() and beside.read_text(errors="replace") == script.text):
            text.write(beside, script.text)
        text.write(Path(path), text.render(values))
        print(f"{path} says what stack {from_stack} was last made from; next: inv hosts.write")
        return
    values = init_values.looked_up(Path.cwd(), {k.replace("__", "."): v for k, v in given.items()})
    text.write(Path(path), text.render(values))
    todo = "" if values.get("access.ssh_from") else "fill in access.ssh_from (the network you come from), then "
    print(f"{path} is written; {todo}look through it and run `inv stack.plan`")


def show_plan(path: str, as_json: bool) -> None:
    """Print the plan, and for an existing stack the changes that an update would make."""
    file = load(path)
    aws = Aws(file.region)
    answer_plan(aws, plan.make(aws, file), as_json)


def answer_plan(aws: Aws, made: plan.ClusterPlan, as_json: bool) -> None:
    """Print the plan, its warnings, and the changes to an existing stack."""
    for warning in made.warnings:
        say(warning)
    if made.stack is None or not made.stack.is_usable:
        return answer(made, as_json)
    proposed = changes.difference(aws, made, made.stack)
    if proposed:
        changes.drop(aws, proposed)
    if as_json:
        return answer({**made.as_json(), "changes": proposed.as_json() if proposed else []}, True)
    print(f"{made}\nchanges   {'' if proposed else 'none'}")
    if proposed:
        print(proposed)
    return None


def make_stack(path: str, yes: bool, dry_run: bool, keep_failed: bool, wait: str, as_json: bool) -> None:
    """Create the cluster where AWS has capacity for it, and print the next steps."""
    wait_s = failover.seconds_of(wait)
    file = load(path)
    aws = Aws(file.region)
    made = plan.make(aws, file)
    brought = Checkout(aws, file, say) if file.nodes.source == CHECKOUT else None
    say("\n".join([str(made), *([str(brought)] if brought else []), *made.warnings]))
    if dry_run:
        return answer(made.as_json(), True) if as_json else None
    if made.stack is None:
        named_resources.check_begun(*failover.begins_of(made.design), wait_s)
        confirm(f"This starts {counted(made.instances, 'instance')} ({made.cost}).", file.name, yes)
    hosts = failover.create_and_tell(aws, made, say, keep_failed=keep_failed, checkout=brought, wait_s=wait_s)
    outputs = stack.outputs(aws, file.name)
    if as_json:
        return answer({"outputs": outputs, "hosts": [h.as_json() for h in hosts]}, True)
    print(
        f"{file.name} is ready: {counted(len(hosts), 'host')}, master {outputs['MasterAddress']}\n"
        f"{next_step(file, 'inv hosts.write', 'inv ssh')}"
    )
    return None


def change_stack(path: str, ami: str, source: str, yes: bool, dry_run: bool, as_json: bool) -> None:
    """Print the change set and the hosts that it ends, confirm, execute it, and wait for every node."""
    file = load(path)
    aws = Aws(file.region)
    try:
        proposed = update.prepare(aws, file, ami, source)
    except NothingToDo:
        # The update that turned the guard off may not have been followed to its end.
        if not dry_run and guard_deadline.drop_if_off(aws, file):
            say(f"the end that an earlier guard of {file.name} had set is taken away")
        raise
    is_at_zero = guard_deadline.is_at_zero(aws, file)
    if is_at_zero:
        say(f"{file.name} is at zero: its nodes were ended, by its guard or by hand; this leaves it so")
        try:
            update.refuse_at_zero(proposed, file)
        except ConfigError:
            changes.drop(aws, proposed)
            raise
    ends = update.ended_by(aws, proposed, file)
    cost = [f"cost: {proposed.cost}"] if proposed.cost else []
    lines = [f"ends {m.instance_id} ({m.address}), rank {m.rank}" for m in ends]
    say("\n".join([*_moves(aws, file), str(proposed), *cost, *lines]))
    if changes.only_new_nodes(proposed):
        say("running nodes stay as they are; `inv stack.replace HOST` brings them over one by one")
    if dry_run:
        changes.drop(aws, proposed)
        return answer(proposed.as_json(), True) if as_json else None
    lost = f" What is on the disks of {counted(len(ends), 'host')} is lost." if ends else ""
    try:
        confirm(f"These changes will be made.{lost}", file.name, yes)
    except ClusterError:
        changes.drop(aws, proposed)
        raise
    hosts = update.execute(aws, proposed, file, say, is_at_zero=is_at_zero)
    if is_at_zero and not as_json:
        print(f"{file.name} is updated, and still at zero; `inv stack.start` brings it back")
        return None
    return _tell_hosts(file, hosts, as_json)


def roll_stack_back(path: str, skip: str, yes: bool, dry_run: bool, as_json: bool) -> None:
    """Continue the roll-back of an update, after a question."""
    file = load(path)
    aws = Aws(file.region)
    there = stack.get(aws, file.name)
    names = rollback.skipped(aws, there, skip)
    if there.status != rollback.FAILED:
        raise NothingToDo(f"no roll-back of {file.name} has failed: it is {there.status}")
    left = f", leaving {', '.join(names)} as they are" if names else ""
    if dry_run:
        text = f"would continue the roll-back of {file.name}{left}"
        return answer({"rolls_back": file.name, "skips": names} if as_json else text, as_json)
    confirm(f"This continues the roll-back of {file.name}{left}.", file.name, yes)
    now = rollback.roll_back(aws, file, say, names)
    text = f"{file.name} is {now.status}, as it was before the update; next: inv stack.status"
    return answer({"stack": file.name, "status": now.status, "skipped": names} if as_json else text, as_json)


def _moves(aws: Aws, file: ClusterFile) -> list[str]:
    """Return the fields that an update changes; none for a stack that does not hold its file."""
    try:
        return in_stack.moves(file, in_stack.values(in_stack.file_of(aws, file.name)))
    except StackError:
        return []


def next_step(file: ClusterFile, first: str, then: str = "") -> str:
    """Return the commands to type next. Nodes that start without this project need two more."""
    bare = "" if file.nodes.source else "inv sync, inv setup (the nodes have no project)"
    return "next: " + ", then ".join(step for step in (first, bare, then) if step)


def _tell_hosts(file: ClusterFile, hosts: list[members.GroupMember], as_json: bool) -> None:
    text = f"{file.name} has {counted(len(hosts), 'host')}\n{next_step(file, 'inv hosts.write')}"
    return answer([h.as_json() for h in hosts] if as_json else text, as_json)


def replace_host(path: str, host: str, yes: bool, dry_run: bool, as_json: bool, *, unsaved: bool = False) -> None:
    """End one instance and wait for its successor. Raises ConfigError if a job runs there, unless `unsaved`."""
    from cfn.running import refuse_running

    file = load(path)
    aws = Aws(file.region)
    one = members.pick(members.read(aws, stack.outputs(aws, file.name)), host)
    if dry_run:
        return answer(
            one.as_json() if as_json else f"would end {one.instance_id} ({one.address}), rank {one.rank}", as_json
        )
    if one.is_usable and not unsaved:
        refuse_running(path, say, one.address)
    own = " It is this machine: watch from another." if hostfile.is_this_machine(one.address) else ""
    confirm(
        f"This ends {one.instance_id} ({one.address}), rank {one.rank}; what is on its disk is lost.{own}",
        one.instance_id,
        yes,
    )
    return _tell_hosts(file, update.replace(aws, file, host, say), as_json)


def remove_stack(path: str, yes: bool, dry_run: bool, retain: str, as_json: bool, *, unsaved: bool = False) -> None:
    """End the cluster after a question; the file system stays. Raises ConfigError if a job runs, unless `unsaved`."""
    from cfn.running import refuse_running

    file = load(path)
    aws = Aws(file.region)
    there = stack.find(aws, file.name)
    if there is None:
        raise NothingToDo(f"there is no stack {file.name} in {file.region}")
    if dry_run:
        resources = sorted(stack.resource_ids(aws, there))
        return answer(
            resources if as_json else f"would delete {counted(len(resources), 'resource')} of {there.name}", as_json
        )
    if not unsaved and there.is_usable:
        refuse_running(path, say)
    confirm(f"This ends every instance of {file.name} and what is on their disks; EFS is kept.", file.name, yes)
    if hostfile.is_the_master(there.outputs):
        system = there.outputs["FileSystem"]
        say(f"this machine is the master and ends with its stack; AWS goes on without it. EFS {system} is kept")
    kept = create.delete(aws, file, say, [n for n in retain.split(",") if n])
    return answer({"kept": kept} if as_json else kept_text(file, kept), as_json)


def kept_text(file: ClusterFile, kept: dict[str, str]) -> str:
    """Return a text on what a deletion left in the account, what it costs and how to use it."""
    said = ", ".join(f"{k} {v}" for k, v in kept.items()) or "nothing of the stack"
    system = kept.get("SharedFileSystem") or file.storage.efs
    if not system:  # the create had failed, and its file system was deleted with it
        return f"{file.name} is deleted; kept: {said}"
    return (
        f"{file.name} is deleted; kept: {said}\n"
        f'to use the files again: storage.efs = "{system}" in a cluster file; until then EFS bills its size'
    )


def show_status(path: str, as_json: bool) -> bool:
    """Print the stack's status. Return True if it is healthy."""
    file = load(path)
    now = status.read_status(Aws(file.region), file)
    answer(now, as_json)
    return now.is_healthy


def source_of_hosts(path: str) -> str:
    """Return the default source of `hosts.write`: "stack" if the file describes one, else the only lab.

    Raises ConfigError if there is no lab or more than one.
    """
    there = cluster_file(path)
    if there.exists() and is_of_a_stack(decode(there)[1]):
        return "stack"
    found = [n for n in lab_names() if (LABS / n / "hosts").exists()]
    if len(found) == 1:
        return f"lab:{found[0]}"
    labs = f"there are {len(found)} labs ({', '.join(found)})" if found else "there is no lab"
    raise ConfigError(f"{path} describes no stack and {labs}: give --source stack with --file, or --source lab:NAME")


def write_hosts(path: str, source: str, force: bool, dry_run: bool) -> None:
    """Write the hostfile of the stack or of a lab, and the files that belong to it, beside the cluster file."""
    there = cluster_file(path).resolve()
    source = source or source_of_hosts(path)
    advice = ""
    if source == "stack":
        file = load(path)
        aws = Aws(file.region)
        targets = hostfile.targets(aws, there, file)
        advice = hostfile.advice(file, tomllib.loads(targets[-1].text)["ssh"].get("gateway", ""))
    else:
        targets = lab_targets(source, there)
    hosts = parse_hostfile(targets[0].text, str(targets[0].path))
    if dry_run:
        print("\n".join(f"# {t.path}\n{t.text}" for t in targets).rstrip())
        return
    if replaced := written.write(targets, force=force):
        say(replaced)
    print(f"{targets[0].path}: {totals(hosts)}")
    if advice:
        print(advice)


def lab_targets(source: str, path: Path) -> list[written.TargetFile]:
    """Return a lab's hostfile and cluster file, to be written beside `path`."""
    if source != "lab" and not source.startswith("lab:"):
        raise ConfigError(f"{source!r} is not a source of hosts: give stack, lab or lab:NAME")
    cluster = load_cluster(source)
    settings = (cluster.folder / "cluster.toml").read_text()
    return [written.whole_file(path.parent / "hosts", text_of(cluster.hosts)), written.whole_file(path, settings)]


def go_to_master(path: str, forward_agent: bool) -> None:
    """Replace this process by an ssh to the master."""
    if forward_agent:
        check_agent()
    file, folder = load(path), cluster_file(path).resolve().parent
    aws = Aws(file.region)
    if file.access.mode == "ssh" and not (file.access.key_pair or file.access.public_key):
        own = Path(file.ssh.key or "~/.ssh/id_ed25519").expanduser()
        own = own.with_name(own.name + ".pub")
        if not own.exists():
            raise ConfigError(
                f"access.key_pair is empty and {own} does not exist: make a key with ssh-keygen, or set ssh.key"
            )
        hostfile.lend_key(aws, file, own)
    words = hostfile.ssh_command(aws, file, folder, forward_agent=forward_agent)
    os.execvp(words[0], words)
