"""The obstacles to an upgrade, and the steps that are left of one.

Versions that follow each other work together: gateways, agents and engines of both, and gateways of the older one on
the schema of the newer one, unless one of its migrations takes away what they use. Data in and data out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

Kind = Literal["gateway", "agent", "engine"]
StepName = Literal["schema", "gateways", "agents", "engines"]


class Software(msgspec.Struct, frozen=True):
    """A version of Lorikeet and the protocol between its gateways and engines, such as 3.1."""

    version: str | None
    """The version; None for a part that does not report it."""
    protocol: str | None
    """The protocol; None for a part that speaks none."""


class Part(msgspec.Struct, frozen=True):
    """A gateway, an agent or an engine that runs."""

    kind: Kind
    name: str
    software: Software


class Journal(msgspec.Struct, frozen=True):
    """A journal that no gateway tends, with usage that is not in the ledger."""

    id: str
    open_requests: int
    """The number of requests whose usage is not in the ledger."""
    folder: str | None
    """The machine and the folder of the journal; None where its gateway did not report them."""


class Pool(msgspec.Struct, frozen=True):
    """The replicas of a pool, by number and state."""

    name: str
    num_wanted: int
    num_ready: int
    num_draining: int
    is_changing: bool
    """True if another revision is to take the place of the one that serves."""


class Change(msgspec.Struct, frozen=True):
    """A migration that the database lacks."""

    name: str
    takes_away: list[str]
    """The SQL statements after which gateways of the version before may fail."""


class InstallationState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of an installation as read from its database."""

    changes: list[Change] = []
    """The migrations that the database lacks."""
    refusal: str = ""
    """The reason for which the schema cannot be brought up to date; "" where it can."""
    parts: list[Part] = []
    """The gateways, agents and engines that run."""
    journals: list[Journal] = []
    """The journals that no gateway tends."""
    pools: list[Pool] = []
    drained_hosts: list[str] = []
    """The names of hosts that are drained."""
    untended_hosts: list[str] = []
    """Hosts with engines and without an agent."""


class Finding(msgspec.Struct, frozen=True):
    """A fact about the installation that matters to its upgrade."""

    code: str
    """The kind of the finding, as a code that programs can compare."""
    blocks: bool
    """True if the next step has to wait until the finding is gone."""
    message: str


class Step(msgspec.Struct, frozen=True):
    """A step of an upgrade, and how far it is done."""

    name: StepName
    num_done: int
    """The number of parts of which the step is done."""
    num_all: int
    """The number of all parts of which the step has to be done."""
    left: list[str]
    """The names of the parts of which the step is still to be done."""


class Report(msgspec.Struct, frozen=True):
    """The state of an upgrade to a version."""

    software: Software
    """The version and protocol after the upgrade."""
    findings: list[Finding]
    steps: list[Step]

    @property
    def may_go_on(self) -> bool:
        """True if no finding blocks the next step."""
        return not any(finding.blocks for finding in self.findings)

    @property
    def is_done(self) -> bool:
        """True if every step of the upgrade is done."""
        return not any(step.left for step in self.steps)


