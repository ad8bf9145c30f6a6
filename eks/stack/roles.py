"""IAM roles of an EKS cluster: control plane, nodes, add-ons, and by Pod Identity the pods of trainings."""

from typing import Any

from troposphere import Sub, Template, eks, iam

from cfn.template.network import tags
from cfn.template.role import Statement, bounds, of_jobs
from eks.stack.design import REGION, EksDesign

POD = "pods.eks.amazonaws.com"


def add_role(
    t: Template,
    design: EksDesign,
    title: str,
    service: str,
    managed: tuple[str, ...] = (),
    statements: list[Statement] | None = None,
) -> iam.Role:
    """Add a role that one service may assume, with AWS's managed policies by name, or with our statements."""
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
    """Add the AWS role of the trainings' pods, if the cluster file gives them any permissions.

    They get it by Pod Identity, without keys.
    """
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
