"""The store: one database of trials and winners, on SQLite or PostgreSQL.

Each `add_*` commits before it returns; each method is one transaction, which outlasts a server that is
gone for a while (db/outage.py). Errors of the database come out as ours, in words (db/faults.py);
passwords of URLs never come out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any

import platformdirs
from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    Select,
    Table,
    and_,
    delete,
    func,
    insert,
    select,
    update,
)

from ..errors import InvalidInput
from ..search_spaces import LaunchConfig, Problem, Space, Unit
from . import codec
from .codec import dumps, loads
from .engine import Database, open_database
from .notes import SweepNote, note_of
from .outage import Outages, transaction
from .records import CompileReport, Evidence, Silicon, Toolchain, Trial, Winner
from .rows import RowReader, report_key, seed_of, seed_values, trial_values, winner_values
from .schema import compiles, portfolios, silicons, sweeps, toolchains, trials, winners
from .schema import problems as _problems
from .schema import seeds as _seeds
from .seeds import Seed, fitted
from .upsert import TRIAL_KEY, WINNER_KEY, insert_missing, upsert

# Keys that are looked up in one statement.
_CHUNK = 500


def default_path() -> Path:
    """Return where the user's own database lies when nothing else is said."""
    return Path(platformdirs.user_data_dir("rubin-tune")) / "rubin-tune.db"


def open_store(
    target: str | Path | None = None, *, wait_s: float = 30.0, create: bool = True
) -> Store:
    """Open a database, make it if it does not exist, bring its tables up to date.

    Args:
        target: A path, `sqlite:///PATH` or `postgresql://USER@HOST/NAME`; None = `default_path()`.
        wait_s: Seconds to wait for another process's lock, or for a server that went away.
        create: Make a file that does not exist; else it is refused.

    Raises:
        DatabaseRefused: not one of ours, from a newer version, not writable, damaged, out of
            reach.
        DatabaseBusy: locked for longer than `wait_s`.
        StorageFull: no room for the tables.
    """
    found = writable_target(target) if create else (target or default_path())
    return Store(open_database(found, wait_s=wait_s, create=create))


def writable_target(target: str | Path | None) -> str | Path:
    """Return the database meant; None = the user's own, whose folder is made."""
    if target is not None:
        return target
    path = default_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


Keyed = Silicon | Toolchain | CompileReport | Problem


