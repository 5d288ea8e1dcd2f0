"""What the CUDA driver and NVML say of a device, asked through ctypes: no torch, no context.

`cuInit` in a process makes CUDA unusable in children that it forks: start those by spawn.
"""

from __future__ import annotations

import ctypes
import sys
import uuid
from dataclasses import dataclass
from functools import cache

_SUCCESS = 0
_LIBRARY = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
_NVML = "nvml.dll" if sys.platform == "win32" else "libnvidia-ml.so.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One CUDA device.

    Attributes:
        index: Its ordinal, after CUDA_VISIBLE_DEVICES.
        name: What the driver calls it.
        uuid: As NVML writes it ("GPU-...").
        memory_bytes: Total device memory.
        attributes: Pairs of CUdevice_attribute number and value, those the driver knows.
    """

    index: int
    name: str
    uuid: str
    memory_bytes: int
    attributes: tuple[tuple[int, int], ...]

    def attribute(self, number: int) -> int | None:
        """Return one attribute, or None where the driver does not know it."""
        return dict(self.attributes).get(number)


def device_count() -> int:
    """Return how many CUDA devices this process may use; 0 without a driver."""
    library = _library()
    count = ctypes.c_int()
    if library is None or library.cuDeviceGetCount(ctypes.byref(count)) != _SUCCESS:
        return 0
    return count.value


def read_device(index: int, numbers: tuple[int, ...]) -> Device | None:
    """Return a device with the attributes of those numbers, or None where there is none."""
    library = _library()
    handle = ctypes.c_int()
    if library is None or library.cuDeviceGet(ctypes.byref(handle), index) != _SUCCESS:
        return None
    name = ctypes.create_string_buffer(256)
    total = ctypes.c_size_t()
    library.cuDeviceGetName(name, len(name), handle)
    library.cuDeviceTotalMem_v2(ctypes.byref(total), handle)
    found = ((number, _attribute(library, handle, number)) for number in numbers)
    return Device(
        index=index,
        name=name.value.decode(errors="replace"),
        uuid=_uuid(library, handle),
        memory_bytes=total.value,
        attributes=tuple((number, value) for number, value in found if value is not None),
    )


def _attribute(library: ctypes.CDLL, handle: ctypes.c_int, number: int) -> int | None:
    value = ctypes.c_int()
    status = library.cuDeviceGetAttribute(ctypes.byref(value), number, handle)
    return value.value if status == _SUCCESS else None


def _uuid(library: ctypes.CDLL, handle: ctypes.c_int) -> str:
    raw = (ctypes.c_ubyte * 16)()
    if library.cuDeviceGetUuid(raw, handle) != _SUCCESS:
        return ""
    return f"GPU-{uuid.UUID(bytes=bytes(raw))}"


def read_power_limit(device_uuid: str) -> int | None:
    """Return the enforced power limit in watts, or None where NVML does not answer."""
    try:
        nvml = ctypes.CDLL(_NVML)
    except OSError:
        return None
    if nvml.nvmlInit_v2() != _SUCCESS:
        return None
    handle, milliwatts = ctypes.c_void_p(), ctypes.c_uint()
    name = ctypes.c_char_p(device_uuid.encode())
    found = (
        nvml.nvmlDeviceGetHandleByUUID(name, ctypes.byref(handle)) == _SUCCESS
        and nvml.nvmlDeviceGetEnforcedPowerLimit(handle, ctypes.byref(milliwatts)) == _SUCCESS
    )
    nvml.nvmlShutdown()
    return round(milliwatts.value / 1000) if found and milliwatts.value else None


@cache
def _library() -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL(_LIBRARY)
    except OSError:
        return None
    return library if library.cuInit(0) == _SUCCESS else None
