"""The real first-boot script on lab hosts, one per instance of the fake: keys, mounts, reports and signals for real."""

import bz2
import hashlib
import json
import os
import pwd
import re
import shutil
import subprocess
from dataclasses import replace as with_
from pathlib import Path

import pytest

from cfn import create, plan, stack, update
from cfn import hosts as members
from cfn.aws import Aws
from cfn.template import firstboot
from cluster.clusterfile.model import Access, ClusterFile, Network, Nodes, Ssh
from cluster.inventory import ROOT
from lab import network
from lab.aws.driver import LabDriver
from lab.record import SHARED
from tests.conftest import PATIENCE_S, wait_for
from tests.other_users import open_folder

# The operator's own: what a node is told, where all see it.
SETUP = """\
#!/bin/sh
echo "$DLAMI_ROLE of $DLAMI_CLUSTER" >/root/set-up
echo "$(hostname) $DLAMI_SHARED" >>/shared/set-up
"""


@pytest.fixture
def file(driver: LabDriver, tmp_path: Path) -> ClusterFile:
    """1 + 2 small nodes in the lab's own network, which run a script of the operator's."""
    (tmp_path / "prepare.sh").write_text(SETUP)
    base = list(network.IPv4Network(driver.lab.network).subnets(new_prefix=25))
    return ClusterFile(
        name="boot",
        shared=SHARED,
        project=str(ROOT),
        setup=str(tmp_path / "prepare.sh"),
        ssh=Ssh(user="root"),
        access=Access(ssh_from="203.0.113.7/32"),
        nodes=Nodes(instance_type="g5.xlarge", workers=2, boot_minutes=20),
        network=Network(cidr=driver.lab.network, public_cidr=str(base[0]), private_cidr=str(base[1])),
    )


