"""Reads dumps of engines' routing recorders (recorded_routing.py says which)."""

from __future__ import annotations

import io
import json
import struct
import tokenize
import warnings
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import CorruptFile, InvalidInput
from .routing import MOST_COUNT

Integers = NDArray[np.int64]

MOST_FILE_BYTES = 1 << 30
MOST_ARRAY_BYTES = 8 << 30
MOST_EXPERTS = 1 << 16
_COUNTS = ("logical_count", "counts")
# Where the axis of layers stands in each dump of top-k ids (None: one layer).
_IDS = {
    "topk_ids_of_layer": 0,
    "routed_experts": 1,
    "prompt_routed_experts": 1,
    "topk_ids": None,
}
_EXPECTED = (
    "recorded routing: logical_count, counts, topk_ids_of_layer, routed_experts or topk_ids "
    "in .npz, .npy, .json or .pt"
)
# What zipfile and numpy raise on a damaged file. RuntimeError: the archive is encrypted; the last
# four: numpy reads an array's header as Python.
_BROKEN_ARRAY = (
    ValueError, OSError, EOFError, MemoryError, RuntimeError, LookupError, ArithmeticError,
    struct.error, zipfile.BadZipFile, zlib.error, TypeError, AttributeError, SyntaxError,
    tokenize.TokenError,
)  # fmt: skip
# What torch's restricted unpickler raises on a damaged file (it indexes and casts unchecked).
_BROKEN_PICKLE = (
    RuntimeError, ValueError, EOFError, OSError, LookupError, AttributeError, TypeError,
    ArithmeticError, AssertionError, MemoryError, struct.error, ImportError, NameError,
)  # fmt: skip
# Names of the layers, counts [layers, experts], top_k (0 = not recorded).
Found = tuple[tuple[str, ...], Integers, int]
SUFFIXES = (".npz", ".npy", ".pt", ".pth", ".json")


def read_dump(path: Path, experts: int) -> Found:
    """Return what a dump holds, by its suffix.

    Raises:
        CorruptFile: it holds no recorded routing, or could run code.
    """
    if path.stat().st_size > MOST_FILE_BYTES:
        raise CorruptFile(path, f"more than {MOST_FILE_BYTES >> 30} GiB", _EXPECTED)
    loaders = {".npz": _load_npz, ".npy": _load_npy, ".json": _load_json}
    return _Dump(path, experts).read(loaders.get(path.suffix.lower(), _load_torch)(path))


def _check_archive(path: Path) -> None:
    """Refuse archives that unpack to too much or whose contents are damaged.

    Raises:
        CorruptFile: so it is.
    """
    try:
        with zipfile.ZipFile(path) as packed:
            size = sum(entry.file_size for entry in packed.infolist())
            if size > MOST_ARRAY_BYTES:
                raise CorruptFile(path, f"unpacks to {size >> 30} GiB", _EXPECTED)
            damaged = packed.testzip()
    except _BROKEN_ARRAY as error:
        raise CorruptFile(path, _first_sentence(error), _EXPECTED) from error
    if damaged is not None:
        raise CorruptFile(path, f"its part {damaged!r:.80} is damaged", _EXPECTED)


def _packed_again(path: Path) -> io.BytesIO:
    """Return the archive with its index made anew from parts whose checksums hold.

    Torch's own reader trusts the sizes in a damaged index: it reads past the end of a part and
    returns whatever lies there in memory.
    """
    stream = io.BytesIO()
    try:
        with zipfile.ZipFile(path) as packed, zipfile.ZipFile(stream, "w") as clean:
            for entry in packed.infolist():
                clean.writestr(zipfile.ZipInfo(entry.filename), packed.read(entry))
    except _BROKEN_ARRAY as error:
        raise CorruptFile(path, _first_sentence(error), _EXPECTED) from error
    stream.seek(0)
    return stream