_NAME = r'(?:(?:\w+|"[^"]+")\.)?(?:\w+|"[^"]+")'
_COMMENT_OR_TEXT = re.compile(r"--[^\n]*|/\*.*?\*/|'[^']*'", re.DOTALL)
_CREATED = re.compile(rf"\bCREATE\s+(?:\w+\s+)?TABLE\s+(?:IF\s+NOT\s+EXISTS\s+)?({_NAME})", re.IGNORECASE)
_DROPPED = re.compile(
    rf"\bDROP\s+(?:TABLE|(?:MATERIALIZED\s+)?VIEW|FUNCTION|TYPE|SEQUENCE|SCHEMA)\s+(?:IF\s+EXISTS\s+)?({_NAME}).*",
    re.IGNORECASE | re.DOTALL,
)
_UNIQUE = re.compile(
    rf"\bCREATE\s+UNIQUE\s+INDEX\s.*?\bON\s+(?:ONLY\s+)?({_NAME})(?![\w\"]).*", re.IGNORECASE | re.DOTALL
)
_ALTERED = re.compile(
    rf"\bALTER\s+TABLE\s+(?:IF\s+EXISTS\s+)?(?:ONLY\s+)?({_NAME})\s*\*?\s*(.*)", re.IGNORECASE | re.DOTALL
)
_RENAMED = re.compile(
    r"\bALTER\s+(?:(?:MATERIALIZED\s+)?VIEW|FUNCTION|TYPE|SEQUENCE|SCHEMA)\s.*?(\bRENAME\b.*)",
    re.IGNORECASE | re.DOTALL,
)
_TAKING = re.compile(
    rf"DROP\s+(?!CONSTRAINT\b)|RENAME\s+(?!CONSTRAINT\b)|SET\s+SCHEMA\b"
    rf"|ALTER\s+(?:COLUMN\s+)?{_NAME}\s+(?:SET\s+NOT\s+NULL|DROP\s+DEFAULT|(?:SET\s+DATA\s+)?TYPE)\b"
    r"|ADD\s+(?:CONSTRAINT|CHECK|UNIQUE|PRIMARY|FOREIGN|EXCLUDE)\b",
    re.IGNORECASE,
)
_DEMANDING = re.compile(r"ADD\s.*\b(?:NOT\s+NULL|PRIMARY\s+KEY)\b", re.IGNORECASE | re.DOTALL)
_FILLED = re.compile(r"\b(?:DEFAULT|GENERATED|(?:small|big)?serial)\b", re.IGNORECASE)
_IN_BRACKETS = re.compile(r"\([^()]*\)")
_MOST_SHOWN = 100


def taken_away(sql: str) -> list[str]:
    """Return the statements of a migration that remove or rename what older gateways use, or demand what they omit.

    A constraint counts even where it only replaces a narrower one: the SQL does not show which is narrower. Tables that
    the same migration creates do not count: no older gateway knows them.
    """
    created: set[str] = set()
    taken = []
    for statement in _COMMENT_OR_TEXT.sub(_without_signs, sql).split(";"):
        if found := _CREATED.search(statement):
            created.add(found[1].lower())
        elif (found := _ALTERED.search(statement)) and found[1].lower() not in created:
            taken += [action for action in _actions(found[2]) if _takes_away(action)]
        elif (found := _DROPPED.search(statement) or _UNIQUE.search(statement)) and found[1].lower() not in created:
            taken.append(found[0])
        elif found := _RENAMED.search(statement):
            taken.append(found[1])
    return [" ".join(each.split())[:_MOST_SHOWN] for each in taken]


def _without_signs(found: re.Match[str]) -> str:
    """Return a space for a comment, and a quoted text without the signs that separate statements."""
    return re.sub("[;,()]", " ", found[0]) if found[0].startswith("'") else " "


def _actions(text: str) -> list[str]:
    """Return the actions of ALTER TABLE: the parts of a text between the commas outside of brackets."""
    depth, actions = 0, [""]
    for sign in text:
        depth += (sign == "(") - (sign == ")")
        if sign == "," and depth == 0:
            actions.append("")
        else:
            actions[-1] += sign
    return [action.strip() for action in actions]


def _takes_away(action: str) -> bool:
    if _TAKING.match(action):
        return True
    while (shorter := _IN_BRACKETS.sub(" ", action)) != action:
        action = shorter
    return _DEMANDING.match(action) is not None and not _FILLED.search(action)


def upgrade_report(installation: InstallationState, ours: Software) -> Report:
    """Return the obstacles to an upgrade to a version, and the steps that are left."""
    return Report(
        ours,
        [*_schema(installation), *_skew(installation.parts, ours), *_findings_of_pools(installation)],
        _steps(installation, ours),
    )


