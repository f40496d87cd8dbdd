"""The inference API of a running server, as `lorikeet chat` uses it: over HTTP with a tenant's key, as any client."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, BinaryIO, NoReturn, Self
from urllib.parse import quote

import httpx
import msgspec

from gateway.cli.client import (
    CONNECT_TIMEOUT_S,
    REPLY_TIMEOUT_S,
    RequestRefused,
    checked_key,
    read_url,
    server_url,
    tls_for,
)
from gateway.cli.errors import CommandFailed, ServerUnreachable, WrongUsage
from gateway.cli.path_parts import checked_path
from gateway.settings import API_KEY_VARIABLE, URL_VARIABLE, Settings, load_settings, resolved_secrets

DEMO_KEY = "OPENAI_API_KEY"
"""The variable in `demo.env` that holds the demo's key."""

_ADVICE = {
    "invalid_api_key": f"`lorikeet key create --tenant NAME` makes a key; {API_KEY_VARIABLE} or --key names it",
    "model_not_found": "/adapter lists what the key may call, as `GET /v1/models` does",
    "context_length_exceeded": "/clear begins anew",
    "insufficient_quota": "the budget is used up: ask whoever runs the server",
    "server_is_overloaded": "try again in a moment",
    "server_shutting_down": "try again in a moment",
    "engine_unavailable": "try again in a moment; `lorikeet pool list` says what runs",
    "backend_failed": "try again in a moment; the gateway's log has the reason",
}


class Access(msgspec.Struct, frozen=True):
    """The address of a server, and the key for it."""

    url: str
    key: str


class Model(msgspec.Struct, frozen=True):
    """A model that a key may call."""

    id: str
    root: str
    """The base model."""
    parent: str | None
    """None for a base model."""


class _Models(msgspec.Struct, frozen=True):
    data: list[Model]


class PromptDetails(msgspec.Struct, frozen=True):
    """The part of a prompt that the engine found in its cache."""

    cached_tokens: int = 0


class Usage(msgspec.Struct, frozen=True):
    """The tokens of one request, as the server counts them."""

    prompt_tokens: int
    completion_tokens: int
    prompt_tokens_details: PromptDetails = PromptDetails()


class _Delta(msgspec.Struct, frozen=True):
    content: str | None = None
    reasoning_content: str | None = None


class _Choice(msgspec.Struct, frozen=True):
    delta: _Delta
    finish_reason: str | None = None


class _Error(msgspec.Struct, frozen=True):
    message: str
    code: str | None = None


class Chunk(msgspec.Struct, frozen=True):
    """An event of a streamed chat completion."""

    choices: list[_Choice] = []
    usage: Usage | None = None
    error: _Error | None = None

    @property
    def text(self) -> str:
        """The text of the event."""
        return "".join(choice.delta.content or "" for choice in self.choices)

    @property
    def reasoning(self) -> str:
        """The reasoning of the event, which comes before the text."""
        return "".join(choice.delta.reasoning_content or "" for choice in self.choices)


_CHUNK = msgspec.json.Decoder(Chunk)


def find_access(url: str | None, key: str | None, environ: Mapping[str, str]) -> Access:
    """Return the server and the key of the flags, else of the environment.

    Without a URL, return the data folder's server; without a key, too, return the key of its demo. The demo's key is
    sent only to the data folder's own server.

    Raises BadSetting: when a setting is wrong.
    Raises WrongUsage: when no key is known or a key cannot be sent, or when the URL is not one of a server.
    Raises ServerUnreachable: when the data folder's server does not run.
    Raises CommandFailed: when the record of the running server cannot be read.
    """
    environ = resolved_secrets(environ)
    url_source, key_source = "--url" if url else URL_VARIABLE, "--key" if key else API_KEY_VARIABLE
    url, key = url or environ.get(URL_VARIABLE), key or environ.get(API_KEY_VARIABLE)
    if key:
        checked_key(key, key_source)
    if url:
        wanted = read_url(url, url_source)
        if not key:
            raise WrongUsage(f"a key for {url} is missing: set {API_KEY_VARIABLE}, or give --key")
        return Access(wanted, key)
    settings = load_settings(environ)
    url = server_url(settings, environ)
    if not key:
        key = _demo_key(settings, url)
    if not key:
        raise WrongUsage(
            f"no key: set {API_KEY_VARIABLE}, or give --key; `lorikeet key create --tenant NAME` makes one"
        )
    return Access(url, key)


def _demo_key(settings: Settings, url: str) -> str | None:
    """Return the key of the data folder's demo; None if `url` is not the address of the folder's own server."""
    from gateway.serve.bootstrap import read_env_file
    from gateway.serve.lock import running_url

    try:
        is_own = running_url(settings.data_dir) == url
    except OSError as error:
        raise CommandFailed(f"the record of the running server cannot be read: {error}") from None
    return read_env_file(settings.demo_env_path).get(DEMO_KEY) if is_own else None


