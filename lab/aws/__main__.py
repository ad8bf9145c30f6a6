"""`python -m lab.aws --port 0`: a fake AWS until it is interrupted; its address is the first line it prints."""

import argparse
import contextlib
import threading

from lab.aws.server import start


def main() -> None:
    """Serve until Ctrl-C or SIGTERM."""
    parser = argparse.ArgumentParser(prog="python -m lab.aws", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=0, help="0: a free one")
    parser.add_argument("--scale", type=float, default=1.0, help="seconds of ours for one of AWS's time-outs")
    parser.add_argument(
        "--nodes",
        choices=("ready", "none"),
        default="ready",
        help="ready: instances signal by themselves; none: whoever runs their user data does",
    )
    parser.add_argument("--tag-prefix", default="", help="of the tags by which instances tell role, boot and host key")
    args = parser.parse_args()
    with start(host=args.host, port=args.port, scale=args.scale, nodes=args.nodes, tag_prefix=args.tag_prefix) as fake:
        print(fake.url, flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()


if __name__ == "__main__":
    main()
