"""The template of every variant: bytes, lint, and the policies that linters miss."""

import functools
import json
from pathlib import Path
from typing import Any

import pytest
from cfnlint.api import lint
from designs import VARIANTS, design
from hypothesis import given, settings
from hypothesis import strategies as st

from cfn.instances import NetworkInterface
from cfn.template import firstboot, template
from cfn.template.design import Design
from tests.walking import walked

GOLDEN = Path(__file__).parent / "golden"
LINTED = ("default", "p5-everything", "eic")
"""Linted whenever pure tests run; all of them with those that are slow."""
OFFERED = {
    "us-east-1": (),
    "us-west-2": (),
    "eu-west-1": ("g6", "g6e", "p5"),
}  # families that a region does not have, by cfn-lint's own data


@functools.cache
def body(variant: str) -> str:
    """Return the text of a variant's template, rendered once."""
    return template.body(VARIANTS[variant])


def rendered(variant: str) -> dict[str, Any]:
    return json.loads(body(variant))


def of_kind(t: dict[str, Any], kind: str) -> dict[str, dict[str, Any]]:
    return {name: r["Properties"] for name, r in t["Resources"].items() if r["Type"] == kind}


@pytest.mark.parametrize("variant", ["default", "p5-everything", "existing-efs-and-target"])
def test_the_bytes_are_the_stored_ones(variant: str) -> None:
    """A change of the template is seen in review: `PYTHONPATH=. python tests/cfn/test_template.py` writes the files anew."""
    assert (GOLDEN / f"{variant}.json").read_text() == golden(VARIANTS[variant])


def golden(d: Design) -> str:
    """The template to read; the script is a file of its own."""
    t = json.loads(template.body(d))
    t["Mappings"]["FirstBoot"]["script"]["text"] = "(scripts/first-boot.sh)"
    return json.dumps(t, indent=1, sort_keys=True) + "\n"


@pytest.mark.seconds
@pytest.mark.parametrize("variant", LINTED)
def test_cfn_lint_finds_nothing(variant: str) -> None:
    """No error and no warning, in one region."""
    assert [] == found_by_lint(variant, offering(variant)[:1])


@pytest.mark.seconds
@pytest.mark.slow
@walked("variant", VARIANTS)
def test_cfn_lint_finds_nothing_in_any_variant_and_region(variant: str) -> None:
    """No error and no warning in any of three regions that have the type."""
    assert [] == found_by_lint(variant, offering(variant))


def offering(variant: str) -> list[str]:
    """Return the regions that have the variant's instance type."""
    kind = VARIANTS[variant].instance.name.split(".")[0]
    return [r for r, lacks in OFFERED.items() if kind not in lacks]


def found_by_lint(variant: str, regions: list[str]) -> list[str]:
    """Return what cfn-lint finds in the variant's template, in these regions."""
    return [f"{m.rule.id} {m.message[:200]} {m.path}" for m in lint(body(variant), regions=regions)]


@walked("variant", VARIANTS)
def test_it_fits_a_request_and_the_script_fits_user_data(variant: str) -> None:
    assert len(body(variant).encode()) <= 51_200
    assert len(firstboot.body().encode()) + 1024 + 4096 < 16_384, "there is room for the next step, too"


@walked("variant", VARIANTS)
def test_nodes_are_closed_and_encrypted(variant: str) -> None:
    """IMDSv2 in one hop, gp3 encrypted, no public address, no key material in user data."""
    for data in (p["LaunchTemplateData"] for p in of_kind(rendered(variant), "AWS::EC2::LaunchTemplate").values()):
        assert ("required", 1) == (
            data["MetadataOptions"]["HttpTokens"],
            data["MetadataOptions"]["HttpPutResponseHopLimit"],
        )
        assert all(
            ("gp3", True) == (m["Ebs"]["VolumeType"], m["Ebs"]["Encrypted"]) for m in data["BlockDeviceMappings"]
        )
        assert not any(i.get("AssociatePublicIpAddress") for i in data["NetworkInterfaces"])
    assert "AKIA" not in body(variant)
    assert all(not s["MapPublicIpOnLaunch"] for s in of_kind(rendered(variant), "AWS::EC2::Subnet").values())


