"""Parser that finds the Python program a command line starts, behind `env` and behind known launchers."""

import os
import re
from collections.abc import Sequence

_PYTHON = re.compile(r"python(\d+(\.\d+)?)?")
_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")
# Per launcher: options with a value, and options without; from the argparse code in its source.
_OPTIONS = {
    "torchrun": (
        r"-[rt]|--(nnodes|nproc_per_node|rdzv_\w+|max_restarts|monitor_interval|start_method|role|log_dir|redirects|tee"
        r"|node_rank|master_addr|master_port|local_addr|local_ranks_filter|logs_specs)",
        r"-[rt].+|--standalone",
    ),
    "accelerate": (
        r"-t|--(config_file|mixed_precision|dynamo_(backend|mode)|(num|main|fsdp|megatron_lm|deepspeed|offload|rdzv)_\w+"
        r"|gpu_ids|machine_rank|tee|log_dir|role|max_restarts|monitor_interval|zero_stage|zero3_\w+|gradient_\w+)",
        r"-q|--(quiet|cpu|multi_gpu|use_\w+|enable_cpu_affinity|dynamo_use_\w+|same_network|debug)",
    ),
    "deepspeed": (
        r"-[Hie]|--(hostfile|include|exclude|num_nodes|(min|max)_elastic_nodes|num_gpus|num_accelerators|master_port"
        r"|master_addr|launcher|launcher_args|enable_each_rank_log|bind_core_list|ssh_port)",
        r"--(no_local_rank|no_ssh_check|force_multi|save_pid|elastic_training|bind_cores_to_rank)",
    ),
}
LAUNCHERS = {  # module -> launcher
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate",
    "deepspeed.launcher.runner": "deepspeed",
}
# A launcher starts its program with the interpreter in its own shebang line.
_OF_LAUNCHER = 'read -r line <"$(command -v "$0")" && case $line in "#!"*python*) exec ${line#??} "$@" ;; esac'

Started = tuple[list[str], dict[str, str]]


def what_runs(words: Sequence[str]) -> Started | None:
    """Return the interpreter's words with its options, and the script, module or code that it runs.

    If a launcher itself is run by `-m`, the answer names it, too. None if this is no Python program or unknown.
    """
    name = os.path.basename(words[0]) if words else ""  # noqa: PTH119 - it may be just a name
    if _PYTHON.fullmatch(name):
        return _behind_python(words)
    if name == "env":
        return _behind_env(words)
    if name in _OPTIONS and (name != "accelerate" or list(words[1:2]) == ["launch"]):
        program = _behind_launcher(name, words[2 if name == "accelerate" else 1 :])
        return (["sh", "-c", _OF_LAUNCHER, words[0]], program) if program else None
    return None


def _behind_python(words: Sequence[str]) -> Started | None:
    at = 1
    while at < len(words):
        word = words[at]
        if word in ("-m", "-c"):
            if at + 1 == len(words):
                return None
            what = words[at + 1]
            launched = (
                _behind_launcher(LAUNCHERS[what], words[at + 2 :]) if word == "-m" and what in LAUNCHERS else None
            )
            program = {"module" if word == "-m" else "code": what}
            return list(words[:at]), {**launched, "launcher": what} if launched else program
        if word in _WITH_VALUE:
            at += 2
        elif word == "-":
            return None
        elif word.startswith("-"):
            if not word.startswith("--") and word[-1] in "mc":  # -um MODULE
                return what_runs([*words[:at], word[:-1], f"-{word[-1]}", *words[at + 1 :]])
            at += 1
        else:
            return list(words[:at]), {"script": word}
    return None


def _behind_env(words: Sequence[str]) -> Started | None:
    at = 1
    while at < len(words) and (words[at].startswith("-") or "=" in words[at]):
        if words[at] in ("-u", "--unset"):
            at += 2
        elif not words[at].startswith("-") or re.fullmatch(r"-i?|--ignore-environment|-u.+|--unset=.+", words[at]):
            at += 1
        else:
            return None
    found = what_runs(words[at:])
    return ([*words[:at], *found[0]], found[1]) if found else None


def _behind_launcher(name: str, words: Sequence[str]) -> dict[str, str] | None:
    """Return the script or module among the launcher's words; None at the first unknown option."""
    with_value, alone = _OPTIONS[name]
    kind, at = "script", 0
    while at < len(words):
        word = words[at]
        if not word.startswith("-"):
            return {kind: word}
        option, equals, _ = word.partition("=")
        option = option[:2] + option[2:].replace("-", "_")
        if option in ("-m", "--module") and not equals:
            kind = "module"
        elif not equals and re.fullmatch(with_value, option):
            at += 1
        elif not re.fullmatch(f"{with_value}|{alone}", option):
            return None
        at += 1
    return None
