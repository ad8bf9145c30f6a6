"""Holds 256 MiB of the first GPU until its input ends, through the driver alone: no framework has to be here."""

import ctypes
import sys

cuda = ctypes.CDLL("libcuda.so.1")
device, context, memory = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
for code in (
    cuda.cuInit(0),
    cuda.cuDeviceGet(ctypes.byref(device), 0),
    cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device),
    cuda.cuCtxSetCurrent(context),
    cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(256 << 20)),
):
    if code:
        sys.exit(f"CUDA error {code}")
print("held", flush=True)
sys.stdin.read()
