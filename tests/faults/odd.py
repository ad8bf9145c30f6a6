"""A second grid: odd networks, clocks, folders, shells, operators, data and programs, each under several commands.

An `Oddity` is put on a host before a command or in the middle of it, or it is the operator's own environment, or what
is moved, or the program that a job runs. `pairs` puts two on two hosts at once. `odd_trial` tries what is drawn here.
"""

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass

EVERYWHERE = ("run", "copy", "fetch", "stage", "health", "program", "kill")
MOVING = ("copy", "fetch", "stage")


@dataclass(frozen=True)
class Oddity:
    """Shell text that makes a host odd and ends with an error where it cannot, and text that takes it back."""

    do: str
    undo: str = "true"


def _link(direction: str, program: str, shaped: str = "") -> Oddity:
    """Send the packets that a classic BPF program chooses to a device that is down, or that holds them back."""
    up = f"tc qdisc add dev odd0 root tbf {shaped}; ip link set odd0 up; " if shaped else ""
    chosen = f"tc filter add dev eth0 {direction} bpf bytecode '{program}' action mirred egress redirect dev odd0"
    return Oddity(
        f"ip link add odd0 type ifb; {up}tc qdisc add dev eth0 clsact; {chosen}",
        "tc qdisc del dev eth0 clsact; ip link del odd0",
    )


ALL = "1,6 0 0 4294967295"


def _share(percent: int) -> str:
    """Choose packets by chance."""
    return f"4,32 0 0 4294963256,53 1 0 {percent * 42949672},6 0 0 4294967295,6 0 0 0"


def _between(low: int, high: int) -> str:
    """Choose packets by their length in bytes."""
    return f"5,128 0 0 0,53 0 2 {low},37 1 0 {high},6 0 0 4294967295,6 0 0 0"


LINKS = {
    "sends nothing": _link("egress", ALL),
    "gets nothing": _link("ingress", ALL),
    "loses 12 % of what it sends": _link("egress", _share(12)),
    "loses 25 % of what it gets": _link("ingress", _share(25)),
    "loses what has 200 to 900 bytes": _link("egress", _between(200, 900)),
    "gets no packet above 700 bytes": _link("ingress", _between(700, 1 << 20)),
    "a third comes late and out of order": _link("ingress", _share(33), "rate 2mbit burst 3000 latency 800ms"),
    "a third is sent late": _link("egress", _share(33), "rate 2mbit burst 3000 latency 800ms"),
    "sends 400 kbit/s, gets all": Oddity(
        "tc qdisc replace dev eth0 root tbf rate 400kbit burst 4kb latency 300ms", "tc qdisc del dev eth0 root"
    ),
    "an MTU of 576": Oddity("ip link set eth0 mtu 576", "ip link set eth0 mtu 1500"),
    "no loopback": Oddity("ip link set lo down", "ip link set lo up"),
    "another host's address too": Oddity("ip addr add $OTHER/24 dev eth0", "ip addr del $OTHER/24 dev eth0"),
    "another host's hardware address is wrong": Oddity(
        "ip neigh replace $OTHER lladdr 02:00:00:00:00:99 dev eth0 nud permanent", "ip neigh del $OTHER dev eth0"
    ),
    "no way to one other host": Oddity("ip route add blackhole $OTHER", "ip route del blackhole $OTHER"),
    "a link that flaps": Oddity(
        "setsid sh -c 'while :; do ip link set eth0 down; sleep 1; ip link set eth0 up; sleep 2; done' & echo $! >/run/flaps",
        "kill $(cat /run/flaps); sleep 1; ip link set eth0 up",
    ),
}

