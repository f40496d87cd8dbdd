"""The outside clients and suites that are run, at which versions, and how each is started.

Data only. Every suite reports JUnit's XML: Python's by pytest, Node's by its own test runner.
"""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path
from typing import Literal

import msgspec

from tests.e2e.installation import BASE

HERE = Path(__file__).parent
CLIENTS = HERE / "clients"
NODE = CLIENTS / "node"
REPOSITORY = HERE.parent.parent

PYTEST = "pytest==9.2.0"


class Suite(msgspec.Struct, frozen=True, kw_only=True):
    """One suite."""

    name: str
    """The name of the suite's results and environment."""
    title: str
    what: str
    """One line on the part of the API that the suite uses."""
    runtime: Literal["python", "node", "repository"]
    """The environment: "python" for one of its own with `packages`, of which the first is under test; "node" for the
    one of clients/node/package.json; "repository" for this interpreter with its own versions of `packages`, for tests
    that are part of `make test`."""
    packages: tuple[str, ...]
    scripts: tuple[str, ...]
    """The scripts for the suite's runner, relative to `clients/`, or to this repository."""
    model: str | None = None
    borrows: tuple[str, ...] = ()
    """Packages too large to install twice, taken from the environment that runs us."""
    plays: bool = False
    """True if the suite runs against the engine that plays scripts (`scripted/`) instead of the demo."""
    commands: tuple[str, ...] = ()
    """The programs of Node's packages that the suite runs."""
    timeout_s: float = 1800.0

    def versions(self) -> list[str]:
        """Return the packages under test, with the versions that run here."""
        if self.runtime == "repository":
            return [f"{package}=={metadata.version(package)}" for package in self.packages]
        return [*self.commands, *(package for package in self.packages if package != PYTEST)]


def node_package(name: str) -> str:
    """Return a package as clients/node/package.json pins it, written `name@version`."""
    pinned = json.loads((NODE / "package.json").read_text())["dependencies"]
    return f"{name}@{pinned[name]}"


OPENFEATURE = Suite(
    name="openfeature",
    title="OpenFeature",
    what="its SDK with the stock provider for remote evaluation: the arms of experiments that it gets are those that "
    "requests get",
    runtime="python",
    packages=("openfeature-sdk==0.10.0", "openfeature-provider-ofrep==0.3.0", PYTEST),
    scripts=("use_openfeature.py",),
)

