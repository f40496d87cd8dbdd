"""From a policy and the facts of a request to a plan. Pure, and the same for `explain` as for a run.

A branch without any usable target is passed over. A choice among branches prefers those of which a target's pool is
ready, so that a pool that is down gets no share as long as another one is there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b

import msgspec
from msgspec.structs import replace

from gateway.domain.experiments.assignment import NUM_BUCKETS, SEED_BYTES, bucket
from gateway.domain.routing.policy.conditions import condition_mismatch
from gateway.domain.routing.policy.document import (
    Accept,
    Cascade,
    Conditional,
    Document,
    Fallback,
    Hedge,
    Node,
    Outcome,
    Shadow,
    Weighted,
    branches,
)
from gateway.domain.routing.policy.facts import Facts, TargetFacts
from gateway.domain.routing.policy.plan import Copy, Edge, Plan, Step

FIRST_WAIT_MS = 250
"""The longest wait before the second round of a fallback."""

_GONE = TargetFacts(is_usable=False)
_Branch = tuple[str, Node]


class _Around(msgspec.Struct, frozen=True):
    """The settings and successors that a node's attempts inherit from the nodes around it."""

    then: dict[Outcome, _Attempt] = {}
    """The attempts that follow the node's last one, by its outcome."""
    first_token_ms: int | None = None
    """The milliseconds after which a first token is too late; None: no bound."""
    accept: Accept | None = None
    """The check that an answer must pass; None: none."""
    hedge: Hedge | None = None
    """The hedge of the attempts; None: none."""
    copies: tuple[Copy, ...] = ()
    """The copies that go out once the request is answered."""


class _Attempt(msgspec.Struct, eq=False):
    """A step whose number is not known yet."""

    target: str
    path: str
    """The place of the target in the document."""
    around: _Around
    wait_ms: int = 0
    """Milliseconds to wait before the attempt."""


def walk(document: Document, facts: Facts) -> Plan:
    """Return the plan of a policy for one request."""
    walker = _Walker(facts)
    attempts = walker.attempts("root", document.root, _Around())
    numbers = {id(each): number for number, each in enumerate(attempts)}
    return Plan(tuple(walker.step(each, numbers) for each in attempts), tuple(walker.trace))