# Interposed in front of the C library in every process that starts from now on.
_SHIM = r"""
#define _GNU_SOURCE
#include <time.h>
#include <sys/time.h>
#include <sys/syscall.h>
#include <unistd.h>
int clock_gettime(clockid_t id, struct timespec *t) {
    int r = syscall(SYS_clock_gettime, id, t);
    if (r == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) { long s = t->tv_sec; t->tv_sec = SECONDS; }
    return r;
}
time_t time(time_t *to) { struct timespec t; clock_gettime(CLOCK_REALTIME, &t); if (to) *to = t.tv_sec; return t.tv_sec; }
int gettimeofday(struct timeval *v, void *z) {
    struct timespec t; clock_gettime(CLOCK_REALTIME, &t); v->tv_sec = t.tv_sec; v->tv_usec = t.tv_nsec / 1000; return 0;
}
"""


def shim(seconds: str) -> str:
    """Shell text that makes /run/clock.so, a clock with this C expression of the true second `s`."""
    return f"cat >/run/clock.c <<'END'\n{_SHIM.replace('SECONDS', seconds)}END\ncc -shared -fPIC -o /run/clock.so /run/clock.c"


def _clock(seconds: str) -> Oddity:
    return Oddity(f"{shim(seconds)}; echo /run/clock.so >/etc/ld.so.preload", "rm -f /etc/ld.so.preload")


CLOCKS = {
    "its clock is 9 h ahead": _clock("s + 32400"),
    "its clock is 400 days behind": _clock("s - 34560000"),
    "its clock is in 2040": _clock("s + 441504000"),
    "its clock stands": _clock("1700000000"),
    "its clock runs 60 times as fast": _clock("1700000000 + (s % 100000) * 60"),
    "its clock jumps to and fro": _clock("s + ((s / 2) % 2) * 3600"),
    "its clock begins in 1970": _clock("s % 1000"),
    "its files are of 2100": Oddity(
        "find /root/.cache/dlami-cluster /root/.ssh /root/.bashrc -exec touch -h -d 2100-01-01 {} +"
    ),
}


def _mounted(folder: str, options: str, fill: str = "true") -> Oddity:
    return Oddity(f"mount -t tmpfs -o {options} tmpfs {folder}; {fill}", f"umount -l {folder}")


def _read_only(folder: str) -> Oddity:
    return Oddity(f"mount --bind {folder} {folder}; mount -o remount,bind,ro {folder}", f"umount -l {folder}")


def _bound(what: str, over: str) -> Oddity:
    return Oddity(f"{what}; mount --bind /run/odd {over}", f"umount -l {over}")


_FILL = "head -c 1m /dev/zero >{0}/filling 2>/dev/null || true"
FOLDERS = {
    "a read-only home": _read_only("/root"),
    "a full ~/.cache": _mounted("/root/.cache", "size=16k", _FILL.format("/root/.cache")),
    "a read-only /tmp": _read_only("/tmp"),
    "a read-only /var/tmp": _read_only("/var/tmp"),
    "a full /var/tmp": _mounted("/var/tmp", "size=16k", _FILL.format("/var/tmp")),
    "a /tmp that runs nothing": Oddity("mount -o remount,noexec /tmp", "mount -o remount,exec /tmp"),
    "a read-only /run": _read_only("/run"),
    "a /dev/shm of 64 KB": _mounted("/dev/shm", "size=64k"),
    "no file of /dev/shm can be made": _mounted("/dev/shm", "nr_inodes=1"),
    "/dev/null is a file": _bound("echo words >/run/odd", "/dev/null"),
    "/etc/hosts is empty": _bound("touch /run/odd", "/etc/hosts"),
    "no name for root": _bound("grep -v ^root: /etc/passwd >/run/odd || true", "/etc/passwd"),
    "its name is another host's": Oddity("hostname >/run/name; hostname $OTHER_NAME", "hostname $(cat /run/name)"),
    "a name in capitals with dots": Oddity("hostname >/run/name; hostname GPU.Node.EXAMPLE", "hostname $(cat /run/name)"),
}  # fmt: skip


