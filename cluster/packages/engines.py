"""Container engine that all hosts have, and the image on all of them before any rank starts."""

import shlex
from collections.abc import Mapping, Sequence

from cluster.errors import ConfigError
from cluster.hosts import Host
from cluster.hostset import fold
from cluster.ssh.fanout import Executor
from cluster.ssh.limits import Limits
from cluster.ssh.noise_filter import complaint, marked, output_between_marks, trouble
from cluster.ssh.onhost.telling_line import telling_line

_FILES = ("apptainer", "singularity")
_STORES = ("docker", "podman")
_PULL_S = 1800.0
_SCHEMES = ("docker://", "oras://", "library://", "shub://", "docker-daemon:", "docker-archive:")


def is_file(image: str) -> bool:
    """Return True if the image is a file that apptainer runs."""
    return image.startswith("/") or image.endswith(".sif")


def engines_for(image: str) -> tuple[str, ...]:
    """Return the engines that can run the image, best first."""
    return _FILES if is_file(image) or image.startswith(_SCHEMES) else (*_STORES, *_FILES)


def keeps_images(engine: str) -> bool:
    """Return True if the engine has an image store on each host, and does not run image files."""
    return engine in _STORES


def address_of(image: str) -> str:
    """Return the image's address as apptainer takes it."""
    return image if image.startswith(_SCHEMES) else f"docker://{image}"


def agreed_engine(reach: Executor, hosts: Sequence[Host], image: str) -> tuple[str, Mapping[str, str]]:
    """Return the engine that every host has and may use, and why each other host gave no answer, by address.

    Raises ConfigError that names the hosts without any.
    """
    wanted = engines_for(image)
    # `docker` on PATH does not mean that its daemon answers and accepts this user
    script = "; ".join(
        f"command -v {e} >/dev/null && {'timeout 20 ' + e + ' info' if e == 'docker' else e + ' --version'} "
        f">/dev/null 2>&1 && echo {e}"
        for e in wanted
    )
    results = reach.run(hosts, marked(f"{script}; :"), limits=Limits(total_s=60))
    has = {h: (output_between_marks(r) or "").split() for h, r in results.items() if not trouble(r)}
    silent = {h.address: trouble(r) for h, r in results.items() if h not in has}
    for engine in wanted:
        if has and all(engine in found for found in has.values()):
            return engine, silent
    if not has:
        return "", silent
    without = fold(h.address for h, found in has.items() if not found)
    where = f"there is none on {without}" if without else "not all hosts have the same"
    raise ConfigError(
        f"a container needs an engine that this user may use ({', '.join(wanted)}), the same on every host: {where}"
    )


def without_image(
    reach: Executor, hosts: Sequence[Host], engine: str, image: str, *, changes: bool
) -> Mapping[str, str]:
    """Return why the image is missing, by address of the hosts concerned.

    changes: pull the image first where it is missing.
    """
    name = shlex.quote(image)
    if not keeps_images(engine):
        script = f"[ -r {name} ] || {{ echo {name} is not there >&2; exit 1; }}"
    else:
        pull = f"{engine} pull --quiet {name} >/dev/null" if changes else f"{{ echo {name} is not there >&2; false; }}"
        script = f"{engine} image inspect {name} >/dev/null 2>&1 || {pull}"
    results = reach.run(hosts, marked(script), limits=Limits(total_s=_PULL_S))
    return {h.address: telling_line(complaint(r)) or trouble(r) for h, r in results.items() if not r.ok}
