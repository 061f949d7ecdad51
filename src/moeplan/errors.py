"""What can go wrong, as one family.

MoeplanError
├── InputError          the user's input is wrong: every fault at once, each with its path and a fix (exit 2)
│   ├── UnknownName     a GPU, NIC, cluster or model that no catalog holds
│   └── Unsupported     a valid wish that the model of the world cannot answer
└── Infeasible          nothing meets the constraints: which failed, by how much, what would do (exit 1)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct

MOST_LISTED = 40  # names in a message


class Fault(Struct, frozen=True):
    """One thing wrong: where, what, and what to write instead."""

    path: str
    problem: str
    fix: str = ""

    def __str__(self) -> str:
        return f"{self.path}: {self.problem}" + (f" — {self.fix}" if self.fix else "")


class MoeplanError(Exception):
    """Base of every error that moeplan raises on purpose."""


class InputError(MoeplanError):
    """The input is wrong; `faults` holds every violated rule, not the first only."""

    def __init__(self, where: str, faults: Sequence[Fault]) -> None:
        self.where = where
        self.faults = tuple(faults)
        count = len(self.faults)
        head = f"{where}: {count} fault{'s' if count != 1 else ''}"
        super().__init__("\n".join([head, *(f"  {fault}" for fault in self.faults)]))


class UnknownName(InputError):
    """A name that no catalog holds; the message lists near ones."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        names = sorted(known)
        listed = f"known: {', '.join(names)}" if len(names) <= MOST_LISTED else f"`moeplan {kind}s` lists those known"
        fix = suggestion(name, names) or listed
        super().__init__(kind, [Fault(kind, f"unknown name {name!r}", fix)])


class Unsupported(InputError):
    """A well-formed wish outside what is modelled."""


class Infeasible(MoeplanError):
    """No configuration meets every constraint."""


def together(where: str, *readings: Callable[[], object]) -> None:
    """Try readings that do not depend on each other; raise one InputError with the faults of all that fail.

    Two may find the same fault: it is named once, and an error that holds them all is raised as it is.
    """
    errors = []
    for read in readings:
        try:
            read()
        except InputError as error:
            errors.append(error)
    faults = tuple(dict.fromkeys(fault for error in errors for fault in error.faults))
    whole = next((found for found in errors if found.faults == faults), None)
    if whole is not None:
        raise whole
    if errors:
        raise InputError(where, faults)


def suggestion(word: str, known: Iterable[str]) -> str:
    """Return «did you mean …?» for the nearest known words, or an empty string."""
    import difflib

    near = difflib.get_close_matches(word.lower(), [k.lower() for k in known], n=3, cutoff=0.6)
    return f"did you mean {' or '.join(near)}?" if near else ""
