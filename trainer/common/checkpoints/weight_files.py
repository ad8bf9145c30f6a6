"""Safe reader of weights files that other programs write. Nothing in them is ever executed.

`.npz` of NumPy; `.safetensors` (https://github.com/huggingface/safetensors); `.h5` of Keras 2, by layer and variable;
`.pkl` of arrays alone.
"""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.common.checkpoints import npz, pickled
from trainer.common.files.atomic_write import written_whole
from trainer.common.files.errors import ConfigError

Arrays = dict[str, NDArray[Any]]
LARGEST_HEADER = 100 << 20  # bytes; the format's limit
TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4", "U8": "|u1"}
AS_NPZ = (
    'python -c "import sys, torch, numpy; numpy.savez(sys.argv[2], **{k: v.numpy() for k, v in '
    "(lambda d: d.get('model', d))(torch.load(sys.argv[1], weights_only=True)).items()})\" {file} {npz}"
)


def read(path: Path) -> Arrays:
    """Return the arrays of a weights file by name. The extension decides its format.

    Raises:
        ConfigError: the file is missing, damaged, or in an unsupported format.
    """
    if path.suffix == ".npz":
        return npz.read(path)
    if path.suffix in (".pth", ".pt", ".bin"):
        how = AS_NPZ.replace("{file}", str(path)).replace("{npz}", str(path.with_suffix(".npz")))
        raise ConfigError(f"{path} is a pickle, which could run anything: where PyTorch is, make an npz of it: {how}")
    forms = {".safetensors": _safetensors, ".h5": _h5, ".hdf5": _h5, ".pkl": pickled.read}
    if path.suffix not in forms:
        raise ConfigError(f"{path}: weights are read from .npz, .safetensors, .h5 and .pkl")
    try:
        return forms[path.suffix](path)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, MemoryError) as e:
        raise ConfigError(f"{path} cannot be read as weights ({path.suffix[1:]}): {e or type(e).__name__}") from e


def _safetensors(path: Path) -> Arrays:
    data = path.read_bytes()
    begin = 8 + int.from_bytes(data[:8], "little")
    if len(data) < 8 or not 8 < begin <= min(len(data), LARGEST_HEADER):
        raise ValueError("it is cut off or something else")
    found, end = {}, begin
    header = json.loads(data[8:begin])
    for name, told in sorted(header.items(), key=lambda item: item[1].get("data_offsets", [0])):
        if name == "__metadata__":
            continue
        shape, (first, last) = tuple(told["shape"]), told["data_offsets"]
        kind = np.dtype(TYPES[told["dtype"]])
        if begin + first != end or last - first != math.prod(shape) * kind.itemsize or begin + last > len(data):
            raise ValueError(f"{name} is not where its header says")
        end = begin + last
        array = np.frombuffer(data, kind, math.prod(shape), begin + first).reshape(shape)
        # bfloat16 is the upper half of a float32.
        found[name] = (array.astype("<u4") << 16).view("<f4") if told["dtype"] == "BF16" else array
    if end != len(data):
        raise ValueError("it does not end where its header says")
    return found


def _h5(path: Path) -> Arrays:
    import h5py

    found = {}
    with h5py.File(path) as file:
        top = file.get("model_weights", file)
        if "layer_names" not in top.attrs:
            raise ValueError("it names no layers: Keras 3 writes them so; save_weights of tf_keras names them")
        for layer in _texts(top.attrs["layer_names"]):
            for name in _texts(top[layer].attrs["weight_names"]):
                found[name.removesuffix(":0")] = np.asarray(top[layer][name])
    return found


def _texts(values: Any) -> list[str]:
    return [value.decode() if isinstance(value, bytes) else str(value) for value in values]


def write_safetensors(path: Path, arrays: Arrays) -> None:
    """Write float32 arrays to a new file, atomically.

    Raises:
        OSError: it cannot be written.
    """
    header, end = {}, 0
    for name, array in arrays.items():
        header[name] = {"dtype": "F32", "shape": array.shape, "data_offsets": [end, end + 4 * array.size]}
        end += 4 * array.size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with written_whole(path) as partial, partial.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for array in arrays.values():
            file.write(np.ascontiguousarray(array, "<f4").tobytes())