class Store:
    """An open database. Use it as a context manager, or `close` it."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.outages = Outages(wait_s=database.wait_s)
        self._ids: dict[tuple[str, str], int] = {}
        self._reader = RowReader()
        # Statements are built once: building one costs as much as running it.
        self._put_trials = {
            fresh: upsert(database.dialect, trials, TRIAL_KEY, equal=fresh)
            for fresh in (False, True)
        }
        self._put_winners = upsert(database.dialect, winners, WINNER_KEY, equal=True)

    @property
    def url(self) -> str:
        """The path or URL, password left out."""
        return self._database.shown

    def close(self) -> None:
        """Give the connections back."""
        self._database.close()

    def __enter__(self) -> Store:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close."""
        self.close()

    # Sweeps

    @transaction
    def begin_sweep(self, sweep_id: str, fingerprint: str, request: Mapping[str, object]) -> None:
        """Note that a sweep runs; a second time is no error.

        Args:
            sweep_id: Its name, unlike any other's.
            fingerprint: Equal for sweeps that would come out alike.
            request: What was asked, as JSON values.
        """
        values = {
            "key": sweep_id,
            "fingerprint": fingerprint,
            "state": "running",
            "request": dumps(dict(request)),
            "counts": "{}",
        }
        with self._writing() as connection:
            connection.execute(insert_missing(self._database.dialect, sweeps), values)

    def stop_sweep(self, sweep_id: str) -> None:
        """Note that a sweep was broken off; what it committed stays."""
        self._end_sweep(sweep_id, "stopped", {})

    def finish_sweep(self, sweep_id: str, counts: Mapping[str, object]) -> None:
        """Note that a sweep came to its end, with what it counted."""
        self._end_sweep(sweep_id, "finished", counts)

    @transaction
    def finished_sweep(self, fingerprint: str) -> str | None:
        """Return the newest finished sweep that was asked for the same, or None."""
        found = (
            select(sweeps.c.key)
            .where(sweeps.c.fingerprint == fingerprint, sweeps.c.state == "finished")
            .order_by(sweeps.c.id.desc())
            .limit(1)
        )
        with self._reading() as connection:
            return connection.execute(found).scalar()

    def sweep_counts(self, sweep_id: str) -> dict[str, Any]:
        """Return what `finish_sweep` was given."""
        return loads(self._sweep(sweep_id).counts)

    def sweep_request(self, sweep_id: str) -> dict[str, Any]:
        """Return what `begin_sweep` was given."""
        return loads(self._sweep(sweep_id).request)

    @transaction
    def sweep_notes(self) -> list[SweepNote]:
        """Return what is known of every sweep, oldest first."""
        with self._reading() as connection:
            rows = connection.execute(select(sweeps).order_by(sweeps.c.id))
            return [note_of(row) for row in rows]

    def sweep_state(self, sweep_id: str) -> str:
        """Return "running" (or killed), "stopped" or "finished"."""
        return str(self._sweep(sweep_id).state)

    # Trials

    def add_trial(self, trial: Trial, *, fresh: bool = False) -> bool:
        """Store one trial and commit; return whether its row was written.

        A trial that is there stays, unless the new one has stronger evidence. With `fresh` the
        new one also replaces a row of equal evidence. Weaker evidence never displaces stronger.
        """
        return self.add_trials((trial,), fresh=fresh) == 1

    def add_trials(self, added: Iterable[Trial], *, fresh: bool = False) -> int:
        """Store trials in one transaction, all or none; return how many rows were written.

        The rules are `add_trial`'s. Several thousand at once are several times as fast.
        """
        rows = list(added)
        return self._add_trials(rows, fresh=fresh) if rows else 0

    @transaction
    def trials_for(
        self,
        *,
        kernel: str,
        source_hash: str,
        silicon: Silicon,
        toolchain: Toolchain,
        policy: str,
        problems: Sequence[Problem] = (),
        units: Collection[Unit] = (),
    ) -> list[Trial]:
        """Return the trials that share these keys, oldest first; empty problems or units = all.

        A trial of a problem that was passed comes back with that very problem, model name
        included.
        """
        given = {problem.key: problem for problem in problems}
        wanted = _of_keys(kernel, source_hash, silicon, toolchain, policy)
        wanted += _of(trials, given, units)
        statement = _joined(trials).where(*wanted).order_by(trials.c.id)
        with self._reading() as connection:
            return [self._reader.trial(row, given) for row in connection.execute(statement)]

    @transaction
    def done_keys(
        self,
        *,
        kernel: str,
        source_hash: str,
        silicon: Silicon,
        toolchain: Toolchain,
        policy: str,
        problems: Sequence[Problem] = (),
        units: Collection[Unit] = (),
    ) -> frozenset[tuple[str, Unit, str]]:
        """Return (problem key, unit, config key) of what `trials_for` would return."""
        given = {problem.key: problem for problem in problems}
        wanted = _of_keys(kernel, source_hash, silicon, toolchain, policy)
        wanted += _of(trials, given, units)
        statement = (
            select(_problems.c.key, trials.c.unit, trials.c.config)
            .select_from(trials.join(_problems).join(silicons).join(toolchains))
            .where(*wanted)
        )
        with self._reading() as connection:
            found = connection.execute(statement).all()
        return frozenset((key, Unit(unit), config) for key, unit, config in found)

    @transaction
    def trials_of(self, sweep_id: str) -> list[Trial]:
        """Return the rows that are a sweep's own, oldest first."""
        statement = _joined(trials).where(sweeps.c.key == sweep_id).order_by(trials.c.id)
        with self._reading() as connection:
            return [self._reader.trial(row, {}) for row in connection.execute(statement)]

    @transaction
    def count_trials(self, sweep_id: str) -> int:
        """Return how many rows are a sweep's own."""
        statement = select(func.count()).select_from(trials.join(sweeps))
        with self._reading() as connection:
            return connection.execute(statement.where(sweeps.c.key == sweep_id)).scalar_one()

    @transaction
    def count_known(
        self,
        *,
        kernel: str,
        source_hash: str,
        silicon: Silicon,
        policy: str,
        problems: Sequence[Problem],
    ) -> int:
        """Return how many trials of these problems are stored, under whatever toolchain."""
        statement = (
            select(func.count())
            .select_from(trials.join(_problems).join(silicons))
            .where(
                trials.c.kernel == kernel,
                trials.c.source_hash == source_hash,
                silicons.c.key == silicon.key,
                trials.c.policy == policy,
                _problems.c.key.in_([problem.key for problem in problems]),
            )
        )
        with self._reading() as connection:
            return connection.execute(statement).scalar_one()

    @transaction
    def seconds_a_trial(self, silicon: Silicon, policy: str) -> float | None:
        """Return the wall seconds of finished sweeps over their own trials, None without any."""
        statement = (
            select(sweeps.c.started_at, sweeps.c.ended_at, func.count())
            .select_from(trials.join(sweeps).join(silicons))
            .where(
                sweeps.c.state == "finished",
                silicons.c.key == silicon.key,
                trials.c.policy == policy,
            )
            .group_by(sweeps.c.id, sweeps.c.started_at, sweeps.c.ended_at)
        )
        with self._reading() as connection:
            rows = connection.execute(statement).all()
        seconds = sum((ended - started).total_seconds() for started, ended, _ in rows)
        return seconds / sum(count for *_, count in rows) if rows and seconds > 0 else None

    @transaction
    def compile_seconds(self, arch: int) -> float | None:
        """Return the mean seconds of the stored compilations for a target, None without any."""
        statement = select(compiles.c.record).where(compiles.c.target == arch)
        with self._reading() as connection:
            found = [loads(text)["compile_s"] for text in connection.execute(statement).scalars()]
        return sum(found) / len(found) if found else None

    @transaction
    def portfolio_sweeps(self) -> list[str]:
        """Return the finished sweeps that were held to a portfolio, newest first."""
        statement = (
            select(sweeps.c.key)
            .select_from(portfolios.join(sweeps))
            .where(sweeps.c.state == "finished")
            .order_by(sweeps.c.started_at.desc(), sweeps.c.id.desc())
        )
        with self._reading() as connection:
            return list(connection.execute(statement).scalars())

    @transaction
    def counts(self) -> dict[str, int]:
        """Return rows a table."""
        with self._reading() as connection:
            return {
                table.name: connection.execute(
                    select(func.count()).select_from(table)
                ).scalar_one()
                for table in (sweeps, trials, winners, compiles, _problems, silicons, toolchains)
            }

    # Winners

    def add_winners(self, added: Iterable[Winner]) -> None:
        """Store a sweep's winners in one transaction; a second time replaces the first."""
        rows = list(added)
        if rows:
            self._add_winners(rows)

    @transaction
    def winners(
        self,
        *,
        sweep_id: str | None = None,
        kernel: str | None = None,
        source_hash: str | None = None,
        problems: Sequence[Problem] = (),
        units: Collection[Unit] = (),
        silicon: Silicon | None = None,
        like: Silicon | None = None,
        at_least: Evidence = Evidence.COMPILED,
        ended: bool = False,
    ) -> list[Winner]:
        """Return each kernel's, problem's, unit's and silicon's winner: strongest, then newest.

        Args:
            sweep_id: Only this sweep's.
            kernel: Only this kernel's.
            source_hash: Only those of this source.
            problems: Only of these; empty = all.
            units: Only of these; empty = all.
            silicon: Only on exactly this silicon.
            like: Only on silicon of the same architecture and size, whatever its name and power
                limit; then all such silicon counts as one.
            at_least: Leave weaker evidence out.
            ended: Leave out sweeps that run, or were killed before they could say that they ended.
        """
        given = {problem.key: problem for problem in problems}
        wanted = [winners.c.evidence >= int(at_least), *_of(winners, given, units)]
        if ended:
            wanted.append(sweeps.c.state != "running")
        if sweep_id is not None:
            wanted.append(sweeps.c.key == sweep_id)
        if kernel is not None:
            wanted.append(winners.c.kernel == kernel)
        if source_hash is not None:
            wanted.append(winners.c.source_hash == source_hash)
        if silicon is not None:
            wanted.append(silicons.c.key == silicon.key)
        if like is not None:
            wanted.append(_alike(like))
        # Rows that came from another team's database are newer here, not newer.
        order = (winners.c.evidence.desc(), sweeps.c.started_at.desc(), winners.c.id.desc())
        statement = _joined(winners).where(*wanted).order_by(*order)
        best: dict[tuple[object, ...], Row[Any]] = {}
        with self._reading() as connection:
            for row in connection.execute(statement):
                place = None if like is not None else row.silicon_id
                best.setdefault((row.kernel, row.problem_id, row.unit, place), row)
        ordered = sorted(best.values(), key=lambda row: row.id)
        return [self._reader.winner(row, given) for row in ordered]

    # Portfolios

    @transaction
    def put_portfolio(self, sweep_id: str, record: Mapping[str, object]) -> None:
        """Store the set that a sweep's winners are held to; a second time replaces the first."""
        with self._writing() as connection:
            row = self._sweep_row(connection, sweep_id)
            connection.execute(delete(portfolios).where(portfolios.c.sweep_id == row))
            connection.execute(
                insert(portfolios), {"sweep_id": row, "record": dumps(dict(record))}
            )

    @transaction
    def portfolio(self, sweep_id: str) -> dict[str, Any] | None:
        """Return what `put_portfolio` was given, None for a sweep without."""
        found = select(portfolios.c.record).select_from(portfolios.join(sweeps))
        with self._reading() as connection:
            record = connection.execute(found.where(sweeps.c.key == sweep_id)).scalar()
        return None if record is None else loads(record)

    # Seeds

    @transaction
    def put_seeds(self, added: Sequence[Seed]) -> None:
        """Store seeds in one transaction; a file that was imported before is replaced whole."""
        files = {(seed.kernel, seed.source, seed.file) for seed in added}
        with self._writing() as connection:
            for kernel, source, file in sorted(files):
                connection.execute(
                    delete(_seeds).where(
                        _seeds.c.kernel == kernel,
                        _seeds.c.source == source,
                        _seeds.c.file == file,
                    )
                )
            if added:
                connection.execute(insert(_seeds), [seed_values(seed) for seed in added])

    @transaction
    def seeds_for(
        self,
        kernel: str,
        problem: Problem,
        *,
        unit: Unit | None = None,
        space: Space | None = None,
    ) -> list[Seed]:
        """Return seeds of a kernel for a problem's weight format, the nearest problem's first.

        Args:
            kernel: A name of kernels/.
            problem: Distance is in octaves of width, experts and tokens; `Seed.is_of` says
                which seeds are of that very layer.
            unit: Only those found for this GEMM (or for both).
            space: Return legal, canonical points of it: values off its axes are moved to the
                nearest (`Seed.changed` names them), what is not legal then is left out, and of
                equal configs the nearest seed stays.
        """
        statement = (
            select(_seeds)
            .where(_seeds.c.kernel == kernel, _seeds.c.weights == problem.shape.weights)
            .order_by(_seeds.c.id)
        )
        with self._reading() as connection:
            rows = connection.execute(statement).all()
        found = [seed for seed in map(seed_of, rows) if unit is None or seed.is_for(unit)]
        found.sort(key=lambda seed: seed.distance(problem))
        if space is None:
            return found
        points: dict[LaunchConfig, Seed] = {}
        for seed in found:
            point = fitted(seed, space)
            if point is not None:
                points.setdefault(point.config, point)
        return list(points.values())

    # One transaction each

    def _reading(self) -> AbstractContextManager[Connection]:
        return self._database.reading()

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        done = False
        try:
            with self._database.writing() as connection:
                yield connection
            done = True
        finally:
            # Ids of rows that were rolled back point at nothing.
            if not done:
                self._ids.clear()

    # Writing rows

    @transaction
    def _add_trials(self, rows: Sequence[Trial], *, fresh: bool) -> int:
        with self._writing() as connection:
            return self._put(connection, rows, fresh=fresh)

    @transaction
    def _add_winners(self, rows: Sequence[Winner]) -> None:
        with self._writing() as connection:
            pointers = self._pointers(connection, rows)
            values = [
                {**winner_values(row), **ids} for row, ids in zip(rows, pointers, strict=True)
            ]
            connection.execute(self._put_winners, values)

    def _put(self, connection: Connection, rows: Sequence[Trial], *, fresh: bool) -> int:
        own = [trial_values(row) for row in rows]
        pointers = self._pointers(connection, rows)
        values = [{**columns, **ids} for columns, ids in zip(own, pointers, strict=True)]
        # Writers that lock rows in one order cannot wait for each other in a ring.
        values.sort(key=lambda row: tuple(row[name] for name in TRIAL_KEY))
        count: int = connection.execute(self._put_trials[fresh], values).rowcount
        return count

    def _pointers(
        self, connection: Connection, rows: Sequence[Trial | Winner]
    ) -> list[dict[str, int | None]]:
        """Return ids of what each row points at; what is missing there is stored first."""
        pointed: dict[Table, list[tuple[str, Keyed] | None]] = {
            _problems: [(_problem_key(row.problem), row.problem) for row in rows],
            silicons: [(row.silicon.key, row.silicon) for row in rows],
            toolchains: [(row.toolchain.key, row.toolchain) for row in rows],
            compiles: [
                (report_key(row.compile), row.compile) if row.compile else None for row in rows
            ],
        }
        found: list[dict[str, int | None]] = [
            {"sweep_id": self._sweep_row(connection, row.sweep_id)} for row in rows
        ]
        for table, places in pointed.items():
            self._store_missing(connection, table, dict(place for place in places if place))
            name = f"{table.name.removesuffix('s')}_id"
            for ids, place in zip(found, places, strict=True):
                ids[name] = self._ids[table.name, place[0]] if place else None
        return found

    def _sweep_row(self, connection: Connection, sweep_id: str) -> int:
        place = (sweeps.name, sweep_id)
        if place not in self._ids:
            found = connection.execute(
                select(sweeps.c.id).where(sweeps.c.key == sweep_id)
            ).scalar()
            if found is None:
                raise InvalidInput(f"unknown sweep {sweep_id!r}: begin_sweep comes first")
            self._ids[place] = found
        return self._ids[place]

    def _store_missing(
        self, connection: Connection, table: Table, records: Mapping[str, Keyed]
    ) -> None:
        """Store what is not there and note the ids, in the order of keys (see `_put`)."""
        keys = sorted(key for key in records if (table.name, key) not in self._ids)
        statement = insert_missing(self._database.dialect, table)
        for start in range(0, len(keys), _CHUNK):
            some = keys[start : start + _CHUNK]
            connection.execute(statement, [{"key": key, **_columns(records[key])} for key in some])
            found = select(table.c.key, table.c.id).where(table.c.key.in_(some))
            for key, number in connection.execute(found):
                self._ids[table.name, key] = number

    # Reading rows

    @transaction
    def _sweep(self, sweep_id: str) -> Row[Any]:
        with self._reading() as connection:
            found = connection.execute(select(sweeps).where(sweeps.c.key == sweep_id)).first()
        if found is None:
            raise self._unknown_sweep(sweep_id)
        return found

    @transaction
    def _end_sweep(self, sweep_id: str, state: str, counts: Mapping[str, object]) -> None:
        ended = (
            update(sweeps)
            .where(sweeps.c.key == sweep_id)
            .values(state=state, counts=dumps(dict(counts)), ended_at=func.now())
        )
        with self._writing() as connection:
            changed = connection.execute(ended).rowcount
        if not changed:
            raise self._unknown_sweep(sweep_id)

    def _unknown_sweep(self, sweep_id: str) -> InvalidInput:
        return InvalidInput(
            f"unknown sweep {sweep_id!r}: database {self.url!r} has none of that name"
        )


