"""Processes identified by a variable in their environment, and ended by it: never by program name."""

import re

_TAG = re.compile(r"[A-Z_]+=[A-Za-z0-9._:-]+")


def _find(tag: str, value: str, also: str = "", but: str = "") -> str:
    """Return shell text that prints the pid of every process with the tag. Zombies have none."""
    found = f"grep -lzxF {_checked(f'{tag}={value}')} /proc/[0-9]*/environ 2>/dev/null"
    both = f" | xargs -r grep -lzxF {_checked(also)} 2>/dev/null" if also else ""
    others = f" | xargs -r grep -LzxF {_checked(but)} 2>/dev/null" if but else ""
    return f"{found}{both}{others} | cut -d/ -f3"


def _checked(tag: str) -> str:
    assert _TAG.fullmatch(tag), f"{tag} is not a tag"
    return tag


def list_script(tag: str, value: str) -> str:
    """Return a shell script that prints `pid state command` of each process with the tag."""
    return f"for p in $({_find(tag, value)}); do ps -o pid=,stat=,args= -p $p; done; true"


def end_script(tag: str, value: str, grace_s: int, also: str = "", but: str = "", last: str = "") -> str:
    """Return a shell script that ends every process with the tag.

    The script sends TERM, waits up to `grace_s`, then sends KILL for up to 10 s. It looks again until it finds none, so
    that children started meanwhile end too. It prints `pid state command` of the processes that it could not end (stuck
    in the kernel, state D), and nothing else.

    also: another tag, `NAME=value`, that each process must carry. but: a tag that none may carry.
    last: the name of processes that get KILL 3 s after the others. They end what the others have left without the tag.
    """
    spares = f' | while read -r p; do grep -qx "{last}" /proc/$p/comm 2>/dev/null || echo $p; done' if last else ""
    return f"""find() {{ {_find(tag, value, also, but)}; }}
try() {{ for p in $(find); do kill -$1 $p 2>/dev/null; done; }}
kill_first() {{ for p in $(find{spares}); do kill -KILL $p 2>/dev/null; done; }}
wait_gone() {{ n=$1; while [ $n -gt 0 ] && [ -n "$(find)" ]; do n=$((n-1)); $2; sleep 0.1; done; }}
try TERM; wait_gone {grace_s * 10} true; wait_gone 30 kill_first; wait_gone 70 'try KILL'
for p in $(find); do ps -o pid=,stat=,args= -p $p; done; true"""
