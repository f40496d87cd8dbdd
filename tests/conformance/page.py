"""README.md of this folder: the suites that ran, their versions, and their results. The page does not depend on the
time at which it is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import get_args

from tests.conformance.results import Outcome, Result
from tests.conformance.suites import Suite
from tests.conformance.tree import AS_GIT_NAMES_IT
from tests.gateway.openai.field_matrix import Field

OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)

INTRODUCTION = f"""\
# Conformance

Clients and suites that others wrote, run against `lorikeet serve` with its demo model in fp32. This page is written by
`make conformance`; nobody edits it.

    make conformance                              # all of it, then this page
    make conformance ARGS="--only openai-python"  # one suite; --json prints what came of it

Each suite lives in an environment of its own below `build/conformance/`, with the versions named here; raw results are
in `build/conformance/results/`. Where a suite is a client, its tests are ours, in `clients/`, and the client's own
types and checks judge the answers. Loops of agents run over an engine that plays written scripts, `scripted/`, since
the demo model is too small to follow their prompts: all but the choice of tokens is as in any request.

"Refused" is what the suite itself calls failed and Lorikeet means so; the case says why. All results are of one tree of
sources, as `{AS_GIT_NAMES_IT}` names it; others are not put together
on a page:

    {{tree}}
"""


def page(suites: Sequence[Suite], results: Mapping[str, Result], fields: Sequence[Field], tree: str) -> str:
    """Return the text of the page of results.

    results: by the suite's name, all of this tree; a missing one shows as not run. fields: the fields of the matrix.
    """
    assert all(result.tree == tree for result in results.values()), "results of other trees"
    parts = [INTRODUCTION.format(tree=tree), _overview(suites, results)]
    parts += [_section(suite, results[suite.name]) for suite in suites if suite.name in results]
    return "\n".join([*parts, _fields(fields)])


def _fields(fields: Sequence[Field]) -> str:
    """Return a summary of the table of fields, which is a page of its own."""
    lines = [
        "## Every field",
        "",
        "[fields.md](fields.md) has what becomes of each, as tests hold a running gateway to it:",
        "",
    ]
    lines += ["| endpoint | fields | values |", "|---|---|---|"]
    for endpoint in dict.fromkeys(field.endpoint for field in fields):
        mine = [field for field in fields if field.endpoint == endpoint]
        num_values = sum(len(cases) for field in mine for cases in field.cases.values())
        lines.append(f"| `POST {endpoint}` | {len(mine)} | {num_values} |")
    return "\n".join(lines) + "\n"


def _overview(suites: Sequence[Suite], results: Mapping[str, Result]) -> str:
    lines = [f"| suite | version | {' | '.join(OUTCOMES)} |", f"|---|---|{'---|' * len(OUTCOMES)}"]
    for suite in suites:
        result = results.get(suite.name)
        lines.append(f"| {suite.title} | {_versions(result)} | {_counts(result)} |")
    return "\n".join(lines) + "\n"


def _counts(result: Result | None) -> str:
    if result is None or result.not_run:
        return "not run" + " | " * (len(OUTCOMES) - 1)
    return " | ".join(str(result.count(outcome)) for outcome in OUTCOMES)


def _versions(result: Result | None) -> str:
    return ", ".join(f"`{version}`" for version in result.versions) if result else ""


def _section(suite: Suite, result: Result) -> str:
    lines = [f"## {suite.title}", "", f"{_versions(result)}: {suite.what}.", ""]
    if result.not_run:
        return "\n".join([*lines, f"Not run: {result.not_run}", ""])
    for case in result.cases:
        said = [part for part in (case.figure, case.reason) if part]
        lines.append(_cell(f"- {case.outcome}: {case.name}" + (f" ({'; '.join(said)})" if said else "")))
    return "\n".join([*lines, ""])


def _cell(text: str) -> str:
    """Return the text on one line, with Markdown's special characters escaped."""
    return " ".join(text.split()).replace("<", "&lt;").replace("|", "\\|")
