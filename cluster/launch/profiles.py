"""Launch profiles: flags and variables of mpirun, NCCL and Horovod per kind of network, each with its reason."""

from dataclasses import dataclass
from typing import Literal

from cluster.errors import ConfigError

Kind = Literal["mca", "env", "flag"]


@dataclass(frozen=True)
class Setting:
    """Flag or variable of a launch, with its reason.

    Placeholders in a value: `{interfaces}` becomes the network devices or networks of the hosts with ranks. `{daemons}`
    includes those of the master, which starts the ranks and may hold none. `{names}` stands for device names alone.
    """

    kind: Kind  # an Open MPI parameter, a variable exported to every rank, or a plain mpirun flag
    name: str
    value: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Profile:
    """All settings of a launch on one kind of network."""

    name: str
    about: str
    settings: tuple[Setting, ...]


# fmt: off
_EVERYWHERE = (
    Setting("flag", "--map-by", "slot", "ranks fill a host before the next: neighbours in rank share memory and NVLink"),
    Setting("flag", "--bind-to", "none", "TensorFlow's threads need all cores of the host, not the one of a core binding"),
    Setting("mca", "plm_rsh_no_tree_spawn", "1", "the master reaches every host itself: workers need no way to each other"),
    Setting("mca", "plm_rsh_args", "-o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=5 -o ServerAliveCountMax=3",
            "never wait for a prompt, and not for a dead host's connection"),
    Setting("mca", "pml", "ob1", "the plain message layer; Horovod's control traffic needs no more"),
    Setting("mca", "btl", "tcp,self,vader", "sockets between hosts, shared memory within; no probing for InfiniBand (^openib)"),
    Setting("mca", "btl_vader_single_copy_mechanism", "none",
            "containers and namespaces forbid cross-memory attach: each rank would print an error (read -1)"),
    Setting("mca", "btl_tcp_flags", "send",
            "both ways at once: a large message as one put holds up the go-ahead for its opposite, and a ring's ranks send in turn"),
    Setting("mca", "btl_tcp_if_include", "{interfaces}", "only the network the hostfile's addresses are on; docker0 never"),
    Setting("mca", "oob_tcp_if_include", "{daemons}", "the same for mpirun's own connections, which begin on the master"),
    Setting("mca", "oob_tcp_keepalive_time", "5", "an idle connection to a dead host ends in 5 + 3 x 3 s; on a busy one the job's supervisor notices (jobs.md)"),
    Setting("mca", "oob_tcp_keepalive_intvl", "3", "with the line above"),
    Setting("mca", "oob_tcp_keepalive_probes", "3", "with the lines above"),
    Setting("mca", "orte_abort_on_non_zero_status", "1", "a rank that fails ends the attempt on all hosts"),
    Setting("env", "TF_CPP_MIN_LOG_LEVEL", "2", "TensorFlow's notices once per rank bury the table; warnings stay"),
    Setting("env", "TF_USE_LEGACY_KERAS", "1", "Horovod 0.28 does not reduce under Keras 3, and says nothing"),
    Setting("env", "HOROVOD_STALL_CHECK_TIME_SECONDS", "60", "a line in the console where ranks do not join a reduction; of a frozen rank it says nothing, so it is the supervisor that finds hangs (jobs.md)"),
)

_GPU = (
    Setting("env", "NCCL_SOCKET_IFNAME", "{names}", "NCCL would take the first card it finds, docker0 included"),
    Setting("env", "NCCL_DEBUG", "WARN", "NCCL says what failed; INFO prints hundreds of lines per rank"),
    Setting("env", "HOROVOD_FUSION_THRESHOLD", str(64 << 20), "64 MiB buffers: ResNet-50's gradients in two reductions"),
    Setting("env", "HOROVOD_CYCLE_TIME", "0.5", "ms between looks for gradients that are ready; the reference's value"),
    Setting("env", "TF_GPU_THREAD_MODE", "gpu_private", "kernel launches do not wait behind input threads"),
    Setting("env", "TF_GPU_THREAD_COUNT", "2", "the reference's value with it"),
    Setting("env", "TF_GPU_ALLOCATOR", "cuda_malloc_async", "less fragmentation with changing shapes (Mask R-CNN)"),
)

TCP = Profile(name="tcp", about="no GPU, or any plain network", settings=(
    *_EVERYWHERE,
    Setting("env", "HOROVOD_FUSION_THRESHOLD", str(64 << 20), "64 MiB buffers: few, large reductions suit sockets"),
    Setting("env", "HOROVOD_CYCLE_TIME", "5", "ms; each look takes a core from the ranks when there is no GPU to compute"),
))

