#!/bin/bash
# heal-lost.sh SHARED PROJECT [MAKER]: on the master after each boot, as root. Every owner of jobs goes on with those of his that were lost:
# as that user, in a login of his, so that his supervisor has what it had when he started the job over SSH.
# MAKER: of a lab, the user whose checkout it was made from; root runs that code already.
# Root reads no record here. Whose a job is, says the owner of its folder, which must be no link: others may write to SHARED.
set -uo pipefail
here=$(dirname -- "$(realpath -- "$0")")
checks=$here/root_code.py   # beside this script where first boot installed both
[ -e "$checks" ] || checks=$here/../cluster/guard/onhost/root_code.py
shared=$1 project=$2 maker=${3:-0}

until [ -d "$shared/jobs" ] || mountpoint -q "$shared"; do   # its file system comes after the network
    [ $SECONDS -lt 900 ] || { echo "$shared is not mounted: no job is looked at"; exit 1; }
    sleep 1
done
[ ! -L "$shared/jobs" ] || { echo "$shared/jobs is a link: no job is looked at; as root remove it and make the folder"; exit 1; }
[ -d "$shared/jobs" ] || exit 0

printf -v words 'cd %q && exec .venv/bin/python -m cluster.jobs --shared %q heal' "$project" "$shared"
going=()
while read -r uid; do
    user=$(getent passwd "$uid" | cut -d: -f1)
    if [ -z "$user" ]; then
        echo "jobs of user $uid, who has no name on this host, stay as they are"
    elif [ "$uid" != 0 ]; then
        runuser -l "$user" -s /bin/bash -c "$words" </dev/null & going+=($!)
    elif [ "$(stat -c %u -- "$shared/jobs")" != 0 ]; then
        echo "root's jobs stay as they are: $shared/jobs is not root's; 'chown root $shared/jobs', then 'inv jobs.heal' as root"
    elif ! others=$(python3 -I -S "$checks" "$project" "$maker"); then
        echo "root's jobs stay as they are: $others is not root's alone, and root runs no code of others;" \
            "'inv jobs.heal' as root goes on with them"
    else
        bash -lc "$words" </dev/null & going+=($!)
    fi
done < <(find "$shared/jobs" -mindepth 1 -maxdepth 1 -type d ! -name '.*' -printf '%U\n' | sort -nu)
failed=0
for one in "${going[@]}"; do wait "$one" || failed=1; done
exit $failed