def on(driver: LabDriver, host: members.GroupMember, command: str) -> subprocess.CompletedProcess[str]:
    """A command on a host, from this machine."""
    lab = driver.lab
    return subprocess.run(
        [
            "ssh",
            "-i",
            str(lab.key),
            "-o",
            f"UserKnownHostsFile={lab.folder}/known_hosts",
            "-o",
            "IdentitiesOnly=yes",
            "-o",
            "BatchMode=yes",
            f"root@{host.address}",
            command,
        ],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def test_nodes_boot_trust_each_other_and_are_replaced_in_place(
    driver: LabDriver, file: ClusterFile, account: Aws
) -> None:
    """From stack.create to stack.delete on real hosts: every node's report, keys that work, a crash, a successor."""
    told: list[str] = []
    hosts = create.create(account, plan.make(account, file), told.append)
    state = driver.lab.shared / ".dlami-cluster/boot"
    assert [0, 1, 2] == [h.rank for h in hosts]
    for host in hosts:
        report = json.loads((state / f"boot/{host.instance_id}.json").read_text())
        assert ("ready", host.address) == (report["status"], report["address"])
        assert [
            "identity",
            "guard",
            "mount-shared",
            "mount-fsx",
            "host-key",
            "cluster-key",
            "sshd",
            "project",
            "runtime",
            "cluster-file",
            "services",
            "setup",
        ] == [s["step"] for s in report["steps"]]
        assert host.host_key in (state / "known_hosts").read_text()

    assert ["master of boot", "worker of boot", "worker of boot"] == [
        on(driver, host, "cat /root/set-up").stdout.strip() for host in hosts
    ]

    # The cluster key and the published host keys alone: no agent, no other file of the lab.
    only = f"ssh -F /etc/ssh/ssh_config -o BatchMode=yes -o UserKnownHostsFile=/dev/null -i /root/.ssh/dlami-cluster -o IdentitiesOnly=yes {hosts[2].address} hostname"
    answer = on(driver, hosts[0], only)
    assert answer.returncode == 0, answer.stderr
    assert driver.hosts[hosts[2].instance_id].name == answer.stdout.strip()

    # The service that first boot left there: told by its metadata, the host says when it will go.
    spot = {"meta-data/spot/instance-action": '{"action": "terminate", "time": "2027-01-15T08:02:00Z"}'}
    driver.tell(hosts[2].instance_id, spot)
    wait_for(
        lambda: "spot" in on(driver, hosts[2], "cat /run/dlami-notice.json").stdout, 90, "the notice is in its file"
    )

    # The names of the reference: a script written for that cluster runs, from a login on the master.
    script = ROOT / "tests/cfn/as_in_the_tutorials.sh"
    wait_for(lambda: on(driver, hosts[0], "test -e /root/hosts").returncode == 0, 120, "the names are there")
    ran = on(driver, hosts[0], f"cd && bash -l {script}")
    names = [driver.hosts[h.instance_id].name for h in hosts]
    assert (0, names) == (ran.returncode, ran.stdout.splitlines()[:3]), ran.stdout + ran.stderr
    assert [f"ranks on {' '.join(sorted(names))}", f"3 nodes of {SHARED}"] == ran.stdout.splitlines()[3:]

    driver.crash(hosts[1].instance_id)
    after = (
        update.replace(account, file, "1", told.append)
        if any(m.instance_id == hosts[1].instance_id for m in members.read(account, stack.outputs(account, "boot")))
        else _whole(account, file)
    )
    assert [hosts[0].instance_id, hosts[2].instance_id] == [after[0].instance_id, after[2].instance_id]
    assert (1, True) == (after[1].rank, after[1].instance_id != hosts[1].instance_id)
    assert "worker of boot" == on(driver, after[1], "cat /root/set-up").stdout.strip(), "successors run it, too"
    set_up = (driver.lab.shared / "set-up").read_text().splitlines()
    names.append(driver.hosts[after[1].instance_id].name)
    assert sorted(f"{name} {SHARED}" for name in names) == sorted(set_up), "once on each"

    more = with_(file, nodes=with_(file.nodes, workers=3))
    grown = update.execute(account, update.prepare(account, more), more, told.append)
    assert [h.instance_id for h in after] == [h.instance_id for h in grown[:3]]
    assert ["SharedFileSystem"] == list(create.delete(account, more, told.append))
    assert [] == driver.errors


def _whole(account: Aws, file: ClusterFile) -> list[members.GroupMember]:
    """The group replaced the dead host before we asked: wait until its successor is ready."""
    from cfn.progress import wait_for

    outputs = stack.outputs(account, file.name)
    assert wait_for(lambda: sum(m.is_usable for m in members.read(account, outputs)) == 3, 300, lambda: None)
    return members.hosts(account, outputs)


@pytest.fixture
def image(tmp_path: Path, request: pytest.FixtureRequest) -> Path | None:
    """An AMI without NFS and without a way to the distribution's archive, for the test that fails there."""
    if "failing_step" not in request.node.name:
        return None
    (tmp_path / "usr/sbin").mkdir(parents=True)
    (tmp_path / "usr/sbin/apt-get").write_text("#!/bin/sh\nexit 100\n")
    (tmp_path / "usr/sbin/apt-get").chmod(0o755)
    return tmp_path


def test_a_failing_step_is_named_with_its_last_line(driver: LabDriver, file: ClusterFile, account: Aws) -> None:
    """A login user that the image has not: the script says so to the stack, the tags and the operator."""
    from cfn.stack import StackError

    broken = with_(file, ssh=with_(file.ssh, user="nobody-of-that-name"), nodes=with_(file.nodes, workers=0))
    with pytest.raises(StackError) as error:
        create.create(account, plan.make(account, broken), lambda _: None)

    assert "MasterNodes" in str(error.value) and "FAILURE signal(s) out of 1" in str(error.value)
    assert "(master): first boot failed identity: there is no user nobody-of-that-name: set ssh.user" in str(
        error.value
    )


def test_a_node_goes_on_in_the_very_script_with_its_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is here, to the byte, in a file of the node; and nothing is done where that cannot be."""
    script, place = tmp_path / "script.sh", tmp_path / "run/first-boot.sh"
    script.write_text(
        (ROOT / "scripts/first-boot.sh").read_text().replace(': "${NAME:?}"', 'echo "of $NAME"; exit 7; :', 1)
    )
    monkeypatch.setattr(firstboot, "SCRIPT", script)
    monkeypatch.setattr(firstboot, "PLACE", place)
    words = [shutil.which("bash") or "", "-c", f"NAME='demo'\n{firstboot.body()}"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S, check=False)

    assert (7, "of demo\n") == (done.returncode, done.stdout), done.stderr
    assert script.read_bytes() == place.read_bytes()
    without = subprocess.run(
        words, capture_output=True, text=True, timeout=PATIENCE_S, check=False, env={"PATH": "/nowhere"}
    )
    assert (True, "") == (without.returncode != 0, without.stdout)


def test_what_a_node_gets_is_the_same_wherever_it_is_packed() -> None:
    """Another packing would be another launch template, and new nodes for a stack that nobody changed."""
    digest = hashlib.sha256(bz2.compress(bytes(range(256)) * 64)).hexdigest()
    assert "4cbaaff8706d30a5099cb6a8651df49988805f4967d36cacd962b5e7c658f1f2" == digest


HOST_KEY = """\
publish() { cp "$1" "$2.$INSTANCE.new" && mv "$2.$INSTANCE.new" "$2"; }
tag() { :; }
ssh-keyscan() { echo "$3 ssh-ed25519 key-of-$3"; }
"""


def functions(*names: str) -> str:
    """Functions of the script, as they are in it."""
    script = (ROOT / "scripts/first-boot.sh").read_text()
    found = re.findall(rf"^(?:{'|'.join(names)})\(\) \{{(?:.*\}}|\n(?:.*\n)*?\}})\n", script, re.M)
    assert len(names) == len(found)
    return "".join(found)


def test_a_failure_is_told_where_it_outlives_the_node(tmp_path: Path) -> None:
    """A create that is rolled back takes the node and the shared folder with it, and AWS keeps what a console was told.
    A login user who is missing is such a failure, told to the stack at once."""
    log, console = tmp_path / "log", tmp_path / "console"
    log.write_text("".join(f"line {n}\n" for n in range(100)))
    parts = functions("failed", "step", "say", "identity").replace("/dev/console", str(console))
    stubs = "report() { :; }; publish() { :; }; tag() { echo tag $*; }; signal() { echo signal $*; }; aws_call() { echo $2; }"
    settings = f"LOG={log} LOCAL={tmp_path} LOGIN=nobody-of-this-name ROLE=worker NAME=x SHARED_OK= BUILDS="
    script = f"set -Eeuo pipefail; {settings}\n{stubs}\n{parts}trap failed ERR; exec >>$LOG; step identity identity"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=PATIENCE_S)

    assert 1 == done.returncode, done.stderr
    said = log.read_text().splitlines()
    assert "there is no user nobody-of-this-name: set ssh.user" in said
    assert "tag boot failed identity: there is no user nobody-of-this-name: set ssh.user" in said[-2:], said
    assert "signal FAILURE" == said[-1]
    shown = console.read_text().splitlines()
    assert 80 == len(shown) and "there is no user nobody-of-this-name: set ssh.user" == shown[-2]


@pytest.mark.parametrize(("says", "tries"), [("Could not get lock /var/lib/apt/lists/lock", 2), ("no such package", 1)])
def test_an_apt_of_the_new_node_s_own_is_waited_for(tmp_path: Path, says: str, tries: int) -> None:
    """apt-get does not wait for who fetches the lists; what no waiting mends fails at once."""
    apt = f"""apt-get() {{
        case $* in *install*) [ -e {tmp_path}/there ] ;; update) echo once >>{tmp_path}/updates; echo "E: {says}"
            [ $(wc -l <{tmp_path}/updates) = 2 ] && touch {tmp_path}/there ;; esac; }}"""
    script = f"set -euo pipefail; BEGAN=0\n{apt}\nsleep() {{ :; }}\n{functions('needs', 'apt')}needs no-such-program a-package"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=PATIENCE_S)

    assert tries == len((tmp_path / "updates").read_text().splitlines())
    assert (2 != tries) == bool(done.returncode) == ("a-package cannot be installed" in done.stdout), done


@pytest.mark.parametrize(
    ("module", "package", "mounts"), [("there", "none", 1), ("none", "there", 1), ("none", "none", 0)]
)
def test_a_kernel_without_lustre_gets_its_module_or_fails_at_once(
    tmp_path: Path, module: str, package: str, mounts: int
) -> None:
    """No mount is tried without the module: none would ever succeed, while GPUs are paid for."""
    stubs = f"""modinfo() {{ [ {module} = there ] || [ -e {tmp_path}/installed ]; }}
        apt() {{ echo "asked for $1"; [ {package} = there ] && touch {tmp_path}/installed; }}
        mounted() {{ echo mounted; echo "$*" >>{tmp_path}/mounts; }}
        uname() {{ echo 7.0.0-1011-aws; }}; curl() {{ return 1; }}; apt-get() {{ :; }}; timeout() {{ shift; "$@"; }}; say() {{ echo "$*"; }}"""
    script = functions("lustre_client", "mount_fsx").replace("/etc/fstab", f"{tmp_path}/fstab")
    settings = f"FSX_ADDRESS=fs FSX_NAME=abc FSX_MOUNT={tmp_path}/fsx"
    (tmp_path / "fstab").touch()
    words = ["bash", "-c", f"set -Eeuo pipefail; {settings}\n{stubs}\n{script}mount_fsx"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S)

    assert mounts == done.stdout.splitlines().count("mounted"), done
    assert (module == "none") == ("asked for lustre-client-modules-7.0.0-1011-aws" in done.stdout)
    assert bool(mounts) == (done.returncode == 0) == ("no Lustre client for kernel" not in done.stdout)
    if not mounts:
        assert "7.0.0-1011-aws" in done.stdout.splitlines()[-1] and "nodes.ami" in done.stdout


def host_key(shared: Path, node: int, more: str = "") -> "subprocess.Popen[str]":
    """The step of the script in which a node writes its host key into the list, as this node."""
    script = (ROOT / "scripts/first-boot.sh").read_text()
    begin = script.index("host_key() {")
    function = script[begin : script.index("\n}\n", begin) + 3]
    local = shared / f"local-{node}"
    local.mkdir()
    (shared / "known_hosts.d").mkdir(exist_ok=True)
    said = {"STATE": str(shared), "LOCAL": str(local), "ADDRESS": f"10.0.0.{node}", "INSTANCE": f"i-{node}"}
    words = ["bash", "-euc", f"{HOST_KEY}{more}{function}\nhost_key"]
    return subprocess.Popen(words, env={**os.environ, **said}, stdout=subprocess.PIPE, text=True)


def test_nodes_that_boot_at_once_agree_on_the_list_of_host_keys(tmp_path: Path) -> None:
    """Whoever is last: all keys are in it."""
    nodes = [host_key(tmp_path, n) for n in range(1, 13)]

    assert [("", 0)] * 12 == [(n.communicate(timeout=PATIENCE_S)[0], n.returncode) for n in nodes]
    assert {f"10.0.0.{n}" for n in range(1, 13)} == {
        line.split()[0] for line in (tmp_path / "known_hosts").read_text().splitlines()
    }


def test_a_node_that_has_seen_the_whole_list_is_done(tmp_path: Path) -> None:
    """Though another writes an older one the next moment: that one looks again, too."""
    older = 'cmp() { command cmp "$@" || return 1; echo older >"$STATE/known_hosts"; }\n'
    node = host_key(tmp_path, 1, older)

    assert ("", 0) == (node.communicate(timeout=PATIENCE_S)[0], node.returncode)


def test_a_file_that_another_node_replaces_while_it_is_read_is_read_again(tmp_path: Path) -> None:
    """NFS calls it a stale handle; half a list is not published."""
    (tmp_path / "known_hosts.d").mkdir()
    (tmp_path / "known_hosts.d/10.0.0.9").write_text("10.0.0.9 ssh-ed25519 key\n")
    stale = """publish() { [ "$2" != "$STATE/known_hosts" ] || cat "$1" >>"$STATE/published"; cp "$1" "$2"; }
        cat() { [ -e "$LOCAL/once" ] || [ $# = 1 ] || { touch "$LOCAL/once"; echo "10.0.0.1 x"; return 1; }; command cat "$@"; }
    """
    node = host_key(tmp_path, 1, stale)

    assert ("", 0) == (node.communicate(timeout=PATIENCE_S)[0], node.returncode)
    assert (tmp_path / "published").read_text() == (tmp_path / "known_hosts").read_text()
    assert 2 == len((tmp_path / "known_hosts").read_text().splitlines())


def test_the_mount_outlives_its_tunnel(tmp_path: Path) -> None:
    """systemd stops what requires a unit when that is restarted, as after an update of TLS's library."""
    mounts = functions("mount_shared").replace("/etc/fstab", f"{tmp_path}/fstab")
    stubs = "mountpoint() { false; }; needs() { :; }; tunnel() { :; }; mounted() { :; }; stat() { echo nobody; }"
    stubs += "; own_folder() { mkdir -p $1; }"
    settings = f"SHARED={tmp_path} STATE={tmp_path}/s LIFE={tmp_path}/l ROLE=worker EFS_ADDRESS=10.0.0.9"
    for tls in ("1", ""):
        (tmp_path / "fstab").write_text("")
        script = f"set -euo pipefail; {settings} EFS_TLS={tls}\n{stubs}\n{mounts}mount_shared"
        subprocess.run(["bash", "-c", script], check=True, timeout=PATIENCE_S)
        source, folder, kind, options, *_ = (tmp_path / "fstab").read_text().split()

        assert ("127.0.0.1:/" if tls else "10.0.0.9:/", str(tmp_path), "nfs4") == (source, folder, kind)
        by = [option for option in options.split(",") if option.startswith("x-systemd")]
        assert (["x-systemd.after=dlami-efs.service"] if tls else []) == by
        assert "nofail" in options and "_netdev" in options


# Each program of a project, which notes who runs it.
NOTES = {
    "tasks.py": "",
    "scripts/install.sh": """#!/bin/bash
echo "$(id -u) $0" >>"$NOTED"
[ "${1:-}" = packages ] || { cd "$(dirname "$0")/.." && mkdir -p .venv/bin && cp tool .venv/bin/python && cp tool .venv/bin/pip &&
    cp tool .venv/bin/inv && touch .venv/.installed .venv/requirements.txt && echo "$PWD/tasks.py" >.venv/.horovod; }""",
    "tool": '#!/bin/bash\necho "$(id -u) $PWD/.venv/bin/$(basename "$0")" >>"$NOTED"; [ "${2#import sys}" = "$2" ]',
    "scripts/services.sh": 'echo "$(id -u) $0" >>"$NOTED"',
    "cluster/setup/at_boot.py": 'import os; open(os.environ["NOTED"], "a").write(f"{os.getuid()} {__file__}\\n")',
}


@pytest.mark.skipif(os.getuid() != 0, reason="programs of several users need root")
@pytest.mark.parametrize("role", ["master", "worker"])
def test_root_runs_nothing_that_the_login_user_can_write(role: str) -> None:
    """Not the installer, the runtime's tools or the set-up program of the project, which is that user's; but a copy of its own."""
    login = pwd.getpwnam("daemon")
    names = ("as_login", "root_copy", "project", "runtime", "cluster_file", "services", "setup")
    with open_folder() as top:
        noted = top / "noted"
        noted.touch()
        noted.chmod(0o666)
        for name, text in NOTES.items():
            path = top / "packed" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            path.chmod(0o755)
        shutil.copy(ROOT / "scripts/setup.sh", top / "packed/scripts")
        for name in ("life/wheels", "local", "home"):
            (top / name).mkdir(parents=True)
        os.chown(top / "home", login.pw_uid, login.pw_gid)
        (top / "life/setup-x").touch()
        if role == "worker":
            (top / "life/wheels/.installed").touch()
        subprocess.run(["tar", "-C", top / "packed", "-czf", top / "life/project.tar.gz", "."], check=True)
        settings = {
            "ROLE": role, "LOGIN": login.pw_name, "LOGIN_HOME": str(top / "home"), "PROJECT": str(top / "home/project"),
            "LIFE": str(top / "life"), "STATE": str(top / "life"), "LOCAL": str(top / "local"), "NAME": "x", "REGION": "r",
            "SHARED": str(top), "SETUP": "x", "INSTANCE": "i", "BOOT_SECONDS": "9", "OTHER_MASTER": "", "SOURCE": "", "NOTED": str(noted),
        }  # fmt: skip
        stubs = 'say() { echo "$*"; }; publish() { cp "$1" "$2"; }; wait_for() { [ -e "$1" ]; }; BUILDS='
        script = functions(*names).replace("/etc/dlami-cluster.conf", f"{top}/conf")
        words = f"set -Eeuo pipefail; umask 022; {stubs}\n{script}project; runtime; cluster_file; services; setup"
        done = subprocess.run(
            ["bash", "-c", words], capture_output=True, text=True, timeout=PATIENCE_S, env={**os.environ, **settings}
        )
        assert 0 == done.returncode, done.stdout + done.stderr
        ran = [line.split() for line in noted.read_text().splitlines()]
        roots = {path for uid, path in ran if uid == "0"}
        assert roots and all(Path(path).is_relative_to(top / "local/project") for path in roots), ran
        assert {"at_boot.py", "install.sh", "services.sh"} == {Path(path).name for path in roots}
        others = {(uid, Path(path).name) for uid, path in ran if path not in roots}
        assert {
            (str(login.pw_uid), name)
            for name in ("install.sh", "python", *(("pip", "inv") if role == "master" else ()))
        } <= others
        own = [top / "local/project", *(top / "local/project").rglob("*")]
        assert [] == [p for p in own if p.stat().st_uid or p.stat().st_mode & 0o022]
        of_project = [p for p in (top / "home/project").rglob("*") if p.stat().st_uid != login.pw_uid]
        assert [] == of_project
