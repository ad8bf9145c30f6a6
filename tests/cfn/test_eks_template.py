"""The template of an EKS cluster, for each variant of the cluster file: lint, and the policies that linters miss."""

import json
from dataclasses import replace as with_
from typing import Any

import pytest
from cfnlint.api import lint
from designs import VARIANTS, design

from cluster.clusterfile.checks import FieldError
from cluster.clusterfile.model import Network
from eks.base import SERVICE_ACCOUNT
from eks.stack import template
from eks.stack.design import control_cidr, file_for_eks
from tests.cfn.eks_cases import CASES, OPERATOR
from tests.walking import walked


def rendered(case: str) -> dict[str, Any]:
    return dict(json.loads(template.body(CASES[case])))


def of_kind(t: dict[str, Any], kind: str) -> dict[str, dict[str, Any]]:
    return {name: r["Properties"] for name, r in t["Resources"].items() if r["Type"] == kind}


def one(case: str, kind: str) -> dict[str, Any]:
    (found,) = of_kind(rendered(case), kind).values()
    return found


@pytest.mark.seconds
@pytest.mark.parametrize("case", ["default", "p5-block", "p5-everything", "spot", "existing-vpc", "open"])
def test_cfn_lint_finds_nothing(case: str) -> None:
    """No error and no warning; the names and values that EKS takes are in its schemas. What every case has is in these."""
    found = lint(template.body(CASES[case]), regions=["us-east-1"])
    assert [] == [f"{m.rule.id} {m.message[:200]} {m.path}" for m in found]


@walked("case", CASES)
def test_secrets_are_encrypted_and_everything_is_logged(case: str) -> None:
    """As checkov's CKV_AWS_37, 38, 39 and 58 want it, and the key is turned every year (CKV_AWS_7)."""
    t, plane = rendered(case), one(case, "AWS::EKS::Cluster")
    assert [["secrets"]] == [e["Resources"] for e in plane["EncryptionConfig"]]
    assert {"Fn::GetAtt": ["SecretsKey", "Arn"]} == plane["EncryptionConfig"][0]["Provider"]["KeyArn"]
    assert one(case, "AWS::KMS::Key")["EnableKeyRotation"] is True
    logged = {x["Type"] for x in plane["Logging"]["ClusterLogging"]["EnabledTypes"]}
    assert {"api", "audit", "authenticator", "controllerManager", "scheduler"} == logged
    assert f"/aws/eks/{plane['Name']}/cluster" == one(case, "AWS::Logs::LogGroup")["LogGroupName"]
    assert "ControlLog" in t["Resources"]["Kubernetes"]["DependsOn"], "else EKS makes the log first, for good"


@walked("case", CASES)
def test_the_api_is_private_but_for_the_operators_networks(case: str) -> None:
    network = one(case, "AWS::EKS::Cluster")["ResourcesVpcConfig"]
    assert network["EndpointPrivateAccess"] is True
    assert network["EndpointPublicAccess"] is bool(CASES[case].api_cidrs)
    assert list(CASES[case].api_cidrs) == network.get("PublicAccessCidrs", [])
    assert "0.0.0.0/0" not in network.get("PublicAccessCidrs", [])
    assert 2 == len(network["SubnetIds"])


def test_who_may_reach_the_api() -> None:
    """Where the operator comes from, and who may reach services; with SSM and none of these nobody outside of the VPC."""
    assert ("203.0.113.7/32", "198.51.100.0/24") == CASES["open"].api_cidrs
    assert () == CASES["ssm"].api_cidrs


@walked("case", CASES)
def test_one_named_operator_and_no_hidden_one(case: str) -> None:
    """Whoever typed the create is in the template by name; EKS gives nobody rights behind it."""
    plane, entry = one(case, "AWS::EKS::Cluster"), one(case, "AWS::EKS::AccessEntry")
    assert {"AuthenticationMode": "API", "BootstrapClusterCreatorAdminPermissions": False} == plane["AccessConfig"]
    assert OPERATOR == entry["PrincipalArn"]


@walked("case", CASES)
def test_nodes_are_closed_encrypted_and_together(case: str) -> None:
    """As on the bare cluster: IMDSv2 in one hop, so that no pod has the node's rights; one zone, one placement group."""
    t, d = rendered(case), CASES[case]
    data, group = one(case, "AWS::EC2::LaunchTemplate")["LaunchTemplateData"], one(case, "AWS::EKS::Nodegroup")
    assert {"HttpTokens": "required", "HttpPutResponseHopLimit": 1, "HttpEndpoint": "enabled"} == data[
        "MetadataOptions"
    ]
    assert all(("gp3", True) == (m["Ebs"]["VolumeType"], m["Ebs"]["Encrypted"]) for m in data["BlockDeviceMappings"])
    assert 1 == len(group["Subnets"])
    assert ("Placement" in data) is d.file.nodes.uses_placement_group is bool(of_kind(t, "AWS::EC2::PlacementGroup"))
    assert {"MinSize": 0, "DesiredSize": d.nodes, "MaxSize": d.nodes} == group["ScalingConfig"]
    assert not any(i.get("AssociatePublicIpAddress") for i in data["NetworkInterfaces"])
    assert not {"ImageId", "IamInstanceProfile", "KeyName"} & data.keys(), "only EKS may say these"
    assert not any("SubnetId" in i for i in data["NetworkInterfaces"])


