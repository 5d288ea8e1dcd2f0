"""The comparison of collectives prints a table, JSON, and the constants that racks hold."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from benchmarks import collectives


def test_json_has_every_figure_with_its_source(capsys: pytest.CaptureFixture[str]) -> None:
    collectives.main(["--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "rubin-tune.collectives/1"
    assert len(found["figures"]) == 3 * 2 * 6 + 2 * 4 + 2 + 2
    assert all(figure["source"].startswith("facts/") for figure in found["figures"])


def test_the_table_shows_recorded_ours_and_error(capsys: pytest.CaptureFixture[str]) -> None:
    collectives.main([])
    lines = capsys.readouterr().out.splitlines()
    (line,) = (x for x in lines if x.startswith("DeepEP normal combine, h200_dgx, 24 SMs"))
    assert line.split()[-3:-1] == ["979.0", "977.7"]


def test_a_fit_recovers_the_constants_that_made_a_table(tmp_path: Path) -> None:
    rack = collectives.load_rack("h200_dgx")
    lines = [
        "system,hidden_size,num_token,num_topk,num_experts,combine_avg_t_us,dispatch_avg_t_us"
    ]
    for hidden, top_k, experts in ((4096, 2, 8), (4096, 8, 256), (2048, 8, 128), (6144, 6, 384)):
        for tokens in (1, 8, 64, 256, 1024):
            row = collectives.Row(
                system="h200_sxm", hidden=hidden, tokens=tokens, top_k=top_k, experts=experts,
                dispatch_us=0, combine_us=0,
            )  # fmt: skip
            us = [
                next(f for f in rack.exchanges_of(s) if f.algorithm == "deepep_ll").seconds(
                    row.exchange(), 132
                )
                * 1e6
                for s in ("combine", "dispatch")
            ]
            lines.append(f"h200_sxm,{hidden},{tokens},{top_k},{experts},{us[0]},{us[1]}")
    path = tmp_path / "table.csv.gz"
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    found = collectives.fit(
        collectives.read_table(path), "h200_sxm", collectives.Stage("dispatch")
    )
    assert found.base_us == pytest.approx(6.38, rel=0.01)
    assert found.per_expert_us == pytest.approx(0.0122, rel=0.02)
    assert found.bytes_per_s == pytest.approx(279e9, rel=0.01)
    assert found.block_token_us == pytest.approx(2.27, rel=0.01)


def test_a_missing_table_is_said(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        collectives.main(["--deepep", str(tmp_path / "none.csv.gz")])
    assert "no DeepEP table" in capsys.readouterr().err