def _bashrc(*lines: str) -> Oddity:
    text = "\n".join(lines)
    return Oddity(
        f"cp ~/.bashrc /run/bashrc; {{ cat <<'END'\n{text}\nEND\ncat /run/bashrc; }} >~/.bashrc.odd; mv ~/.bashrc.odd ~/.bashrc",
        "cp /run/bashrc ~/.bashrc",
    )


SHELLS = {
    "a prompt without an end of line": _bashrc(r"printf '\033]0;gpu\007\033[31m> '"),
    "set -eu -o pipefail": _bashrc("set -eu -o pipefail"),
    "umask 077": _bashrc("umask 077"),
    "umask 777": _bashrc("umask 777"),
    "files of at most 50 KB": _bashrc("ulimit -f 50"),
    "24 open files": _bashrc("ulimit -n 24"),
    "300 MB of address space": _bashrc("ulimit -v 300000"),
    "a locale that is not there": _bashrc("export LC_ALL=xx_YY.UTF-8"),
    "Python writes ASCII": _bashrc("export LC_ALL=C PYTHONUTF8=0 PYTHONCOERCECLOCALE=0 PYTHONIOENCODING=ascii"),
    "PYTHONHOME is nowhere": _bashrc("export PYTHONHOME=/nowhere"),
    "another json.py on PYTHONPATH": _bashrc("mkdir -p /run/py; echo 'raise SystemExit(9)' >/run/py/json.py", "export PYTHONPATH=/run/py"),
    "Python without assertions": _bashrc("export PYTHONOPTIMIZE=2 PYTHONWARNINGS=error PYTHONDEVMODE=1"),
    "a trap that prints": _bashrc("trap 'echo bye' EXIT"),
    "errors go nowhere": _bashrc("exec 2>/dev/null"),
    "stdin is closed": _bashrc("exec <&-"),
    "a line of stdin is eaten": _bashrc("read -t 3 eaten"),
    "5 s of start-up": _bashrc("sleep 5"),
    "IFS and globs": _bashrc("IFS=:/", "shopt -s failglob nullglob"),
    "TMPDIR is nowhere": _bashrc("export TMPDIR=/nowhere"),
    "HOME is nowhere": _bashrc("export HOME=/nowhere"),
    "LD_PRELOAD is nowhere": _bashrc("export LD_PRELOAD=/nowhere.so"),
    "cd, exec and kill are functions": _bashrc("cd() { echo no cd; }; exec() { echo no exec; }; kill() { echo no kill; }"),
    "the login shell is dash": Oddity("cp /etc/passwd /run/passwd; sed -i 's|^\\(root:.*\\):[^:]*$|\\1:/bin/dash|' /etc/passwd", "cp /run/passwd /etc/passwd"),
    "a nice of 19": _bashrc("renice -n 19 $$ >/dev/null"),
}  # fmt: skip

# Of the operator's machine: shell text before the command.
OPERATOR = {
    "an ASCII terminal": "export LC_ALL=C PYTHONUTF8=0 PYTHONCOERCECLOCALE=0 PYTHONIOENCODING=ascii",
    "a terminal of 3 columns": "export COLUMNS=3 LINES=1 TERM=dumb",
    "TMPDIR is nowhere": "export TMPDIR=/nowhere",
    "TMPDIR is read-only": "export TMPDIR=/sys",
    "60 open files": "ulimit -n 60",
    "files of at most 4 KB": "ulimit -f 8",
    "umask 777": "umask 777",
    "a folder that was deleted": 'cd "$(mktemp -d)" && rmdir "$PWD"; export CHECKOUT=gone',
    "stdin is closed": "exec <&-",
    "stderr is closed": "exec 2>&-",
    "Python's warnings are errors": "export PYTHONWARNINGS=error PYTHONDEVMODE=1 PYTHONOPTIMIZE=2",
    "an agent that is gone": "export SSH_AUTH_SOCK=/nowhere/agent",
    "a HOME that is read-only": "export HOME=/sys XDG_CACHE_HOME=",
    "a PATH without git and rsync": "mkdir -p $ODD/bin; for t in ssh sh bash env python3; do ln -sf $(command -v $t) $ODD/bin; done; export PATH=$ODD/bin",
    "a clock 9 h behind": f"{shim('s - 32400').replace('/run/', '$ODD/')}; export LD_PRELOAD=$ODD/clock.so",
    "a clock in 2040": f"{shim('s + 441504000').replace('/run/', '$ODD/')}; export LD_PRELOAD=$ODD/clock.so",
    "a time zone that is none": "export TZ=Mars/Phobos",
    "signals that it ignores": "trap '' INT TERM HUP PIPE CHLD",
    "800 MB of address space": "ulimit -v 800000",
}  # fmt: skip

