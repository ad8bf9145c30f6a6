"""Set-up script at a node's first boot: `python -m cluster.setup.at_boot FILE`, run by scripts/setup.sh as root."""

import os
import shutil
import sys
from pathlib import Path

from cluster.setup.onhost.script import LOG, run_once
from cluster.setup.script import Script
from cluster.setup.setup import environment_of


def main(path: str) -> int:
    """Run the script unless it has succeeded here. Return 1 if it fails, with the reason as the last printed line.

    A script that has not the digest of the stack is not run: a user may have written it.
    """
    script = Script(name="setup", text=Path(path).read_text())
    if script.digest != os.environ["SETUP"]:
        print(f"{path} is not the script that the stack names, {os.environ['SETUP']}: replace this node")
        return 1
    told = environment_of(
        name=os.environ["NAME"],
        role=os.environ["ROLE"],
        shared=os.environ["SHARED"],
        project=os.environ["PROJECT"],
        user=os.environ["LOGIN"],
    )
    done = run_once(script.name, script.text, script.digest, told, float(os.environ["BOOT_SECONDS"]), False)
    if done["state"] != "before":
        with Path(LOG).open(errors="replace") as log:
            shutil.copyfileobj(log, sys.stdout)
    if done["state"] == "failed":
        print(f"{done['why']}: {done['tail'][-1]}" if done["tail"] else done["why"])
    return int(done["state"] == "failed")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
