"""The comparisons of samplers and of sampling: what they print, and that they tell good from bad."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from benchmarks._search_tables import Table, read_tables

from benchmarks import race, search
from rubin_tune.search_spaces import LaunchConfig, Parameter, Space


def cache(folder: Path, *, noise: float = 0.0) -> Path:
    """Write a Kernel Tuner cache: a bowl over two parameters, a failing corner, 32 samples a point."""
    rng = np.random.default_rng(0)
    points = {}
    for x in range(1, 17):
        for y in (1, 2, 4, 8):
            time = 1.0 + (x - 5) ** 2 / 20 + abs(y - 4) / 4
            samples = time * (1 + noise * rng.standard_normal(32))
            row: dict[str, object] = {"x": x, "y": y, "time": time, "times": samples.tolist()}
            if (x, y) == (16, 8):
                row["time"] = "RuntimeFailedConfig"
            points[f"{x},{y}"] = row
    document = {
        "device_name": "a GPU", "kernel_name": "bowl", "problem_size": [1],
        "tune_params_keys": ["x", "y"],
        "tune_params": {"x": list(range(1, 17)), "y": [1, 2, 4, 8]}, "cache": points,
    }  # fmt: skip
    path = folder / "bowl.json"
    path.write_text(json.dumps(document))
    return path


def test_json_has_an_entry_for_each_sampler_and_count(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(cache(tmp_path))
    wanted = ["--landscape", file, "--sampler", "default", "random", "--evaluations", "8,24"]
    assert search.main([*wanted, "--seeds", "3", "--jobs", "1", "--json"]) == 0
    entries = json.loads(capsys.readouterr().out)
    assert [set(e) for e in entries] == [
        {"landscape", "sampler", "evaluations", "median", "worst", "seeds"}
    ] * 4
    assert [(e["sampler"], e["evaluations"]) for e in entries] == [
        ("lfbo", 8), ("lfbo", 24), ("random", 8), ("random", 24),
    ]  # fmt: skip
    assert all(0 < e["worst"] <= e["median"] <= 1 and e["seeds"] == 3 for e in entries)
    assert entries[1]["median"] >= entries[3]["median"]


def test_every_point_once_finds_the_optimum(tmp_path: Path) -> None:
    (table,) = read_tables(cache(tmp_path), prior=False)
    assert len(table.times) == 64
    from benchmarks._search_run import search as run

    order = run(table, "lfbo", 0, 1000)
    assert len(set(order)) == 64
    assert table.fractions(order)[-1] == 1.0


def test_the_calculated_random_curve_is_what_random_draws_average(tmp_path: Path) -> None:
    (table,) = read_tables(cache(tmp_path), prior=False)
    rng = np.random.default_rng(1)
    times = np.array([8.0 if t is None else t for t in table.times.values()])
    times[times == 8.0] = max(t for t in table.times.values() if t is not None)
    drawn = [np.minimum.accumulate(rng.permutation(times)[:20]) for _ in range(4000)]
    assert table.random_curve(20) == pytest.approx(np.mean(drawn, axis=0), rel=0.02)


def test_the_score_is_one_for_the_optimum_at_once_and_negative_for_the_worst_order() -> None:
    space = Space(name="line", parameters=(Parameter(name="x", values=tuple(range(1, 41))),))
    times = {LaunchConfig.of(x=x): float(x) for x in range(1, 41)}
    table = Table(name="line", space=space, times=times)
    best = [LaunchConfig.of(x=x) for x in range(1, 11)]
    assert table.score([best]) == pytest.approx(1.0)
    assert table.score([[LaunchConfig.of(x=x) for x in range(40, 30, -1)]]) < 0


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (["--sampler", "oracle"], "unknown sampler 'oracle'"),
        (["--evaluations", "0,5"], "evaluations is '0,5'"),
        (["--prior"], "no kernel of ours"),
        (["--seeds", "0"], "seeds"),
    ],
)
def test_wrong_arguments_are_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], wrong: list[str], words: str
) -> None:
    assert search.main(["--landscape", str(cache(tmp_path)), "--jobs", "1", *wrong]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


def test_a_race_saves_most_samples_and_loses_little(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(cache(tmp_path, noise=0.01))
    assert race.main(["--samples", file, "--pool", "20", "--trials", "20", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert 3 / 32 <= found["share"] < 0.3
    assert 0 <= found["mean_loss"] <= found["worst_loss"] < 0.02


def test_a_race_needs_enough_points(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert race.main(["--samples", str(cache(tmp_path)), "--pool", "100"]) == 2
    assert "fewer than 100" in capsys.readouterr().err
