"""A server does not start where secrets would cross a network in the clear, unless the operator allows it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gateway.cli import main
from gateway.settings import BadSetting, load_settings
from gateway.settings.transport import check_transport

OPEN_HOSTS = ["0.0.0.0", "::", "10.0.0.1", "llm.example.com"]


def check(**environ: str) -> None:
    check_transport(load_settings(environ), environ)


@pytest.mark.parametrize("host", OPEN_HOSTS)
def test_an_address_that_others_can_reach_needs_tls_or_a_word(host: str) -> None:
    for more in ({}, {"LORIKEET_PUBLIC_URL": "http://llm.example.com"}):
        with pytest.raises(BadSetting, match=r"^LORIKEET_HOST=.*LORIKEET_PUBLIC_URL=https"):
            check(LORIKEET_HOST=host, **more)
    check(LORIKEET_HOST=host, LORIKEET_PUBLIC_URL="https://llm.example.com")
    check(LORIKEET_HOST=host, LORIKEET_PLAIN_HTTP="true")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_an_address_on_the_loopback_needs_no_tls(host: str) -> None:
    check(LORIKEET_HOST=host)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:hidden@db.example.com/d",
        "postgresql://u:hidden@10.0.0.7:5432/d",
        "postgresql://u:hidden@localhost,db.example.com/d",
        "postgresql://u:hidden@/d?host=db.example.com",
    ],
)
def test_a_database_elsewhere_needs_a_mode_of_tls(url: str) -> None:
    with pytest.raises(BadSetting, match=r"^DATABASE_URL: .*sslmode=verify-full") as refused:
        check(DATABASE_URL=url)
    assert "hidden" not in str(refused.value)
    check(DATABASE_URL=f"{url}{'&' if '?' in url else '?'}sslmode=verify-full")
    check(DATABASE_URL=f"{url}{'&' if '?' in url else '?'}sslmode=disable")
    check_transport(load_settings({"DATABASE_URL": url}), {"PGSSLMODE": "verify-full"})


@pytest.mark.parametrize(
    "url",
    ["postgresql://u:p@localhost/d", "postgresql://u:p@[::1]:1/d", "postgresql:///d?host=/run", "postgresql://u:p@/d"],
)
def test_a_database_on_this_machine_needs_no_tls(url: str) -> None:
    check(DATABASE_URL=url)


@pytest.mark.parametrize("verb", ["serve", "gateway"])
def test_a_start_without_tls_is_refused_in_one_line(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    environ = {"PATH": os.environ["PATH"], "LORIKEET_DATA_DIR": str(tmp_path / "data"), "LORIKEET_HOST": "10.0.0.1"}
    assert main([verb], environ) == 2
    told = capsys.readouterr().err
    assert told.startswith("lorikeet: LORIKEET_HOST=") and told.count("\n") == 1
    assert not (tmp_path / "data").exists()