@walked("variant", VARIANTS)
def test_only_the_operator_comes_in(variant: str) -> None:
    """One SSH rule from one CIDR on the master alone, none with SSM; nothing is open to the internet."""
    t, d = rendered(variant), VARIANTS[variant]
    rules = [r for g in of_kind(t, "AWS::EC2::SecurityGroup").values() for r in g.get("SecurityGroupIngress", [])]
    door = (d.file.ssh.port, d.file.ssh.port, d.file.access.ssh_from)
    assert ([door] if d.master_is_public else []) == [(r["FromPort"], r["ToPort"], r["CidrIp"]) for r in rules]
    assert all("CidrIp" not in r for r in of_kind(t, "AWS::EC2::SecurityGroupIngress").values())
    assert ("MasterAddress" in t["Resources"]) == d.master_is_public
    assert all("Description" in r for r in [*rules, *of_kind(t, "AWS::EC2::SecurityGroupIngress").values()])


def test_an_endpoint_leads_to_port_22_of_the_nodes_and_nowhere_else() -> None:
    """With access.mode 'eic', and only then."""
    t = rendered("eic")
    (endpoint,) = of_kind(t, "AWS::EC2::InstanceConnectEndpoint").values()
    group = t["Resources"]["EndpointGroup"]["Properties"]
    rules = of_kind(t, "AWS::EC2::SecurityGroupIngress").values()

    assert ([{"Ref": "EndpointGroup"}], {"Ref": "PrivateSubnet"}) == (
        endpoint["SecurityGroupIds"],
        endpoint["SubnetId"],
    )
    (out,) = group["SecurityGroupEgress"]
    assert (22, 22, {"Ref": "ClusterGroup"}) == (out["FromPort"], out["ToPort"], out["DestinationSecurityGroupId"])
    (into,) = (r for r in rules if r["SourceSecurityGroupId"] == {"Ref": "EndpointGroup"})
    assert (22, 22, {"Ref": "ClusterGroup"}) == (into["FromPort"], into["ToPort"], into["GroupId"])
    assert not of_kind(rendered("ssm"), "AWS::EC2::InstanceConnectEndpoint")


@walked("variant", VARIANTS)
def test_efas_of_all_nodes_are_in_one_subnet(variant: str) -> None:
    """Also those of a master whose first interface is in the public one: not every type's EFA crosses subnets."""
    t = rendered(variant)
    (private,) = t["Resources"]["WorkerNodes"]["Properties"]["VPCZoneIdentifier"]
    for role, subnet in (("Master", private), ("Worker", None)):
        given = t["Resources"][f"{role}Template"]["Properties"]["LaunchTemplateData"]["NetworkInterfaces"]
        assert all(subnet == i.get("SubnetId") for i in given if i.get("InterfaceType") == "efa-only")


@walked("variant", VARIANTS)
def test_efa_has_what_it_needs(variant: str) -> None:
    """The cluster's group on every interface, open to itself both ways."""
    t, d = rendered(variant), VARIANTS[variant]
    me = {"Ref": "ClusterGroup"}
    assert any(
        r["IpProtocol"] == "-1" and r["GroupId"] == r["SourceSecurityGroupId"] == me
        for r in of_kind(t, "AWS::EC2::SecurityGroupIngress").values()
    )
    assert any(
        r["IpProtocol"] == "-1" and r["GroupId"] == r.get("DestinationSecurityGroupId") == me
        for r in of_kind(t, "AWS::EC2::SecurityGroupEgress").values()
    )
    fixed = t["Resources"]["MasterInterface"]["Properties"]
    for role in ("Master", "Worker"):
        given = t["Resources"][f"{role}Template"]["Properties"]["LaunchTemplateData"]["NetworkInterfaces"]
        said = [
            NetworkInterface(
                card=i.get("NetworkCardIndex", 0),
                device=i["DeviceIndex"],
                kind=i.get(
                    "InterfaceType",
                    fixed.get("InterfaceType", "interface") if "NetworkInterfaceId" in i else "interface",
                ),
            )
            for i in given
        ]
        assert list(d.interfaces_of(role.lower())) == said
        assert all(me in i["Groups"] for i in given if "NetworkInterfaceId" not in i)
    assert me in fixed["GroupSet"]


