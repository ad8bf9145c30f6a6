"""The roles of an EKS cluster: its control plane, its nodes, its add-ons, and the pods of trainings by Pod Identity."""

from typing import Any

from troposphere import Sub, Template, eks, iam

from cfn.eks.design import REGION, EksDesign
from cfn.template.network import tags
from cfn.template.role import Statement, bounds, of_jobs

POD = "pods.eks.amazonaws.com"


def add_role(
    t: Template,
    design: EksDesign,
    title: str,
    service: str,
    managed: tuple[str, ...] = (),
    statements: list[Statement] | None = None,
) -> iam.Role:
    """A role that one service may take, with AWS's own policies by name, or statements of ours."""
    actions = ["sts:AssumeRole", "sts:TagSession"] if service == POD else ["sts:AssumeRole"]
    rights: dict[str, Any] = {}
    if managed:
        rights["ManagedPolicyArns"] = [Sub("arn:${AWS::Partition}:iam::aws:policy/" + name) for name in managed]
    if statements:
        policy = {"Version": "2012-10-17", "Statement": statements}
        rights["Policies"] = [iam.Policy(PolicyName="jobs", PolicyDocument=policy)]
    return t.add_resource(
        iam.Role(
            title,
            AssumeRolePolicyDocument={
                "Version": "2012-10-17",
                "Statement": [{"Effect": "Allow", "Principal": {"Service": service}, "Action": actions}],
            },
            Tags=tags(design, title.removesuffix("Role").lower(), **{REGION: design.file.region}),
            **bounds(design.file),
            **rights,
        )
    )


def add_jobs_role(t: Template, design: EksDesign, cluster: Any, namespace: str, account: str) -> None:
    """What the pods of trainings may do in AWS, if the cluster file gives them anything: by Pod Identity, no keys."""
    statements = of_jobs(design)
    if not statements:
        return
    role = add_role(t, design, "JobsRole", POD, statements=statements)
    t.add_resource(
        eks.PodIdentityAssociation(
            "JobsIdentity",
            ClusterName=cluster,
            Namespace=namespace,
            ServiceAccount=account,
            RoleArn=role.get_att("Arn"),
            Tags=tags(design, "jobs"),
            DependsOn="PodIdentityAddon",
        )
    )
