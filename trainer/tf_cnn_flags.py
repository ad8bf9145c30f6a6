"""Translation of tf_cnn_benchmarks' 137 flags: accepted with their meaning, or refused by name with the alternative."""

from collections.abc import Callable, Sequence

from trainer.common.files.errors import ConfigError

_TRUE, _FALSE = ("true", "t", "1", "yes"), ("false", "f", "0", "no")
SAME = ("data_dir", "display_every", "model", "momentum", "num_batches", "num_warmup_batches", "weight_decay")
SWITCHES = {
    "allow_growth", "batchnorm_persistent", "collect_eval_results_async", "compact_gradient_transfer",
    "compute_lr_on_cpu", "cross_replica_sync", "datasets_repeat_cached_sample", "datasets_sloppy_parallel_interleave",
    "datasets_use_caching", "datasets_use_prefetch", "distort_color_in_yiq", "distortions", "enable_optimizations",
    "eval", "force_gpu_compatible", "forward_only", "fp16_enable_auto_loss_scale", "fp16_vars",
    "freeze_when_forward_only", "fuse_decode_and_crop", "hierarchical_copy", "mkl", "ml_perf",
    "print_training_accuracy", "single_l2_loss_op", "sparse_to_dense_grads", "staged_vars", "sync_on_finish",
    "timestamped_allocator", "use_chrome_trace_format", "use_datasets", "use_fp16", "use_numa_affinity",
    "use_python32_barrier", "use_resource_vars", "use_tf_layers", "use_unified_memory", "winograd_nonfused", "xla",
    "xla_compile",
}  # fmt: skip
# Refused flags by remedy, each with the values that it may have because they change nothing here.
REFUSED: dict[str, dict[str, tuple[str, ...]]] = {
    "gradients are reduced by Horovod: --variable_update=horovod, or leave it out": {
        "variable_update": ("horovod",), "cross_replica_sync": ("true",), "variable_consistency": ("strong",),
        "staged_vars": ("false",), "all_reduce_spec": (), "sparse_to_dense_grads": ("false",),
    },
    "Horovod packs gradients by itself, with --env HOROVOD_FUSION_THRESHOLD=BYTES before the --: leave it out": {
        "gradient_repacking": ("0",), "compact_gradient_transfer": ("true", "false"),
        "agg_small_grads_max_bytes": ("0",), "agg_small_grads_max_group": ("10",), "allreduce_merge_scope": ("1",),
        "hierarchical_copy": ("false",), "network_topology": ("dgx1",),
    },
    "a rank drives one GPU: leave it out; --np N before the -- says how many there are, all slots without it": {
        "num_gpus": ("1",), "gpu_indices": ("", "0"),
    },
    "ranks take a GPU where their host has one, else processors: leave it out": {
        "device": ("gpu",), "local_parameter_device": ("gpu", "cpu"), "horovod_device": ("", "gpu"), "mkl": ("false",),
    },
    "hosts are those of the cluster (--hosts before the --): leave it out": {
        "job_name": ("",), "ps_hosts": ("",), "worker_hosts": ("",), "controller_host": (), "task_index": ("0",),
        "server_protocol": ("grpc",),
    },
    "training is what is measured; accuracy tells 'inv train.resnet50 -- --eval …': leave it out": {
        "eval": ("false",), "eval_interval_secs": ("0",), "eval_during_training_every_n_steps": (),
        "eval_during_training_every_n_epochs": (), "eval_during_training_at_specified_steps": ("",),
        "eval_during_training_at_specified_epochs": ("",), "forward_only": ("false",),
        "freeze_when_forward_only": ("false",), "print_training_accuracy": ("false",), "eval_batch_size": ("0",),
        "num_eval_batches": (), "num_eval_epochs": (), "stop_at_top_1_accuracy": (),
        "collect_eval_results_async": ("false",), "eval_dir": (), "trt_mode": ("",), "trt_max_workspace_size_bytes": (),
    },
    "steps are counted: --num_batches=N": {"num_epochs": ()},
    "nothing is saved; 'inv train.resnet50' saves and draws: leave it out": {
        "train_dir": (), "save_model_secs": ("0",), "save_model_steps": (), "max_ckpts_to_keep": ("5",),
        "summary_verbosity": ("0",), "save_summaries_steps": ("0",), "backbone_model_path": (),
        "benchmark_log_dir": (), "benchmark_test_id": (),
    },
    "the rate is constant, --init_learning_rate=RATE; 'inv train.resnet50' has schedules: leave it out": {
        "piecewise_learning_rate_schedule": (), "num_epochs_per_decay": ("0",), "learning_rate_decay_factor": ("0",),
        "num_learning_rate_warmup_epochs": ("0",), "minimum_learning_rate": ("0",), "resnet_base_lr": (),
        "compute_lr_on_cpu": ("false",),
    },
    "there are sgd and momentum: leave it out": {
        "rmsprop_decay": (), "rmsprop_momentum": (), "rmsprop_epsilon": (), "adam_beta1": (), "adam_beta2": (),
        "adam_epsilon": (), "gradient_clip": (),
    },
    "--use_fp16 computes in float16, keeps variables in float32 and scales the loss by 128: leave it out": {
        "fp16_vars": ("false",), "fp16_loss_scale": ("128", "128.0"), "fp16_enable_auto_loss_scale": ("false",),
        "fp16_inc_loss_scale_every_n": ("1000",),
    },
    "shards are ImageNet's, crops and flips are drawn, colours are left as they are: leave it out": {
        "data_name": ("imagenet",), "distortions": ("false",), "distort_color_in_yiq": ("true", "false"),
        "resize_method": ("bilinear",), "input_preprocessor": ("default",), "batch_group_size": ("1",),
    },
    "XLA is off; --env TF_XLA_FLAGS=--tf_xla_auto_jit=2 before the -- turns it on: leave it out": {
        "xla": ("false",), "xla_compile": ("false",),
    },
    "--env HOROVOD_TIMELINE=FILE before the -- writes a trace: leave it out": {
        "trace_file": ("",), "use_chrome_trace_format": ("true", "false"), "tfprof_file": ("",), "graph_file": (),
        "partitioned_graph_file_prefix": (), "debugger": (),
    },
    "weights, images and what is printed are fixed: leave it out": {
        "tf_random_seed": ("1234",), "ml_perf": ("false",), "display_perf_ewma": (),
        "loss_type_to_report": ("total_loss",),
    },
    "TensorFlow chooses the layout by the device: leave it out": {
        "data_format": ("NCHW", "NHWC"),
    },
    "memory, threads, kernels and input find their own measure here (--threads N): leave it out": {
        "autotune_threshold": (), "use_datasets": ("true",), "gpu_thread_mode": ("gpu_private",),
        "per_gpu_thread_count": ("0",), "datasets_repeat_cached_sample": ("false",), "num_inter_threads": ("0",),
        "use_numa_affinity": ("false",), "gpu_memory_frac_for_testing": ("0",), "use_unified_memory": ("false",),
        "timestamped_allocator": ("false",), "gpu_kt_max_interval": ("0",), "gpu_kt_max_bytes": ("0",),
        "gpu_kt_max_pending": ("0",), "use_tf_layers": ("true",), "use_python32_barrier": ("false",),
        "datasets_use_prefetch": ("true",), "datasets_prefetch_buffer_size": ("1",),
        "datasets_num_private_threads": (), "datasets_use_caching": ("false",),
        "datasets_parallel_interleave_cycle_length": (), "datasets_sloppy_parallel_interleave": ("false",),
        "datasets_parallel_interleave_prefetch": (), "multi_device_iterator_max_buffer_size": ("1",),
        "winograd_nonfused": ("true",), "batchnorm_persistent": ("true",), "sync_on_finish": ("false",),
        "force_gpu_compatible": ("false",), "allow_growth": ("true",), "fuse_decode_and_crop": ("true",),
        "enable_optimizations": ("true",), "rewriter_config": (), "single_l2_loss_op": ("true", "false"),
        "use_resource_vars": ("true", "false"), "kmp_blocktime": ("0",), "kmp_affinity": (), "kmp_settings": ("1",),
    },
}  # fmt: skip


