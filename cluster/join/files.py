"""Files of a joined cluster: its hostfile, its known host keys, and its `cluster.toml`."""

import posixpath
import re
from pathlib import Path
from typing import Any

from cluster import written
from cluster.clusterfile.edit import with_fields
from cluster.clusterfile.model import is_of_a_stack
from cluster.clusterfile.reader import parse, read
from cluster.errors import ConfigError
from cluster.files import IS_CHECKOUT
from cluster.hosts import hostfile
from cluster.inventory import ROOT, Cluster, SshSettings, access_of
from cluster.join.discovery import JoinRequest
from cluster.join.join import Joined
from cluster.join.onhost.member import FOLDER
from cluster.join.onhost.own_folders import is_the_systems
from cluster.join.share import SERVED

NAME = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,40}")


def request_of(
    folder: Path, words: tuple[str, ...], *, name: str, slots: int, access: SshSettings, **more: Any
) -> JoinRequest:
    """Return the join request, completed from an existing `cluster.toml` in the folder. Raises ConfigError."""
    path = folder / "cluster.toml"
    values: dict[str, Any] = read(path, lambda found: found) if path.exists() else {}
    if is_of_a_stack(values):
        raise ConfigError(f"{path} describes a stack: join hosts in another folder, or with CLUSTER=/another/folder")
    name = name or str(values.get("name", folder.name))
    if not NAME.fullmatch(name):
        raise ConfigError(f"{name!r} is no cluster's name: give --name, letters, digits and dashes, a letter first")
    own = read(path, lambda found: _access(found, folder)) if path.exists() else SshSettings()
    # The cluster's own key is in this user's SSH settings, but new hosts accept another key.
    own_key = None if own.key and own.key.parent.name == FOLDER else own.key
    access = SshSettings(user=access.user or own.user, port=access.port or own.port, key=access.key or own_key)
    more["shared"] = more["shared"] or (values.get("shared", "") if values.get("shared_by", "all") == "all" else "")
    if more["shared"] and not more["shared"].startswith("/"):
        raise ConfigError(f"--shared {more['shared']} is not an absolute path: write it like /efs")
    if more["nfs"] and more["shared"]:
        more["shared"] = _to_serve(more["shared"])
    project = values.get("project") or (str(ROOT) if IS_CHECKOUT else "")
    more |= {"project": project} if project else {}
    return JoinRequest(words=words, name=name, slots=slots or None, access=access, **more)


def _access(values: dict[str, Any], folder: Path) -> SshSettings:
    return access_of(parse(values, region=""), folder, values.get("ssh", {}))


def _to_serve(folder: str) -> str:
    """Return the normalized path of the folder that the leader serves, as `mount` lists it. Raises ConfigError."""
    if re.search(r"\s", folder):
        raise ConfigError(f"--shared {folder!r}: no space can stand in a folder that is served with --nfs")
    if is_the_systems(folder):
        raise ConfigError(f"--shared {folder} is a folder of the system: name one to be made, such as {SERVED}")
    return "/" + posixpath.normpath(folder).lstrip("/")


def targets(joined: Joined) -> list[written.TargetFile]:
    """Return the new content of `hosts`, `known_hosts` and `cluster.toml` in the cluster's folder."""
    cluster, folder = joined.cluster, joined.cluster.folder
    path = folder / "cluster.toml"
    top = {"name": cluster.name, "shared": cluster.shared, "project": cluster.project}
    top |= {} if cluster.is_shared else {"shared_by": "master"}
    text = _edited(path.read_text(), top, _ssh(cluster)) if path.exists() else _text(top, _ssh(cluster))
    return [
        written.whole_file(folder / "hosts", hostfile(cluster.hosts)),
        written.whole_file(folder / "known_hosts", joined.known_hosts),
        written.TargetFile(path=path, text=text, lost=()),
    ]


def _ssh(cluster: Cluster) -> dict[str, str | int]:
    access = cluster.access
    fields: dict[str, str | int | None] = {
        "user": access.user,
        "port": access.port,
        "key": str(access.key) if access.key else None,
        "known_hosts": "known_hosts",
        "gateway": access.gateway,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _text(top: dict[str, str], ssh: dict[str, str | int]) -> str:
    import tomlkit

    document = tomlkit.document()
    document.add(tomlkit.comment("written by inv hosts.join; add what you like, such as setup or notify"))
    document.update(top)
    document["ssh"] = ssh
    return tomlkit.dumps(document)


def _edited(text: str, top: dict[str, str], ssh: dict[str, str | int]) -> str:
    """Return a cluster file's text with these fields set, and all else as the operator wrote it."""
    import tomlkit

    document = tomlkit.parse(text)
    for name, value in top.items():
        if name in document and document[name] != value:
            document[name] = value
    if "shared_by" not in top:
        document.pop("shared_by", None)
    missing = {name: value for name, value in top.items() if name not in document}
    return with_fields(tomlkit.dumps(missing) + tomlkit.dumps(document), "ssh", ssh)