# What is moved: shell text in the folder that is to be moved, on a host or here.
DATA = {
    "20,000 empty files": "for d in $(seq 100); do mkdir $d; (cd $d && seq -f f%g 200 | xargs touch); done",
    "names of any bytes": "touch -- -rf $'a\\nb' $'latin-\\xe9' \"it's\" '$(id)' '*' \"$(printf x%.0s $(seq 255))\" ' '; mkdir $'d\\n'; touch $'d\\n/e'",
    "300 folders deep": "for i in $(seq 300); do mkdir deep; cd deep; done; echo end >file",
    "links of every kind": "echo a >a; ln a b; ln -s a c; ln -s nowhere d; ln -s . e; ln -s /etc/passwd f; ln -s e/e g",
    "modes of every kind": "for m in 000 111 222 444 4755 1777; do echo $m >m$m; chmod $m m$m; done; mkdir no; touch no/in; chmod 000 no",
    "a hole of 3 GB": "truncate -s 3G hole; echo end >>hole",
    "a file that grows": "touch big; setsid sh -c 'for i in $(seq 300); do head -c 300000 /dev/urandom; sleep 0.1; done >>big' >/dev/null 2>&1 &",
    "a file that shrinks": "head -c 80m /dev/urandom >big; setsid sh -c 'for i in $(seq 79 -1 0); do truncate -s ${i}m big; sleep 0.1; done' >/dev/null 2>&1 &",
    "files that come and go": "setsid sh -c 'for i in $(seq 3000); do touch c$((i % 50)); rm -f c$(((i + 25) % 50)); done' >/dev/null 2>&1 &",
    "dates of 1901 and 2200": "touch -d 1901-12-31 old; touch -d 2200-01-01 new; touch -d @-1 before",
}  # fmt: skip

# A command whose output or words are huge or odd: the words of `inv`.
HUGE = {
    "a line of 1 GB": ("run", "--hosts", "1", "--timeout", "200", "--", "head -c 1000000000 /dev/zero | tr '\\0' x"),
    "NULs and bytes that are no text": ("run", "--", "head -c 3000000 /dev/urandom; printf '\\0\\0\\377'"),
    "NULs as JSON": ("run", "--json", "--", "printf 'a\\0b\\377\\033[2J'; exit 3"),
    "400,000 lines on both streams": ("run", "--", "seq 400000; seq 400000 >&2"),
    "words of 100 KB": ("run", "--", "true " + "x" * 100_000),
    "2,000 jobs on record": ("jobs.list", "--all"),
    "2,000 jobs on record, as JSON": ("jobs.list", "--all", "--json"),
    "2,000 jobs on record, one shown": ("jobs.show", "last"),
    "2,000 jobs on record, one more": ("train.run", "--np", "1", "--unchecked", "--", "true"),
    "2,000 jobs on record, kill": ("kill", "--yes"),
    "a program of 100 KB": ("train.run", "--np", "1", "--", "true # " + "y" * 100_000),
    "3,000 variables": ("train.run", "--np", "1", *(w for n in range(3000) for w in ("-e", f"V{n}={n}")), "--", "env | grep -c ^V"),
    "a name of 300 characters": ("train.run", "--np", "1", "--name", "n" * 300, "--", "true"),
    "2,000 processes of a job that ended": ("kill", "--yes"),
    "a set of 10^11 hosts": ("run", "--hosts", "0-99999999999", "--", "true"),
}  # fmt: skip