def statements(t: dict[str, Any], role: str) -> dict[str, dict[str, Any]]:
    """The statements of a role's policy, by their names."""
    policy = t["Resources"][f"{role}Role"]["Properties"]["Policies"][0]["PolicyDocument"]
    return {s["Sid"]: s for s in policy["Statement"]}


def actions(t: dict[str, Any], role: str) -> set[str]:
    """What a role may do at all."""
    allowed = (s["Action"] for s in statements(t, role).values() if s["Effect"] == "Allow")
    return {a for said in allowed for a in ([said] if isinstance(said, str) else said)}


@walked("variant", VARIANTS)
@pytest.mark.parametrize("role", ["Master", "Worker"])
def test_a_role_has_no_more_than_it_needs(variant: str, role: str) -> None:
    """No iam:, no PassRole, no star of a service; S3 only under the prefix; a star as resource only where IAM offers no other."""
    t, d = rendered(variant), VARIANTS[variant]
    allowed = actions(t, role)
    assert not any("*" in a or a.startswith(("iam:", "sts:")) for a in allowed)
    assert all(
        a.split(":")[1].startswith("Describe") or a == "pricing:GetProducts"  # a list that everybody may read
        for s in statements(t, role).values()
        if s["Resource"] == "*"
        for a in s["Action"]
    )
    data = {"s3:PutObject", "s3:ListBucket"} & allowed
    keeps_results = role == "Master" and d.file.results
    assert bool(d.file.storage.s3 or keeps_results) == bool(data)
    for name in {"ListPrefix", "UsePrefix"} & statements(t, role).keys():
        assert "runs" in json.dumps(statements(t, role)[name])
    managed = t["Resources"][f"{role}Role"]["Properties"].get("ManagedPolicyArns", [])
    assert (["AmazonSSMManagedInstanceCore"] if d.file.access.mode == "ssm" else []) == [
        m["Fn::Sub"].rsplit("/", 1)[1] for m in managed
    ]


@walked("variant", VARIANTS)
def test_a_worker_ends_nothing_and_vouches_for_itself_alone(variant: str) -> None:
    """No group, no other's tag, no template of the stack; known_hosts is made from host-key tags, so a node writes its own only."""
    t = rendered(variant)
    worker = actions(t, "Worker")
    assert {"cloudformation:SignalResource", "ec2:CreateTags"} == {a for a in worker if not a.startswith("s3:")}
    for role in ("Master", "Worker"):
        tagging = [s for s in statements(t, role).values() if s["Action"] == "ec2:CreateTags"]
        for s in tagging:
            keys = {k.rsplit(":", 1)[1] for k in s["Condition"]["ForAllValues:StringEquals"]["aws:TagKeys"]}
            itself = "ec2:SourceInstanceARN" in s["Condition"].get("ArnLike", {})
            assert itself or keys == {"rank"}
            assert role == "Master" or itself
    profiles = {
        name: t["Resources"][f"{name}Template"]["Properties"]["LaunchTemplateData"]["IamInstanceProfile"]["Arn"]
        for name in ("Master", "Worker")
    }
    assert {n: {"Fn::GetAtt": [f"{n}Profile", "Arn"]} for n in ("Master", "Worker")} == profiles
    assert [{"Ref": "WorkerRole"}] == t["Resources"]["WorkerProfile"]["Properties"]["Roles"]


