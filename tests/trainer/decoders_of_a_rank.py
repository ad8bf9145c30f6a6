"""Run by test_decoders: a rank that decodes, tells of its processes, and does so again for each line that it is given."""

import io
import json
import signal
import sys

import numpy as np
from PIL import Image

from trainer.common.data import records
from trainer.resnet50_torch import decoding
from trainer.resnet50_torch.decoders import Arena, Decoders, lost_ones_told


def main() -> None:
    """A line for a line."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)  # as a rank takes note of them
    file = io.BytesIO()
    Image.fromarray(np.full((30, 40, 3), 90, np.uint8)).save(file, "JPEG")
    record = records.example({"image/class/label": 3, "image/encoded": file.getvalue()})
    crops, arena = [decoding.central_crop] * 8, Arena()
    with Decoders(2) as decoders, lost_ones_told():
        for _ in sys.stdin:
            under_way = decoders.begin(arena, [record] * 8, crops, [False] * 8, side=8, classes=5)
            labels = [label for one in under_way for label in one.result()]
            print(json.dumps([labels, decoders.pids]), flush=True)


if __name__ == "__main__":
    main()
