"""The admin API of the running server, as the commands use it: with the operator's key, over HTTP."""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import IO, Any, NoReturn, Self
from urllib.parse import urlsplit

import httpx

from gateway.cli.errors import CommandFailed, ServerUnreachable, WrongUsage
from gateway.cli.path_parts import checked_path, id_part
from gateway.settings import URL_VARIABLE, Settings, load_settings, variable

ADMIN_PATH = "/v1/organization"
LOGIN_PATH = "/admin/v1"
CONNECT_TIMEOUT_S = 5.0
REPLY_TIMEOUT_S = 300.0
PAGE_LIMIT = 100


class RequestRefused(CommandFailed):
    """The error for a request that the server refused.

    code: the server's error code. retry_after_s: seconds until another try; None if the server does not say.
    """

    def __init__(self, message: str, code: str | None, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.retry_after_s = retry_after_s


def tls_for(url: str) -> ssl.SSLContext | bool:
    """Return the certificate authorities by which a client verifies a server.

    A server that speaks plain HTTP gets none: to read them takes longer than most commands.
    """
    return urlsplit(url).scheme == "https" or ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


class AdminClient:
    """A client, used as a context manager.

    Every method raises ServerUnreachable, or RequestRefused with the server's own words.
    """

    def __init__(self, url: str, key: str, path: str = ADMIN_PATH) -> None:
        """Open a client of a server. key: "" for the routes below LOGIN_PATH that need no key."""
        self._url = url
        self._path = path
        # Proxies of the environment are left alone: the key is for this server only.
        self._http = httpx.Client(
            base_url=url,
            headers={"authorization": f"Bearer {key}"} if key else {},
            timeout=httpx.Timeout(REPLY_TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
            trust_env=False,
            verify=tls_for(url),
        )

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Self:
        """Return a client of the server that the environment names: by default that of the data folder.

        LORIKEET_URL, together with LORIKEET_ADMIN_KEY, names another server.

        Raises BadSetting: when a setting is wrong.
        Raises WrongUsage: when the URL is not one of a server, or the key cannot be sent.
        """
        settings = load_settings(environ)
        if settings.admin_key and (url := environ.get(URL_VARIABLE)) and not _names_address(environ):
            return cls(read_url(url, URL_VARIABLE), operator_key(settings))
        url = server_url(settings, environ)
        return cls(url, operator_key(settings))

    @property
    def url(self) -> str:
        """The server's URL."""
        return self._url

    def get(self, path: str, **params: Any) -> dict[str, Any]:
        """Return the reply to a GET."""
        return self._request("GET", path, params=params)

    def get_all(self, path: str, **params: Any) -> list[dict[str, Any]]:
        """Return every item of a list, over all its pages."""
        items: list[dict[str, Any]] = []
        after: dict[str, str] = {}
        while True:
            page = self.get(path, limit=PAGE_LIMIT, **params, **after)
            items += page["data"]
            if not page["has_more"]:
                return items
            after = {"after": page["last_id"]}

    def get_text(self, path: str, **params: Any) -> str:
        """Return the text of the reply to a GET, which is no JSON."""
        return self._get_reply(path, params).text

    def download(self, path: str, into: IO[bytes], **params: Any) -> None:
        """Write a reply to a file as it comes, however large it is."""
        with self._connection_errors(), self._http.stream("GET", self._path + path, params=params) as reply:
            if not reply.is_success:
                reply.read()
                self._refuse(reply)
            for chunk in reply.iter_bytes():
                into.write(chunk)

    def _get_reply(self, path: str, params: dict[str, Any]) -> httpx.Response:
        reply = self._send("GET", path, params=params)
        if not reply.is_success:
            self._refuse(reply)
        return reply

    def post(self, path: str, **content: Any) -> dict[str, Any]:
        """Send a POST request and return the reply. content: httpx's `json`, or `data` and `files`."""
        return self._request("POST", path, **content)

    def patch(self, path: str, content: bytes, **headers: str) -> dict[str, Any]:
        """Send a PATCH request with bytes, and return the reply. headers: names with underscores for hyphens."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self._request("PATCH", path, content=content, headers=named)

    def delete(self, path: str) -> dict[str, Any]:
        """Return the reply to a DELETE."""
        return self._request("DELETE", path)

    def tenant_id(self, name: str) -> str:
        """Return the id of the project of this name.

        Raises CommandFailed: when there is none.
        """
        found = self.get("/projects", name=name)["data"]
        if not found:
            raise CommandFailed(f"there is no tenant named '{name}'; `lorikeet tenant list` lists all tenants")
        return str(found[0]["id"])

    def tenant_path(self, name: str) -> str:
        """Return the path of the project of this name.

        Raises CommandFailed: when there is none.
        """
        return f"/projects/{self.tenant_id(name)}"

    def user(self, email: str) -> dict[str, Any]:
        """Return the user with this address. Raises CommandFailed: when there is none."""
        found = self.get("/users", email=email)["data"]
        if not found:
            raise CommandFailed(f"there is no user with the address '{email}'; `lorikeet user list` lists all users")
        user: dict[str, Any] = found[0]
        return user

    def key_path(self, key_id: str) -> str:
        """Return the path of a key of any project, by the key's id."""
        key = self.get(f"/api_keys/{id_part(key_id)}")
        return f"/projects/{key['project_id']}/api_keys/{key['id']}"

    def _request(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        reply = self._send(method, path, **options)
        body = _json_object(reply)
        if not reply.is_success or body is None:
            self._refuse(reply)
        return body

    def _send(self, method: str, path: str, **options: Any) -> httpx.Response:
        with self._connection_errors():
            return self._http.request(method, checked_path(self._path + path), **options)

    @contextmanager
    def _connection_errors(self) -> Iterator[None]:
        """Turn errors of the connection within the context into ServerUnreachable."""
        try:
            yield
        except httpx.ConnectError:
            raise ServerUnreachable(f"no server answers at {self._url}; start it with `lorikeet serve`") from None
        except httpx.TransportError as error:
            raise ServerUnreachable(
                f"the server at {self._url} went away: {str(error) or type(error).__name__}"
            ) from None

    def _refuse(self, reply: httpx.Response) -> NoReturn:
        """Raise RequestRefused for a reply that refuses, or CommandFailed where the server is not Lorikeet."""
        body = _json_object(reply)
        refusal = body.get("error") if body else None
        if not isinstance(refusal, dict) or "message" not in refusal:
            raise CommandFailed(
                f"{self._url} is not a Lorikeet server: the reply with status {reply.status_code} has "
                "no error message of Lorikeet"
            )
        seconds = reply.headers.get("retry-after", "")
        raise RequestRefused(
            str(refusal["message"]), refusal.get("code"), float(seconds) if seconds.isdecimal() else None
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()


def read_url(url: str, source: str) -> str:
    """Return the URL of a server without its path. source: the flag or variable that gave the URL.

    Raises WrongUsage: for a text that is no URL of a server.
    """
    try:
        httpx.URL(url)
        is_url = urlsplit(url).scheme in ("http", "https") and bool(urlsplit(url).hostname)
    except (httpx.InvalidURL, ValueError):
        is_url = False
    if not is_url:
        raise WrongUsage(f"{source}: {url!r} is not a URL; expected one such as http://127.0.0.1:8080")
    return url.rstrip("/").removesuffix("/v1")


def checked_key(key: str, source: str) -> str:
    """Return a key after a check that a header can hold it. source: the flag, variable or file that gave the key.

    Raises WrongUsage: when the key has characters that a header cannot carry. The message does not show the key.
    """
    if not all("!" <= character <= "~" for character in key):
        raise WrongUsage(
            f"{source}: the key has a character that no key has, such as a space or a letter with an accent"
        )
    return key


def _names_address(environ: Mapping[str, str]) -> bool:
    return any(environ.get(variable(field)) for field in ("host", "port"))


def server_url(settings: Settings, environ: Mapping[str, str]) -> str:
    """Return the URL that LORIKEET_HOST and LORIKEET_PORT give if either is set.

    Otherwise return the URL of the data folder's `serve`.

    Raises ServerUnreachable: when neither variable is set and `serve` does not run. No address is guessed, since a
    guess could hand the operator's key to a stranger.
    Raises CommandFailed: when the record of the running server cannot be read.
    """
    if _names_address(environ):
        return settings.base_url
    from gateway.serve.lock import running_url

    try:
        url = running_url(settings.data_dir)
    except OSError as error:
        raise CommandFailed(f"the record of the running server cannot be read: {error}") from None
    if url is None and environ.get(URL_VARIABLE) and not settings.admin_key:
        raise ServerUnreachable(
            "LORIKEET_URL needs LORIKEET_ADMIN_KEY, a key of that server: without one commands go to the server of "
            f"{settings.data_dir}, and none runs there"
        )
    if url is None:
        raise ServerUnreachable(
            f"no server runs for {settings.data_dir}: start it with `lorikeet serve`, or set LORIKEET_DATA_DIR, "
            "or LORIKEET_HOST and LORIKEET_PORT for a `lorikeet gateway` that runs by itself"
        )
    return url


def operator_key(settings: Settings) -> str:
    """Return LORIKEET_ADMIN_KEY, else the operator's key that the server has written into its data folder.

    Raises WrongUsage: when the key cannot be sent.
    Raises ServerUnreachable: when there is no key.
    """
    if settings.admin_key:
        return checked_key(settings.admin_key, variable("admin_key"))
    path = settings.operator_key_path
    try:
        return checked_key(path.read_text(errors="replace").strip(), str(path))
    except FileNotFoundError:
        raise ServerUnreachable(
            f"there is no operator's key at {path}: start the server with `lorikeet serve`, "
            "or set LORIKEET_DATA_DIR or LORIKEET_ADMIN_KEY"
        ) from None
    except OSError as error:
        raise CommandFailed(f"the operator's key cannot be read: {error}") from None


def _json_object(reply: httpx.Response) -> dict[str, Any] | None:
    try:
        body = reply.json()
    except ValueError:
        return None
    return body if isinstance(body, dict) else None