ENA = Profile(name="ena", about="GPUs, instances without EFA", settings=(
    *_EVERYWHERE, *_GPU,
    Setting("env", "NCCL_SOCKET_NTHREADS", "4", "one flow of ENA carries 5 to 10 Gbit/s; several fill the card"),
    Setting("env", "NCCL_NSOCKS_PERTHREAD", "4", "with the threads above: 16 flows per peer"),
))

EFA = Profile(name="efa", about="GPUs, instances with EFA and the aws-ofi-nccl plug-in", settings=(
    *_EVERYWHERE, *_GPU,
    Setting("env", "FI_PROVIDER", "efa", "libfabric takes EFA or fails, never sockets in silence"),
    Setting("env", "NCCL_NET", "AWS Libfabric", "a missing plug-in is an error rather than a run at a tenth of the speed; newer plug-ins call themselves Libfabric and answer to this name"),
    Setting("env", "FI_EFA_FORK_SAFE", "1", "input workers may fork after the card is open"),
    Setting("env", "LD_LIBRARY_PATH", "/opt/amazon/ofi-nccl/lib:/opt/amazon/ofi-nccl/lib/x86_64-linux-gnu:/opt/amazon/openmpi/lib:/opt/amazon/efa/lib",
            "where the AMI has the plug-in, the Open MPI that starts the ranks, and libfabric; its CUDA stays out, TensorFlow brings its own"),
))

PROFILES = {p.name: p for p in (TCP, ENA, EFA)}

NOT_SET = (
    Setting("mca", "btl_tcp_if_exclude", "lo,docker0", "replaced by the include list, which knows the cards by detection"),
    Setting("env", "NCCL_MIN_NRINGS", "4, 8 or 13", "gone from NCCL since 2.4; it counts channels from the topology"),
    Setting("env", "NCCL_TREE_THRESHOLD", "4294967296", "gone from NCCL since 2.5; NCCL_ALGO forces trees where wanted"),
    Setting("env", "HOROVOD_HIERARCHICAL_ALLREDUCE", "1", "NCCL 2.4 and later build the hierarchy themselves"),
    Setting("env", "HOROVOD_AUTOTUNE", "1", "changes fusion in mid-run, so no two runs are alike; set it with --env to try"),
    Setting("env", "FI_OFI_RXR_RX_COPY_UNEXP", "1", "of libfabric before 1.20; today's provider ignores it"),
    Setting("env", "FI_OFI_RXR_RX_COPY_OOO", "1", "the same"),
    Setting("env", "FI_OFI_RXR_INLINE_MR_ENABLE", "1", "the same"),
    Setting("env", "FI_EFA_MR_CACHE_ENABLE", "1", "the default since libfabric 1.10"),
    Setting("env", "TF_ENABLE_NHWC", "1", "of a patched TensorFlow 1.15; the trainers choose the layout"),
    Setting("env", "TF_CUDNN_USE_AUTOTUNE", "0", "shapes are padded to a few, so autotuning pays"),
    Setting("env", "TF_AUTOTUNE_THRESHOLD", "1", "a TensorFlow 1 switch"),
    Setting("env", "TENSORPACK_FP16", "1", "of a patched tensorpack; the trainers have --precision and TRAIN.PRECISION"),
    Setting("env", "TF_ENABLE_AUTO_MIXED_PRECISION", "0", "the default; precision is the trainer's --precision"),
    Setting("env", "TF_DEVICE_MIN_SYS_MEMORY_IN_MB", "4096", "a workaround for cuDNN 8 out-of-memory on 16 GB cards"),
    Setting("flag", "--bind-to", "socket", "halves the cores of a rank on hosts of one socket; --bind-to none above"),
    Setting("flag", "--display-map", "", "the map is in the job's record: hostfile, ranks and slots"),
    Setting("flag", "--timestamp-output", "", "mpirun stamps each piece it reads, which cuts lines; metrics carry times"),
)
# fmt: on


def profile_for(gpus: int, has_efa: bool, wanted: str | None = None) -> Profile:
    """Return the profile by name, or else the one that fits hosts with this many GPUs, with or without EFA."""
    if wanted is None:
        return EFA if gpus and has_efa else ENA if gpus else TCP
    if wanted not in PROFILES:
        raise ConfigError(f"there is no launch profile {wanted!r}: take one of {', '.join(PROFILES)}")
    return PROFILES[wanted]