def test_no_node_may_write_what_first_boot_runs() -> None:
    """The archive of nodes.source, also below the prefix that the nodes write: read by the master, refused to all for writing."""
    t = rendered("s3")
    archive = {"Fn::Sub": "arn:${AWS::Partition}:s3:::bucket/runs/project.tar.gz"}
    for role in ("Master", "Worker"):
        denied = statements(t, role)["SpareSource"]
        assert ("Deny", archive) == (denied["Effect"], denied["Resource"])
        assert {"s3:PutObject", "s3:DeleteObject"} <= set(denied["Action"])
    assert archive == statements(t, "Master")["FetchSource"]["Resource"]
    assert "FetchSource" not in statements(t, "Worker")


@walked("variant", VARIANTS)
def test_the_master_alone_may_tell_the_topic_and_only_where_one_is_named(variant: str) -> None:
    """sns:Publish on that one topic; without `notify`, or with a command there, nobody has it."""
    t, topic = rendered(variant), VARIANTS[variant].file.notify
    assert "Tell" not in statements(t, "Worker")
    said = statements(t, "Master").get("Tell")
    assert ({"Sid": "Tell", "Effect": "Allow", "Action": "sns:Publish", "Resource": topic} if topic else None) == said
    assert (variant == "spot") == bool(topic)


@walked("variant", VARIANTS)
def test_the_master_alone_may_keep_results_and_only_where_a_place_is_named(variant: str) -> None:
    """Below that place: write, and read what was written."""
    t, results = rendered(variant), VARIANTS[variant].file.results
    assert "KeepResults" not in statements(t, "Worker")
    said = statements(t, "Master").get("KeepResults")
    assert (variant == "spot") == bool(results) == (said is not None)
    if said:
        assert {"Fn::Sub": "arn:${AWS::Partition}:s3:::kept/trainings/*"} == said["Resource"]
        assert {"s3:AbortMultipartUpload", "s3:GetObject", "s3:PutObject"} == set(said["Action"])


@walked("variant", VARIANTS)
def test_the_shared_file_system_takes_tls_only(variant: str) -> None:
    """Unless the cluster file says otherwise: the cluster's private key is on it."""
    t, d = rendered(variant), VARIANTS[variant]
    for p in of_kind(t, "AWS::EFS::FileSystem").values():
        denied = [s for s in p.get("FileSystemPolicy", {}).get("Statement", []) if s["Effect"] == "Deny"]
        assert d.file.storage.tls == any({"Bool": {"aws:SecureTransport": "false"}} == s["Condition"] for s in denied)
    assert (variant != "plain-nfs") == d.file.storage.tls
    assert f"EFS_TLS='{'1' if d.file.storage.tls else ''}'" in template.body(d)


@walked("variant", VARIANTS)
def test_what_holds_data_stays(variant: str) -> None:
    """EFS is encrypted, backed up, kept with the stack gone; FSx never exports deletions to S3."""
    t = rendered(variant)
    for name, r in t["Resources"].items():
        if r["Type"] == "AWS::EFS::FileSystem":
            assert (True, "ENABLED", "elastic") == (
                r["Properties"]["Encrypted"],
                r["Properties"]["BackupPolicy"]["Status"],
                r["Properties"]["ThroughputMode"],
            )
            assert ("RetainExceptOnCreate", "Retain") == (r["DeletionPolicy"], r["UpdateReplacePolicy"]), name
        if r["Type"] == "AWS::FSx::DataRepositoryAssociation":
            assert "DELETED" not in r["Properties"]["S3"]["AutoExportPolicy"]["Events"]


