"""The GPUs and racks that are described: a file gpus/NAME.toml or racks/NAME.toml is a name."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from ..errors import UnknownName
from .files import read_described, read_gpu, read_rack
from .gpu import Gpu
from .rack import Rack

_HERE = Path(__file__).parent
# sm_107, sm107, sm_107a: the suffix chooses instructions, not the GPU.
_ARCH = re.compile(r"sm_?(\d+)[af]?", re.IGNORECASE)


def gpu_names() -> list[str]:
    """List the GPUs that are described."""
    return sorted(p.stem for p in (_HERE / "gpus").glob("*.toml"))


def rack_names() -> list[str]:
    """List the racks that are described."""
    return sorted(p.stem for p in (_HERE / "racks").glob("*.toml"))


def load_gpu(name: str) -> Gpu:
    """Return a GPU by name ("vr200").

    Raises:
        UnknownName: no file of that name.
        CorruptFile: its file cannot be meant.
    """
    if name not in gpu_names():
        advice = f"to add one, write topology/gpus/{name}.toml or give a path ending in .toml"
        raise UnknownName("gpu", name, gpu_names(), advice)
    return _own_gpu(name)


def load_rack(name: str) -> Rack:
    """Return a rack by name ("vr_nvl72") or by a path ending in .toml.

    Raises:
        UnknownName: no file of that name.
        CorruptFile: its file cannot be meant.
    """
    if name.endswith(".toml"):
        return read_rack(Path(name))
    if name not in rack_names():
        advice = f"to add one, write topology/racks/{name}.toml"
        raise UnknownName("rack", name, rack_names(), advice)
    return _own_rack(name)


def resolve_target(text: str) -> Gpu:
    """Return the GPU that a target means: a name, sm_NNN (its reference GPU), or a path of a TOML.

    Raises:
        UnknownName: no such GPU, or no reference GPU of that compute capability.
        CorruptFile: the file at the path cannot be meant.
    """
    if text.endswith(".toml"):
        return read_gpu(Path(text).expanduser())
    named = _ARCH.fullmatch(text)
    if named is None:
        return load_gpu(text.lower())
    references = {gpu.arch: gpu for gpu in map(load_gpu, gpu_names()) if gpu.reference}
    found = references.get(int(named[1]))
    if found is None:
        known = [f"sm_{arch}" for arch in references] + gpu_names()
        raise UnknownName("target", text, known, "or give a GPU's TOML")
    return found


def load_described(text: str) -> Gpu | Rack:
    """Return the GPU or rack that a text names: a name, sm_NNN, or a path of a TOML.

    Raises:
        UnknownName: neither a GPU nor a rack of that name.
        CorruptFile: the file at the path cannot be meant.
    """
    if text.endswith(".toml"):
        return read_described(Path(text).expanduser())
    if text in rack_names():
        return load_rack(text)
    if _ARCH.fullmatch(text) is None and text.lower() not in gpu_names():
        raise UnknownName("gpu or rack", text, gpu_names() + rack_names(), "or give a TOML")
    return resolve_target(text)


@cache
def _own_gpu(name: str) -> Gpu:
    return read_gpu(_HERE / "gpus" / f"{name}.toml")


@cache
def _own_rack(name: str) -> Rack:
    return read_rack(_HERE / "racks" / f"{name}.toml")
