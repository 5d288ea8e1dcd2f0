"""What the database says of a sweep: what was asked, how it ended, what it counted."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Row

from .codec import Json, loads


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepNote:
    """One sweep's row.

    Attributes:
        sweep_id: Its name.
        state: "running" (or killed), "stopped" or "finished".
        request: What was asked, as JSON values.
        counts: What it counted; empty until it is finished.
        started_at: By the database's clock.
        ended_at: None while it runs, or where it was killed.
    """

    sweep_id: str
    state: str
    request: Json
    counts: Json
    started_at: datetime
    ended_at: datetime | None


def note_of(row: Row[Any]) -> SweepNote:
    """Return the note of a row of `sweeps`."""
    return SweepNote(
        sweep_id=row.key,
        state=row.state,
        request=loads(row.request),
        counts=loads(row.counts),
        started_at=row.started_at,
        ended_at=row.ended_at,
    )
