"""Plug-ins that hand our tables to vLLM and SGLang (entry points of pyproject.toml).

An operator sets RUBIN_TUNE_TABLE to a table file or a database with winners of the engine's own kernel, and
starts the server as always. In each of its processes the engine calls its plug-in, which writes the engine's
own files into a private folder of the user's cache and names it in the variable that the engine reads:
VLLM_TUNED_CONFIG_FOLDER, SGLANG_MOE_CONFIG_DIR. Reading rules, fall-backs and switches stay the engine's.
A variable that the operator has set wins: nothing is written then.

Nothing is raised into the engine: what goes wrong is one warning, and the server starts without our table.
Importing this module imports the standard library only.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InvalidInput, RubinTuneError

if TYPE_CHECKING:
    from ..db import Winner

TABLE = "RUBIN_TUNE_TABLE"
VLLM_FOLDER = "VLLM_TUNED_CONFIG_FOLDER"
SGLANG_FOLDER = "SGLANG_MOE_CONFIG_DIR"
# Where SGLang keeps the tables that it ships. Importing their package would import the engine.
_SGLANG_CONFIGS = ("srt", "layers", "moe", "moe_runner", "triton_utils")

_log = logging.getLogger("rubin_tune")


def vllm() -> None:
    """Be vLLM's plug-in: point it at a folder with the table of RUBIN_TUNE_TABLE."""
    _guarded("vllm", VLLM_FOLDER, materialise)


def sglang() -> None:
    """Be SGLang's plug-in: point it at such a folder, with the tables that SGLang ships beside ours."""
    _guarded("sglang", SGLANG_FOLDER, _with_shipped)


def materialise(source: str, engine: str, root: Path | None = None) -> Path:
    """Write an engine's files for the winners of its kernel; return their folder.

    The folder is named after what it holds, so ranks and restarts share it.

    Args:
        source: A table file, or a database's file or URL.
        engine: "vllm" or "sglang".
        root: Where; None = the user's cache.

    Raises:
        RubinTuneError: the source cannot be read, has no winners of the engine's kernel, or a row cannot be
            expressed.
        OSError: the folder cannot be made, or is another user's.
    """
    from ..registry import load

    found = _winners(source, engine)
    exporter: Any = load("db.formats", engine)
    folder = _private(root or _cache(), f"{engine}-{_digest(found)}")
    try:
        exporter.export(found, folder)
    except RubinTuneError:
        # Nothing was written: the folder need not stay, unless an earlier start filled it.
        with contextlib.suppress(OSError):
            folder.rmdir()
        raise
    return folder


def _guarded(engine: str, variable: str, make: Callable[[str, str], Path]) -> None:
    source = os.environ.get(TABLE)
    if not source:
        return
    try:
        own = os.environ.get(variable)
        if own:
            # In a worker the variable is what the server's own process was given by us.
            if not Path(own).is_relative_to(_cache()):
                _log.warning("%s is set, so %s is not used for %s", variable, TABLE, engine)
            return
        os.environ[variable] = str(make(source, engine))
    except Exception as error:  # noqa: BLE001 a server must start without a table rather than not at all
        _log.warning("%s is not used for %s: %s", TABLE, engine, error)


def _winners(source: str, engine: str) -> list[Winner]:
    from ..registry import load, names

    kernels = [name for name in names("kernels") if _serves(load("kernels", name)) == engine]
    if "://" in source or _is_database(Path(source)):
        from ..db import open_store

        with open_store(source, create=False) as store:
            held = [w for name in kernels for w in store.winners(kernel=name)]
    else:
        from ..db.formats.json import load as load_table

        held = [w for w in load_table(Path(source)) if w.kernel in kernels]
    if not held:
        raise InvalidInput(
            f"{_shown(source)!r} has no winners of {engine}'s own kernel ({', '.join(kernels)}): "
            "sweep that, or unset the variable"
        )
    return held


def _serves(kernel: Any) -> str:
    engine: str = kernel.serves_engine
    return engine


def _is_database(path: Path) -> bool:
    from .table import _is_sqlite

    return _is_sqlite(path)


def _shown(source: str) -> str:
    # A URL may hold a password.
    return source if "://" not in source else "the database"


def _digest(winners: list[Winner]) -> str:
    from ..db.codec import dumps, winner_to_json

    text = "\n".join(sorted(dumps(winner_to_json(winner)) for winner in winners))
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def _cache() -> Path:
    from platformdirs import user_cache_path

    return user_cache_path("rubin-tune") / "engines"


def _private(root: Path, name: str) -> Path:
    """Return a folder that only this user can read or write.

    Raises:
        PermissionError: somebody else's stands in its place.
    """
    folder = root / name
    for path in (root, folder):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        held = path.lstat()
        if path.is_symlink() or held.st_uid != os.getuid():
            raise PermissionError(f"folder {str(path)!r} is a link or another user's: remove it")
        path.chmod(0o700)
    return folder


def _with_shipped(source: str, engine: str) -> Path:
    """Write SGLang's folder and link what SGLang ships into it: the variable replaces its own folder."""
    folder = materialise(source, engine)
    shipped = _shipped()
    for path in shipped.glob("configs/triton_*/*.json"):
        link = folder / path.relative_to(shipped)
        link.parent.mkdir(mode=0o700, exist_ok=True)
        _link(path, link)
    return folder


def _link(path: Path, link: Path) -> None:
    """Link, unless our own table or another rank's link stands there."""
    try:
        link.symlink_to(path)
    except FileExistsError:
        return


def _shipped() -> Path:
    spec = find_spec("sglang")
    if spec is None or spec.origin is None:
        raise InvalidInput("sglang is not installed here: its shipped tables cannot be found")
    return Path(spec.origin).parent.joinpath(*_SGLANG_CONFIGS)