@dataclass(frozen=True)
class Program:
    """A job's command, how it is to end, and what is done to it once it has begun."""

    line: str
    state: str = "succeeded"
    then: str = ""  # "stop": it is stopped once it says `begun`
    cause: str = ""  # a regular expression
    np: int = 3


_PY = "python3 -c '{}'"
PROGRAMS = {
    "400 children": Program("for i in $(seq 400); do sleep 500 & done; echo begun"),
    "a daemon of two forks": Program("(setsid sh -c 'cd /; exec <&- >&- 2>&-; sleep 600' &) ; echo begun"),
    "TERM, INT and HUP ignored": Program("trap '' TERM INT HUP; echo begun; while :; do sleep 1; done", "stopped", "stop"),
    "all streams closed": Program("[ $RANK = 1 ] || { sleep 20; exit; }; exec <&- >&- 2>&-; exit 3", "failed", cause="1.*3|3.*1"),
    "its folder is gone": Program("d=$(mktemp -d); cd $d; rmdir $d; echo begun; sleep 3"),
    "another name": Program("echo begun; exec -a '[kworker/0:1]' sleep 600", "stopped", "stop"),
    "a traceback and a good end": Program(_PY.format('import traceback\ntry: 1/0\nexcept Exception: traceback.print_exc()')),
    "it kills its parent": Program("sleep 2; kill -9 $PPID; sleep 30", "failed"),
    "it stops its group": Program("echo begun; kill -STOP 0", "stopped", "stop"),
    "exit 255": Program("[ $RANK = 2 ] && exit 255; sleep 20", "failed", cause="2.*255|255"),
    "a real-time signal": Program("[ $RANK = 2 ] && kill -40 $$; sleep 20", "failed", cause="40|2"),
    "60 MB without an end of line, then a fault": Program("head -c 60000000 /dev/zero | tr '\\0' z; kill -SEGV $$", "failed", np=1),
    "escapes and NULs, then 1": Program("printf '\\033[2J\\033]0;x\\007a\\0b\\377\\n' >&2; exit 1", "failed"),
    "a hydra": Program(_PY.format('import os,signal,time\ndef again(*_):\n  if os.fork(): os._exit(0)\nsignal.signal(15, again)\nprint("begun",flush=True)\nt=time.time()+300\nwhile time.time()<t: time.sleep(1)'), "stopped", "stop"),
    "2,000 zombies": Program(_PY.format('import os,time\nfor _ in range(2000):\n  if not os.fork(): os._exit(0)\nprint("begun",flush=True)\ntime.sleep(4)')),
    "rank 1 is done at once": Program("[ $RANK = 1 ] && exit 0; echo begun; sleep 8"),
    "its log is cut": Program("echo one; : >$DLAMI_JOB_FOLDER/console.log; rm -f $DLAMI_JOB_FOLDER/logs/*/*; echo two; sleep 3; echo three"),
    "its job's folder is gone": Program("[ $RANK = 0 ] && rm -rf $DLAMI_JOB_FOLDER; sleep 4", "failed", np=1),
    "lines as mpirun writes them": Program("echo '[1,2]<stderr>: boom'; echo 'mpirun: killed by signal 9' >&2; echo 'ORTE was unable'; exit 0"),
    "200,000 lines with carriage returns": Program(_PY.format('import sys\nfor i in range(200000): sys.stdout.write(f"\\r{i}")')),
    "a program that is a folder": Program("exec /tmp", "failed", np=1),
    "a bad first line": Program("printf '#!/no/such/python\\r\\n' >/tmp/p; chmod +x /tmp/p; exec /tmp/p", "failed", np=1),
    "another job's tag": Program("env DLAMI_JOB=20200101-000000-other-aaaa setsid sleep 300 & echo begun; sleep 2"),
    "a limit of 100 MB": Program("ulimit -v 100000; " + _PY.format('x = bytearray(1 << 30)'), "failed", cause="(?i)memory", np=1),
    "a slow end": Program("trap 'sleep 25; exit 0' TERM; echo begun; while :; do sleep 1; done", "stopped", "stop"),
    "SIGPIPE": Program("[ $RANK = 1 ] && kill -PIPE $$; sleep 20", "failed", cause="13|PIPE|1"),
    "stdin is read to its end": Program("cat; echo end"),
    "an exit by atexit": Program(_PY.format('import atexit, os\natexit.register(lambda: os._exit(7))'), "failed", cause="7", np=1),
    "a thread that goes on": Program(_PY.format('import threading, time\nthreading.Thread(target=time.sleep, args=(600,)).start()\nprint("begun", flush=True)'), "stopped", "stop"),
    "it writes to every descriptor": Program("for f in $(ls /proc/$$/fd); do echo x >&$f; done 2>/dev/null; sleep 2"),
}  # fmt: skip