def _optimizer(value: str) -> list[str]:
    if value not in ("sgd", "momentum"):
        raise ConfigError(f"--optimizer={value}: there are sgd and momentum")
    return ["--momentum", "0"] if value == "sgd" else []


# Those with another name or form here: our words for the value that was given.
OTHERWISE: dict[str, Callable[[str], list[str]]] = {
    "use_fp16": lambda value: ["--fp16" if value == "true" else "--no-fp16"],
    "init_learning_rate": lambda value: ["--lr", value],
    "num_intra_threads": lambda value: [] if value == "0" else ["--threads", value],
    "optimizer": _optimizer,
    "batch_size": lambda value: [] if value == "0" else ["--batch-size", value],  # 0: the network's own default
}


def translated(words: Sequence[str]) -> list[str]:
    """Translate a command line of tf_cnn_benchmarks to this program's flags. Unknown flags stay as they are.

    Raises:
        ConfigError: flags request what is not supported here. The message lists them all, each with the alternative.
    """
    ours: list[str] = []
    last: list[str] = []  # flags that override others, wherever they were written
    refused: list[str] = []
    rest = iter(words)
    for word in rest:
        name, equals, value = word.removeprefix("--").partition("=")
        name = name.replace("-", "_")
        is_off = name.removeprefix("no") in SWITCHES and name not in SWITCHES
        if not word.startswith("--") or not (is_known(name) or is_off) or name in SAME:
            ours.append(word)  # the parser accepts its underscores
            continue
        try:
            if is_off:
                name, value = name.removeprefix("no"), "false"
            elif name in SWITCHES:
                value = _switch(name, value) if equals else "true"
            elif not equals:
                value = next(rest, "")
            (last if name == "optimizer" else ours).extend(_ours(name, value))
        except ConfigError as e:
            refused.append(str(e))
    if refused:
        raise ConfigError("; ".join(refused))
    return [*ours, *last]


def is_known(name: str) -> bool:
    """Return True if tf_cnn_benchmarks has a flag of this name."""
    return name in SAME or name in OTHERWISE or any(name in flags for flags in REFUSED.values())


def _ours(name: str, value: str) -> list[str]:
    if name in OTHERWISE:
        return OTHERWISE[name](value)
    what_to_do, taken = next((what, flags[name]) for what, flags in REFUSED.items() if name in flags)
    if value in taken:
        return []
    raise ConfigError(f"--{name}={value}: {what_to_do}")


def _switch(name: str, value: str) -> str:
    if value.lower() in _TRUE:
        return "true"
    if value.lower() in _FALSE:
        return "false"
    raise ConfigError(f"--{name}={value}: expected true or false")
