"""What an exported table changes over another one of the same engine: the one that it ships, say."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import InvalidInput
from ..search_spaces import LaunchConfig

Load = Callable[[Path], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One row: None where a side has none."""

    file: str
    tokens: int
    theirs: LaunchConfig | None
    ours: LaunchConfig | None

    def as_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        sides = {"theirs": self.theirs, "ours": self.ours}
        configs = {name: side and side.as_dict() for name, side in sides.items()}
        return {"file": self.file, "tokens": self.tokens, **configs}


def differences(files: Sequence[Path], load: Load, against: Path) -> list[Difference]:
    """Return the rows in which files differ from those of another table.

    Args:
        files: What was exported.
        load: Reads one such file.
        against: A file, or a folder that holds files of the same names.

    Raises:
        InvalidInput: none of the files is there, or the format has no rows by token count.
        CorruptFile: theirs is no such table.
    """
    found: list[Difference] = []
    compared = 0
    for ours in files:
        theirs = against if against.is_file() else against / ours.name
        if theirs.is_file():
            compared += 1
            found += _differences(ours, _rows(load, ours), _rows(load, theirs))
    if not compared:
        names = ", ".join(path.name for path in files)
        raise InvalidInput(f"there is no {names} in {str(against)!r}: nothing to compare with")
    return found


def _rows(load: Load, path: Path) -> Mapping[int, LaunchConfig]:
    rows = load(path)
    if not isinstance(rows, dict) or not all(isinstance(tokens, int) for tokens in rows):
        raise InvalidInput("the format has no rows by token count: --against takes an engine's")
    return rows


def _differences(
    file: Path, ours: Mapping[int, LaunchConfig], theirs: Mapping[int, LaunchConfig]
) -> list[Difference]:
    return [
        Difference(file=file.name, tokens=tokens, theirs=theirs.get(tokens), ours=ours.get(tokens))
        for tokens in sorted({*ours, *theirs})
        if ours.get(tokens) != theirs.get(tokens)
    ]
