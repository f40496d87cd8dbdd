"""One key of PEFT's patterns as an automaton, which reads each character of a module's name once.

The characters of an expression are the states (Glushkov 1961), and a set of them is one integer. The set that follows
each set is remembered, so that names which are alike cost a look-up for each character (Thompson 1968).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

STEPS_TO_READ = 10
"""The number of steps that reading one character of an expression is charged, by the time that it takes."""

_PART = re.compile(r"\(\?:|\[[^\]]+\]|\\.|.")
_RANGE = re.compile(r"(.)(?:-(.))?")


class TooCostly(Exception):
    """The error for patterns that take more steps to match than an adapter may cost."""


class Steps:
    """A budget of matching steps."""

    def __init__(self, num_left: int) -> None:
        self.num_left = num_left

    def take(self, num: int) -> None:
        """Use up some of the steps that may be taken.

        Raises TooCostly: when fewer are left.
        """
        self.num_left -= num
        if self.num_left < 0:
            raise TooCostly


class ModuleName:
    """A key that is a name or the end of one, in which each dot stands for any character."""

    def __init__(self, key: str, steps: Steps) -> None:
        self._steps = steps
        self._num_chars = len(key)
        self._parts: list[tuple[int, str]] = []  # each with its place in the key, the last first
        place = 0
        for part in key.split("."):
            self._parts.insert(0, (place, part))
            place += len(part) + 1

    def matches(self, name: str) -> bool:
        """Tell whether the key is the whole name of a module, or all of it after one of its dots.

        Raises TooCostly: when that takes more steps than are left.
        """
        self._steps.take(1)
        begin = len(name) - self._num_chars
        if begin < 0 or (begin > 0 and name[begin - 1] != "."):
            return False
        for place, part in self._parts:
            if not name.startswith(part, begin + place):
                return False
            self._steps.take(1)
        return True


class ModuleExpression:
    """A key that `lookup` takes for a simple expression, ready to be matched."""

    def __init__(self, key: str, steps: Steps) -> None:
        """Make the expression's automaton from the key.

        Raises TooCostly: when the automaton alone takes more steps than are left.
        """
        self._steps = steps
        self._accepts: list[Callable[[str], bool]] = []  # by state: whether it takes a character
        self._follow: list[int] = []  # by state: the states that may take the next character
        self._taking: dict[str, int] = {}  # by character: the states that take it
        self._after: dict[int, int] = {}  # by set of states: the states that follow
        self._first = self._last = self._first_of_name = 0
        for number, branch in enumerate(_branches(key.removeprefix("^").removesuffix("$"))):
            first, last = self._add(branch)
            self._last |= last
            self._first_of_name |= first
            if number > 0 or not key.startswith("^"):
                self._first |= first

    def matches(self, name: str) -> bool:
        """Tell whether the expression is the whole name of a module, or all of it after one of its dots.

        Raises TooCostly: when that takes more steps than are left.
        """
        self._steps.take(len(name))
        may_take, taken, last_start = self._first_of_name, 0, name.rfind(".") + 1
        for place, char in enumerate(name):
            taken = may_take & self._states_taking(char)
            may_take = self._states_after(taken) if taken else 0
            if char == ".":
                may_take |= self._first
            elif not may_take and place >= last_start:
                return bool(taken & self._last) and place + 1 == len(name)
        return bool(taken & self._last)

    def _add(self, branch: Sequence[str]) -> tuple[int, int]:
        """Add the states of one alternative; return the possible first states, and the possible last ones."""
        first, last, may_be_empty, place = 0, 0, True, 0
        while place < len(branch):
            quantifier = ""
            if branch[place] in ("(", "(?:"):
                end = branch.index(")", place)
                begin, close = self._add_group(branch[place + 1 : end])
                place = end + 1
            else:
                begin = close = self._state(branch[place])
                place += 1
                if place < len(branch) and branch[place] in "*+?":
                    quantifier = branch[place]
                    place += 1
            self._link(last, begin)
            if quantifier in ("*", "+"):
                self._link(close, begin)
            is_optional = quantifier in ("*", "?")
            first |= begin if may_be_empty else 0
            last = last | close if is_optional else close
            may_be_empty = may_be_empty and is_optional
        return first, last

    def _add_group(self, parts: Sequence[str]) -> tuple[int, int]:
        """Add the states of a group's alternatives; return the possible first states, and the possible last ones."""
        begin = close = before = 0
        for part in parts:
            if part == "|":
                close, before = close | before, 0
                continue
            state = self._state(part)
            self._link(before, state)
            begin |= 0 if before else state
            before = state
        return begin, close | before

    def _state(self, atom: str) -> int:
        self._steps.take(STEPS_TO_READ)
        self._accepts.append(_accepting(atom))
        self._follow.append(0)
        return 1 << len(self._follow) - 1

    def _link(self, last: int, begin: int) -> None:
        self._steps.take(last.bit_count())
        for place in _places(last):
            self._follow[place] |= begin

    def _states_taking(self, char: str) -> int:
        taking = self._taking.get(char)
        if taking is None:
            self._steps.take(len(self._accepts))
            taking = sum(1 << place for place, accepts in enumerate(self._accepts) if accepts(char))
            self._taking[char] = taking
        return taking

    def _states_after(self, taken: int) -> int:
        after = self._after.get(taken)
        if after is None:
            self._steps.take(taken.bit_count())
            after = 0
            for place in _places(taken):
                after |= self._follow[place]
            self._after[taken] = after
        return after


def has_reversed_range(key: str) -> bool:
    """Tell whether a class of characters has a range that holds none, such as `[9-0]`."""
    classes = [part[1:-1] for part in _PART.findall(key) if part.startswith("[")]
    return any(high and low > high for each in classes for low, high in _RANGE.findall(each))


def _branches(expression: str) -> list[list[str]]:
    """Return the parts of an expression's alternatives, those within groups left together."""
    branches: list[list[str]] = [[]]
    is_in_group = False
    for part in _PART.findall(expression):
        if part == "|" and not is_in_group:
            branches.append([])
            continue
        branches[-1].append(part)
        is_in_group = (is_in_group or part in ("(", "(?:")) and part != ")"
    return branches


def _accepting(atom: str) -> Callable[[str], bool]:
    """Return a function that tells whether an atom takes a character, as Python's `re` does for strings."""
    if atom == ".":
        return lambda char: char != "\n"
    if atom == r"\d":
        return str.isdecimal
    if atom == r"\w":
        return lambda char: char.isalnum() or char == "_"
    if atom.startswith("["):
        ranges = [(low, high or low) for low, high in _RANGE.findall(atom[1:-1])]
        return lambda char: any(low <= char <= high for low, high in ranges)
    literal = atom.removeprefix("\\")
    return lambda char: char == literal


def _places(states: int) -> Iterator[int]:
    """Yield the numbers of the bits that are set in `states`, which are the numbers of these states."""
    while states:
        lowest = states & -states
        yield lowest.bit_length() - 1
        states ^= lowest
