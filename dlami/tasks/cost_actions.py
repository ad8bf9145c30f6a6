"""Actions of the tasks for cost, orphans and capacity blocks: query, print, remove, buy."""

import datetime
import json
import sys
from collections.abc import Callable
from dataclasses import replace

from cfn import capacity_blocks, cost, init_values, orphans, rights, stack
from cfn.aws import Aws
from cluster.clusterfile.eks import EksSettings
from cluster.errors import ClusterError, ConfigError
from cluster.inventory import load_cluster
from cluster.jobs.client.client import opened
from cluster.locate import cluster_file
from cluster.terminal import agreed, counted
from dlami.tasks.stack_actions import answer, confirm, load, say
from eks.stack import cost as eks_cost
from eks.stack import rights as eks_rights


def show_cost(path: str, no_jobs: bool, as_json: bool, *, of_eks: bool = False) -> None:
    """Print the cost of the cluster so far, and the forecast for the end of its longest job.

    Args:
        of_eks: of the cluster on EKS, which is also used if it is the only one.
    """
    file = load(path)
    aws = Aws(file.region)
    is_on_eks = stack.find(aws, file.eks_stack) is not None
    if of_eks or (is_on_eks and stack.find(aws, file.name) is None):
        found, left = eks_cost.cluster_cost(aws, file), _left_on_pods
    else:
        if is_on_eks:
            say(f"{file.eks_stack} is there, too: inv stack.cost --eks")
        found, left = cost.cluster_cost(aws, file), _left_on_hosts
    if not no_jobs and any(h.span.ends is None for h in found.hosts):
        found = _with_forecast(found, lambda: left(str(cluster_file(path).resolve().parent)))
    return answer(found, as_json)


def _with_forecast(found: cost.Cost, ask: Callable[[], dict[str, float | None]]) -> cost.Cost:
    """Return the cost with a forecast for the end of the job that runs longest.

    Without known remaining times the cost is returned unchanged. A ClusterError of `ask` is printed.

    Args:
        ask: returns the seconds left of each running job, None where unknown.
    """
    try:
        known = {job: seconds for job, seconds in ask().items() if seconds is not None}
    except ClusterError as e:
        say(f"no forecast: {e}")
        return found
    if not known:
        return found
    longest = max(known, key=lambda job: known[job])
    return replace(found, forecast=found.until(longest, known[longest]))


def _left_on_hosts(folder: str) -> dict[str, float | None]:
    """Return the seconds left of each running job, as reported by the bare cluster's master."""
    try:
        with opened(load_cluster(folder)) as jobs:
            return {j.id: j.progress.left_s for j in jobs.list().jobs if j.state.is_going and j.progress}
    except ClusterError as e:
        raise ClusterError(f"the master cannot be asked how far its jobs are: {e}") from e


def _left_on_pods(folder: str) -> dict[str, float | None]:
    """Return the seconds left of each training, as reported by the launchers on Kubernetes, by kubectl."""
    from eks.cluster import load_eks
    from eks.jobs import EksJobs

    try:
        return EksJobs(load_eks(folder)).left_s()
    except ClusterError as e:
        raise ClusterError(f"Kubernetes cannot be asked how far its trainings are: {e}") from e


def show_policy(path: str, of_orphans: bool, of_blocks: bool, of_eks: bool) -> None:
    """Print the IAM policy that the operator's user needs. AWS is not queried.

    Managed policies have a size limit, so there are several.
    """
    if of_orphans + of_blocks + of_eks > 1:
        raise ConfigError("--orphans, --blocks and --eks print a policy each: give one of them")
    if of_orphans or of_blocks:
        found = rights.orphans_policy() if of_orphans else rights.blocks_policy()
    else:
        file = load(path)
        found = eks_rights.policy(file) if of_eks else rights.policy(file)
        if not of_eks and file.eks != EksSettings():
            say("[eks] needs a policy of its own beside this one: inv stack.policy --eks")
    print(json.dumps(found, indent=2))


def show_orphans(region: str, delete: bool, as_json: bool) -> bool:
    """Print the orphans, and delete each one that the operator agrees to, if asked.

    Return True if none is left and all regions could be searched.
    """
    if delete and as_json:
        raise ConfigError("--json answers and --delete asks about each: give one of them")
    if delete and not sys.stdin.isatty():
        raise ConfigError("--delete asks about each: run it on a terminal, or run the commands that are printed")
    given = [r.strip() for r in region.split(",") if r.strip()]
    aws = Aws(given[0] if given else init_values.region())
    where = given or orphans.regions(aws)
    say(f"looking in {counted(len(where), 'region')}")
    found = orphans.find(aws, where)
    for sentence in found.unasked:
        say(f"not looked at: {sentence}")
    if not delete:
        answer(found, as_json)
        return not found.orphans and not found.unasked
    return _remove(aws, found) and not found.unasked


def _remove(aws: Aws, found: orphans.Found) -> bool:
    """Ask about each orphan and remove it on a yes. Return True if all are gone."""
    left = 0
    for orphan in found.orphans:
        what = f"{orphan.region}  {orphan.thing.item}, of {orphan.thing.cluster}"
        if not orphan.thing.steps:
            print(f"{what}: ends by itself")
            continue
        if not agreed(f"{what}\n    remove it for good"):
            left += 1
            continue
        try:
            orphans.remove(aws, orphan)
        except ClusterError as e:
            say(str(e))
            left += 1
    print("nothing is left that can be removed" if not left else f"{left} left")
    return not left


def show_blocks(path: str, days: int, instances: int, since: str, as_json: bool) -> None:
    """Print the capacity blocks on offer. The default size is the cluster's number of reserved instances."""
    file = load(path)
    number = instances or file.reserved
    found = capacity_blocks.offers(Aws(file.region), file.nodes.types, number, days, _day(since))
    if as_json:
        return answer([o.as_json() for o in found], True)
    for offer in found:
        print(offer)
    if not found:
        kinds = " or ".join(file.nodes.types)
        print(f"AWS offers no block of {number} x {kinds} for {counted(days, 'day')}: try fewer, shorter, or later")
    return None


def buy_block(path: str, days: int, instances: int, offer_id: str, dry_run: bool, as_json: bool) -> None:
    """Buy a capacity block after two questions, for the name and for the price. AWS does not refund it."""
    file = load(path)
    aws = Aws(file.region)
    offer = capacity_blocks.pick(
        capacity_blocks.offers(aws, file.nodes.types, instances or file.reserved, days), offer_id
    )
    say(str(offer))
    if dry_run:
        return answer(offer.as_json() if as_json else f"would buy {offer.id}", as_json)
    if not sys.stdin.isatty():
        raise ConfigError("--buy asks twice: run it on a terminal")
    confirm(
        f"This pays {offer.price:,.2f} {offer.currency} at once; it cannot be given back or moved.", file.name, False
    )
    confirm("Once more, by its price: it is yours from then on.", f"{offer.price:.2f}", False)
    reservation = capacity_blocks.buy(aws, offer, file.name)
    fields = {"nodes.capacity": "capacity-block", "nodes.reservation": reservation, "network.zone": offer.zone}
    if as_json:
        return answer({**offer.as_json(), "fields": fields}, True)
    print(f"{reservation} is bought; in the cluster file:")
    for field, value in fields.items():
        print(f'    {field} = "{value}"')
    return None


def _day(since: str) -> datetime.datetime | None:
    try:
        return datetime.datetime.fromisoformat(since).replace(tzinfo=datetime.UTC) if since else None
    except ValueError as e:
        raise ConfigError(f"--since {since!r}: write a day like 2027-01-15") from e
