"""The last thing `serve` prints once everything answers: where it is, the keys, a line to try, how to stop."""

from __future__ import annotations

import json
import shlex

from adapters.demo import DEMO
from gateway.serve.bootstrap import Access
from gateway.settings import Settings


def banner(settings: Settings, access: Access) -> str:
    """Several lines, without a newline at the end."""
    lines = ["", f"Lorikeet is ready at {settings.base_url}/v1", ""]
    if access.tenant_keys:
        lines += _demo_lines(settings, access)
    else:
        lines += [
            f"  base model    {settings.model_name}",
            "  a tenant      lorikeet tenant create NAME && lorikeet key create --tenant NAME",
            f"  operator key  in {settings.operator_key_path}",
        ]
    lines += [f"  logs          {settings.log_dir}", "  stop          Ctrl-C (running requests finish first)", ""]
    return "\n".join(lines)


def _demo_lines(settings: Settings, access: Access) -> list[str]:
    lines = []
    for tenant, key in access.tenant_keys.items():
        models = [f"{settings.model_name}:{adapter.name}" for adapter in DEMO if adapter.tenant == tenant]
        lines += [f"  tenant {tenant:<7}{key}", f"{'':16}{', '.join([settings.model_name, *models])}"]
    lines += [f"  all keys      {settings.demo_env_path}", "", "Try it:", "", f"  {curl_line(settings, access)}", ""]
    return lines


def curl_line(settings: Settings, access: Access) -> str:
    """A command for a shell that streams an answer of the pirate adapter."""
    body = {
        "model": f"{settings.model_name}:pirate",
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
        "stream": True,
    }
    command = ["curl", "-N", f"{settings.base_url}/v1/chat/completions"]
    command += ["-H", f"Authorization: Bearer {access.tenant_keys['acme']}", "-H", "Content-Type: application/json"]
    return shlex.join([*command, "-d", json.dumps(body)])