class InferenceClient:
    """A client, used as a context manager.

    Every method raises ServerUnreachable, or RequestRefused with words that say what to do.
    """

    def __init__(self, access: Access) -> None:
        self._url = access.url
        self._http = httpx.Client(
            base_url=access.url,
            headers={"authorization": f"Bearer {access.key}"},
            timeout=httpx.Timeout(REPLY_TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
            trust_env=False,  # the key is for this server only
            verify=tls_for(access.url),
        )

    def models(self) -> list[Model]:
        """Return all models that the key may call."""
        with self._stream_reply("GET", "/v1/models") as reply:
            return msgspec.json.decode(reply.read(), type=_Models).data

    def model(self, model_id: str) -> Model:
        """Return one model."""
        with self._stream_reply("GET", f"/v1/models/{quote(model_id, safe='/:@')}") as reply:
            return msgspec.json.decode(reply.read(), type=Model)

    def chat(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer to a conversation, whole."""
        with self._stream_reply("POST", "/v1/chat/completions", json=body) as reply:
            answer: dict[str, Any] = msgspec.json.decode(reply.read())
            return answer

    def chat_in_experiment(self, body: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
        """Return an answer, and the header that names its experiment and arm; "" if it is of no experiment."""
        with self._stream_reply("POST", "/v1/chat/completions", json=body) as reply:
            return msgspec.json.decode(reply.read()), reply.headers.get("x-lorikeet-experiment", "")

    def vote(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Send one vote, or several in the field `data`, and return the answer; the server has them on disk by then."""
        with self._stream_reply("POST", "/v1/feedback", json=body) as reply:
            stored: dict[str, Any] = msgspec.json.decode(reply.read())
            return stored

    def get(self, path: str, **query: Any) -> dict[str, Any]:
        """Return the JSON reply of a path below /v1; a parameter of the query that is None is left out."""
        params = {name: value for name, value in query.items() if value is not None}
        with self._stream_reply("GET", f"/v1{path}", params=params) as reply:
            found: dict[str, Any] = msgspec.json.decode(reply.read())
            return found

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Send JSON to a path below /v1, and return the answer."""
        with self._stream_reply("POST", f"/v1{path}", json=body) as reply:
            made: dict[str, Any] = msgspec.json.decode(reply.read())
            return made

    def delete(self, path: str) -> dict[str, Any]:
        """Delete the object at a path below /v1, and return the answer."""
        with self._stream_reply("DELETE", f"/v1{path}") as reply:
            gone: dict[str, Any] = msgspec.json.decode(reply.read())
            return gone

    def upload(self, name: str, file: BinaryIO, fields: Mapping[str, str]) -> dict[str, Any]:
        """Store a file, which is read as it is sent, and return the answer."""
        with self._stream_reply("POST", "/v1/files", files={"file": (name, file)}, data=fields) as reply:
            made: dict[str, Any] = msgspec.json.decode(reply.read())
            return made

    def download(self, file_id: str) -> Generator[bytes]:
        """Yield the content of a file as it comes."""
        with self._stream_reply("GET", f"/v1/files/{quote(file_id, safe='')}/content") as reply:
            yield from reply.iter_bytes()

    def stream_chat(self, body: Mapping[str, Any]) -> Generator[Chunk]:
        """Yield the chunks of a streamed answer as they come; the last one has the usage.

        Closing the generator early ends the request.
        """
        asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
        with self._stream_reply("POST", "/v1/chat/completions", json=asked) as reply:
            for line in reply.iter_lines():
                data = line.removeprefix("data: ")
                if data == "[DONE]":
                    return
                if data and data != line:
                    chunk = _CHUNK.decode(data)
                    if chunk.error is not None:
                        raise _refusal_of(chunk.error)
                    yield chunk
        raise ServerUnreachable("the server closed the connection before the end of the answer")

    @contextmanager
    def _stream_reply(self, method: str, path: str, **options: Any) -> Generator[httpx.Response]:
        try:
            with self._http.stream(method, checked_path(path), **options) as reply:
                if not reply.is_success:
                    self._refuse(reply)
                yield reply
        except httpx.ConnectError:
            raise ServerUnreachable(f"no server answers at {self._url}; start it with `lorikeet serve`") from None
        except httpx.TransportError as error:
            raise ServerUnreachable(
                f"the server at {self._url} went away: {str(error) or type(error).__name__}"
            ) from None
        except msgspec.DecodeError:
            raise CommandFailed(f"{self._url} is not an OpenAI-compatible server") from None

    def _refuse(self, reply: httpx.Response) -> NoReturn:
        try:
            error = msgspec.json.decode(reply.read(), type=Chunk).error
        except msgspec.DecodeError:
            error = None
        if error is None:
            raise CommandFailed(f"{self._url} answered with status {reply.status_code} and no error message")
        wait = reply.headers.get("retry-after")
        raise _refusal_of(error, f"try again in {wait} s" if wait else "")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()


def _refusal_of(error: _Error, wait: str = "") -> RequestRefused:
    advice = _ADVICE.get(error.code or "", wait)
    return RequestRefused(f"{error.message.rstrip('.')}. ({advice})" if advice else error.message, error.code)