@walked("case", CASES)
def test_network_policies_are_obeyed(case: str) -> None:
    """The VPC CNI enforces them when it is told to: else what closes pods and pages is a document that nobody reads."""
    (network,) = (p for p in of_kind(rendered(case), "AWS::EKS::Addon").values() if p["AddonName"] == "vpc-cni")
    assert {"enableNetworkPolicy": "true"} == json.loads(network["ConfigurationValues"])


@walked("case", CASES)
def test_rights_come_by_pod_identity_and_no_node_has_them(case: str) -> None:
    """A pod has what its service account has. No statement of ours names a whole service."""
    t = rendered(case)
    node = t["Resources"]["NodeRole"]["Properties"]
    managed = [m["Fn::Sub"].rsplit("/", 1)[1] for m in node["ManagedPolicyArns"]]
    assert ["AmazonEKSWorkerNodePolicy", "AmazonEC2ContainerRegistryPullOnly"] == managed
    assert "Policies" not in node
    roles = of_kind(t, "AWS::IAM::Role")
    for name, role in roles.items():
        (trust,) = role["AssumeRolePolicyDocument"]["Statement"]
        is_pod = trust["Principal"]["Service"] == "pods.eks.amazonaws.com"
        assert is_pod is ("sts:TagSession" in trust["Action"]), name
        for policy in role.get("Policies", []):
            for statement in policy["PolicyDocument"]["Statement"]:
                actions = statement["Action"]
                assert "*" not in json.dumps(actions)
                assert statement["Resource"] != "*"
    jobs = of_kind(t, "AWS::EKS::PodIdentityAssociation")
    file = CASES[case].file
    assert bool(file.storage.s3 or file.results or file.notify) is bool(jobs)
    for association in jobs.values():
        assert (file.eks.namespace, SERVICE_ACCOUNT) == (association["Namespace"], association["ServiceAccount"])


@walked("case", CASES)
def test_storage_is_reached_by_the_nodes_group_alone_and_stays(case: str) -> None:
    t = rendered(case)
    rules = [r for r in of_kind(t, "AWS::EC2::SecurityGroupIngress").values() if r["IpProtocol"] == "tcp"]
    assert rules
    assert all("CidrIp" not in r and "SourceSecurityGroupId" in r for r in rules)
    assert not any(g.get("SecurityGroupIngress") for g in of_kind(t, "AWS::EC2::SecurityGroup").values())
    systems = [r for r in t["Resources"].values() if r["Type"] == "AWS::EFS::FileSystem"]
    assert bool(systems) is not CASES[case].file.storage.efs.startswith("fs-")
    assert all("RetainExceptOnCreate" == r["DeletionPolicy"] for r in systems)


@walked("case", CASES)
def test_all_that_can_carry_our_tag_does(case: str) -> None:
    """So that what is left over is found: `inv stack.orphans`."""
    bare = ("Attachment", "Route", "Association", "Ingress", "Egress", "VPCEndpoint", "MountTarget", "DataRepository")
    for name, r in rendered(case)["Resources"].items():
        if not any(word in r["Type"] for word in bare) or r["Type"].startswith("AWS::EKS"):
            assert f'"{CASES[case].file.name}"' in json.dumps(r["Properties"]), name


@pytest.mark.parametrize(
    ("whole", "public", "private", "free"),
    [
        ("10.20.0.0/16", "10.20.0.0/24", "10.20.64.0/18", "10.20.1.0/28"),
        ("10.0.0.0/24", "10.0.0.128/25", "10.0.0.0/26", "10.0.0.64/28"),
        ("10.0.0.0/24", "10.0.0.0/25", "10.0.0.128/25", ""),
        ("10.0.0.0/26", "10.0.0.32/28", "10.0.0.0/28", "10.0.0.16/28"),
    ],
)
def test_a_free_part_of_the_network_is_found(whole: str, public: str, private: str, free: str) -> None:
    """16 addresses that overlap with neither subnet, or a sentence."""
    file = with_(design(workers=1).file, network=Network(cidr=whole, public_cidr=public, private_cidr=private))
    if free:
        assert free == control_cidr(file)
    else:
        with pytest.raises(FieldError, match=r"network\.cidr: 10\.0\.0\.0/24 has no /28 left beside its two subnets"):
            control_cidr(file)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"name": "a" * 38}, "name: 'aaa"),
        (
            {"network": Network(vpc="vpc-0123456789abcdef0", private_subnet="subnet-0123456789abcdef1")},
            "network.private_subnet: names one subnet, and EKS needs two, in different zones; write a list",
        ),
    ],
)
def test_what_eks_cannot_have_is_refused(changed: dict[str, Any], said: str) -> None:
    d = VARIANTS["ssm"]
    with pytest.raises(FieldError) as error:
        file_for_eks(with_(d.file, **changed))
    assert said in str(error.value)
