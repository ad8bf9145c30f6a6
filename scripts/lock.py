#!/usr/bin/env python3
"""Writes the checksum of every file that the versions in requirements.lock may be installed from into that file.

    scripts/lock.py              after a version was changed, added or removed there; `python3 -m pip` is 23.3 or later
    scripts/lock.py --check      only says which lines have none
    scripts/lock.py FILE         of another such file, as scripts/checkov.lock

A line is NAME==VERSION, its checksums (one for each Python that we support, or one that serves all), `# cpu` or `# gpu`
where only such machines need it, `# tests` for what tests alone unpack (`scripts/install-kube.sh`), and `# source`
where it is built from sources, as what has no wheel is, and Horovod.
pip is asked which files it would install; it downloads none but sources.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

LOCK = Path(__file__).resolve().parent.parent / "requirements.lock"
PYTHONS = ("3.11", "3.12")  # on x86_64 Linux
LINE = re.compile(
    r"(?P<name>[\w.-]+)==(?P<version>\S+)(?P<hashes>(?: --hash=sha256:[0-9a-f]{64})*)"
    r"(?P<mark>  # (?:cpu|gpu|source|tests))?"
)


def main(words: list[str]) -> int:
    """The exit code."""
    named = [word for word in words if word != "--check"]
    lock = Path(named[0]) if named else LOCK
    lines = [(line, LINE.fullmatch(line)) for line in lock.read_text().splitlines()]
    if odd := [line for line, found in lines if not found and not line.startswith("#")]:
        print(f"{lock.name}: not NAME==VERSION: {odd[0]}", file=sys.stderr)
        return 1
    packages = {found["name"]: found["version"] for _, found in lines if found}
    if "--check" in words:
        bare = [found["name"] for _, found in lines if found and not found["hashes"]]
        print(f"without a checksum: {', '.join(bare) or 'none'}")
        return 1 if bare else 0
    files, sources = all_files(packages, {"horovod"} & packages.keys())

    def rewritten(found: re.Match[str]) -> str:
        name = normal(found["name"])
        hashes = "".join(f" --hash=sha256:{h}" for h in sorted(files[name]))
        mark = "  # source" if name in sources else (found["mark"] or "").replace("  # source", "")
        return f"{found['name']}=={found['version']}{hashes}{mark}"

    lock.write_text("".join(f"{rewritten(found) if found else line}\n" for line, found in lines))
    print(f"{lock.name}: {len(packages)} packages, {sum(map(len, files.values()))} files")
    return 0


def all_files(packages: dict[str, str], sources: set[str]) -> tuple[dict[str, set[str]], set[str]]:
    """Package -> checksums, and the packages of which these are their sources': those given and what has no wheel."""
    found: dict[str, set[str]] = {}
    for python in PYTHONS:
        wheels = {n: v for n, v in packages.items() if normal(n) not in sources}
        while True:
            said = ask(wheels, "--python-version", python, "--only-binary", ":all:", "--target", "nowhere")
            if isinstance(said, list):
                break
            without = normal(said.split()[0])
            sources.add(without)
            wheels = {n: v for n, v in wheels.items() if normal(n) != without}
        for name, checksum in said:
            found.setdefault(name, set()).add(checksum)
    for source in sorted(sources):
        version = next(v for n, v in packages.items() if normal(n) == source)
        said = ask({source: version}, "--no-binary", source)
        if isinstance(said, str):
            raise SystemExit(f"pip found neither a wheel nor sources of {said}")
        found[source] = {checksum for _, checksum in said}
    return found, sources


def ask(packages: dict[str, str], *options: str) -> list[tuple[str, str]] | str:
    """(package, checksum) of each file that pip would install; or the one package of which it found none."""
    with tempfile.TemporaryDirectory() as folder:
        names, report = Path(folder, "names.txt"), Path(folder, "report.json")
        names.write_text("".join(f"{n}=={v}\n" for n, v in packages.items()))
        # No settings of this machine: what it has lying about is not what others get.
        clean = {k: v for k, v in os.environ.items() if k not in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL")}
        done = subprocess.run(
            [
                *(sys.executable, "-m", "pip", "install", "-q", "--dry-run", "--ignore-installed", "--no-deps"),
                *("--report", str(report), *options, "-r", str(names)),
            ],
            cwd=folder,
            env={**clean, "PIP_CONFIG_FILE": os.devnull},
            capture_output=True,
            text=True,
        )
        if done.returncode:
            if missing := re.search(r"No matching distribution found for (\S+?)==", done.stderr):
                return missing[1]
            raise SystemExit(done.stderr)
        rows = json.loads(report.read_text())["install"]
    return [(normal(r["metadata"]["name"]), r["download_info"]["archive_info"]["hashes"]["sha256"]) for r in rows]


def normal(name: str) -> str:
    """The name as the index compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
