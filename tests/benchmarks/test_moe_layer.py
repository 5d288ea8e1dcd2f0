"""moe_layer's flow in Triton's interpreter, with stand-ins for the engines' packages.

Each run is a process of its own: TRITON_INTERPRET must be set before triton is imported.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from benchmarks._layer_case import _has_rows, _seeds
from benchmarks._layer_configs import code_of, compile_all, lacking, winners
from benchmarks._layer_regimes import REGIMES, TINY, chosen, recorded_peers

from benchmarks import moe_layer
from rubin_tune.db.silicon import silicon_of
from rubin_tune.db.table_file import make_document, problem_keys
from rubin_tune.kernels.megamoe import PROVIDES
from rubin_tune.runtime import Table
from rubin_tune.search_spaces import GEMMS, Unit
from rubin_tune.topology import load_gpu

ROOT = Path(__file__).parents[2]
PEERS = Path(__file__).with_name("peers")


def run(
    tmp_path: Path, *arguments: str, peers: bool = False, code: int = 0
) -> tuple[dict[str, Any], str]:
    out = tmp_path / "layer.json"
    paths = [str(PEERS)] * peers + [str(ROOT / "src"), str(ROOT), *sys.path]
    command = [sys.executable, "-m", "benchmarks.moe_layer", "--device", "cpu", "--tiny"]
    done = subprocess.run(
        [*command, "--out", str(out), *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in paths if p)},
    )
    assert done.returncode == code, done.stdout + done.stderr
    return (json.loads(out.read_text()) if out.exists() else {}), done.stdout


def results(regime: dict[str, Any], unit: str) -> dict[str, dict[str, Any]]:
    return {row["contender"]: row for row in regime["units"][unit]["results"]}


def table_for(path: Path, regime: Any, changes: dict[str, Any]) -> Path:
    """Write an exported table with the default config, changed, as the winner of a regime."""
    gpu = load_gpu("h200")
    problem = regime.problem(gpu, "uniform")
    tables = [
        {
            "op": "megamoe",
            "unit": unit.value,
            "problem": problem_keys(problem, silicon_of(gpu)),
            "rows": [
                {
                    "tokens": problem.tokens,
                    "config": {**PROVIDES.default(problem, unit, gpu).as_dict(), **changes},
                    "evidence": "measured",
                    "time_us": 1.0,
                }
            ],
        }
        for unit in GEMMS
    ]
    path.write_text(json.dumps(make_document(tables)))
    return path


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str]:
    """All tiny regimes, engines present."""
    return run(tmp_path_factory.mktemp("all"), peers=True)


def test_every_contender_that_takes_part_is_right_and_timed(everything: Any) -> None:
    found, _ = everything
    assert found["evidence"].startswith("self-check")
    for regime in found["regimes"]:
        for unit, part in regime["units"].items():
            for row in part["results"]:
                assert row["wrong"] == ""
                took_part = row["skipped"] == ""
                assert (row["time_us"] is not None) == took_part
                if took_part:
                    assert row["error"] <= row["allowed"], (regime["regime"], unit, row)


def test_engines_run_layers_and_bare_gemms_where_they_can(everything: Any) -> None:
    regimes = {r["regime"]: r for r in everything[0]["regimes"]}
    for name in ("tiny-bf16/8", "tiny-fp8-ep2/8"):
        for unit in ("layer", "gate_up", "down"):
            assert results(regimes[name], unit)["vLLM fused_moe"]["time_us"] is not None
    for unit in ("gate_up", "down"):
        assert results(regimes["tiny-fp8-ep2/8"], unit)["DeepGEMM"]["time_us"] is not None
        assert "fp8 only" in results(regimes["tiny-bf16/8"], unit)["DeepGEMM"]["skipped"]
    assert "biases" in results(regimes["tiny-mxfp4/6"], "layer")["vLLM fused_moe"]["skipped"]


def test_layers_are_compared_with_ours(everything: Any) -> None:
    for regime in everything[0]["regimes"]:
        assert results(regime, "layer")["torch._grouped_mm, bf16"]["apart"] is not None


def test_an_empty_step_has_a_layer_and_no_gemms(everything: Any) -> None:
    regime = next(r for r in everything[0]["regimes"] if r["regime"].endswith("-empty"))
    assert regime["drawn"]["rows"] == 0
    assert list(regime["units"]) == ["layer"]


def test_absent_packages_are_said_in_words_and_tuned_configs_come_from_a_table(
    tmp_path: Path,
) -> None:
    regime = next(r for r in TINY if r.name == "tiny-bf16/8")
    table = table_for(tmp_path / "table.json", regime, {"block_m": 32})
    found, printed = run(tmp_path, "--only", regime.name, "--db", str(table))
    (only,) = found["regimes"]
    layer = results(only, "layer")
    assert layer["DeepGEMM"]["skipped"] == "deep_gemm is not installed here"
    assert layer["ours tuned"]["time_us"] is not None
    assert only["configs"]["ours tuned"]["gate_up"]["block_m"] == 32
    assert only["configs"]["ours tuned"]["why"].count("exact: measured at 8 tokens") == 2
    assert "skipped: deep_gemm is not installed here" in printed


def test_a_wrong_peer_is_said_and_not_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoilt = tmp_path / "deep_gemm"
    spoilt.mkdir()
    honest = (PEERS / "deep_gemm/__init__.py").read_text()
    (spoilt / "__init__.py").write_text(
        honest.replace("value @ weight.T", "1.3 * value @ weight.T")
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    found, printed = run(tmp_path, "--only", "tiny-fp8-ep2/8", code=1)
    row = results(found["regimes"][0], "gate_up")["DeepGEMM"]
    assert row["wrong"].startswith("wrong: row error 0.3")
    assert row["time_us"] is None
    assert "wrong: row error" in printed


def test_a_config_that_is_not_legal_is_no_winner(tmp_path: Path) -> None:
    regime = next(r for r in TINY if r.name == "tiny-bf16/8")
    table = table_for(tmp_path / "table.json", regime, {"block_m": 48})
    found, _ = run(tmp_path, "--only", regime.name, "--db", str(table))
    tuned = results(found["regimes"][0], "layer")["ours tuned"]
    assert "is not legal here" in tuned["skipped"]


def test_only_winners_of_the_very_problem_are_exact(tmp_path: Path) -> None:
    gpu = load_gpu("h200")
    regime = next(r for r in TINY if r.name == "tiny-bf16/8")
    table = Table.load(table_for(tmp_path / "table.json", regime, {}))
    same, other = (regime.problem(gpu, routing) for routing in ("uniform", "balanced"))
    assert lacking(table, "megamoe", [(regime, same)], gpu) == []
    assert lacking(table, "megamoe", [(regime, other)], gpu) == [regime]
    assert lacking(table, "megamoe", [(regime, same.at(16))], gpu) == [regime]
    assert winners(table, "megamoe", other, gpu).configs


def test_steps_are_drawn_with_or_without_local_rows() -> None:
    regime = next(r for r in REGIMES if r.name == "v4-flash-fp8-ep8/1-local")
    problem = regime.problem(load_gpu("h200"), "uniform")
    drawn = {}
    for rows in ("some", "none", "any"):
        seeds = _seeds(problem, rows, 8, 0)
        drawn[rows] = [_has_rows(problem, seed) for seed in seeds]
    assert drawn["some"] == [True] * 8
    assert drawn["none"] == [False] * 8
    assert len(set(drawn["any"])) == 2


def test_a_variant_that_does_not_fit_is_refused_for_its_problem_only(tmp_path: Path) -> None:
    gpu = load_gpu("h200")
    problem = next(r for r in TINY if r.name == "tiny-bf16/8").problem(gpu, "uniform")
    small = PROVIDES.default(problem, Unit.DOWN, gpu)
    large = small.replace(block_m=256, block_n=128, block_k=128, num_warps=8, num_stages=6)
    variants = [(problem.at(t), Unit.DOWN, c) for t in (1, 8) for c in (small, large)]
    refused = compile_all(variants, gpu, tmp_path)
    assert list(refused) == [(code_of(problem), Unit.DOWN, large)]
    assert refused[code_of(problem), Unit.DOWN, large].startswith("shared_memory")


def test_regimes_cover_the_rows_of_the_recorded_peers() -> None:
    gpu = load_gpu("h200")
    found = [recorded_peers(regime.problem(gpu, "uniform")) for regime in REGIMES]
    assert sum(len(one) for one in found) == 20
    assert len({regime.name for regime in REGIMES}) == len(REGIMES)
    qwen = next(r for r in REGIMES if r.name == "qwen3-fp8/8192")
    assert {p.name: p.both_us for p in recorded_peers(qwen.problem(gpu, "uniform"))} == {
        "vLLM 0.33 Triton, best of its grid": 1223.0,
        "DeepGEMM 2.8": 620.0,
    }
    assert recorded_peers(qwen.problem(gpu, "lognormal:0.5")) == ()


def test_only_picks_by_words() -> None:
    picked = [r.name for r in chosen(REGIMES, ["gpt-oss", "qwen3-bf16/16"])]
    assert picked == ["qwen3-bf16/16", "gpt-oss-120b/16", "gpt-oss-120b/128"]


def test_the_interpreter_is_refused_for_real_layers(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        moe_layer.main(["--device", "cpu"])
    assert ended.value.code == 2
    assert "give --tiny too" in capsys.readouterr().err


def test_floors_count_what_was_drawn(everything: Any) -> None:
    regime = next(r for r in everything[0]["regimes"] if r["regime"] == "tiny-bf16/8")
    part = regime["units"][Unit.DOWN.value]
    experts, rows = regime["drawn"]["active_experts"], regime["drawn"]["rows"]
    assert part["weight_bytes"] == experts * 256 * 128 * 2
    assert part["min_bytes"] == part["weight_bytes"] + rows * (128 + 256) * 2
    assert part["flops"] == 2 * rows * 256 * 128
    assert part["floor_us"] == pytest.approx(part["min_bytes"] / 4.5e12 * 1e6)
