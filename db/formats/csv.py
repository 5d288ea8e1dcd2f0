"""Winners for a spreadsheet: one line a winner, units in the column names."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from ..records import Winner
from ._format import Format, stem, write_together


def _line(winner: Winner) -> dict[str, object]:
    shape, report = winner.problem.shape, winner.compile
    return {
        "kernel": winner.kernel,
        "model": shape.model,
        "gpu": winner.silicon.name,
        "target": f"sm_{winner.silicon.arch}",
        "layout": winner.problem.layout.name,
        "routing": winner.problem.routing.name,
        "weights": shape.weights,
        "activations": shape.activations,
        "experts": shape.experts,
        "local_experts": winner.problem.local_experts,
        "top_k": shape.top_k,
        "hidden": shape.hidden,
        "local_intermediate": winner.problem.local_intermediate,
        "tokens": winner.problem.tokens,
        "unit": winner.unit.value,
        "evidence": winner.evidence.word,
        "config": str(winner.config),
        "time_us": winner.time_us,
        "low_us": winner.interval_us[0],
        "high_us": winner.interval_us[1],
        "default_config": str(winner.default_config),
        "default_time_us": winner.default_time_us,
        "speedup": round(winner.speedup, 4),
        "registers": "" if report is None else report.registers,
        "spill_bytes": "" if report is None else report.spill_bytes,
        "shared_bytes": "" if report is None else report.shared_bytes,
        "buffers": "" if report is None else report.buffers,
        "mma_k": "" if report is None else report.mma_k,
        "triton": winner.toolchain.triton,
        "ptxas": winner.toolchain.ptxas,
        "policy": winner.policy,
        "source_hash": winner.source_hash,
        "sweep_id": winner.sweep_id,
    }


class CsvFormat:
    """A spreadsheet."""

    def export(
        self,
        winners: Sequence[Winner],
        out_dir: Path,
        *,
        allow_predicted: bool = False,
        device_name: str | None = None,
    ) -> list[Path]:
        """Write one file; evidence stands on each line, so predicted ones are always allowed."""
        path = out_dir / f"{stem(winners)}.csv"
        ordered = sorted(
            winners, key=lambda w: (w.kernel, w.problem.shape.model, w.unit, w.problem.tokens)
        )
        lines = [_line(winner) for winner in ordered]
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, fieldnames=list(lines[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
        return write_together({path: text.getvalue()})


PROVIDES: Format = CsvFormat()
