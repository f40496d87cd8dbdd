r"""The keys of PEFT's `rank_pattern` and `alpha_pattern`: the modules they mean, at a cost that strangers can't choose.

PEFT matches each key as the regular expression `(.*\.)?(key)$` against a module's name; the first key in file order
that matches wins. Python's `re` can take exponential time, and keeps all other threads waiting meanwhile. So only the
part of its language that people write in these files is taken, and matched by an automaton of our own in counted steps.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from adapters.patterns.expression import ModuleExpression, ModuleName, Steps, has_reversed_range

MAX_KEYS = 2048
MAX_KEY_CHARS = 256
MAX_STEPS = 500_000
"""The most steps of matching all modules of one adapter with one of the two options: a fifth of a second, in which
other threads get their turns."""

_ATOM = r"(?:[A-Za-z0-9_.-]|\\[.dw-]|\[(?:\w(?:-\w)?)+\])"
_GROUP = rf"\((?:\?:)?{_ATOM}+(?:\|{_ATOM}+)*\)"
_BRANCH = rf"(?:{_ATOM}[*+?]?|{_GROUP})+"
_NAME = re.compile(r"[A-Za-z0-9_.-]+")
_KEY = re.compile(rf"\^?{_BRANCH}(?:\|{_BRANCH})*\$?", re.ASCII)


def pattern_errors(option: str, keys: Mapping[str, object]) -> list[str]:
    """Return why keys of this option can't be matched; nothing if all of them can."""
    if len(keys) > MAX_KEYS:
        return [f"{option} has {len(keys)} keys; at most {MAX_KEYS} are supported"]
    return [
        f"{option}: the key {key[:100]!r} is neither a module's name nor a simple expression "
        r"(names, '.', '\.', '\d', [0-9], '*', '+', '?' and groups like (a|b))"
        for key in keys
        if not _is_simple(key)
    ]


def _is_simple(key: str) -> bool:
    return len(key) <= MAX_KEY_CHARS and _KEY.fullmatch(key) is not None and not has_reversed_range(key)


class ModulePatterns:
    """Values by module name, as PEFT looks them up. The keys must have passed `pattern_errors`."""

    def __init__(self, values: Mapping[str, float]) -> None:
        self._keys = list(values.items())
        self._read: list[ModuleName | ModuleExpression] = []
        self._steps = Steps(MAX_STEPS)

    def lookup(self, module: str, default: float) -> float:
        """Return the value for a module such as `model.layers.0.self_attn.q_proj`.

        default: the value where no key matches.

        Raises TooCostly: when this and all look-ups before it take more than MAX_STEPS.
        """
        for place, (key, value) in enumerate(self._keys):
            if place == len(self._read):
                kind = ModuleName if _NAME.fullmatch(key) is not None else ModuleExpression
                self._read.append(kind(key, self._steps))
            if self._read[place].matches(module):
                return value
        return default