ON_HOSTS = {"links": LINKS, "clocks": CLOCKS, "folders": FOLDERS, "shells": SHELLS}


@dataclass(frozen=True, order=True)
class OddCell:
    """One trial: a command, what is odd under it, where (0: the master), and when."""

    family: str
    command: str
    odd: str
    rank: int = -1
    moment: str = "before"
    second: str = ""  # of a pair: on the last host

    def __str__(self) -> str:
        where = f" on host {self.rank}, {self.moment}" if self.rank >= 0 else ""
        return f"{self.command}: {self.odd}{where}{f'; {self.second} on host 2' if self.second else ''}"


def odd_cells() -> Iterator[OddCell]:
    """Every cell of the second grid but the pairs, which are drawn."""
    for family, kinds in ON_HOSTS.items():
        moments = ("before", "midway") if family in ("links", "folders") else ("before",)
        for odd, command, rank, moment in itertools.product(kinds, EVERYWHERE, (0, 1), moments):
            if moment == "before" or command in ("copy", "fetch", "stage", "program"):
                yield OddCell(family, command, odd, rank, moment)
    for odd, command in itertools.product(OPERATOR, (*EVERYWHERE, "jobs.list")):
        yield OddCell("operator", command, odd)
    for odd, command in itertools.product(DATA, MOVING):
        yield OddCell("data", command, odd)
    for odd in HUGE:
        yield OddCell("huge", HUGE[odd][0], odd)
    for odd in PROGRAMS:
        yield OddCell("programs", "train.run", odd)


def odd_drawn(seed: int, count: int) -> list[OddCell]:
    """So many different cells, families in turn, each oddity once before any comes again; every ninth is a pair."""
    chance = random.Random(seed)
    piles: dict[str, list[OddCell]] = {}
    for family in dict.fromkeys(cell.family for cell in odd_cells()):
        by_kind: dict[str, list[OddCell]] = {}
        for cell in odd_cells():
            if cell.family == family:
                by_kind.setdefault(cell.odd, []).append(cell)
        shuffled = [chance.sample(cells, len(cells)) for cells in by_kind.values()]
        chance.shuffle(shuffled)
        piles[family] = [c for layer in itertools.zip_longest(*shuffled) for c in layer if c]
    pairs = []
    for _ in range(count):
        one, other = chance.sample(sorted(ON_HOSTS), 2)
        odd, second = chance.choice(sorted(ON_HOSTS[one])), chance.choice(sorted(ON_HOSTS[other]))
        pairs.append(OddCell("pairs", chance.choice(EVERYWHERE), odd, chance.choice((0, 1)), "before", second))
    piles["pairs"] = list(dict.fromkeys(pairs))
    return list(itertools.islice((c for layer in itertools.zip_longest(*piles.values()) for c in layer if c), count))