def _joined(table: Table) -> Select[Any]:
    """Select rows with everything needed to make records of them."""
    whole = table.join(sweeps).join(_problems).join(silicons).join(toolchains)
    return select(
        table,
        sweeps.c.key.label("sweep_key"),
        _problems.c.key.label("problem_key"),
        _problems.c.record.label("problem_record"),
        silicons.c.arch,
        silicons.c.sms,
        silicons.c.memory_bytes,
        silicons.c.shared_limit_bytes,
        silicons.c.power_limit_w,
        toolchains.c.record.label("toolchain_record"),
        compiles.c.record.label("compile_record"),
    ).select_from(whole.outerjoin(compiles))


@lru_cache(maxsize=4096)
def _problem_key(problem: Problem) -> str:
    return problem.key


def _columns(record: Keyed) -> dict[str, Any]:
    """Return the columns of a row that others point at, its key left out."""
    match record:
        case Silicon():
            return {n: v for n, v in codec.silicon_to_json(record).items() if n != "name"}
        case Toolchain():
            return {"record": dumps(codec.toolchain_to_json(record))}
        case CompileReport():
            text = dumps(codec.compile_to_json(record))
            return {"cubin_sha256": record.cubin_sha256, "target": record.target, "record": text}
        case Problem():
            text = dumps(codec.problem_to_json(record))
            return {"tokens": record.tokens, "record": text}


def _of_keys(
    kernel: str, source_hash: str, silicon: Silicon, toolchain: Toolchain, policy: str
) -> list[ColumnElement[bool]]:
    return [
        trials.c.kernel == kernel,
        trials.c.source_hash == source_hash,
        silicons.c.key == silicon.key,
        toolchains.c.key == toolchain.key,
        trials.c.policy == policy,
    ]


def _of(
    table: Table, problem_keys: Collection[str], units: Collection[Unit]
) -> list[ColumnElement[bool]]:
    wanted: list[ColumnElement[bool]] = []
    if problem_keys:
        wanted.append(_problems.c.key.in_(list(problem_keys)))
    if units:
        wanted.append(table.c.unit.in_([unit.value for unit in units]))
    return wanted


def _alike(silicon: Silicon) -> ColumnElement[bool]:
    """Say whether silicon is of the same kind and size; drivers round memory differently."""
    memory = silicon.memory_bytes
    return and_(
        silicons.c.arch == silicon.arch,
        silicons.c.sms == silicon.sms,
        silicons.c.memory_bytes.between(int(memory * 0.9), int(memory * 1.1)),
    )
