"""A table that is read again when its file or database has changed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import BrokeOff, RubinTuneError
from .limits import Limits
from .table import Misses, Table

if TYPE_CHECKING:
    from ..topology import Gpu

# What tells one version of a file from another: size, time of change in ns, inode.
_Stamp = tuple[tuple[int, int, int], ...]


class TableWatcher:
    """Holds the newest good table of a source; `reload` is cheap where nothing changed.

    Look-ups that were bound go on answering from the table that they were bound to: bind them again
    when `reload` returns another one.

        watcher = TableWatcher("table.json")
        look = watcher.table.bind(op, problem)
        ...
        if watcher.reload() is not table: ...   # between steps, on every rank at the same step
    """

    def __init__(
        self,
        source: str | Path,
        *,
        gpu: Gpu | Limits | None = None,
        misses: Misses | None = None,
    ) -> None:
        """Load the table: see `Table.load`, which says what is raised."""
        self._source = source
        self._gpu = gpu
        self._misses = misses
        self._stamp = _stamp(source)
        self._table = Table.load(source, gpu=gpu, misses=misses)
        self._version = 1
        self._trouble = ""

    @property
    def table(self) -> Table:
        """The newest table that could be read."""
        return self._table

    @property
    def version(self) -> int:
        """1 for the first table, one more for each that replaced another."""
        return self._version

    @property
    def trouble(self) -> str:
        """Why the newest content is not used, "" where it is."""
        return self._trouble

    def reload(self) -> Table:
        """Return the table of the source as it is now: the very same object where it is equal.

        Never raises over what the source holds: a broken or missing one leaves the table as it was,
        and `trouble` says why.
        """
        stamp = _stamp(self._source)
        if stamp and stamp == self._stamp:
            return self._table
        try:
            found = Table.load(self._source, gpu=self._gpu, misses=self._misses)
        except BrokeOff as error:
            # Locked or gone for now: the same content is tried again.
            self._trouble = str(error)
            return self._table
        except RubinTuneError as error:
            self._stamp, self._trouble = stamp, str(error)
            return self._table
        self._stamp, self._trouble = stamp, ""
        if found.content_hash != self._table.content_hash:
            self._table = found
            self._version += 1
        return self._table


def _stamp(source: str | Path) -> _Stamp:
    """Return what changes when a file does; nothing for a server, which is always asked."""
    if isinstance(source, str) and "://" in source:
        return ()
    # SQLite writes into the second file first.
    return tuple(_status(Path(f"{source}{ending}")) for ending in ("", "-wal"))


def _status(path: Path) -> tuple[int, int, int]:
    try:
        found = path.stat()
    except OSError:
        return (-1, 0, 0)
    return found.st_size, found.st_mtime_ns, found.st_ino
