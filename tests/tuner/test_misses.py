"""Misses become sweeps: the right model, target, formats and ladder, or one clear sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rubin_tune.db.silicon import silicon_of
from rubin_tune.db.table_file import problem_keys
from rubin_tune.errors import CorruptFile, InvalidInput
from rubin_tune.runtime import MissLog, Reason
from rubin_tune.topology import load_gpu
from rubin_tune.tuner import SweepRequest
from rubin_tune.tuner.misses import MOST_COUNTS, plan_of_misses, read_misses
from rubin_tune.tuner.request import resolve_problem

H200 = load_gpu("h200")
ASKED = SweepRequest(
    model="qwen3-30b-a3b", dtype="fp8", layout="dep2", routing="lognormal:0.5", target="h200"
)
BASE = SweepRequest(trials=4)


def keys_of(request: SweepRequest) -> dict[str, Any]:
    return dict(problem_keys(resolve_problem(request, H200), silicon_of(H200)))


def written(path: Path, counts: Any, problem: dict[str, Any], op: str = "megamoe") -> Path:
    log = MissLog(path)
    miss = log.of(op, "layer", problem)
    for tokens in counts:
        miss(tokens, Reason.NEAREST)
    assert log.trouble == ""
    return path


def test_a_miss_is_the_sweep_that_would_answer_it(tmp_path: Path) -> None:
    path = written(tmp_path / "m.jsonl", [5000, 9000, 5000], keys_of(ASKED))
    (request,) = plan_of_misses(path, BASE).requests
    assert request.tokens == "5000,9000"
    assert request.trials == 4
    assert keys_of(request) == keys_of(ASKED)
    assert request.target == "h200"


def test_problems_are_sweeps_of_their_own_and_counts_are_merged(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    other = SweepRequest(model="qwen3-30b-a3b", dtype="bf16", layout="tp2", target="h200")
    written(path, [5000], keys_of(ASKED))
    written(path, [7], keys_of(other))
    written(path, [6000], keys_of(ASKED))
    found = plan_of_misses(path, BASE).requests
    assert [r.tokens for r in found] == ["5000,6000", "7"]


def test_too_many_counts_are_thinned_out_and_keep_their_ends(tmp_path: Path) -> None:
    path = written(tmp_path / "m.jsonl", range(100, 1100), keys_of(ASKED))
    (request,) = plan_of_misses(path, BASE).requests
    counts = [int(x) for x in (request.tokens or "").split(",")]
    assert len(counts) == MOST_COUNTS
    assert (counts[0], counts[-1]) == (100, 1099)


def test_a_model_of_ones_own_is_taken_from_its_file(tmp_path: Path) -> None:
    model = tmp_path / "config.json"
    model.write_text(
        json.dumps(
            {
                "model_type": "qwen3_moe", "num_experts": 24, "num_experts_per_tok": 3,
                "hidden_size": 1536, "moe_intermediate_size": 640, "num_hidden_layers": 2,
            }
        )
    )  # fmt: skip
    asked = SweepRequest(model=str(model), layout="single", target="h200")
    path = written(tmp_path / "m.jsonl", [40], keys_of(asked))
    with pytest.raises(InvalidInput, match=r"no model has the layer.*24.*--model"):
        plan_of_misses(path, BASE)
    (request,) = plan_of_misses(path, BASE, model=str(model)).requests
    assert keys_of(request) == keys_of(asked)


def test_misses_of_another_kernel_or_gpu_are_told_apart(tmp_path: Path) -> None:
    path = written(tmp_path / "m.jsonl", [5], keys_of(ASKED), op="fused_moe")
    with pytest.raises(InvalidInput, match=r"no misses of 'megamoe'.*fused_moe"):
        plan_of_misses(path, BASE)
    strange = written(tmp_path / "n.jsonl", [5], {**keys_of(ASKED), "sms": 131})
    with pytest.raises(InvalidInput, match=r"sms 131.*--target"):
        plan_of_misses(strange, BASE)


def test_a_routing_from_a_file_must_be_given_again(tmp_path: Path) -> None:
    path = written(tmp_path / "m.jsonl", [5], {**keys_of(ASKED), "routing": "counts.json:ab12"})
    with pytest.raises(InvalidInput, match="--routing"):
        plan_of_misses(path, BASE)
    (request,) = plan_of_misses(path, SweepRequest(routing="uniform")).requests
    assert request.routing == "uniform"


def test_a_line_that_was_cut_off_is_passed_over(tmp_path: Path) -> None:
    path = written(tmp_path / "m.jsonl", [5, 6], keys_of(ASKED))
    path.write_bytes(path.read_bytes()[:-20])
    (one,) = read_misses(path)
    assert one.tokens == (5,)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "no misses"),
        ("{", "no misses"),
        ("[1]\n", "line 1"),
        ('{"schema": "other"}\n', "line 1"),
        ('{"schema": "rubin-tune.miss/1", "op": 3}\n', "no text"),
        ('{"schema": "rubin-tune.miss/1", "op": "m", "problem": {"a": []}}\n', "plain values"),
        ('{"schema": "rubin-tune.miss/1", "op": "m", "problem": {}, "tokens": 0}\n', "tokens"),
        ('{"schema": "rubin-tune.miss/1", "op": "m", "problem": {}, "tokens": true}\n', "tokens"),
        ("\x80\x04\x95 pickled", "no misses"),
    ],
)
def test_what_is_no_file_of_misses_is_refused(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "m.jsonl"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(CorruptFile, match=said):
        read_misses(path)


@pytest.mark.parametrize("name", ["absent.jsonl", "."])
def test_a_missing_file_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(CorruptFile):
        read_misses(tmp_path / name)
