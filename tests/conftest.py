"""What holds for every test."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from rubin_tune.db import Winner

ROOT = Path(__file__).resolve().parents[1]

# No test depends on the clock: a fresh clone builds Hypothesis's character tables in its first draw, and a
# loaded machine is slow.
settings.register_profile(
    "rubin-tune", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("rubin-tune")


@pytest.fixture(scope="session")
def engine_winner() -> Callable[..., Winner]:
    """A function that makes up a measured layer winner of an engine's kernel for qwen3-30b-a3b.

    SGLang's has another config for the down GEMM.
    """
    # Imported here: most tests need no database.
    from rubin_tune.db import Evidence
    from rubin_tune.db.testing import TOOLCHAIN, WINNER
    from rubin_tune.search_spaces import LaunchConfig, Unit, load_model, with_formats

    def make(
        kernel: str, tokens: int, dtype: str = "fp8", *, triton: str = "3.9.0", stages: int = 4
    ) -> Winner:
        shape = with_formats(load_model("qwen3-30b-a3b"), dtype, None)
        problem = replace(WINNER.problem, shape=shape, tokens=tokens, capacity=tokens)
        up = LaunchConfig.of(
            block_m=16 if tokens < 512 else 128, block_n=128, block_k=64,
            group_m=1, num_warps=8, num_stages=stages,
        )  # fmt: skip
        down = up.replace(block_n=64) if kernel == "sglang_fused_moe" else up
        return replace(
            WINNER, kernel=kernel, problem=problem, unit=Unit.LAYER, config=up, default_config=up,
            evidence=Evidence.MEASURED, compile=None, parts=(("gate_up", up), ("down", down)),
            toolchain=replace(TOOLCHAIN, triton=triton),
        )  # fmt: skip

    return make


@pytest.fixture(scope="session")
def write_table() -> Callable[[Path, list[Winner]], Path]:
    """A function that writes winners as a table file."""
    from rubin_tune.db.formats.json import PROVIDES

    def write(path: Path, winners: list[Winner]) -> Path:
        (written,) = PROVIDES.export(winners, path.parent / "exported")
        return written.replace(path)

    return write


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Our entry points, as an engine finds them where rubin-tune is installed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    info = tmp_path / "site" / "rubin_tune-0.1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rubin-tune\nVersion: 0.1.0\n")
    lines = [
        line
        for group, entries in project["entry-points"].items()
        for line in (f"[{group}]", *(f"{name} = {target}" for name, target in entries.items()))
    ]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    monkeypatch.syspath_prepend(str(info.parent))
