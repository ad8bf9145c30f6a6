"""Compute and network rates of a host: its GPUs by NVIDIA's data sheets, its network cards by EC2's table."""

from dataclasses import dataclass

from cluster.clusterfile.instance_types import hardware_of, known_types
from cluster.errors import ConfigError

PRECISIONS = ("float32", "tf32", "float16", "bfloat16")


@dataclass(frozen=True)
class GpuRates:
    """Rates of a GPU by its data sheet, without sparsity."""

    float32: float
    """TFLOP/s."""
    tf32: float
    """TFLOP/s of float32 on TF32 tensor cores; as `float32` if there are none."""
    float16: float
    """TFLOP/s with float32 sums."""
    memory: float
    """GB/s."""
    bus: float
    """GB/s between GPUs of a host, each way: NVLink, or PCIe where there is none."""

    def peak(self, precision: str) -> float:
        """Return the peak FLOP/s of a precision."""
        return 1e12 * {"float32": self.float32, "tf32": self.tf32}.get(precision, self.float16)


PCIE3, PCIE4, PCIE5 = 12.0, 24.0, 48.0  # GB/s of a x16 slot in practice
GPUS = {
    "P100": GpuRates(10.6, 10.6, 21.2, 732, PCIE3),
    "V100": GpuRates(15.7, 15.7, 125, 900, 150),
    "T4": GpuRates(8.1, 8.1, 65, 320, PCIE3),
    "T4g": GpuRates(8.1, 8.1, 65, 320, PCIE3),
    "A10G": GpuRates(31.5, 35, 70, 600, PCIE4),
    "L4": GpuRates(30.3, 60, 121, 300, PCIE4),
    "L40S": GpuRates(91.6, 183, 362, 864, PCIE4),
    "A100": GpuRates(19.5, 156, 312, 1555, 300),
    "H100": GpuRates(67, 494, 989, 3350, 450),
    "H200": GpuRates(67, 494, 989, 4800, 450),
    "B200": GpuRates(75, 1125, 2250, 8000, 900),
    "B300": GpuRates(75, 1125, 2250, 8000, 900),
    "RTX PRO 4500": GpuRates(53, 105, 210, 896, PCIE5),
    "RTX PRO Server 6000": GpuRates(117, 234, 468, 1597, PCIE5),
}


@dataclass(frozen=True, kw_only=True)
class Machine:
    """EC2 instance type with its GPUs, vCPUs and network."""

    name: str
    gpu: str
    gpus: int
    vcpus: int
    gbit: float
    """Gbit/s of its network, all cards together."""
    efa: bool
    """True if the network has EFA, by which NCCL bypasses the kernel."""

    @property
    def card(self) -> GpuRates:
        """Return the rates of its GPUs."""
        return GPUS[self.gpu]


def machine(name: str) -> Machine:
    """Return an EC2 instance type by name. Raises ConfigError if its GPUs are not known."""
    found = hardware_of(name)
    if found is None or found.gpu not in GPUS:
        raise ConfigError(f"nothing is known of the GPUs of {name!r}: name a type like p4d.24xlarge, g5.12xlarge")
    return Machine(
        name=name,
        gpu=found.gpu,
        gpus=found.gpus,
        vcpus=found.vcpus,
        gbit=found.gbit,
        efa=found.efa > 0,
    )


def machines_with(gpu: str) -> list[Machine]:
    """Return all EC2 instance types with GPUs of this name."""
    return [machine(name) for name, instance in known_types().items() if instance.gpu == gpu]
