"""[storage] of a cluster file."""

from dataclasses import dataclass

from cluster.clusterfile.checks import FILE_SYSTEM, FieldError, check_folder, match_if_set

FSX_THROUGHPUTS = (125, 250, 500, 1000)  # MB/s per TiB that PERSISTENT_2 on SSD offers


@dataclass(frozen=True, kw_only=True)
class Storage:
    """Storage that outlives a node."""

    efs: str = ""
    """An existing EFS file system. Empty: one is made, encrypted and backed up, and kept when the stack is deleted."""
    tls: bool = True
    """Mount EFS through TLS; the file system that the stack makes takes nothing else then. The cluster's keys are
    on it."""
    fsx_gib: int = 0
    """Size of an FSx for Lustre file system: 1200, or a multiple of 2400. 0: none."""
    fsx_mount: str = "/fsx"
    """Its path on the nodes."""
    fsx_throughput: int = 125
    """MB/s per TiB: 125, 250, 500 or 1000."""
    fsx_s3: str = ""
    """s3://bucket/prefix whose objects FSx shows and new files go back to. Deleting a file never deletes its object."""
    s3: str = ""
    """s3://bucket/prefix of an existing bucket that the nodes may read and write, and nothing else of S3."""

    def __post_init__(self) -> None:
        match_if_set("storage.efs", self.efs, FILE_SYSTEM, "write an id like 'fs-0123456789abcdef0'")
        if self.fsx_gib not in (0, 1200) and (self.fsx_gib % 2400 or not 0 < self.fsx_gib <= 2_400_000):
            raise FieldError(
                "storage.fsx_gib",
                f"{self.fsx_gib} is not a size FSx offers",
                "use 1200 or a multiple of 2400; 0 for none",
            )
        if self.fsx_throughput not in FSX_THROUGHPUTS:
            raise FieldError(
                "storage.fsx_throughput", f"{self.fsx_throughput} is not offered", f"choose one of {FSX_THROUGHPUTS}"
            )
        if self.fsx_s3 and not self.fsx_gib:
            raise FieldError("storage.fsx_s3", "is given although there is no FSx", "set storage.fsx_gib, or remove it")
        check_folder("storage.fsx_mount", self.fsx_mount, "/fsx")
        for name in ("fsx_s3", "s3"):
            match_if_set(
                f"storage.{name}",
                getattr(self, name),
                r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]/[\w!'()./-]*[\w]",
                "write it like 's3://bucket/prefix': a whole bucket is never granted",
            )
