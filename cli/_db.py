"""`rubin-tune db`."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path

import click

from ._group import Commands
from ._options import database_option, json_option
from ._output import print_json, print_table

_vacuum_option = click.option(
    "--vacuum", is_flag=True, help="Shrink an SQLite file afterwards (needs as much room again)."
)


@click.group(cls=Commands)
def db() -> None:
    """Look after a database: count, check, merge, archive, remove, upgrade (docs/databases.md).

    \b
    Example:
      rubin-tune db stats
    """


@db.command()
@database_option
@json_option
def stats(db: str | None, as_json: bool) -> None:
    """Count trials and winners by kernel, silicon, toolchain and evidence; say what is stale.

    \b
    Example:
      rubin-tune db stats
    """
    from ..tuner.present import database_statistics

    found = database_statistics(db)
    if as_json:
        print_json(found)
        return
    print_table(
        f"trials in {found['database']}",
        ["kernel", "silicon", "toolchain", "evidence", "trials"],
        [tuple(group.values()) for group in found["trials"]],
    )
    print_table(
        "winners that stand",
        ["kernel", "silicon", "toolchain", "evidence", "winners", "stale"],
        [
            (
                *(row[name] for name in ("kernel", "silicon", "toolchain", "evidence", "winners")),
                ", ".join(row["stale"]) or "no",
            )
            for row in found["winners"]
        ],
    )
    rows = ", ".join(f"{count} {name}" for name, count in found["rows"].items())
    size = found["bytes_per_trial"]
    each = "" if size is None else f", {size:.0f} bytes a trial with everything"
    click.echo(f"{rows}; {found['bytes'] / 1e6:.1f} MB{each}; tables {found['tables']}")
    stale = sum(row["winners"] for row in found["winners"] if row["stale"])
    if stale:
        click.echo(f"{stale} winners are stale: rubin-tune requalify times them again")


@db.command()
@database_option
@json_option
def check(db: str | None, as_json: bool) -> None:
    """Check pointers, keys, times, and what winners stand on; exit code 1 with findings.

    \b
    Example:
      rubin-tune db check
    """
    from ..db import default_path
    from ..db.check import check_database

    shown, findings = check_database(db or default_path())
    if as_json:
        found = [asdict(finding) for finding in findings]
        print_json({"schema": "rubin-tune.db-check/1", "database": shown, "findings": found})
    else:
        for finding in findings:
            click.echo(finding)
        click.echo(f"{shown}: {len(findings)} findings" if findings else f"{shown}: sound")
    if findings:
        sys.exit(1)


@db.command()
@click.argument("other", metavar="PATH|URL")
@database_option
@json_option
def merge(other: str, db: str | None, as_json: bool) -> None:
    """Copy what another database holds into this one; what both have stays once.

    The other is only read. Again, it writes nothing.

    \b
    Example:
      rubin-tune db merge their.db --db postgresql://me@host/trials
    """
    from ..db.merge import merge as merge_databases
    from ..db.store import writable_target

    done = merge_databases(other, writable_target(db))
    if as_json:
        print_json({"schema": "rubin-tune.db-merge/1", **asdict(done)})
        return
    for name, copied in done.tables.items():
        if copied.read:
            click.echo(f"{name}: {copied.written} of {copied.read} are new or stronger here")
    click.echo(f"{done.source} is merged into {done.target}")


@db.command()
@click.argument("file", metavar="FILE")
@click.option("--older-than", metavar="90d", help="Trials of sweeps that began so long ago.")
@click.option("--kernel", metavar="NAME", help="Trials of this kernel.")
@click.option("--silicon", metavar="NAME|KEY", help="Trials of this GPU (see db stats).")
@click.option("--with-winners", is_flag=True, help="Their winners leave too.")
@_vacuum_option
@database_option
@json_option
def archive(
    file: str,
    older_than: str | None,
    kernel: str | None,
    silicon: str | None,
    with_winners: bool,
    vacuum: bool,
    db: str | None,
    as_json: bool,
) -> None:
    """Move trials into the SQLite file FILE; nothing is removed before it is safe there.

    Trials that a winner stands on are copied and stay, unless --with-winners.

    \b
    Example:
      rubin-tune db archive old.db --older-than 90d
    """
    from ..db import default_path
    from ..db.archive import Selection, parse_age
    from ..db.archive import archive as archive_trials

    selection = Selection(
        before=None if older_than is None else parse_age(older_than),
        kernel=kernel,
        silicon=silicon,
        with_winners=with_winners,
    )
    done = archive_trials(db or default_path(), file, selection, vacuum=vacuum)
    if as_json:
        print_json({"schema": "rubin-tune.db-archive/1", **asdict(done)})
        return
    if done.trials + done.winners == 0:
        click.echo("nothing is so old: nothing was written")
        return
    click.echo(
        f"{done.trials} trials and {done.winners} winners are in {done.archive}; {done.removed} "
        f"trials and {done.removed_winners} winners were removed here, {done.kept} trials stay "
        "because winners stand on them"
    )


@db.command()
@click.option(
    "--keep",
    type=click.IntRange(0),
    default=3,
    show_default=True,
    metavar="N",
    help="Keep a stale winner's N fastest trials, for requalify.",
)
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
@_vacuum_option
@database_option
@json_option
def gc(keep: int, dry_run: bool, vacuum: bool, db: str | None, as_json: bool) -> None:
    """Remove trials of another source or toolchain that no winner stands on.

    \b
    Example:
      rubin-tune db gc --dry-run
    """
    from ..tuner.present import collect_garbage

    found = collect_garbage(db, keep=keep, dry_run=dry_run, vacuum=vacuum)
    removed = sum(group.removed for group in found)
    if as_json:
        groups = [{**asdict(group), "reasons": list(map(str, group.reasons))} for group in found]
        print_json({"schema": "rubin-tune.db-gc/1", "dry_run": dry_run, "groups": groups})
        return
    verb = "would be removed" if dry_run else "removed"
    print_table(
        "stale trials",
        ["kernel", "silicon", "toolchain", "stale because", "trials", verb],
        [(g.kernel, g.silicon, g.toolchain, g.why, g.trials, g.removed) for g in found],
    )
    click.echo(f"{removed} of {sum(group.trials for group in found)} stale trials {verb}")


@db.command()
@click.option(
    "--backup",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Copy an SQLite database there first.",
)
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@database_option
@json_option
def upgrade(backup: Path | None, dry_run: bool, db: str | None, as_json: bool) -> None:
    """Bring a database's tables to what this version writes; make a copy first.

    Other commands do the same when they first open an older database.

    \b
    Example:
      rubin-tune db upgrade --backup before.db
    """
    from ..db import default_path
    from ..db.upgrading import upgrade as upgrade_database

    done = upgrade_database(db or default_path(), backup=backup, dry_run=dry_run)
    if as_json:
        print_json({"schema": "rubin-tune.db-upgrade/1", "dry_run": dry_run, **asdict(done)})
        return
    if done.before == done.after:
        click.echo(f"{done.database} has the newest tables ({done.after})")
        return
    verb = "would go" if dry_run else "went"
    click.echo(f"{done.database}: tables {verb} from {done.before or 'none'} to {done.after}")
    if done.backup is not None:
        click.echo(f"a copy as it was: {done.backup}")
    elif dry_run:
        copy = "pg_dump" if "://" in done.database else "--backup FILE"
        click.echo(f"there is no way back: make a copy first ({copy})")
