"""`python -m lab.kube`: a stand-in of Kubernetes until it is interrupted; its kubeconfig is the first line."""

import argparse
from pathlib import Path

from lab.kube.kube import serve


def main() -> None:
    """Serve until Ctrl-C or SIGTERM."""
    parser = argparse.ArgumentParser(prog="python -m lab.kube", description=__doc__)
    parser.add_argument("--name", default="kube", help="of the lab")
    parser.add_argument("--image", type=Path, help="an unpacked image, the root of all pods")
    args = parser.parse_args()
    serve(args.name, args.image, lambda kube: print(kube.kubeconfig, flush=True))


if __name__ == "__main__":
    main()
