"""Every error that rubin-tune raises on purpose.

RubinTuneError                 exit code 2: the input was refused, nothing was written
├── InvalidInput               a value that cannot be meant (tokens 0, a broken file)
│   ├── UnknownName            no model, GPU, kernel, sampler, format of that name
│   ├── InvalidConfig          a config that no kernel or GPU can launch
│   └── CorruptFile            a file that is not what it should be
├── UnknownFact                a fact of a GPU or rack that nobody has published
├── UnsupportedTarget          this triton or ptxas cannot compile for that GPU
├── DatabaseRefused            not one of our databases, too new, read-only
├── ExportRefused              the target engine cannot express or would misread a row
└── BrokeOff                   exit code 3: stopped half-way; what was committed is kept
    ├── DatabaseBusy           locked for longer than we wait
    │   └── DatabaseGone       its server does not answer, for longer than we wait
    ├── StorageFull            the disk is full
    ├── GpuBusy                another sweep or another process has the GPU
    └── WorkerLost             compile or timing processes cannot be kept alive

Messages are one line, lower case, no full stop: what was given, what is wrong, what would be right,
what to do. Callers read the attributes, never the text.
"""

from __future__ import annotations

from collections.abc import Iterable


class RubinTuneError(Exception):
    """Base of the tree; `exit_code` is what the command line ends with."""

    exit_code = 2


class InvalidInput(RubinTuneError):
    """A value that cannot be meant."""


class UnknownName(InvalidInput):
    """No thing of that kind has that name.

    Args:
        kind: What was looked for, in the singular ("model", "gpu").
        name: What was given.
        known: The names there are.
        advice: What to do to add one, if there is something to do.
    """

    def __init__(self, kind: str, name: str, known: Iterable[str], advice: str = "") -> None:
        self.kind = kind
        self.name = name
        self.known = sorted(known)
        # Imported here: a server that loads a table gives no wrong names.
        from difflib import get_close_matches

        self.near = get_close_matches(name.lower(), self.known, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(self.near)}? " if self.near else ""
        text = f"unknown {kind} {name!r}: {hint}known are {', '.join(self.known) or 'none'}"
        super().__init__(f"{text}; {advice}" if advice else text)


class InvalidConfig(InvalidInput):
    """A config that no kernel or GPU can launch."""


class CorruptFile(InvalidInput):
    """A file that is not what it should be.

    Args:
        path: The file.
        why: What is wrong with it, with line where there is one.
        expected: What a good file holds.
    """

    def __init__(self, path: object, why: str, expected: str) -> None:
        self.path = path
        super().__init__(f"cannot read {str(path)!r}: {why}; expected {expected}")


class UnknownFact(RubinTuneError):
    """A fact that nobody has published: it is never guessed."""

    def __init__(self, thing: str, fact: str, advice: str = "") -> None:
        self.thing = thing
        self.fact = fact
        text = f"{thing} has no published {fact!r}"
        super().__init__(f"{text}; {advice}" if advice else text)


class UnsupportedTarget(RubinTuneError):
    """This triton or ptxas cannot compile for that GPU."""


class DatabaseRefused(RubinTuneError):
    """Not one of our databases, written by a newer version, or not writable."""


class ExportRefused(RubinTuneError):
    """The target engine cannot express a row, or would misread it."""


class BrokeOff(RubinTuneError):
    """Stopped half-way; everything committed is kept."""

    exit_code = 3


class DatabaseBusy(BrokeOff):
    """Locked by another process for longer than we wait, or gone away."""


class DatabaseGone(DatabaseBusy):
    """The database's server does not answer; it may come back."""


class StorageFull(BrokeOff):
    """The disk under the database or the cache is full."""


class GpuBusy(BrokeOff):
    """Another sweep or another process has the GPU, or it cannot be timed on as it is."""


class WorkerLost(BrokeOff):
    """Compile or timing processes die faster than they can be replaced."""
