"""Setup of a PyTorch rank: its threads, its device, and the process group with the other ranks."""

import contextlib
import fcntl
import os
import re
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import distributed

from trainer.common.files.errors import CommonError, TrainerError
from trainer.common.files.plural import counted
from trainer.common.ranks.horovod_rank import Ranks, own_gpu, owned_cores
from trainer.resnet50_torch.config import TorchResNetConfig
from trainer.resnet50_torch.dist_env import DistEnv

GLOO, NCCL = "gloo", "nccl"
_CARD = "GLOO_SOCKET_IFNAME"
_ADDRESS_OF_CARD = 0x8915  # SIOCGIFADDR
_IS_TAKEN = re.compile("address already in use", re.I)
_OF_AN_EXCHANGE = re.compile(r"gloo|nccl|connection (closed|reset)|broken pipe|store", re.I)


@dataclass(frozen=True)
class ProcessGroup:
    """Rank of this process, with its device and its process group."""

    ranks: Ranks
    device: torch.device
    group: Any = None  # process group that reduces on the device; None for a single rank
    backend: str = ""  # of the group

    def gather(self, data: bytes) -> list[bytes]:
        """Gather every rank's bytes, in the order of the ranks."""
        everyone: list[Any] = [data] * self.ranks.size
        if self.ranks.size > 1:
            distributed.all_gather_object(everyone, data)
        return everyone


def start_ranks(config: TorchResNetConfig) -> ProcessGroup:
    """Join the other ranks and set up PyTorch.

    Raises:
        CommonError: this machine cannot compute in the given precision, or the address of rank 0 is not set.
    """
    place = DistEnv.of()
    owned = config.threads or owned_cores(len(os.sched_getaffinity(0)), os.cpu_count() or 1, place.local_size)
    torch.set_num_threads(owned)
    gpu = own_gpu(torch.cuda.device_count(), place.local_rank)
    if gpu is None and config.precision == "float16":
        raise CommonError("--precision float16 wants GPUs, and PyTorch finds none: give bfloat16 or float32")
    device = torch.device("cpu" if gpu is None else f"cuda:{gpu}")
    if gpu is not None:
        torch.cuda.set_device(device)
        torch.backends.cudnn.benchmark = not config.deterministic
    if config.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    ranks = Ranks(place.rank, place.size, place.local_rank, place.local_size, owned, gpu)
    if place.size == 1:
        return ProcessGroup(ranks, device)
    _meet(place)
    backend = common_backend(place, identity(gpu))
    group = distributed.group.WORLD if backend == GLOO else distributed.new_group(backend=backend)
    return ProcessGroup(ranks, device, group, backend)


def _meet(place: DistEnv) -> None:
    """Create the gloo process group, through which ranks exchange everything except gradients on GPUs."""
    if not (os.environ.get("MASTER_ADDR") and os.environ.get("MASTER_PORT")):
        raise CommonError(
            f"{counted(place.size, 'rank')}, but MASTER_ADDR and MASTER_PORT do not say where the first one "
            "listens: start it as "
            "a job (inv train.resnet50-torch), by torchrun, or with mpirun -x MASTER_ADDR=… -x MASTER_PORT=…"
        )
    if card := card_towards(os.environ["MASTER_ADDR"]):
        os.environ.setdefault(_CARD, card)  # otherwise gloo uses the address that the host's name resolves to
    try:
        distributed.init_process_group(GLOO, init_method="env://", rank=place.rank, world_size=place.size)
    except (RuntimeError, ValueError) as e:
        raise _no_meeting(e) from e


def identity(gpu: int | None) -> str | None:
    """Return an identifier that no other GPU has; None without a GPU.

    The index is not enough: ranks that see only their own GPU, as by CUDA_VISIBLE_DEVICES, all call it 0.
    """
    if gpu is None:
        return None
    unique = getattr(torch.cuda.get_device_properties(gpu), "uuid", None)  # since PyTorch 2.4
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    return str(unique or f"{socket.gethostname()} {visible[gpu] if gpu < len(visible) and visible[gpu] else gpu}")


def common_backend(place: DistEnv, gpu: str | None) -> str:
    """Return the backend that reduces all ranks' gradients: NCCL if each rank has its own GPU, else gloo.

    Args:
        gpu: its `identity`.
    """
    everyone: list[Any] = [None] * place.size
    distributed.all_gather_object(everyone, gpu)
    return NCCL if None not in everyone and len(set(everyone)) == place.size else GLOO


def _no_meeting(trouble: Exception) -> TrainerError:
    """Return a one-line error for PyTorch's failure to connect the ranks at the given address and port."""
    where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']} (MASTER_ADDR, MASTER_PORT)"
    if _IS_TAKEN.search(str(trouble)):
        return TrainerError(
            f"another program on {socket.gethostname()} has taken {where}, where the ranks were to meet: start "
            "again; a job takes another port each time, mpirun and torchrun the one that they are given"
        )
    return TrainerError(f"the ranks cannot meet at {where}: {str(trouble).splitlines()[0]}")


def card_towards(address: str) -> str:
    """Return the network device by which this host reaches an address; "" if it is unknown."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((address, 1))  # sends nothing
        own = socket.inet_aton(probe.getsockname()[0])
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                if fcntl.ioctl(probe, _ADDRESS_OF_CARD, struct.pack("256s", name.encode()))[20:24] == own:
                    return name
    return ""


def leave_ranks(world: ProcessGroup) -> None:
    """Leave the process group once all ranks are done. Rank 0 hosts its store, and must not exit before the others."""
    if world.ranks.size > 1:
        distributed.barrier()
        distributed.destroy_process_group()


@contextlib.contextmanager
def lost_ranks_named() -> Iterator[None]:
    """Raise a one-sentence TrainerError in place of PyTorch's error if another rank never joined an exchange."""
    try:
        yield
    except RuntimeError as e:
        if not _OF_AN_EXCHANGE.search(str(e)):
            raise
        raise TrainerError("another rank ended, so the exchange with it failed; its own message says why") from e