@walked("variant", VARIANTS)
def test_complete_means_every_node(variant: str) -> None:
    """The groups wait for one signal per host that has to be there; sizes, zone and outputs agree."""
    t, d = rendered(variant), VARIANTS[variant]
    least = {"WorkerNodes": d.file.nodes.min_nodes - 1} if d.file.nodes.min_nodes else {}
    sizes = {"MasterNodes": 1, "WorkerNodes": d.file.nodes.workers + d.file.nodes.spares}
    for name, size in sizes.items():
        group = t["Resources"][name]
        assert (str(size), str(size)) == (group["Properties"]["DesiredCapacity"], group["Properties"]["MaxSize"])
        assert (least.get(name, size) or None) == group.get("CreationPolicy", {}).get("ResourceSignal", {}).get("Count")
    assert {"MasterAddress", "MasterGroup", "WorkerGroup", "FileSystem", "Slots", "Ami", "Zone"} <= t["Outputs"].keys()
    placed = "Placement" in t["Resources"]
    assert placed == (d.file.nodes.capacity in ("on-demand", "spot"))


def test_a_master_of_its_own_type_is_small_and_bought_for_itself() -> None:
    """Its own launch template: no EFA, in no placement group, in no block or reservation, without the block's end; the
    stack tells that it has no slots, first boot that its environment is not the workers'.
    """
    for variant, market in (
        ("small-master", None),
        ("small-master-block", "capacity-block"),
        ("small-master-reserved", None),
    ):
        t, d = rendered(variant), VARIANTS[variant]
        data = {r: t["Resources"][f"{r}Template"]["Properties"]["LaunchTemplateData"] for r in ("Master", "Worker")}
        assert d.master is not None
        assert (d.master.name, d.instance.name) == (data["Master"]["InstanceType"], data["Worker"]["InstanceType"])
        assert 1 == len(data["Master"]["NetworkInterfaces"])
        assert {"Placement", "InstanceMarketOptions", "CapacityReservationSpecification"}.isdisjoint(data["Master"])
        assert market == data["Worker"].get("InstanceMarketOptions", {}).get("MarketType")
        assert ("Placement" in data["Worker"]) == (variant == "small-master")
        assert "CapacityReservationSpecification" not in t["Resources"]["MasterNodes"]["Properties"]
        tags = {r: {g["Key"] for g in one["TagSpecifications"][0]["Tags"]} for r, one in data.items()}
        assert ("dlami-cluster:ends" in tags["Worker"]) == (variant == "small-master-block")
        assert "dlami-cluster:ends" not in tags["Master"]
        assert ("0", d.master.name) == (
            t["Outputs"]["MasterSlots"]["Value"],
            t["Outputs"]["MasterInstanceType"]["Value"],
        )
        assert all("OTHER_MASTER='1'" in json.dumps(one["UserData"]) for one in data.values())
    assert "MasterSlots" not in rendered("default")["Outputs"]
    assert "OTHER_MASTER='1'" not in json.dumps(rendered("default"))


@settings(max_examples=25, deadline=None)
@given(
    kind=st.sampled_from(["g5.xlarge", "g5.12xlarge", "p4d.24xlarge", "p5.48xlarge", "g6e.48xlarge"]),
    workers=st.integers(0, 63),
    root=st.integers(75, 16384),
    minutes=st.integers(5, 120),
)
def test_any_size_is_what_the_template_says(kind: str, workers: int, root: int, minutes: int) -> None:
    """Sizes, disks and time-outs are the file's, whatever they are; the request stays within its limit."""
    t = json.loads(template.body(design(kind, workers, nodes={"root_gib": root, "boot_minutes": minutes})))
    group = t["Resources"]["WorkerNodes"]
    assert str(workers) == group["Properties"]["DesiredCapacity"]
    disks = {
        p["LaunchTemplateData"]["BlockDeviceMappings"][0]["Ebs"]["VolumeSize"]
        for p in of_kind(t, "AWS::EC2::LaunchTemplate").values()
    }
    assert {root} == disks
    master = t["Resources"]["MasterNodes"]["CreationPolicy"]["ResourceSignal"]
    assert {"Count": 1, "Timeout": f"PT{minutes}M"} == master


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for name in ("default", "p5-everything", "existing-efs-and-target"):
        (GOLDEN / f"{name}.json").write_text(golden(VARIANTS[name]))
