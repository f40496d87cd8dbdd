"""Every field and query parameter of every route of the admin API, with values that do not fit."""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.admin.access import Nothing
from tests.gateway.admin.access.cast import Cast


async def test_every_field_and_query_parameter_is_checked_by_name(cast: Cast) -> None:
    wrong = []
    for route in cast.routes:
        assert route.access is not None
        body, who = route.good_body, "owner of organization"
        if body is None or route.access.body is Nothing:
            continue
        fields = {field.name: field for field in msgspec.structs.fields(route.access.body)}  # type: ignore[arg-type]
        assert set(fields) == set(body), "GOOD_BODIES knows every field"
        for name, field in fields.items():
            bad: list[Any] = [{"an": "object"}, "\0", [[]], -1, 2**70]
            if field.default is msgspec.NODEFAULT and field.default_factory is msgspec.NODEFAULT:
                bad.append(None)
            for value in bad:
                reply = await cast.call(who, route, body | {name: value})
                param = (reply.json().get("error") or {}).get("param") or ""
                # A text that is taken as text may be wrong for other reasons than its type.
                if reply.status_code not in (400, 401) or (reply.status_code == 400 and not param.startswith(name)):
                    if value == "\0" and name in ("password", "code"):
                        continue
                    if name in ("metadata", "labels", "placement", "exclusion") and isinstance(
                        value, dict
                    ):  # which is what it is
                        continue
                    wrong.append(f"{route} {name}={value!r}: {reply.status_code} {reply.text}")
    assert wrong == []

    # And the same of query parameters.
    for route in cast.routes:
        url = f"{cast.url}{route.at(project_id=cast.project_id)}?surprise=1"
        reply = await cast.callers["owner of organization"].request(route.method, url)
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "surprise"), str(route)
