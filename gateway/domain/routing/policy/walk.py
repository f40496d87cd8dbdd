"""From a policy and the facts of a request to a plan. Pure, and the same for `explain` as for a run.

A branch without any usable target is passed over. A choice among branches prefers those of which a target's pool is
ready, so that a pool that is down gets no share as long as another one is there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2b

import msgspec

from gateway.domain.experiments.assignment import NUM_BUCKETS, SEED_BYTES, bucket
from gateway.domain.routing.policy.document import (
    Conditional,
    Document,
    ErrorKind,
    Fallback,
    Hours,
    Node,
    Weighted,
    When,
    branches,
)
from gateway.domain.routing.policy.facts import Facts, TargetFacts
from gateway.domain.routing.policy.plan import Edge, Plan, Step

_GONE = TargetFacts(is_usable=False)
_Branch = tuple[str, Node]


class _Attempt(msgspec.Struct, eq=False):
    """A step whose number is not known yet."""

    target: str
    path: str
    then: dict[ErrorKind, _Attempt]
    first_token_ms: int | None


def walk(document: Document, facts: Facts) -> Plan:
    """Return the plan of a policy for one request."""
    walker = _Walker(facts)
    attempts = walker.attempts("root", document.root, {}, None)
    numbers = {id(each): number for number, each in enumerate(attempts)}
    steps = tuple(
        Step(
            each.target,
            each.path,
            {kind: numbers[id(follower)] for kind, follower in sorted(each.then.items())},
            each.first_token_ms if "timeout" in each.then else None,
        )
        for each in attempts
    )
    return Plan(steps, tuple(walker.trace))


class _Walker:
    """One walk, with the decisions so far."""

    def __init__(self, facts: Facts) -> None:
        self.trace: list[Edge] = []
        self._facts = facts

    def attempts(
        self, path: str, node: Node, then: dict[ErrorKind, _Attempt], first_token_ms: int | None
    ) -> list[_Attempt]:
        """Return the attempts of a node in their order. then: what follows after which errors of the node's last.
        first_token_ms: the time to a first token of the fallback around the node."""
        if node.target is not None:
            if not self._target(node.target).is_usable:
                self._decide(path, f"passed over: the project has no model '{node.target}'")
                return []
            return [_Attempt(node.target, path, then, first_token_ms)]
        if node.fallback is not None:
            return self._in_turn(path, node.fallback, then, first_token_ms)
        chosen = self._choose(path, node)
        return [] if chosen is None else self.attempts(*chosen, then, first_token_ms)

    def _in_turn(
        self, path: str, fallback: Fallback, then: dict[ErrorKind, _Attempt], first_token_ms: int | None
    ) -> list[_Attempt]:
        all_attempts: list[_Attempt] = []
        bounds_ms = [each for each in (first_token_ms, fallback.first_token_ms) if each is not None]
        before, below = self.trace, list[Edge]()
        for index in reversed(range(len(fallback.nodes))):
            bound_ms = min(bounds_ms, default=None) if all_attempts else first_token_ms
            self.trace = []
            found = self.attempts(f"{path}.fallback.nodes[{index}]", fallback.nodes[index], then, bound_ms)
            all_attempts, below = found + all_attempts, self.trace + below
            if found:
                then = then | dict.fromkeys(fallback.on, found[0])
        errors = ", ".join(fallback.on) or "nothing"
        self.trace = before
        self._decide(path, f"fallback: {len(all_attempts)} in turn, the next one on {errors}")
        self.trace += below
        return all_attempts

    def _choose(self, path: str, node: Node) -> _Branch | None:
        if node.conditional is not None:
            return self._first_that_holds(path, node.conditional)
        all_branches = [(path + step, below) for step, below in branches(node)]
        if node.weighted is not None:
            return self._drawn(path, node.weighted, all_branches)
        usable = self._best_known(all_branches)
        if node.cheapest is not None:
            return self._least(path, "cheapest", "nanos per million tokens", usable, self._cost)
        return self._least(path, "fastest", "ms", usable, self._time_ms)

    def _first_that_holds(self, path: str, node: Conditional) -> _Branch:
        for index, case in enumerate(node.cases):
            why_not = mismatch(case.when, self._facts)
            if why_not is None:
                self._decide(path, f"conditional: case {index} holds")
                return f"{path}.conditional.cases[{index}].node", case.node
            self._decide(f"{path}.conditional.cases[{index}]", f"does not hold: {why_not}")
        self._decide(path, "conditional: no case holds")
        return f"{path}.conditional.otherwise", node.otherwise

    def _drawn(self, path: str, node: Weighted, all_branches: Sequence[_Branch]) -> _Branch | None:
        weights = {at: choice.weight for (at, _), choice in zip(all_branches, node.choices, strict=True)}
        usable = self._best_known([each for each in all_branches if weights[each[0]]])
        if not usable:
            self._decide(path, "weighted: no branch can be used")
            return None
        facts = self._facts
        unit = {"user": facts.user, "key": facts.key_id, None: None}[node.sticky]
        draw = bucket(_seed(facts.route_id, path), unit or facts.request_id)
        total = sum(weights[at] for at, _ in usable)
        point, chosen = draw * total // NUM_BUCKETS, usable[-1]
        for each in usable:
            if point < weights[each[0]]:
                chosen = each
                break
            point -= weights[each[0]]
        by = f"its {node.sticky}" if unit else "the request"
        self._decide(path, f"weighted: {chosen[0]}, {weights[chosen[0]]} of {total}, by bucket {draw} of {by}")
        return chosen

    def _least(
        self, path: str, name: str, unit: str, usable: Sequence[_Branch], measure: Callable[[TargetFacts], float]
    ) -> _Branch | None:
        if not usable:
            self._decide(path, f"{name}: no branch can be used")
            return None
        measured = [(min(map(measure, self._usable_below(each[1]))), each) for each in usable]
        least, chosen = min(measured, key=lambda pair: pair[0])
        self._decide(path, f"{name}: {chosen[0]}, {least:.0f} {unit}")
        return chosen

    def _cost(self, target: TargetFacts) -> float:
        facts = self._facts
        num_completion_tokens = facts.max_tokens * facts.n
        cost = facts.prompt_tokens * target.input_nanos + num_completion_tokens * target.output_nanos
        return cost / max(1, facts.prompt_tokens + num_completion_tokens)

    def _time_ms(self, target: TargetFacts) -> float:
        """Return the time of a whole reply, whose completions come side by side; 0 where nothing was measured, so that
        something will be."""
        if target.first_token_ms is None:
            return 0.0
        return target.first_token_ms + (target.token_ms or 0.0) * self._facts.max_tokens

    def _best_known(self, all_branches: Sequence[_Branch]) -> list[_Branch]:
        """Return the usable branches that are ready or, where none is, all that are usable."""
        usable = []
        for at, node in all_branches:
            if self._usable_below(node):
                usable.append((at, node))
            else:
                self._decide(at, "passed over: the project can use no model there")
        ready = [each for each in usable if any(target.is_ready for target in self._usable_below(each[1]))]
        if ready and len(ready) < len(usable):
            for at, _ in usable:
                if all(at != other for other, _ in ready):
                    self._decide(at, "passed over: no replica takes requests")
        return ready or usable

    def _usable_below(self, node: Node) -> list[TargetFacts]:
        if node.target is not None:
            target = self._target(node.target)
            return [target] if target.is_usable else []
        return [target for _, below in branches(node) for target in self._usable_below(below)]

    def _target(self, target: str) -> TargetFacts:
        return self._facts.targets.get(target, _GONE)

    def _decide(self, path: str, reason: str) -> None:
        self.trace.append(Edge(path, reason))


def mismatch(when: When, facts: Facts) -> str | None:
    """Return the part of a condition that a request does not meet; None where it meets all of it."""
    for key, wanted in when.metadata.items():
        if facts.metadata.get(key) not in ((wanted,) if isinstance(wanted, str) else wanted):
            return f"metadata.{key} has another value"
    size = when.prompt_tokens
    if size is not None and size.min is not None and facts.prompt_tokens < size.min:
        return f"the prompt has about {facts.prompt_tokens} tokens"
    if size is not None and size.max is not None and facts.prompt_tokens > size.max:
        return f"the prompt has about {facts.prompt_tokens} tokens"
    if when.tools is not None and when.tools != facts.tools:
        return "the request brings tools" if facts.tools else "the request brings no tools"
    if when.tier is not None and facts.tier not in ((when.tier,) if isinstance(when.tier, str) else when.tier):
        return f"the service tier is {facts.tier}"
    if when.time is not None and not _is_within(when.time, facts.minute):
        return f"it is {facts.minute // 60:02d}:{facts.minute % 60:02d}"
    if when.stream is not None and when.stream != facts.stream:
        return "the reply is streamed" if facts.stream else "the reply is not streamed"
    return None


def _is_within(hours: Hours, minute: int) -> bool:
    start, end = (int(text[:2]) * 60 + int(text[3:]) for text in (hours.from_, hours.until))
    return start <= minute < end if start <= end else minute >= start or minute < end


def _seed(route_id: str, path: str) -> bytes:
    """Return the key of the draws of one node: two nodes' draws of one unit tell nothing about each other."""
    return blake2b(f"{route_id}:{path}".encode(), digest_size=SEED_BYTES, person=b"lorikeet route").digest()
