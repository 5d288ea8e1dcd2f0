"""A Python module that chooses configs and depends on nothing of ours; Triton's `Config`s on request.

One problem a file. The module holds plain literals and three functions: `choose(unit, tokens)` bisects over
the same edges as our own table, `configs(unit)` lists the distinct configs, `triton_configs(unit)` makes
`triton.Config`s of them, for `triton.autotune` over a few good ones.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from ...errors import CorruptFile, ExportRefused
from ...search_spaces import LaunchConfig
from ..records import Winner
from ..table_file import TableRow, groups_of
from ._format import Format, stem, write_together
from .json import table_document

_EXPECTED = "a module as rubin-tune export --format python writes it"
_MOST_BYTES = 16 << 20
_HEAD = '''"""Winners of {what}.

Written by rubin-tune export --format python; needs no rubin-tune. {evidence}
"""

from bisect import bisect_left

'''
_FUNCTIONS = '''

def choose(unit, tokens):
    """Return the config to launch for a token count over all ranks."""
    if tokens < 1:
        raise ValueError(f"tokens is {tokens!r}: must be at least 1")
    table = TABLES[unit]
    return CONFIGS[table["config"][bisect_left(table["last"], tokens)]]


def configs(unit):
    """Return the distinct configs of a unit, in the order of their token counts."""
    return [CONFIGS[number] for number in dict.fromkeys(TABLES[unit]["config"])]


def triton_configs(unit, spell=str.upper):
    """Return them as triton.Config; `spell` turns a parameter's name into the kernel's own."""
    import triton

    own = ("num_warps", "num_stages", "num_ctas")
    return [
        triton.Config(
            {spell(name): value for name, value in config.items() if name not in own},
            **{name: config[name] for name in own if name in config},
        )
        for config in configs(unit)
    ]
'''


class PythonFormat:
    """Generated Python dispatch."""

    def export(
        self,
        winners: Sequence[Winner],
        out_dir: Path,
        *,
        allow_predicted: bool = False,
        device_name: str | None = None,
    ) -> list[Path]:
        """Write one module; evidence stands beside each row, so predicted ones are always allowed.

        Raises:
            ExportRefused: no winners, or of several kernels or problems, which one module cannot tell
                apart.
        """
        name = stem(winners)
        groups = [
            (place, rows)
            for place, rows in groups_of(table_document(winners))
            if any(config for _, config, *_ in rows)
        ]
        places = {(op, problem) for (op, _, problem), _ in groups}
        if len(places) != 1:
            raise ExportRefused(
                f"there are rows of {len(places)} problems: a module must be of one; export one sweep "
                "(--sweep ID)"
            )
        tables = {unit: rows for (_, unit, _), rows in groups}
        return write_together({out_dir / f"{name}.py": _module(name, tables)})

    def load(self, path: Path) -> dict[str, dict[int, LaunchConfig]]:
        """Return the config of each unit and token count; nothing of the file is executed.

        Raises:
            CorruptFile: it is no such module.
        """
        try:
            if path.stat().st_size > _MOST_BYTES:
                raise CorruptFile(path, f"it is over {_MOST_BYTES >> 20} MiB", _EXPECTED)
            found = _literals(path.read_text(encoding="utf-8"))
            return {
                str(unit): {
                    int(tokens): LaunchConfig.of(found["CONFIGS"][number])
                    for tokens, number in zip(table["tokens"], table["config"], strict=True)
                }
                for unit, table in found["TABLES"].items()
            }
        except OSError as error:
            raise CorruptFile(path, error.strerror or str(error), _EXPECTED) from error
        except (
            *(ValueError, SyntaxError, RecursionError, MemoryError),
            *(KeyError, IndexError, TypeError, AttributeError),
        ) as error:
            raise CorruptFile(path, f"it does not fit ({error})", _EXPECTED) from error


def _module(name: str, tables: Mapping[str, Sequence[TableRow]]) -> str:
    known: dict[str, tuple[int, Mapping[str, Any]]] = {}
    written: dict[str, dict[str, list[Any]]] = {}
    for unit, rows in sorted(tables.items()):
        numbers = [
            known.setdefault(repr(sorted(config.items())), (len(known), config))[0]
            for _, config, *_ in rows
        ]
        edges = [low[5] or math.isqrt(low[0] * high[0]) for low, high in pairwise(rows)]
        written[unit] = {
            "tokens": [row[0] for row in rows],
            # One bucket more than edges: what is above the last edge is the last row's.
            "last": edges,
            "config": numbers,
            "evidence": [row[2] for row in rows],
            "edges": [row[6] for row in rows[:-1]],
            "time_us": [row[4] for row in rows],
        }
    kinds = sorted({word for table in written.values() for word in table["evidence"]})
    head = _HEAD.format(what=name, evidence=f"Evidence of its times: {', '.join(kinds)}.")
    configs = "".join(f"    {dict(config)!r},\n" for _, config in known.values())
    units = "".join(
        f"    {unit!r}: {{\n"
        + "".join(f"        {column!r}: {values!r},\n" for column, values in table.items())
        + "    },\n"
        for unit, table in written.items()
    )
    return f"{head}CONFIGS = [\n{configs}]\nTABLES = {{\n{units}}}\n{_FUNCTIONS}"


def _literals(text: str) -> dict[str, Any]:
    """Return the module's two literals."""
    return {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in ast.parse(text).body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }


PROVIDES: Format = PythonFormat()
