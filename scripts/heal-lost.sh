#!/bin/bash
# heal-lost.sh SHARED PROJECT: on the master after each boot, as root. Every owner of jobs goes on with those of his that were lost:
# as that user, in a login of his, so that his supervisor has what it had when he started the job over SSH.
set -uo pipefail
shared=$1 project=$2

until [ -d "$shared/jobs" ] || mountpoint -q "$shared"; do   # its file system comes after the network
    [ $SECONDS -lt 900 ] || { echo "$shared is not mounted: no job is looked at"; exit 1; }
    sleep 1
done
folders=("$shared"/jobs/*/)
[ -e "${folders[0]}" ] || exit 0

printf -v words 'cd %q && exec .venv/bin/python -m cluster.jobs --shared %q heal' "$project" "$shared"
going=()
while read -r uid; do
    user=$(getent passwd "$uid" | cut -d: -f1)
    if [ -z "$user" ]; then
        echo "jobs of user $uid, who has no name on this host, stay as they are"
    elif [ "$uid" = "$(id -u)" ]; then
        bash -lc "$words" </dev/null & going+=($!)
    else
        runuser -l "$user" -s /bin/bash -c "$words" </dev/null & going+=($!)
    fi
done < <(stat -c %u -- "${folders[@]}" | sort -nu)
failed=0
for one in "${going[@]}"; do wait "$one" || failed=1; done
exit $failed
