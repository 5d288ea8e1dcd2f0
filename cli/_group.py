"""One click group that turns our errors into one line and their exit code."""

from __future__ import annotations

import sys

import click

from ..errors import RubinTuneError


class Commands(click.Group):
    """Says a RubinTuneError as one line on stderr and exits with its code, for every command alike."""

    def invoke(self, ctx: click.Context) -> object:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except RubinTuneError as error:
            if ctx.obj is not None and ctx.obj.get("traceback"):
                raise
            click.echo(f"rubin-tune: {error}", err=True)
            sys.exit(error.exit_code)
        except (KeyboardInterrupt, click.Abort):
            click.echo("rubin-tune: interrupted; what was committed is kept", err=True)
            sys.exit(130)
        except BrokenPipeError:
            # The reader of our output has gone (`| head`): nothing to say, nowhere to say it.
            sys.stderr.close()
            sys.exit(0)
