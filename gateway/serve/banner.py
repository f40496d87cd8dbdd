"""The last lines that `serve` prints once everything answers: URL, keys, a line to try, and how to stop."""

from __future__ import annotations

import json
import shlex

from adapters.demo import DEMO
from gateway.serve import second_pool
from gateway.serve.bootstrap import ADMIN_EMAIL, Access
from gateway.settings import Settings


def banner(settings: Settings, access: Access, num_demo_pools: int = 1, computes: str = "") -> str:
    """Return the lines that tell how to use a server that is ready, without a newline at the end.

    num_demo_pools: pools of the demo, one or two.
    computes: the number format and the device of the engine; "" is not shown.
    """
    lines = ["", f"Lorikeet is ready at {settings.base_url}/v1", ""]
    if computes:
        lines.append(f"  engine        computes in {computes} (`lorikeet doctor` says why)")
    if access.tenant_keys:
        lines += _demo_lines(settings, access, num_demo_pools)
    else:
        lines += [
            f"  base model    {settings.model_name}",
            "  a tenant      lorikeet tenant create NAME && lorikeet key create --tenant NAME",
            f"  operator key  in {settings.operator_key_path}",
            *_dashboard_lines(settings, access),
        ]
    if access.notice:
        lines += [f"  {access.notice}", ""]
    lines += [f"  logs          {settings.log_dir}", "  stop          Ctrl-C (running requests finish first)", ""]
    return "\n".join(lines)


def _dashboard_lines(settings: Settings, access: Access) -> list[str]:
    """Return the lines that tell how to sign in to the dashboard.

    The first password is shown by the start that made the password, and by no other.
    """
    lines = [f"  dashboard     {settings.base_url}/admin/"]
    place = f"in {settings.admin_login_path}"
    if access.new_password is not None:
        if settings.admin_password:
            lines += [f"  sign in as    {ADMIN_EMAIL} with the password of LORIKEET_ADMIN_PASSWORD"]
        else:
            lines += [f"  sign in as    {ADMIN_EMAIL} with {access.new_password}", f"{'':16}(it is also {place})"]
    elif settings.admin_login_path.exists():
        lines += [f"  sign in as    {ADMIN_EMAIL}, whose first password is {place}"]
    return lines


def _demo_lines(settings: Settings, access: Access, num_pools: int) -> list[str]:
    lines = []
    for tenant, key in access.tenant_keys.items():
        models = [f"{settings.model_name}:{adapter.name}" for adapter in DEMO if adapter.tenant == tenant]
        lines += [f"  tenant {tenant:<7}{key}", f"{'':16}{', '.join([settings.model_name, *models])}"]
        if num_pools > 1:
            second = [f"{second_pool.NAME}:{second_pool.ADAPTER}"] * (tenant == second_pool.TENANT)
            lines.append(f"{'':16}{', '.join([second_pool.NAME, *second])} (once its engine is ready)")
    lines += [
        f"  all keys      {settings.demo_env_path}",
        *(
            ["  prices        of the demo, until you set yours in the dashboard under Usage"]
            if access.has_demo_prices
            else []
        ),
        *_dashboard_lines(settings, access),
        "",
        "Try it:",
        "",
        f"  {curl_line(settings, access)}",
        "",
    ]
    return lines


def curl_line(settings: Settings, access: Access) -> str:
    """Return a command for a shell that streams an answer of the pirate adapter."""
    body = {
        "model": f"{settings.model_name}:pirate",
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
        "stream": True,
    }
    command = ["curl", "-N", f"{settings.base_url}/v1/chat/completions"]
    command += ["-H", f"Authorization: Bearer {access.tenant_keys['acme']}", "-H", "Content-Type: application/json"]
    return shlex.join([*command, "-d", json.dumps(body)])
