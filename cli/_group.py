"""One click group that turns our errors into one line and their exit code."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import click

from ..errors import RubinTuneError

# What shells say of a program that a signal ended: 128 and the signal's number.
_INTERRUPTED = 130
_TERMINATED = 143


class Terminated(KeyboardInterrupt):
    """SIGTERM: ends a run as Ctrl-C does, so that what is under way is closed and said."""


class Commands(click.Group):
    """Says a RubinTuneError as one line on stderr and exits with its code, for every command alike."""

    def invoke(self, ctx: click.Context) -> object:
        """Run the command."""
        try:
            with _sigterm_raises():
                return super().invoke(ctx)
        except RubinTuneError as error:
            if ctx.obj is not None and ctx.obj.get("traceback"):
                raise
            click.echo(f"rubin-tune: {error}", err=True)
            sys.exit(error.exit_code)
        except Terminated:
            click.echo("rubin-tune: terminated; what was committed is kept", err=True)
            sys.exit(_TERMINATED)
        except (KeyboardInterrupt, click.Abort):
            click.echo("rubin-tune: interrupted; what was committed is kept", err=True)
            sys.exit(_INTERRUPTED)
        except BrokenPipeError:
            # The reader of our output has gone (`| head`): nothing to say, nowhere to say it.
            sys.stderr.close()
            sys.exit(0)


@contextmanager
def _sigterm_raises() -> Iterator[None]:
    """Turn SIGTERM into `Terminated` while a command runs; only a main thread may listen."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _terminate(number: int, frame: FrameType | None) -> None:
    raise Terminated
