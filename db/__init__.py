"""What is remembered: records, their JSON, the store, recorded landscapes, file formats.

Names are loaded when first asked for: a serving engine imports `rubin_tune.runtime`, which needs
`table_file` only, and must not pay for numpy and SQLAlchemy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .notes import SweepNote as SweepNote
    from .records import Assumption as Assumption
    from .records import CompileReport as CompileReport
    from .records import Evidence as Evidence
    from .records import Measurement as Measurement
    from .records import Prediction as Prediction
    from .records import Rejected as Rejected
    from .records import Silicon as Silicon
    from .records import Spent as Spent
    from .records import Toolchain as Toolchain
    from .records import Trial as Trial
    from .records import Why as Why
    from .records import Winner as Winner
    from .seeds import Seed as Seed
    from .store import Store as Store
    from .store import default_path as default_path
    from .store import open_store as open_store

_HOMES = {
    "Assumption": "records",
    "CompileReport": "records",
    "Evidence": "records",
    "Measurement": "records",
    "Prediction": "records",
    "Rejected": "records",
    "Seed": "seeds",
    "Silicon": "records",
    "Spent": "records",
    "Store": "store",
    "SweepNote": "notes",
    "Toolchain": "records",
    "Trial": "records",
    "Why": "records",
    "Winner": "records",
    "default_path": "store",
    "open_store": "store",
}
__all__ = [
    "Assumption",
    "CompileReport",
    "Evidence",
    "Measurement",
    "Prediction",
    "Rejected",
    "Seed",
    "Silicon",
    "Spent",
    "Store",
    "SweepNote",
    "Toolchain",
    "Trial",
    "Why",
    "Winner",
    "default_path",
    "open_store",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{home}", __name__), name)