class _Walker:
    """One walk, with the decisions so far."""

    def __init__(self, facts: Facts) -> None:
        self.trace: list[Edge] = []
        self._facts = facts

    def step(self, attempt: _Attempt, numbers: Mapping[int, int]) -> Step:
        """Return the step of an attempt. numbers: the numbers of all attempts, by the attempt's `id()`."""
        around = attempt.around
        return Step(
            attempt.target,
            attempt.path,
            {outcome: numbers[id(follower)] for outcome, follower in sorted(around.then.items())},
            around.first_token_ms if "timeout" in around.then else None,
            around.accept if "rejected" in around.then else None,
            None if around.hedge is None else around.hedge.delay_ms or self._target(attempt.target).late_ms,
            attempt.wait_ms,
            around.copies,
        )

    def attempts(self, path: str, node: Node, around: _Around) -> list[_Attempt]:
        """Return the attempts of a node in their order."""
        if node.target is not None:
            if not self._target(node.target).is_usable:
                self._note_decision(path, f"passed over: the project has no model '{node.target}'")
                return []
            return [_Attempt(node.target, path, around)]
        if node.fallback is not None:
            return self._attempts_in_rounds(path, node.fallback, around)
        if node.cascade is not None:
            return self._small_to_large(path, node.cascade, around)
        if node.hedge is not None:
            return self._attempts_with_hedge(path, node.hedge, around)
        if node.shadow is not None:
            return self._attempts_with_copy(path, node.shadow, around)
        chosen = self._choose_branch(path, node)
        return [] if chosen is None else self.attempts(*chosen, around)

    def _attempts_in_rounds(self, path: str, fallback: Fallback, around: _Around) -> list[_Attempt]:
        branch = replace(around, first_token_ms=_shortest((around.first_token_ms, fallback.first_token_ms)))
        errors = ", ".join(fallback.on) or "nothing"
        at, all_attempts = len(self.trace), list[_Attempt]()
        for round_ in reversed(range(fallback.rounds)):
            before, self.trace = self.trace, []
            found = self._in_turn(f"{path}.fallback", fallback.nodes, fallback.on, branch, around, all_attempts)
            if round_:
                self.trace = []  # as in the first round
                if found:
                    found[0].wait_ms = max(found[0].wait_ms, self._wait_ms(path, round_))
            all_attempts, self.trace = found + all_attempts, before + self.trace
        rounds = "" if fallback.rounds == 1 else f" in {fallback.rounds} rounds"
        self.trace.insert(at, Edge(path, f"fallback: {len(all_attempts)} in turn{rounds}, the next one on {errors}"))
        return all_attempts

    def _small_to_large(self, path: str, cascade: Cascade, around: _Around) -> list[_Attempt]:
        if self._facts.num_prompts > 1:
            last = len(cascade.nodes) - 1
            self._note_decision(path, "cascade: the last branch, since there are several prompts")
            return self.attempts(f"{path}.cascade.nodes[{last}]", cascade.nodes[last], around)
        at = len(self.trace)
        on: tuple[Outcome, ...] = (*cascade.on, "rejected")
        branch = replace(around, accept=cascade.accept)
        before, self.trace = self.trace, []
        found = self._in_turn(f"{path}.cascade", cascade.nodes, on, branch, around, [])
        self.trace = before + self.trace
        why = f"cascade: {len(found)} in turn, the next one where an answer is not accepted"
        self.trace.insert(at, Edge(path, why))
        return found

    def _in_turn(
        self,
        path: str,
        nodes: Sequence[Node],
        on: Sequence[Outcome],
        branch: _Around,
        around: _Around,
        after: list[_Attempt],
    ) -> list[_Attempt]:
        """Return the attempts of nodes one after the other.

        branch: applies to all nodes but the last, which has `around` unless something comes after.
        """
        all_attempts: list[_Attempt] = []
        then = around.then | dict.fromkeys(on, after[0]) if after else around.then
        below: list[Edge] = []
        for index in reversed(range(len(nodes))):
            is_last = not all_attempts and not after
            self.trace = []
            found = self.attempts(
                f"{path}.nodes[{index}]", nodes[index], replace(around if is_last else branch, then=then)
            )
            all_attempts, below = found + all_attempts, self.trace + below
            if found:
                then = then | dict.fromkeys(on, found[0])
        self.trace = below
        return all_attempts

    def _attempts_with_hedge(self, path: str, hedge: Hedge, around: _Around) -> list[_Attempt]:
        at = len(self.trace)
        found = self.attempts(f"{path}.hedge.node", hedge.node, replace(around, hedge=hedge))
        for each in found:
            delay_ms = hedge.delay_ms or self._target(each.target).late_ms
            outcome = (
                "no second try, too little was measured"
                if delay_ms is None
                else f"a second try after {delay_ms:.0f} ms"
            )
            self.trace.insert(at, Edge(path, f"hedge: {each.target}, {outcome}"))
            at += 1
        return found

    def _attempts_with_copy(self, path: str, shadow: Shadow, around: _Around) -> list[_Attempt]:
        copies = around.copies
        draw = bucket(_seed(self._facts.route_id, f"{path}.shadow"), self._facts.request_id)
        if not self._target(shadow.target).is_usable:
            self._note_decision(path, f"shadow: no copy, the project has no model '{shadow.target}'")
        elif draw < shadow.share * NUM_BUCKETS:
            copies = (*copies, Copy(shadow.target, path, shadow.payer))
            self._note_decision(path, f"shadow: a copy to {shadow.target}, by bucket {draw} of the request")
        else:
            self._note_decision(path, f"shadow: no copy, by bucket {draw} of the request")
        return self.attempts(f"{path}.shadow.node", shadow.node, replace(around, copies=copies))

    def _wait_ms(self, path: str, round_: int) -> int:
        """Return the milliseconds to wait before a further round.

        The wait doubles with each round, and is shortened by a random part of up to a half.
        """
        draw = bucket(_seed(self._facts.route_id, f"{path}.rounds[{round_}]"), self._facts.request_id)
        longest_ms = FIRST_WAIT_MS << (round_ - 1)
        return longest_ms - longest_ms * draw // (2 * NUM_BUCKETS)

    def _choose_branch(self, path: str, node: Node) -> _Branch | None:
        if node.conditional is not None:
            return self._first_that_holds(path, node.conditional)
        all_branches = [(path + step, below) for step, below in branches(node)]
        if node.weighted is not None:
            return self._draw_branch(path, node.weighted, all_branches)
        usable = self._best_known(all_branches)
        if node.cheapest is not None:
            return self._least(path, "cheapest", "nanos per million tokens", usable, self._cost)
        return self._least(path, "fastest", "ms", usable, self._time_ms)

    def _first_that_holds(self, path: str, node: Conditional) -> _Branch:
        for index, case in enumerate(node.cases):
            why_not = condition_mismatch(case.when, self._facts)
            if why_not is None:
                self._note_decision(path, f"conditional: case {index} holds")
                return f"{path}.conditional.cases[{index}].node", case.node
            self._note_decision(f"{path}.conditional.cases[{index}]", f"does not hold: {why_not}")
        self._note_decision(path, "conditional: no case holds")
        return f"{path}.conditional.otherwise", node.otherwise

    def _draw_branch(self, path: str, node: Weighted, all_branches: Sequence[_Branch]) -> _Branch | None:
        weights = {at: choice.weight for (at, _), choice in zip(all_branches, node.choices, strict=True)}
        usable = self._best_known([each for each in all_branches if weights[each[0]]])
        if not usable:
            self._note_decision(path, "weighted: no branch can be used")
            return None
        facts = self._facts
        unit = self._unit(node.sticky)
        draw = bucket(_seed(facts.route_id, path), unit or facts.request_id)
        total = sum(weights[at] for at, _ in usable)
        point, chosen = draw * total // NUM_BUCKETS, usable[-1]
        for each in usable:
            if point < weights[each[0]]:
                chosen = each
                break
            point -= weights[each[0]]
        by = f"its {node.sticky}" if unit else "the request"
        self._note_decision(path, f"weighted: {chosen[0]}, {weights[chosen[0]]} of {total}, by bucket {draw} of {by}")
        return chosen

    def _unit(self, sticky: str | None) -> str | None:
        """Return the part of the request that a sticky choice depends on, such as its user; None if there is none."""
        facts = self._facts
        if sticky is None:
            return None
        known = {"user": facts.user, "key": facts.key_id}
        return known[sticky] if sticky in known else facts.metadata.get(sticky.partition(".")[2])

    def _least(
        self, path: str, name: str, unit: str, usable: Sequence[_Branch], measure: Callable[[TargetFacts], float]
    ) -> _Branch | None:
        if not usable:
            self._note_decision(path, f"{name}: no branch can be used")
            return None
        measured = [(min(map(measure, self._usable_below(each[1]))), each) for each in usable]
        least, chosen = min(measured, key=lambda pair: pair[0])
        self._note_decision(path, f"{name}: {chosen[0]}, {least:.0f} {unit}")
        return chosen

    def _cost(self, target: TargetFacts) -> float:
        facts = self._facts
        num_completion_tokens = facts.max_tokens * facts.n
        cost = facts.prompt_tokens * target.input_nanos + num_completion_tokens * target.output_nanos
        return cost / max(1, facts.prompt_tokens + num_completion_tokens)

    def _time_ms(self, target: TargetFacts) -> float:
        """Return the estimated milliseconds of a whole reply, whose completions are generated side by side.

        Return 0 for a target without measured times, so that it is tried and measured.
        """
        if target.first_token_ms is None:
            return 0.0
        return target.first_token_ms + (target.token_ms or 0.0) * self._facts.max_tokens

    def _best_known(self, all_branches: Sequence[_Branch]) -> list[_Branch]:
        """Return the usable branches that are ready; all usable branches if none is ready."""
        usable = []
        for at, node in all_branches:
            if self._usable_below(node):
                usable.append((at, node))
            else:
                self._note_decision(at, "passed over: the project can use no model there")
        ready = [each for each in usable if any(target.is_ready for target in self._usable_below(each[1]))]
        if ready and len(ready) < len(usable):
            for at, _ in usable:
                if all(at != other for other, _ in ready):
                    self._note_decision(at, "passed over: no replica takes requests")
        return ready or usable

    def _usable_below(self, node: Node) -> list[TargetFacts]:
        if node.target is not None:
            target = self._target(node.target)
            return [target] if target.is_usable else []
        return [target for _, below in branches(node) for target in self._usable_below(below)]

    def _target(self, target: str) -> TargetFacts:
        return self._facts.targets.get(target, _GONE)

    def _note_decision(self, path: str, reason: str) -> None:
        self.trace.append(Edge(path, reason))


def _shortest(bounds: Sequence[int | None]) -> int | None:
    return min((each for each in bounds if each is not None), default=None)


def _seed(route_id: str, path: str) -> bytes:
    """Return the seed for the random choices of one node, so that choices at different nodes are independent."""
    return blake2b(f"{route_id}:{path}".encode(), digest_size=SEED_BYTES, person=b"lorikeet route").digest()
