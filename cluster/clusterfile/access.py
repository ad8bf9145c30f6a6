"""[access] of a cluster file."""

from dataclasses import dataclass

from cluster.clusterfile.checks import FieldError, match, match_if_set, network_of

MODES = ("ssh", "ssm", "eic")  # the last two: no port is open, the AWS CLI connects to the master


def check_mode(mode: str, port: int = 22) -> None:
    """Raise FieldError for an access mode that does not exist, or that cannot reach sshd at this port."""
    if mode not in MODES:
        raise FieldError("access.mode", f"{mode!r} is unknown", "choose 'ssh', 'ssm' or 'eic'")
    if mode == "eic" and port != 22:
        raise FieldError("ssh.port", f"is {port}, and an Instance Connect Endpoint leads to port 22", "use mode 'ssm'")


@dataclass(frozen=True, kw_only=True)
class Access:
    """Access to the nodes."""

    mode: str = "ssh"
    """'ssh': the master has a public address and port 22 open to ssh_from. 'ssm': no public node, no open port; tasks
    reach the master through Session Manager. 'eic': so too, through an EC2 Instance Connect Endpoint; no key needed."""
    ssh_from: str = ""
    """The only addresses that may reach the master's port 22, as '203.0.113.7/32'. Never the whole internet."""
    allow_wide: bool = False
    """Confirms an ssh_from that is wider than /16 (65,536 addresses); one wider than /8 is never taken."""
    key_pair: str = ""
    """Name of an EC2 key pair. Empty: come in with the public key below, or with EC2 Instance Connect."""
    public_key: str = ""
    """A public key ('ssh-ed25519 AAAA...') that every node lets in, as a line of ~/.ssh/*.pub. Without it and
    without a key pair only `inv ssh` gets in, and the tasks of every day only on the master."""
    protect: bool = True
    """Termination protection: `stack.delete` still works after its question, the console's button does not."""
    permissions_boundary: str = ""
    """ARN of the IAM policy that no role of this cluster may exceed, as 'arn:aws:iam::111122223333:policy/Bound'. With
    it `stack.policy` lets its holder make only bounded roles; without it that policy amounts to administration."""
    rank_credentials: bool = False
    """Lets every user and rank of a node take its role's credentials (S3, results, what ends instances) from the
    metadata service. By default root alone can, whom our tasks ask by `sudo`, so that ranks get nothing."""
    role_path: str = "/"
    """IAM path of the cluster's roles, as '/dlami/': by it the account's own rules can tell them from others."""

    def __post_init__(self) -> None:
        check_mode(self.mode)
        match_if_set(
            "access.permissions_boundary",
            self.permissions_boundary,
            r"arn:aws[a-z-]*:iam::(\d{12}|aws):policy/[\w+=,.@/-]{1,640}",
            "give the ARN of an IAM policy, as 'arn:aws:iam::111122223333:policy/Bound'",
        )
        path = r"/|/[\w+=,.@/-]{1,500}/"
        match("access.role_path", self.role_path, path, "write it like '/dlami/', or '/' for none")
        if self.mode != "ssh" and self.ssh_from:
            raise FieldError(
                "access.ssh_from", f"is given although access.mode is {self.mode!r}", "remove it, or use mode 'ssh'"
            )
        if self.ssh_from:
            self._check_source()
        if len(self.key_pair) > 255:
            raise FieldError("access.key_pair", "is longer than 255 characters", "give the name of the key pair")
        match_if_set(
            "access.public_key",
            self.public_key,
            r"(ssh-ed25519|ssh-rsa|ecdsa-sha2-nistp\d+|sk-\S+@openssh\.com) [A-Za-z0-9+/]{40,2000}=*( [\w@.+-]*)?",
            "copy the line of a file like ~/.ssh/id_ed25519.pub",
        )

    def check_stack(self) -> None:
        """Raise FieldError if a stack with this access would have no way in."""
        if self.mode == "ssh" and not self.ssh_from:
            raise FieldError(
                "access.ssh_from",
                "is empty",
                "give the network you come from, as '203.0.113.7/32', or use mode 'ssm'",
            )

    def _check_source(self) -> None:
        if ":" in self.ssh_from:
            raise FieldError(
                "access.ssh_from",
                f"{self.ssh_from!r} is IPv6, the network of the stack is IPv4",
                "give an IPv4 network",
            )
        network = network_of("access.ssh_from", self.ssh_from)
        if 8 <= network.prefixlen < 16 and not self.allow_wide:
            raise FieldError(
                "access.ssh_from",
                f"{self.ssh_from!r} lets {network.num_addresses} addresses in",
                "narrow it to /16 or less, or confirm it with access.allow_wide = true",
            )
        if network.prefixlen < 8:
            raise FieldError(
                "access.ssh_from",
                f"{self.ssh_from!r} opens the master to the internet",
                "give the network you come from, as '203.0.113.7/32', or use mode 'ssm'",
            )