def _load_npz(path: Path) -> dict[str, Any]:
    """Load the arrays that are known by name; pickled ones are refused by numpy."""
    _check_archive(path)
    try:
        with np.load(path, allow_pickle=False) as arrays, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # as below
            return {n: arrays[n] for n in arrays.files if n in _COUNTS or n in _IDS}
    except _BROKEN_ARRAY as error:
        raise CorruptFile(path, _first_sentence(error), _EXPECTED) from error


def _load_npy(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as stream, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Python 2 headers: it loads or it is refused
            array = np.lib.format.read_array(stream, allow_pickle=False)
    except _BROKEN_ARRAY as error:
        raise CorruptFile(path, _first_sentence(error), _EXPECTED) from error
    return {"routed_experts" if array.ndim == 3 else "counts": array}


def _load_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        raise CorruptFile(path, _first_sentence(error), _EXPECTED) from error
    if isinstance(found, list):
        return {"counts": found}
    if not isinstance(found, dict):
        raise CorruptFile(path, "it is neither an object nor a list", _EXPECTED)
    return found


def _load_torch(path: Path) -> dict[str, Any]:
    """Load tensors and plain values; whatever else the file holds is refused, not run."""
    import pickle  # its errors only

    import torch  # heavy, and needed for this one kind of file

    _check_archive(path)
    whole = _packed_again(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of pickle protocols: it loads or it is refused
            found = torch.load(whole, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        why = (
            "torch.load(weights_only=True) refuses it: it holds more than tensors and plain values"
        )
        raise CorruptFile(path, f"{why}, which could run code", _EXPECTED) from error
    except _BROKEN_PICKLE as error:
        raise CorruptFile(path, _first_sentence(error), _EXPECTED) from error
    if not isinstance(found, dict):
        raise CorruptFile(path, f"it holds a {type(found).__name__}, not a dict", _EXPECTED)
    return found


def _first_sentence(error: Exception) -> str:
    words = " ".join(str(error).split())
    return words.split(". ")[0][:160] or type(error).__name__


class _Dump:
    """Finds counts in what a file holds."""

    def __init__(self, path: Path, experts: int) -> None:
        if not isinstance(experts, int) or not 0 <= experts <= MOST_EXPERTS:
            raise InvalidInput(f"experts is {experts!r}: must be from 0 to {MOST_EXPERTS}")
        self.path = path
        self.experts = experts

    def read(self, found: Mapping[str, Any]) -> Found:
        """Return the counts.

        Raises:
            CorruptFile: none there, or none that can be meant.
        """
        names, counts, top_k = self._find(found)
        if self.experts and counts.shape[1] != self.experts:
            raise self.wrong(f"it has {counts.shape[1]} experts, not {self.experts}")
        if not counts.any():
            raise self.wrong("no expert has a route")
        return names, counts, top_k

    def wrong(self, why: str) -> CorruptFile:
        """Return the error to raise."""
        return CorruptFile(self.path, why, _EXPECTED)

    def _find(self, found: Mapping[str, Any]) -> Found:
        if "records" in found:
            return self._from_records(found)
        for name in _COUNTS:
            if name in found:
                counts = self._as_counts(name, found[name])
                return _numbered(counts), counts, 0
        dumps = list(self._ids(found))
        if dumps:
            return self._from_ids(dumps)
        if found and all(isinstance(row, list) for row in found.values()):
            return self._by_layer(found)
        raise self.wrong(f"it has {', '.join(map(str, list(found)[:8])) or 'nothing'!r:.100}")

    def _integers(self, name: str, value: Any, least: int) -> Integers:
        try:
            array = np.asarray(value)
        except (ValueError, TypeError, RuntimeError, OverflowError) as error:
            raise self.wrong(f"{name!r}: {_first_sentence(error)}") from error
        whole = array.dtype.kind in "iu"
        if array.dtype.kind == "f":  # counts averaged or saved as floats: whole ones are fine
            whole = bool(np.isfinite(array).all()) and bool((array == np.floor(array)).all())
        if not whole or not array.size:
            raise self.wrong(
                f"{name!r} must hold whole numbers, it holds {array.dtype} {array.shape}"
            )
        if array.min() < least or array.max() >= MOST_COUNT:
            raise self.wrong(f"{name!r} has values from {array.min()} to {array.max()}")
        return array.astype(np.int64)

    def _as_counts(self, name: str, value: Any) -> Integers:
        array = self._integers(name, value, 0)
        if array.ndim == 0 or array.shape[-1] > MOST_EXPERTS:
            raise self.wrong(f"{name!r} has shape {array.shape}, not [..., layers, experts]")
        table = np.atleast_2d(array)
        summed: Integers = table.reshape(-1, *table.shape[-2:]).sum(axis=0)
        return summed

    def _by_layer(self, found: Mapping[str, Any]) -> Found:
        rows = [self._integers(f"layer {name}", row, 0) for name, row in found.items()]
        if len({row.shape for row in rows}) > 1 or rows[0].ndim != 1:
            raise self.wrong("its layers have different numbers of experts")
        return tuple(map(str, found)), np.stack(rows), 0

    def _ids(self, found: Mapping[str, Any]) -> Iterator[tuple[str, Integers]]:
        """Yield dumps of ids, layers first: [layers, tokens, top_k]."""
        choices = found.get("choices")
        answers = [a for a in choices if isinstance(a, dict)] if isinstance(choices, list) else []
        for part in (found, *answers):
            for name, axis in _IDS.items():
                if part.get(name) is None:
                    continue
                ids = self._integers(name, part[name], -1)
                if ids.ndim != (2 if axis is None else 3) or ids.max() >= MOST_EXPERTS:
                    raise self.wrong(f"{name!r} has shape {ids.shape} and ids up to {ids.max()}")
                yield name, ids[None] if axis is None else np.moveaxis(ids, axis, 0)

    def _from_ids(self, dumps: list[tuple[str, Integers]]) -> Found:
        shapes = {(ids.shape[0], ids.shape[2]) for _, ids in dumps}
        if len(shapes) > 1:
            raise self.wrong(f"its dumps have different layers or top_k: {sorted(shapes)}")
        layers, top_k = shapes.pop()
        most = 1 + max(int(ids.max()) for _, ids in dumps)
        if self.experts and most > self.experts:
            raise self.wrong(f"id {most - 1} occurs, and there are {self.experts} experts")
        counts = np.zeros((layers, self.experts or most), dtype=np.int64)
        for _, ids in dumps:
            for layer in range(layers):
                flat = ids[layer].ravel()
                counts[layer] += np.bincount(flat[flat >= 0], minlength=counts.shape[1])
        return _numbered(counts), counts, top_k

    def _from_records(self, found: Mapping[str, Any]) -> Found:
        """Add up SGLang's passes and give physical experts the number of their logical one."""
        records = found["records"]
        name = "global_physical_count"
        if not isinstance(records, list) or not records:
            raise self.wrong("'records' has no pass")
        total: Integers | None = None
        for record in records:
            if not isinstance(record, dict) or name not in record:
                raise self.wrong(f"a record has no {name!r}")
            counts = self._as_counts(name, record[name])
            if total is not None and total.shape != counts.shape:
                raise self.wrong("its records have different shapes")
            total = counts if total is None else total + counts
        places = self._integers(
            "last_physical_to_logical_map", found.get("last_physical_to_logical_map", []), 0
        )
        if total is None or places.shape != total.shape or places.max() >= MOST_EXPERTS:
            raise self.wrong(f"its map has shape {places.shape}, not that of {name!r}")
        logical = np.zeros((len(total), self.experts or int(places.max()) + 1), dtype=np.int64)
        if places.max() >= logical.shape[1]:
            raise self.wrong(f"expert {places.max()} occurs, and there are {self.experts} experts")
        for layer in range(len(total)):
            np.add.at(logical[layer], places[layer], total[layer])
        return _numbered(logical), logical, 0


def _numbered(counts: Integers) -> tuple[str, ...]:
    return tuple(map(str, range(len(counts))))
