"""The part of S3 that uploads and downloads need, over real HTTP: objects, multipart uploads, deletes.

The server refuses wrong keys, and can be made to fail.
"""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self
from urllib.parse import parse_qs, urlsplit

ACCESS_KEY = "AKIATESTONLY"
SECRET = "a secret that nobody may see"


class S3Server:
    """A fake S3 server in this process.

    objects: by path, `bucket/key`, in the order in which they appeared. fail_puts: the number of uploads that are yet
    to fail.
    """

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.uploads: dict[str, dict[int, bytes]] = {}
        self.num_aborted = 0
        self.fail_puts = 0
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02})
        self.url = f"http://127.0.0.1:{self._http.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                path, _, _ = self._read()
                if not self._is_allowed():
                    return
                if path in server.objects:
                    self._answer(200, server.objects[path])
                else:
                    self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")

            def do_PUT(self) -> None:
                path, query, body = self._read()
                if not self._is_allowed():
                    return
                if server.fail_puts > 0:
                    server.fail_puts -= 1
                    self._answer(
                        403, b"<Error><Code>AccessDenied</Code><Message>" + SECRET.encode() + b"</Message></Error>"
                    )
                elif "uploadId" in query:
                    server.uploads[query["uploadId"][0]][int(query["partNumber"][0])] = body
                    self._answer(200)
                else:
                    server.objects[path] = body
                    self._answer(200)

            def do_POST(self) -> None:
                path, query, _ = self._read()
                if not self._is_allowed():
                    return
                if "uploads" in query:
                    upload = f"upload-{len(server.uploads)}"
                    server.uploads[upload] = {}
                    self._answer(200, _xml("InitiateMultipartUploadResult", UploadId=upload))
                else:
                    parts = server.uploads.pop(query["uploadId"][0])
                    server.objects[path] = b"".join(parts[number] for number in sorted(parts))
                    self._answer(200, _xml("CompleteMultipartUploadResult", ETag="x"))

            def do_DELETE(self) -> None:
                path, query, _ = self._read()
                if "uploadId" in query:
                    server.uploads.pop(query["uploadId"][0], None)
                    server.num_aborted += 1
                else:
                    server.objects.pop(path, None)
                self._answer(204)

            def log_message(self, format: str, *args: object) -> None:
                pass

            def _read(self) -> tuple[str, dict[str, list[str]], bytes]:
                parts = urlsplit(self.path)
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                return parts.path.lstrip("/"), parse_qs(parts.query, keep_blank_values=True), body

            def _is_allowed(self) -> bool:
                if f"Credential={ACCESS_KEY}/" in self.headers.get("authorization", ""):
                    return True
                self._answer(403, b"<Error><Code>InvalidAccessKeyId</Code></Error>")
                return False

            def _answer(self, status: int, body: bytes = b"") -> None:
                self.send_response(status)
                self.send_header("content-length", str(len(body)))
                self.send_header("etag", '"x"')
                self.send_header("last-modified", "Wed, 01 Jan 2025 00:00:00 GMT")
                self.end_headers()
                self.wfile.write(body)

        return Handler


def _xml(name: str, **fields: str) -> bytes:
    inner = "".join(f"<{key}>{value}</{key}>" for key, value in fields.items())
    return f'<?xml version="1.0"?><{name}>{inner}</{name}>'.encode()
