"""The floor plan holds: every folder is on the map, imports go one way and never in a circle, no riddles as names."""

import ast
import functools
import re
from pathlib import Path
from typing import Any

from cluster.inventory import ROOT
from tests.walking import walked

RIDDLES = {
    "slate", "remains", "adopt", "everywhere", "last", "live", "desk", "carried", "handover", "seated", "asks", "senses",
    "together", "between", "existing", "asked",
}  # fmt: skip
PRIVATE_USES = 330  # a debt: the number only shrinks
PACKAGES = ("dlami", "cluster", "cfn", "eks", "lab", "trainer")
ARCHITECTURE = (ROOT / "docs/architecture.md").read_text()


def modules() -> dict[str, Path]:
    """Every module of the packages by its dotted name."""
    found = {}
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            found[name.removesuffix(".__init__")] = path
    return found


MODULES = modules()


@functools.cache
def trees() -> dict[str, ast.Module]:
    """Each as Python reads it."""
    return {name: ast.parse(path.read_text()) for name, path in MODULES.items()}


def imports_of(name: str) -> set[str]:
    """The modules of ours that a module imports, inside its functions too."""
    found = set()
    for node in ast.walk(trees()[name]):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {f for f in found if f in MODULES and MODULES[f].name != "__init__.py"} - {name}


def test_the_map_is_the_tree() -> None:
    """docs/architecture.md has one row for every folder of the packages, and no other."""
    folders = {str(path.parent.relative_to(ROOT)) + "/" for path in MODULES.values() if path.parent.name != "onhost"}
    assert folders == set(re.findall(r"^\| `([\w/]+/)` \|", ARCHITECTURE, flags=re.M))


def test_every_path_and_module_that_the_page_names_exists() -> None:
    """Names in backticks that look like one of our files or modules are there."""
    named = re.findall(r"`((?:cfn|cluster|dlami|trainer|scripts|docs)/[\w./-]+)`", ARCHITECTURE)
    named += re.findall(r"\b(?:cfn|cluster|dlami|trainer)/[\w/]+\.py", ARCHITECTURE)
    assert named
    assert [] == [n for n in named if not (ROOT / n.rstrip("/")).exists()]


def test_no_module_imports_itself_by_way_of_others() -> None:
    """No chain of imports leads from a module back to it; one inside a function counts as well."""
    needs = {name: imports_of(name) for name in MODULES}
    while dead_ends := {name for name, more in needs.items() if not more}:
        needs = {name: more - dead_ends for name, more in needs.items() if name not in dead_ends}
    while unneeded := needs.keys() - set().union(*needs.values()):
        needs = {name: more for name, more in needs.items() if name not in unneeded}

    assert {} == needs, "these import each other in a circle"


@walked("name", sorted(n for n in MODULES if ".onhost." in n))
def test_what_runs_on_hosts_imports_only_its_neighbours(name: Any) -> None:
    """A program for hosts needs nothing of ours but modules of onhost/ folders: it is sent without the rest.

    `staging.onhost.s3` is started by the project's own environment on the host, which has all of it.
    """
    if name != "cluster.stage.onhost.s3":
        assert [] == [m for m in imports_of(name) if ".onhost" not in m]


# Packages and modules in which a user's own files alone are read: on the operator's machine, or what he copies and sets up.
OWN_FILES = (
    "broadcast", "clusterfile", "commandline", "demo", "hosts", "join", "last_run", "project_files", "run", "scratch", "setup",
    "stage", "user_folders", "written",
)  # fmt: skip
# Functions that open what only the kernel, root, this project or this user himself can have written.
READ_AS_THEY_ARE = {
    "code.onhost.store": {"_flush", "_write"},
    "code.onhost.unpack": {"_write"},
    "code.onhost.working_copy": {"_take", "_write"},
    "guard.line": {"_on_this_host"},
    "guard.onhost.activity": {"_read", "terminals", "write"},
    "guard.onhost.renew": {"_reports"},
    "hang_detection.onhost.activity": {"network_bytes"},
    "hang_detection.onhost.beats": {"_notice"},
    "hang_detection.onhost.ranks": {"_beat", "_read"},
    "hang_detection.watch": {"__init__", "_earlier_silences"},
    "health.onhost.measure": {"disk"},
    "health.onhost.readings": {"_code", "files", "output_and_code", "place", "versions"},
    "health.onhost.trust": {"_lines"},
    "jobs.client.first_plan": {"versions_of"},
    "jobs.cost": {"remembered"},
    "jobs.ended_jobs": {"_read"},
    "jobs.lock": {"_opened", "_own"},
    "jobs.master.facts": {"_pictures"},
    "jobs.master.follow": {"_first_since"},
    "jobs.master.stop": {"_own_supervisors"},
    "jobs.master.submit": {"_copy_code", "_copy_lent", "_given_checkpoints", "_keep_difference", "_start_supervisor"},
    "jobs.supervisor.attempt": {"_open_console"},
    "jobs.supervisor.console_times": {"note"},
    "jobs.supervisor.exit_state": {"newest_stamp"},
    "jobs.supervisor.launcher": {"_started", "newest_checkpoint"},
    "jobs.supervisor.lease_holder": {"say", "say_in_console"},
    "jobs.turns": {"_is_fresh"},
    "kill.onhost.leftovers": {"_is_looked_at", "_read", "_used_inodes"},
    "launch.onhost.aws_node_names": {"text_of", "write_names"},
    "launch.onhost.slots": {"_number"},
    "packages.build": {"_do", "build", "held"},
    "packages.import_check": {"trouble"},
    "packages.onhost.env_registry": {"_time_of", "read_record"},
    "packages.onhost.imports": {"_follow"},
    "packages.recipe": {"_read", "write"},
    "recovery.onhost.notice": {"_keep", "_there"},
    "report.page": {"_own"},
    "results.gathered": {"_copy", "_step", "gather"},
    "results.send": {"_sent"},
    "ssh.onhost.partial_file": {"open_part"},
    "ssh.onhost.pci": {"_read"},
    "ssh.onhost.shared_tree": {"make"},
    "ssh.onhost.trusted_files": {"_opened", "open_folder"},
    "top.onhost.counters": {"_number"},
    "tunnels.__main__": {"_last_words", "_once_it_serves", "start"},
    "tunnels.jupyter_packages": {"install"},
    "tunnels.jupyter_page": {"notebooks"},
    "tunnels.password": {"read_from"},
    "tunnels.service": {"_environments", "new_service", "read_services", "read_wanted", "unattended_s"},
}
OPENS = {
    "open",
    "read_text",
    "read_bytes",
    "write_text",
    "write_bytes",
    "stat",
    "getsize",
    "getmtime",
    "copyfile",
    "copytree",
}
KERNELS = ("/proc", "/sys")


