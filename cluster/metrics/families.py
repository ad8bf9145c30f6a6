"""Metric families of Prometheus, from a frame of `inv top` and the jobs' accounts. Pure functions."""

from collections.abc import Mapping

from cluster.metrics.text import Family
from cluster.top.snapshot import ClusterSnapshot, HostState, JobSeen, RankSnapshot


def families(frame: ClusterSnapshot, ettr: Mapping[str, float]) -> list[Family]:
    """Return all metric families.

    Args:
        ettr: by job id, useful over all time (ETTR) of those jobs that have an account.
    """
    return [*_of_hosts(frame), *_of_gpus(frame), *_of_jobs(frame, ettr), *_of_ranks(frame)]


def _of_hosts(frame: ClusterSnapshot) -> list[Family]:
    up = Family("dlami_host_up", "Whether the host answers: 1, or 0 if it is silent, gone or talks nonsense.")
    odd = Family("dlami_host_odd", "How far a value of the host is from the others', above 1 where it is odd.")
    answer = Family("dlami_host_answer_seconds", "From a question over SSH to its answer.")
    ping = Family("dlami_host_ping_seconds", "To another host and back, the shortest of three ways.")
    cpu = Family("dlami_host_cpu_ratio", "Share of all cores that is busy.")
    cores = Family("dlami_host_cpu_cores", "Cores of the host.")
    used = Family("dlami_host_memory_used_bytes", "Memory that is not available.")
    total = Family("dlami_host_memory_size_bytes", "Memory of the host.")
    disk = Family("dlami_host_disk_used_ratio", "How full the fuller one of the root and the local NVMe is.")
    came = Family("dlami_host_network_received_bytes_total", "Through the network cards since boot.", "counter")
    went = Family("dlami_host_network_sent_bytes_total", "Through the network cards since boot.", "counter")
    read = Family("dlami_host_disk_read_bytes_total", "From whole disks since boot.", "counter")
    written = Family("dlami_host_disk_written_bytes_total", "To whole disks since boot.", "counter")
    for seen in frame.hosts:
        own = _host_labels(frame, seen)
        up.add(float(seen.is_seen), **own)
        if not seen.is_seen or seen.vitals is None:
            continue
        vitals = seen.vitals
        for one in seen.odd:
            odd.add(one.distance, **own, what=one.what)
        answer.add(seen.answer_s, **own)
        ping.add(seen.ping_s, **own)
        cpu.add(seen.rates.cpu if seen.rates else None, **own)
        cores.add(vitals.cores, **own)
        used.add(vitals.memory_used, **own)
        total.add(vitals.memory_total, **own)
        disk.add(vitals.full, **own)
        for family, count in zip((came, went, read, written), (*vitals.net, *vitals.disk), strict=True):
            family.add(count, **own)
    return [up, odd, answer, ping, cpu, cores, used, total, disk, came, went, read, written]


def _of_gpus(frame: ClusterSnapshot) -> list[Family]:
    use = Family("dlami_gpu_use_ratio", "Share of the last second in which a kernel ran.")
    used = Family("dlami_gpu_memory_used_bytes", "Memory of the GPU that is taken.")
    total = Family("dlami_gpu_memory_size_bytes", "Memory of the GPU.")
    heat = Family("dlami_gpu_temperature_celsius", "Temperature of the GPU.")
    power = Family("dlami_gpu_power_watts", "Power that the GPU draws.")
    limit = Family("dlami_gpu_power_limit_watts", "Power that the GPU may draw.")
    for seen in frame.hosts:
        for gpu in seen.vitals.gpus if seen.is_seen and seen.vitals else ():
            own = {**_host_labels(frame, seen), "gpu": str(gpu.index)}
            use.add(gpu.use, **own)
            used.add(gpu.memory_used, **own)
            total.add(gpu.memory_total, **own)
            heat.add(gpu.celsius, **own)
            power.add(gpu.watts, **own)
            limit.add(gpu.watts_limit, **own)
    return [use, used, total, heat, power, limit]


def _of_jobs(frame: ClusterSnapshot, ettr: Mapping[str, float]) -> list[Family]:
    known = Family("dlami_jobs_known", "Whether the master tells of its jobs: 0 where there may be some unseen.")
    state = Family("dlami_job_state", "1 for the state that the job is in.")
    attempt = Family("dlami_job_attempt", "Number of the job's newest attempt.")
    ranks = Family("dlami_job_ranks", "Ranks of that attempt.")
    step = Family("dlami_job_step", "Steps that are done.")
    steps = Family("dlami_job_steps_planned", "Steps in all, where the trainer says so.")
    speed = Family("dlami_job_images_per_second", "Images per second of all ranks, by the trainer's last record.")
    useful = Family("dlami_job_ettr_ratio", "Useful over all time since its first attempt began (ETTR).")
    known.add(float(not frame.jobs_trouble), cluster=frame.cluster)
    for job in frame.jobs:
        own = _job_labels(frame, job)
        state.add(1.0, **own, state=job.state)
        attempt.add(job.attempt, **own)
        ranks.add(job.np, **own)
        step.add(job.step, **own)
        steps.add(job.steps, **own)
        speed.add(job.images_per_s, **own)
        useful.add(ettr.get(job.id), **own)
    return [known, state, attempt, ranks, step, steps, speed, useful]


def _of_ranks(frame: ClusterSnapshot) -> list[Family]:
    step = Family("dlami_rank_step", "Steps that the rank has done.")
    silent = Family("dlami_rank_silent_seconds", "Since the rank's last beat.")
    own_speed = Family("dlami_rank_own_images_per_second", "As if the rank never waited for the others.")
    waits = Family("dlami_rank_waiting_ratio", "Share of a step that the rank waits, for input or the other ranks.")
    for seen in frame.hosts:
        for rank in seen.vitals.ranks if seen.is_seen and seen.vitals else ():
            own = _rank_labels(frame, seen, rank)
            step.add(rank.step, **own)
            silent.add(round(rank.silent_s, 3), **own)
            own_speed.add(rank.own_images_per_s, **own)
            waits.add(rank.input_share, **own, waits_for="input")
            waits.add(rank.wait_share, **own, waits_for="ranks")
    return [step, silent, own_speed, waits]


def _host_labels(frame: ClusterSnapshot, seen: HostState) -> dict[str, str]:
    return {"cluster": frame.cluster, "host": seen.host.address, "host_rank": str(seen.host.rank)}


def _job_labels(frame: ClusterSnapshot, job: JobSeen) -> dict[str, str]:
    return {"cluster": frame.cluster, "job": job.id, "name": job.name}


def _rank_labels(frame: ClusterSnapshot, seen: HostState, rank: RankSnapshot) -> dict[str, str]:
    return {**_host_labels(frame, seen), "job": rank.job, "rank": str(rank.rank)}
