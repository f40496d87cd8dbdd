"""The keys of PEFT's `rank_pattern` and `alpha_pattern`: the modules they mean, at a cost that strangers can't choose.

PEFT matches each key as the regular expression `(.*\\.)?(key)$` against a module's name; the first key in file order
that matches wins. Python's `re` can take exponential time, so only a part of its language is taken (what people write
in these files) and the work it can cost is bounded before anything is matched.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

MAX_KEYS = 2048
MAX_KEY_CHARS = 256
# Steps of matching one adapter's modules, estimated from above: under a second where every step is taken.
MAX_MATCH_COST = 8_000_000
NAME_CHARS = 32
PLAIN_KEY_COST = 8

_ATOM = r"(?:[A-Za-z0-9_.-]|\\[.dw-]|\[(?:\w(?:-\w)?)+\])"
_GROUP = rf"\((?:\?:)?{_ATOM}+(?:\|{_ATOM}+)*\)"
_BRANCH = rf"(?:{_ATOM}[*+?]?|{_GROUP})+"
_KEY = re.compile(rf"\^?{_BRANCH}(?:\|{_BRANCH})*\$?", re.ASCII)


def pattern_errors(option: str, keys: Mapping[str, object]) -> list[str]:
    """Why the keys of this option can't be matched; empty if they can."""
    if len(keys) > MAX_KEYS:
        return [f"{option} has {len(keys)} keys; at most {MAX_KEYS} are supported"]
    return [
        f"{option}: the key {key[:100]!r} is neither a module's name nor a simple expression "
        r"(names, '.', '\.', '\d', [0-9], '*', '+', '?' and groups like (a|b))"
        for key in keys
        if not _is_simple(key)
    ]


def _is_simple(key: str) -> bool:
    if len(key) > MAX_KEY_CHARS or _KEY.fullmatch(key) is None:
        return False
    try:
        re.compile(key)
    except re.error:  # a reversed range such as [9-0]
        return False
    return True


def _match_cost(key: str) -> int:
    """An upper bound of how many ways there are to match the key: repeats span the name, alternatives multiply."""
    groups = [*re.findall(r"\(([^)]*)\)", key), re.sub(r"\([^)]*\)", "", key)]
    repeats = len(re.findall(r"[*+]", key))
    optionals = len(re.findall(r"(?<!\()\?", key))
    ways = NAME_CHARS**repeats * 2**optionals * math.prod(group.count("|") + 1 for group in groups)
    return int(max(ways, PLAIN_KEY_COST))


class ModulePatterns:
    """Values by module name, as PEFT looks them up. The keys must have passed `pattern_errors`.

    match_cost: the most steps that one lookup may take; look nothing up where all of them may exceed MAX_MATCH_COST.
    """

    def __init__(self, values: Mapping[str, float]) -> None:
        self._values = [(re.compile(rf"(.*\.)?({key})$"), value) for key, value in values.items()]
        self.match_cost = sum(map(_match_cost, values))

    def lookup(self, module: str, default: float) -> float:
        """The value for a module such as `model.layers.0.self_attn.q_proj`."""
        return next((value for pattern, value in self._values if pattern.match(module)), default)