def test_records_are_opened_in_one_way() -> None:
    """What other users can write is opened by trusted_files.py: no other function opens or asks for a file by its name.

    Those that are listed read what only the kernel, root, this project or the user himself can have written.
    """
    found: dict[str, set[str]] = {}
    for name, tree in trees().items():
        where = name.removeprefix("cluster.")
        if (
            where == name
            or where.split(".")[0] in OWN_FILES
            or (where.split(".")[0] in ("code", "ssh", "sync") and ".onhost." not in where)
        ):
            continue
        for function in [one for one in ast.walk(tree) if isinstance(one, ast.FunctionDef)]:
            if any(is_opened_by_name(call) for call in ast.walk(function)):
                found.setdefault(where, set()).add(function.name)
    assert found == READ_AS_THEY_ARE, "read it by ssh/onhost/trusted_files.py, or list here what others cannot write"


def is_opened_by_name(node: ast.AST) -> bool:
    """Return True for a call that opens a file, or looks at it through links, by a name that is not the kernel's own."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute | ast.Name):
        return False
    name = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
    if name not in OPENS or ast.unparse(node.func).endswith(("opener.open", "tarfile.open", "webbrowser.open")):
        return False
    texts = [one.value for one in ast.walk(node) if isinstance(one, ast.Constant) and isinstance(one.value, str)]
    is_kernels = any(text.startswith(KERNELS) for text in texts) or "devnull" in ast.unparse(node)
    return not is_kernels and not any(one.arg == "follow_symlinks" for one in node.keywords)


def test_no_riddles() -> None:
    """None of the words that nobody could guess is a module, a class or a public function."""
    bad = [name for name in MODULES if name.rpartition(".")[2] in RIDDLES]
    for name, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and node.name.lower() in RIDDLES:
                bad.append(f"{name}.{node.name}")
    assert [] == bad


def test_no_public_function_is_just_called_run() -> None:
    """A function of a module says what it runs; methods (`Thread.run`) may be called as their class wants."""
    assert [] == [
        f"{name}.run"
        for name, tree in trees().items()
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name == "run"
    ]


def test_every_module_says_what_it_is() -> None:
    """Every module and folder begins with a docstring whose first line is a whole sentence or noun."""
    assert [] == [name for name, tree in trees().items() if not (ast.get_docstring(tree) or "").strip()]


def private_names(tree: ast.Module) -> list[str]:
    """Names with an underscore that a test reads or replaces and that it has not made itself."""
    nodes = list(ast.walk(tree))
    made = {n.name for n in nodes if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    made |= {n.attr for n in nodes if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store)}
    read = [n.attr for n in nodes if isinstance(n, ast.Attribute)]
    read += [alias.name for n in nodes if isinstance(n, ast.ImportFrom) for alias in n.names]
    for call in (n for n in nodes if isinstance(n, ast.Call) and getattr(n.func, "attr", "") == "setattr"):
        read += [str(a.value).rpartition(".")[2] for a in call.args[:2] if isinstance(a, ast.Constant)]
    return [name for name in read if re.match("_[^_]", name) and name not in made]


def test_tests_call_public_names() -> None:
    """What a test reaches by a private name it holds fast: those that still do so become fewer."""
    used = {p: private_names(ast.parse(p.read_text())) for p in (ROOT / "tests").rglob("*.py")}
    assert sum(map(len, used.values())) <= PRIVATE_USES, sorted((len(n), p.name) for p, n in used.items() if n)[-10:]


def test_no_test_file_imports_from_another() -> None:
    """Fixtures are in a conftest.py, helpers in a module of their own: a test file can go without another one."""
    imports = re.compile(r"^from tests\.[\w.]*\btest_\w+ import", re.M)
    assert [] == [p.name for p in (ROOT / "tests").rglob("*.py") if imports.search(p.read_text())]
