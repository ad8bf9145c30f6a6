"""What the stack tasks do between the command line and the modules: show, ask, act."""

import json
import os
import sys
from pathlib import Path
from typing import Any

from cfn import changes, create, hostfile, plan, stack, status, update
from cfn import hosts as members
from cfn.clusterfile import in_stack, init, text
from cfn.clusterfile.fields import ClusterFile
from cluster.errors import ClusterError, ConfigError, NothingToDo
from cluster.inventory import LABS
from cluster.lab.record import lab_names


def say(line: str) -> None:
    """Progress goes to stderr: stdout is for what was asked."""
    print(line, file=sys.stderr, flush=True)


def answer(value: Any, as_json: bool) -> None:
    """The result, for a reader or for a program."""
    print(
        json.dumps(value.as_json() if hasattr(value, "as_json") else value, indent=1) if as_json else value,
        flush=True,
    )


def confirm(question: str, wanted: str, yes: bool) -> None:
    """Goes on if `yes`, or if the operator types `wanted`. Raises ConfigError where nobody can be asked,
    NothingToDo for a no.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise ConfigError(f"{question} Nobody can be asked here: add --yes")
    if input(f"{question} Type {wanted} to go on: ").strip() != wanted:
        raise NothingToDo("nothing was changed")


def load(path: str) -> ClusterFile:
    return text.read(Path(path))


def write_file(path: str, from_stack: str = "", **given: Any) -> None:
    """A new cluster file, or that of a running stack. Fields that only the operator knows are left to fill in, and
    said.
    """
    if from_stack:
        region = given.get("region") or init.region()
        text.write(Path(path), text.render(in_stack.of(from_stack, region)))
        print(f"{path} says what stack {from_stack} was last made from; next: inv hosts.write")
        return
    values = init.looked_up(Path.cwd(), {k.replace("__", "."): v for k, v in given.items()})
    text.write(Path(path), text.render(values))
    todo = "" if values.get("access.ssh_from") else "fill in access.ssh_from (the network you come from), then "
    print(f"{path} is written; {todo}look through it and run `inv stack.plan`")


def show_plan(path: str, as_json: bool) -> None:
    """The plan, and for a stack that is there the changes that an update would make."""
    made = plan.make(load(path))
    if made.existing is None or not made.existing.is_usable:
        return answer(made, as_json)
    proposed: changes.ChangeSet | None = None
    try:
        proposed = changes.propose(made, made.existing)
        changes.drop(proposed)
    except NothingToDo:
        pass
    if as_json:
        return answer({**made.as_json(), "changes": proposed.as_json() if proposed else []}, True)
    print(f"{made}\nchanges   {'none' if proposed is None else ''}")
    if proposed:
        print(proposed)
    return None


def make_stack(path: str, yes: bool, dry_run: bool, keep_failed: bool, as_json: bool) -> None:
    """Creates the cluster and says how to go on."""
    made = plan.make(load(path))
    say(str(made))
    if dry_run:
        return answer(made.as_json(), True) if as_json else None
    if made.existing is None:
        confirm(f"This starts {made.hosts} instances ({made.cost}).", made.design.file.name, yes)
    hosts = create.create(made, say, keep_failed)
    outputs = stack.outputs(made.design.file.name, made.design.file.region)
    if as_json:
        return answer({"outputs": outputs, "hosts": [h.as_json() for h in hosts]}, True)
    print(
        f"{made.design.file.name} is ready: {len(hosts)} hosts, master "
        f"{outputs['MasterAddress']}\nnext: inv hosts.write, then inv ssh"
    )
    return None


def change_stack(path: str, ami: str, yes: bool, dry_run: bool, as_json: bool) -> None:
    """Shows the change set, asks, executes it, waits for every node."""
    file = load(path)
    proposed = update.prepare(file, ami)
    say(str(proposed))
    if changes.only_new_nodes(proposed):
        say("running nodes stay as they are; `inv stack.replace HOST` brings them over one by one")
    if dry_run:
        changes.drop(proposed)
        return answer(proposed.as_json(), True) if as_json else None
    try:
        confirm("These changes will be made.", file.name, yes)
    except ClusterError:
        changes.drop(proposed)
        raise
    hosts = update.execute(proposed, file, say)
    return answer(
        [h.as_json() for h in hosts] if as_json else f"{file.name} has {len(hosts)} hosts\nnext: inv hosts.write",
        as_json,
    )


def replace_host(path: str, host: str, yes: bool, dry_run: bool, as_json: bool) -> None:
    """Ends one instance and waits for its successor."""
    file = load(path)
    one = members.pick(members.read(stack.outputs(file.name, file.region), file.region), host)
    if dry_run:
        return answer(
            one.as_json() if as_json else f"would end {one.instance_id} ({one.address}), rank {one.rank}", as_json
        )
    own = " It is this machine: watch from another." if hostfile.is_this_machine(one.address) else ""
    confirm(
        f"This ends {one.instance_id} ({one.address}), rank {one.rank}; what is on its disk is lost.{own}",
        one.instance_id,
        yes,
    )
    hosts = update.replace(file, host, say)
    return answer(
        [h.as_json() for h in hosts] if as_json else f"{file.name} has {len(hosts)} hosts\nnext: inv hosts.write",
        as_json,
    )


def remove_stack(path: str, yes: bool, dry_run: bool, retain: str, as_json: bool) -> None:
    """Ends the cluster after a question; the file system stays."""
    file = load(path)
    there = stack.get(file.name, file.region)
    if dry_run:
        return answer(
            sorted(stack.resource_ids(there))
            if as_json
            else f"would delete {len(stack.resource_ids(there))} resources of {there.name}",
            as_json,
        )
    confirm(f"This ends every instance of {file.name} and what is on their disks; EFS is kept.", file.name, yes)
    if hostfile.is_the_master(there.outputs):
        system = there.outputs["FileSystem"]
        say(f"this machine is the master and ends with its stack; AWS goes on without it. EFS {system} is kept")
    kept = create.delete(file, say, [n for n in retain.split(",") if n])
    return answer({"kept": kept} if as_json else _kept(file, kept), as_json)


def _kept(file: ClusterFile, kept: dict[str, str]) -> str:
    system = kept.get("SharedFileSystem") or file.storage.efs
    return (
        f"{file.name} is deleted; kept: "
        + (", ".join(f"{k} {v}" for k, v in kept.items()) or "nothing of the stack")
        + f'\nto use the files again: storage.efs = "{system}" in a cluster file; until then EFS bills its size'
    )


def show_status(path: str, as_json: bool) -> bool:
    """The status; whether all is well."""
    now = status.look(load(path))
    answer(now, as_json)
    return now.is_healthy


def source_of_hosts(path: str) -> str:
    """Where `hosts.write` takes hosts from if not told: "stack" if the file describes one, else the only lab.

    Raises ConfigError if that leaves no lab or several.
    """
    if text.is_of_a_stack(Path(path)):
        return "stack"
    found = [n for n in lab_names() if (LABS / n / "hosts").exists()]
    if len(found) == 1:
        return f"lab:{found[0]}"
    labs = f"there are {len(found)} labs ({', '.join(found)})" if found else "there is no lab"
    raise ConfigError(f"{path} describes no stack and {labs}: give --source stack with --file, or --source lab:NAME")


def write_hosts(path: str, force: bool, dry_run: bool) -> None:
    """Hostfile, known hosts and gateway of the stack, beside its cluster file."""
    print(hostfile.write(Path(path), load(path), force=force, dry_run=dry_run))


def go_to_master(path: str) -> None:
    """Become an ssh to the master; does not return."""
    file, folder = load(path), Path(path).resolve().parent
    if file.access.mode == "ssh" and not file.access.key_pair:
        own = Path(file.ssh.key or "~/.ssh/id_ed25519").expanduser().with_suffix(".pub")
        if not own.exists():
            raise ConfigError(
                f"access.key_pair is empty and {own} does not exist: make a key with ssh-keygen, or set ssh.key"
            )
        hostfile.lend_key(file, own)
    words = hostfile.ssh_command(file, folder)
    os.execvp(words[0], words)
