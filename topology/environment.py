"""Topology's switches in the environment; the edge reads them and passes values down."""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import InvalidInput

FAKE_DOMAINS = "RUBIN_TUNE_FAKE_DOMAINS"
"""Treat a one-domain GPU as so many locality domains, for tests and ablations."""

_MOST = 16


def fake_domains(environ: Mapping[str, str]) -> int:
    """Return how many domains a one-domain GPU is to be treated as; 1 = as it is.

    Raises:
        InvalidInput: not a whole number from 1 to 16.
    """
    text = environ.get(FAKE_DOMAINS, "").strip() or "1"
    if not text.isdecimal() or not 1 <= int(text) <= _MOST:
        raise InvalidInput(f"{FAKE_DOMAINS} is {text!r}: must be a whole number from 1 to {_MOST}")
    return int(text)
