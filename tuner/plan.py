"""A plan: several models, layouts, formats and ladders to tune, one after the other, from a TOML.

    [defaults]                     # for every entry that does not say otherwise
    target = "h200"
    budget = "10m"

    [[sweep]]
    model = ["qwen3-30b-a3b", "glm-4.5-air"]
    layout = ["dep4", "tp2"]       # lists multiply: this entry is four sweeps
    tokens = [1, 16, 128]

Each sweep has its own result and its own place in the database: a plan that was broken off goes on
where it was, and what is finished returns at once. Variants that launch the same code are compiled
once, whichever entry asks first: the cache of reports leaves tokens, routing and names out of its key.
"""

from __future__ import annotations

import difflib
import itertools
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from ..errors import CorruptFile, InvalidInput
from .budget import parse_seconds, parse_share
from .progress import Progress
from .request import SweepRequest, resolve
from .result import SweepResult
from .sweep import sweep

MOST_BYTES = 1 << 20
# A slip of the finger in a list should not ask for a year of sweeps.
MOST_SWEEPS = 1000
_EXPECTED = "a plan: [[sweep]] tables, and a [defaults] table where wanted"
# Words of the plan -> the request's own, where they differ.
_SPELLED: Mapping[str, tuple[str, Callable[[str], float | None]]] = {
    "budget": ("budget_s", parse_seconds),
    "until": ("until", parse_share),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a plan's file asks for, lists multiplied out.

    Attributes:
        path: The file.
        requests: The sweeps, in the file's order.
    """

    path: Path
    requests: tuple[SweepRequest, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a plan is run: see `sweep`."""

    database: str | Path | None = None
    wait_s: float = 30.0
    cache_dir: Path | None = None
    jobs: int | None = None
    fresh: bool = False
    wait_gpu_s: float = 0.0
    progress: Progress | None = None


def read_plan(path: Path) -> Plan:
    """Read a plan and resolve every sweep of it, so that nothing starts where one cannot.

    Raises:
        CorruptFile: no TOML, an unknown key, a value of the wrong kind.
        RubinTuneError: a sweep that cannot be meant; the message says which.
    """
    text = _text(path)
    try:
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise CorruptFile(path, f"it is no TOML ({error})", _EXPECTED) from error
    try:
        requests = tuple(_requests(document, text))
    except InvalidInput as error:
        raise CorruptFile(path, str(error), _EXPECTED) from error
    for place, request in enumerate(requests, start=1):
        try:
            resolve(request)
        except InvalidInput as error:
            raise InvalidInput(f"plan {path.name!r}, sweep {place}: {error}") from error
    return Plan(path=path, requests=requests)


def run_plan(plan: Plan, options: Options | None = None) -> Iterator[SweepResult]:
    """Run a plan's sweeps in order and yield each result as it is there.

    Raises:
        RubinTuneError: a sweep broke off; the results before it are stored.
    """
    how = options or Options()
    for request in plan.requests:
        yield sweep(
            request,
            database=how.database,
            wait_s=how.wait_s,
            cache_dir=how.cache_dir,
            jobs=how.jobs,
            fresh=how.fresh,
            wait_gpu_s=how.wait_gpu_s,
            progress=how.progress,
        )


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            raw = file.read(MOST_BYTES + 1)
        if len(raw) > MOST_BYTES:
            raise CorruptFile(path, f"it is over {MOST_BYTES >> 20} MiB", _EXPECTED)
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise CorruptFile(path, f"it is no UTF-8 text (byte {error.start})", _EXPECTED) from error
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise CorruptFile(path, str(why).lower(), _EXPECTED) from error


def _requests(document: Mapping[str, Any], text: str) -> Iterator[SweepRequest]:
    for key in document:
        if key not in ("defaults", "sweep"):
            raise InvalidInput(_unknown(key, text, ["defaults", "sweep"], "the plan"))
    defaults = _table(document.get("defaults", {}), "defaults", text)
    entries = document.get("sweep")
    if not isinstance(entries, list) or not entries:
        raise InvalidInput("it has no [[sweep]] table")
    count = 0
    for number, entry in enumerate(entries, start=1):
        own = _table(entry, f"sweep {number}", text)
        choices = {**defaults, **own}
        for values in itertools.product(*choices.values()):
            count += 1
            if count > MOST_SWEEPS:
                raise InvalidInput(f"its lists multiply to over {MOST_SWEEPS} sweeps")
            yield SweepRequest(**dict(zip(choices, values, strict=True)))


def _table(found: object, where: str, text: str) -> dict[str, list[Any]]:
    """Return each field of a request with the values that a table gives it."""
    if not isinstance(found, dict):
        raise InvalidInput(f"{where} is {found!r:.40}: must be a table")
    kinds = _kinds()
    values: dict[str, list[Any]] = {}
    for key, given in found.items():
        if key not in kinds:
            raise InvalidInput(_unknown(key, text, sorted(kinds), where))
        name = _SPELLED[key][0] if key in _SPELLED else key
        # A list of counts is one ladder; any other list is several sweeps.
        several = isinstance(given, list) and not (key == "tokens" and _is_ladder(given))
        if several and not given:
            raise InvalidInput(f"{key} of {where} is empty: must have a value")
        each = given if several else [given]
        values[name] = [_value(key, value, kinds[key], where) for value in each]
    return values


def _kinds() -> dict[str, str]:
    """Return the plan's keys and what kind of value each takes: a request's own fields."""
    spelled = {own: key for key, (own, _) in _SPELLED.items()}
    return {spelled.get(f.name, f.name): str(f.type) for f in fields(SweepRequest)}


def _value(key: str, value: object, kind: str, where: str) -> object:
    if key in _SPELLED:
        return _SPELLED[key][1](_checked(key, value, str, "a word", where))
    if key == "tokens" and isinstance(value, list):
        return ",".join(str(count) for count in value)
    if key == "tokens" and isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if "bool" in kind:
        return _checked(key, value, bool, "true or false", where)
    if "int" in kind:
        return _checked(key, value, int, "an integer", where)
    if "float" in kind:
        return _checked(key, value, float, "a number", where)
    return _checked(key, value, str, "a word", where)


def _checked(key: str, value: Any, kind: type, words: str, where: str) -> Any:
    right = isinstance(value, int | float if kind is float else kind)
    if not right or (kind is not bool and isinstance(value, bool)):
        raise InvalidInput(f"{key} of {where} is {value!r:.40}: must be {words}")
    return value


def _is_ladder(given: Sequence[object]) -> bool:
    return bool(given) and all(isinstance(n, int) and not isinstance(n, bool) for n in given)


def _unknown(key: str, text: str, known: Sequence[str], where: str) -> str:
    near = difflib.get_close_matches(key.lower(), known, n=2, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    return f"unknown key {key!r} in {where}{_line(key, text)}: {hint}known are {', '.join(known)}"


def _line(key: str, text: str) -> str:
    """Return where a key stands, "" where it is spelled in a way that we do not find."""
    pattern = re.compile(rf"\s*(?:\[+\s*)?[\"']?{re.escape(key)}[\"']?\s*(?:=|\]|\.)")
    places = [n for n, line in enumerate(text.splitlines(), start=1) if pattern.match(line)]
    return f" (line {places[0]})" if places else ""
