"""What a format offers, and how files are written: all of them or none."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Protocol, runtime_checkable

from ...errors import ExportRefused, InvalidInput, RubinTuneError, StorageFull
from ..records import Trial, Winner


class Format(Protocol):
    """The contract of a format: `PROVIDES` is one."""

    def export(
        self,
        winners: Sequence[Winner],
        out_dir: Path,
        *,
        allow_predicted: bool = False,
        device_name: str | None = None,
    ) -> list[Path]:
        """Write winners into a folder (made if missing) and return the files.

        Args:
            winners: What to write.
            out_dir: Where.
            allow_predicted: Let predicted rows into an engine's table.
            device_name: The GPU's name as the engine spells it; None = from the winners.

        Raises:
            ExportRefused: a row cannot be expressed or would be misread; nothing was written.
        """
        ...


@runtime_checkable
class TrialFormat(Protocol):
    """The contract of a format that writes trials in place of winners."""

    def export_trials(
        self, trials: Sequence[Trial], started: Mapping[str, datetime], out: Path
    ) -> list[Path]:
        """Write trials and return the files.

        Args:
            trials: What to write.
            started: When each sweep that they come from began.
            out: A file with one of the format's endings, or a folder.

        Raises:
            InvalidInput: the place cannot be written, or holds something else.
        """
        ...


@contextmanager
def draft_of(path: Path) -> Iterator[Path]:
    """Give another name to write to; what is there at the end takes the path's place.

    Raises:
        InvalidInput: the folder cannot be made or written.
        StorageFull: no room.
    """
    draft = path.with_name(f".{path.name[:80]}.{os.getpid()}.draft")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.touch()
        yield draft
        draft.replace(path)
    except OSError as error:
        raise _in_words(error, path.parent) from error
    finally:
        if draft.parent.is_dir():
            draft.unlink(missing_ok=True)


def write_together(files: Mapping[Path, str]) -> list[Path]:
    """Write each file whole: under another name first, renamed when all are complete.

    Raises:
        InvalidInput: the folder cannot be made or written.
        StorageFull: no room; nothing was renamed.
    """
    drafts: dict[Path, Path] = {}
    try:
        for path, text in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            drafts[path] = path.with_name(f".{path.name[:80]}.{os.getpid()}.draft")
            _write(drafts[path], text)
        for path, draft in drafts.items():
            draft.replace(path)
    except OSError as error:
        raise _in_words(error, next(iter(files)).parent) from error
    finally:
        for draft in drafts.values():
            draft.unlink(missing_ok=True)
    return list(files)


def _write(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8", newline="") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())


def _in_words(error: OSError, folder: Path) -> RubinTuneError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageFull(f"folder {str(folder)!r}: the disk is full; make room and export again")
    return InvalidInput(
        f"folder {str(folder)!r} cannot be written: {error.strerror}; name another"
    )


def stem(winners: Iterable[Winner | Trial]) -> str:
    """Return a file name that says what winners or trials are of, without its ending.

    Raises:
        ExportRefused: there are none.
    """
    rows = list(winners)
    if not rows:
        raise ExportRefused("there are no winners to export: run rubin-tune sweep first")
    parts = (
        {w.kernel for w in rows},
        {w.problem.shape.model for w in rows},
        {w.problem.layout.name for w in rows},
        {w.problem.shape.weights for w in rows},
        {f"sm_{w.silicon.arch}" for w in rows},
    )
    text = "-".join("+".join(sorted(part)) for part in parts)
    return re.sub(r"[^A-Za-z0-9._+-]+", "_", text)[:200]