SUITES = (
    Suite(
        name="openai-python",
        title="openai (Python)",
        what="the official client with `_strict_response_validation`: every endpoint, whole and streamed, its helpers "
        "for tools and structured output, its classes of errors, its retries",
        runtime="python",
        packages=("openai==3.54.0", PYTEST),
        scripts=("openai_python",),
    ),
    Suite(
        name="openai-node",
        title="openai (Node)",
        what="the official client: the same breadth, with files, uploads and batches",
        runtime="node",
        packages=(node_package("openai"),),
        scripts=("node/openai.test.mjs", "node/files_and_batches.test.mjs"),
    ),
    Suite(
        name="ai-sdk",
        title="AI SDK",
        what="generateText, streamText, Output.object, Output.choice, tools with steps, embed, embedMany",
        runtime="node",
        packages=(node_package("ai"), node_package("@ai-sdk/openai-compatible")),
        scripts=("node/ai_sdk.test.mjs",),
    ),
    Suite(
        name="llm-comply",
        title="llm-comply",
        what="all of its format `openai-chat`: replies against OpenAI's schemas, and what must be in them",
        runtime="python",
        packages=("llm-comply==0.5.0", PYTEST),
        scripts=("use_llm_comply.py",),
        # The suite's cases expect answers and calls that end by themselves, as this adapter's do.
        model=f"{BASE}:json",
    ),
    Suite(
        name="langchain",
        title="langchain-openai",
        what="ChatOpenAI (invoke, batch, stream, bind_tools, with_structured_output), OpenAI, OpenAIEmbeddings",
        runtime="python",
        packages=("langchain-openai==1.7.3", PYTEST),
        scripts=("use_langchain.py",),
    ),
    Suite(
        name="instructor",
        title="instructor",
        what="modes TOOLS, TOOLS_STRICT, JSON, JSON_SCHEMA; partial and iterable streams",
        runtime="python",
        packages=("instructor==1.17.0", PYTEST),
        scripts=("use_instructor.py",),
    ),
    Suite(
        name="pydantic-ai",
        title="pydantic-ai",
        what="an agent with a tool, output by tool, by schema and by prompt, streams, history",
        runtime="python",
        packages=("pydantic-ai-slim[openai]==2.68.0", PYTEST),
        scripts=("use_pydantic_ai.py",),
    ),
    Suite(
        name="llm",
        title="llm",
        what="its command line with a model of `extra-openai-models.yaml`: prompt, stream, schema, conversation",
        runtime="python",
        packages=("llm==0.36", PYTEST),
        scripts=("use_llm.py",),
    ),
    Suite(
        name="lm-eval",
        title="lm-evaluation-harness",
        what="`local-completions` (prompts as token ids, echo, logprobs) beside its own `hf` backend on the same "
        "weights: log-likelihoods, accuracies, perplexity and greedy texts",
        runtime="python",
        packages=("lm-eval[api]==0.4.13", PYTEST),
        scripts=("use_lm_eval.py",),
        borrows=("torch", "transformers", "accelerate"),
    ),
    Suite(
        name="inspect-ai",
        title="inspect-ai",
        what="`inspect eval --batch` with chat and with responses: its samples come in files and batches",
        runtime="python",
        packages=("inspect-ai==0.3.285", "openai==3.54.0", PYTEST),
        scripts=("use_inspect_ai.py",),
    ),
    Suite(
        name="schemathesis",
        title="Schemathesis",
        what="operations of `/openapi.json` with what it makes of the schemas, right and wrong, as many as its cases "
        "say: no fault of the server, and no reply that the document does not describe",
        runtime="repository",
        packages=("schemathesis",),
        scripts=("tests/gateway/test_schemathesis.py",),
    ),
    OPENFEATURE,
    Suite(
        name="llm-comply-responses",
        title="llm-comply (responses)",
        what="all of its format `open-responses`: responses and their events against the schemas of Open Responses",
        runtime="python",
        packages=("llm-comply==0.5.0", PYTEST),
        scripts=("use_llm_comply_responses.py",),
        model=f"{BASE}:json",
    ),
    Suite(
        name="agents-python",
        title="openai-agents (Python)",
        what="loops with two tools, one after the other, at once and with reasoning; hand-offs, sessions, typed output",
        runtime="python",
        packages=("openai-agents==0.24.0", PYTEST),
        scripts=("loops/use_openai_agents.py",),
        plays=True,
    ),
    Suite(
        name="agents-node",
        title="openai-agents (JavaScript)",
        what="loops with two tools, streams, state that the server keeps",
        runtime="node",
        packages=(node_package("@openai/agents"),),
        scripts=("node/agents.test.mjs",),
        plays=True,
    ),
    Suite(
        name="ai-sdk-responses",
        title="AI SDK (responses)",
        what="its providers for OpenAI and for Open Responses: loops with two tools, reasoning, typed output",
        runtime="node",
        packages=(node_package("@ai-sdk/openai"), node_package("@ai-sdk/open-responses")),
        scripts=("node/ai_sdk_responses.test.mjs",),
        plays=True,
    ),
    Suite(
        name="langchain-agents",
        title="langchain (agents)",
        what="`create_agent` over Responses: loops with two tools, reasoning, state that the server keeps",
        runtime="python",
        packages=("langchain==1.5.2", "langchain-openai==1.7.3", PYTEST),
        scripts=("loops/use_langchain_agents.py",),
        plays=True,
    ),
    Suite(
        name="codex",
        title="Codex",
        what="its command line with stock settings but for the search of the web: a loop of two commands",
        runtime="python",
        packages=(PYTEST,),
        commands=(node_package("@openai/codex"),),
        scripts=("loops/use_codex.py",),
        plays=True,
    ),
    Suite(
        name="claude-code",
        title="Claude Code",
        what="its command line with stock settings: a loop of two commands, and a second turn from the cache",
        runtime="python",
        packages=(PYTEST,),
        commands=(node_package("@anthropic-ai/claude-code"),),
        scripts=("loops/use_claude_code.py",),
        plays=True,
    ),
    Suite(
        name="anthropic-python",
        title="anthropic (Python)",
        what="Anthropic's client with `_strict_response_validation`: messages whole and streamed, tools, counts of "
        "tokens, models, its classes of errors",
        runtime="python",
        packages=("anthropic==2.13.0", PYTEST),
        scripts=("anthropic_python",),
    ),
    Suite(
        name="llm-comply-messages",
        title="llm-comply (messages)",
        what="all of its format `anthropic`: messages against Anthropic's schemas, and what must be in them",
        runtime="python",
        packages=("llm-comply==0.5.0", PYTEST),
        scripts=("use_llm_comply_messages.py",),
        model=f"{BASE}:json",
    ),
)