def _schema(installation: InstallationState) -> Iterable[Finding]:
    if installation.refusal:
        yield Finding("schema_refused", True, installation.refusal)
    num_gateways = sum(part.kind == "gateway" for part in installation.parts)
    for change in installation.changes:
        if change.takes_away and num_gateways:
            yield Finding(
                "migration_takes_away",
                True,
                f"migration {change.name} takes away what older gateways use ({'; '.join(change.takes_away)}): "
                f"stop all {num_gateways} gateways before `lorikeet migrate`",
            )
    for journal in installation.journals:
        yield Finding(
            "journal_unread",
            True,
            f"{journal.open_requests} requests are in the journal {journal.id} alone"
            + (f", at {journal.folder}" if journal.folder else "")
            + ", and no gateway tends it: start one with that data folder, or write it off with `lorikeet reconcile`",
        )


def _skew(parts: Sequence[Part], ours: Software) -> Iterable[Finding]:
    for part in parts:
        theirs, name = part.software, f"{part.kind} {part.name}"
        if theirs.version is None:
            message = f"{name} does not tell its version: it is older than the version that brought this command"
            yield Finding("version_unknown", False, message)
        elif not are_neighboring_versions(theirs.version, ours.version or ""):
            yield Finding(
                "version_far",
                True,
                f"{name} is of version {theirs.version}, which does not work beside {ours.version}: upgrade to the "
                "versions between first",
            )
        if theirs.protocol is not None and _major(theirs.protocol) != _major(ours.protocol or ""):
            yield Finding(
                "protocol_differs",
                True,
                f"{name} speaks protocol {theirs.protocol}, which {ours.protocol} does not understand: no request "
                "passes between the two",
            )
    if sum(part.kind == "gateway" for part in parts) == 1:
        message = "there is one gateway: while it is replaced nobody answers, unless systemd holds its port open"
        yield Finding("one_gateway", False, message)


def _findings_of_pools(installation: InstallationState) -> Iterable[Finding]:
    for pool in installation.pools:
        if pool.is_changing:
            yield Finding("pool_changing", True, f"pool {pool.name} is changing to another revision: wait for its end")
        elif pool.num_ready < pool.num_wanted:
            message = f"{pool.num_ready} of the {pool.num_wanted} replicas of pool {pool.name} are ready"
            yield Finding("pool_short", True, f"{message}: `lorikeet replica list` says why")
        if pool.num_draining:
            message = f"{pool.num_draining} replicas of pool {pool.name} drain: wait for their end"
            yield Finding("pool_draining", True, message)
    for name in installation.untended_hosts:
        yield Finding(
            "host_untended", False, f"no agent runs on host {name}: its engines are neither watched nor replaced"
        )
    for name in installation.drained_hosts:
        yield Finding("host_drained", False, f"host {name} is drained: nothing starts there")


def _steps(installation: InstallationState, ours: Software) -> list[Step]:
    names = [change.name for change in installation.changes]
    steps = [Step("schema", 0 if names else 1, 1, names)]
    kinds: dict[StepName, Kind] = {"gateways": "gateway", "agents": "agent", "engines": "engine"}
    for step, kind in kinds.items():
        parts = [part for part in installation.parts if part.kind == kind]
        left = [part.name for part in parts if part.software != ours]
        steps.append(Step(step, len(parts) - len(left), len(parts), left))
    return steps


def are_neighboring_versions(one: str, other: str) -> bool:
    """Tell whether two versions are equal or follow each other, in whichever order: 0.1.3 and 0.2.0 do.

    A version whose numbers cannot be read is a neighbor of itself alone.
    """
    if one == other:
        return True
    numbers = [_numbers(version) for version in (one, other)]
    if None in numbers:
        return False
    (major, minor), (other_major, other_minor) = (each for each in numbers if each is not None)
    return major == other_major and abs(minor - other_minor) <= 1


def _numbers(version: str) -> tuple[int, int] | None:
    found = re.match(r"(\d{1,9})\.(\d{1,9})(?![\d])", version)
    return (int(found[1]), int(found[2])) if found else None


def _major(protocol: str) -> str:
    return protocol.partition(".")[0]
