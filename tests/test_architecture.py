"""Rooms import only rooms to their left."""

from __future__ import annotations

import ast
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MAY_IMPORT = {
    "topology": set(),
    "search_spaces": {"topology"},
    "kernels": {"topology", "search_spaces"},
    "db": {"topology", "search_spaces", "kernels"},
    # runtime is a user of db beside the tuner, which asks it what a server would be answered
    "tuner": {"topology", "search_spaces", "kernels", "db", "runtime"},
    "cli": {"topology", "search_spaces", "kernels", "db", "tuner", "runtime"},
    "runtime": {"db", "kernels", "search_spaces", "topology"},
}


def imported_rooms(path: Path, root: Path) -> set[str]:
    """Return the rooms that a file imports, relative imports resolved."""
    parts = ("rubin_tune", *path.relative_to(root).with_suffix("").parts)
    package = list(parts[:-1])
    rooms = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            full = [*base, *(node.module or "").split(".")] if node.module else base
            names = (
                [full, *([*full, a.name] for a in node.names)]
                if full == ["rubin_tune"]
                else [full]
            )
            rooms |= {n[1] for n in names if len(n) > 1 and n[0] == "rubin_tune"}
        elif isinstance(node, ast.Import):
            dotted = (alias.name.split(".") for alias in node.names)
            rooms |= {n[1] for n in dotted if n[0] == "rubin_tune" and len(n) > 1}
    return rooms


def violations(root: Path) -> list[str]:
    """Return every import that goes the wrong way."""
    found = []
    for room, allowed in MAY_IMPORT.items():
        for path in sorted((root / room).rglob("*.py")):
            wrong = (imported_rooms(path, root) & set(MAY_IMPORT)) - allowed - {room}
            found += [f"{path.relative_to(root)} imports {name}" for name in sorted(wrong)]
    return found


def test_every_room_imports_only_leftwards() -> None:
    assert violations(ROOT) == []


def test_rooms_of_the_map_are_the_rooms_of_the_package() -> None:
    links = {p.name for p in (ROOT / "src/rubin_tune").iterdir() if p.is_symlink()}
    assert links == set(MAY_IMPORT)


@pytest.mark.parametrize(
    "line", ["from ..tuner import sweep", "import rubin_tune.tuner", "from .. import tuner"]
)
def test_a_planted_wrong_import_is_found(tmp_path: Path, line: str) -> None:
    for room in MAY_IMPORT:
        (tmp_path / room).mkdir()
    shutil.copy(ROOT / "search_spaces/config.py", tmp_path / "search_spaces/config.py")
    (tmp_path / "topology/planted.py").write_text(f"{line}\n")
    assert violations(tmp_path) == ["topology/planted.py imports tuner"]
