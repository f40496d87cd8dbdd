"""Runs in an image: serves, has an adapter uploaded and a completion streamed, and stops. Knows nothing of the tests.

Prints what it saw as JSON. The first argument is the kind of image, `gateway` or `engine-cpu`.
"""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request

URL = "http://127.0.0.1:8080"
PATIENCE_S = 600


def lorikeet(*words: str) -> str:
    """Run a command, and return what it prints."""
    done = subprocess.run(["lorikeet", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, (words, done.stdout, done.stderr)
    return done.stdout


def status(path: str) -> int:
    try:
        with urllib.request.urlopen(URL + path, timeout=30) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def wait_for(path: str, process: subprocess.Popen[bytes]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while status(path) != 200:
        assert process.poll() is None and time.monotonic() < deadline_s, path
        time.sleep(0.2)


def is_writable(folder: str) -> bool:
    try:
        (pathlib.Path(folder) / "written").touch()
    except OSError:
        return False
    return True


def capabilities() -> int:
    text = pathlib.Path("/proc/self/status").read_text()
    sets = [line.split()[1] for line in text.splitlines() if line.startswith(("CapEff", "CapBnd", "CapPrm"))]
    return max(int(each, 16) for each in sets)


def streamed(model: str, key: str) -> tuple[int, str]:
    """Return the number of events of a streamed completion, and its text."""
    body = {"model": model, "messages": [{"role": "user", "content": "Who are you?"}], "max_tokens": 8, "stream": True}
    request = urllib.request.Request(
        f"{URL}/v1/chat/completions",
        json.dumps(body).encode(),
        {"Authorization": f"Bearer {key}", "Content-Type": "application/json"},
    )
    events, text = 0, ""
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as reply:
        for line in reply:
            if line.startswith(b"data: {"):
                events += 1
                choices = json.loads(line[6:])["choices"]
                text += (choices[0]["delta"].get("content") or "") if choices else ""
    return events, text


def serve_and_answer() -> dict[str, object]:
    """Run `serve`, upload an adapter, and have it answer a request. Return what was seen."""
    import adapters.demo

    memo = next(each.path for each in adapters.demo.DEMO if each.name == "memo")
    lorikeet("tenant", "create", "initech")
    key = json.loads(lorikeet("key", "create", "--tenant", "initech", "--json"))["key"]
    lorikeet("adapter", "add", "--tenant", "initech", "--name", "memo", str(memo), "--wait", str(PATIENCE_S))
    events, text = streamed(f"{os.environ['LORIKEET_MODEL_NAME']}:memo", key)
    return {"events": events, "text": text}


def main() -> None:
    kind = sys.argv[1]
    seen: dict[str, object] = {
        "user": os.getuid(),
        "capabilities": capabilities(),
        "writable": [each for each in ("/", "/opt/lorikeet", "/etc", "/data", "/tmp") if is_writable(each)],
        "interfaces": sorted(each.name for each in pathlib.Path("/sys/class/net").iterdir())
        if pathlib.Path("/sys/class/net").is_dir()
        else [],
    }
    command = ["lorikeet", "serve"] if kind == "engine-cpu" else ["lorikeet", "gateway"]
    if kind == "gateway":
        lorikeet("migrate", "--first-pool", "0")
    with pathlib.Path("/data/process.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            wait_for("/health/ready", process)
            if kind == "engine-cpu":
                seen |= serve_and_answer()
            process.send_signal(signal.SIGTERM)
            seen["code"] = process.wait(PATIENCE_S)
        finally:
            if process.poll() is None:
                process.kill()
    print(json.dumps(seen))


main()
