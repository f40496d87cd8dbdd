"""The operator's list of sources means what it says, part by part, however a source is written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.adapters.sources import AllowedSources, WrongSource

LIST = (
    "hf://my-org/, hf://other/repo@v1, https://models.example.com/, https://x.example.com:8443/a/b/, "
    "https://[2606:4700::1111]/, s3://bucket/prefix"
)
ALLOWED = AllowedSources.parse(LIST)


@pytest.mark.parametrize(
    "source",
    [
        "hf://my-org/repo",
        "hf://my-org/repo@refs/pr/1",
        "hf://other/repo@v1",
        "https://models.example.com/a.tar",
        "https://models.example.com:443/a.tar",
        "https://MODELS.example.com/deep/er/a_b-c~d@e:f+g=h,i.tar.gz",
        "https://x.example.com:8443/a/b/c",
        "https://[2606:4700::1111]/a",
        "s3://bucket/prefix",
        "s3://bucket/prefix/deeper/",
    ],
)
def test_a_listed_source_is_admitted(source: str) -> None:
    ALLOWED.admit(source)


@pytest.mark.parametrize(
    "source",
    [
        "hf://my-organization/repo",
        "hf://MY-ORG/repo",
        "hf://other/repo",
        "hf://other/repo@v10",
        "hf://other/repo2@v1",
        "https://models.example.com:80/a.tar",
        "https://models.example.com.evil.com/a",
        "https://evil.com/models.example.com/a",
        "https://x.example.com/a/b/c",
        "https://x.example.com:8443/a/bc",
        "https://x.example.com:8443/a",
        "https://[::1]/a",
        "s3://bucket/prefixes",
        "s3://bucket",
        "s3://other/prefix",
    ],
)
def test_a_source_that_is_not_listed_is_refused(source: str) -> None:
    with pytest.raises(WrongSource, match="not among the sources"):
        ALLOWED.admit(source)


@pytest.mark.parametrize(
    "source",
    [
        "",
        "x",
        "http://models.example.com/a",
        "HTTPS://models.example.com/a",
        "file:///etc/passwd",
        "https://models.example.com",
        "https://models.example.com/",
        "https://models.example.com//a",
        "https://models.example.com/a/",
        "https://me@models.example.com/a",
        "https://me:pw@models.example.com/a",
        "https://models.example.com@evil.com/a",
        "https://evil.com\\@models.example.com/a",
        "https://evil.com#@models.example.com/a",
        "https://models.example.com/a?b=c",
        "https://models.example.com/a#b",
        "https://models.example.com./a",
        "https://models.example.com:0/a",
        "https://models.example.com:65536/a",
        "https://models.example.com:0443/a",
        "https://models.example.com:/a",
        "https://models.example.com/a\n",
        "https://models.example.com\t/a",
        "https://mödels.example.com/a",
        "https://x.example.com:8443/a/b/../../secret",
        "https://x.example.com:8443/a/b/./c",
        "https://x.example.com:8443/a/b/%2e%2e/%2e%2e/secret",
        "https://x.example.com:8443/a/b/..%2fsecret",
        "https://x.example.com:8443/a/b\\..\\secret",
        "hf://my-org",
        "hf://my-org/..",
        "hf://my-org/repo/file",
        "hf://my-org/repo@",
        "hf://my-org/repo@../x",
        "hf://my-org/repo@a//b",
        "hf://my-org/repo@a/../b",
        "hf://my-org/repo@a?b",
        "s3://bucket/prefix/../secret",
        "s3://bucket//prefix",
        "s3://BUCKET/prefix",
        "s3://key:secret@bucket/prefix",
        "https://models.example.com/" + "a/" * 600 + "a",
    ],
)
def test_text_that_is_no_source_is_refused(source: str) -> None:
    with pytest.raises(WrongSource, match=r"^(expected|the source is longer)"):
        ALLOWED.admit(source)


@given(st.text(alphabet="hfs3tp:/.@%2ea-b?#\\[]", max_size=60))
def test_whatever_is_written_is_admitted_or_refused(text: str) -> None:
    for source in (text, f"https://{text}", f"https://models.example.com{text}", f"hf://my-org/{text}"):
        try:
            admitted = ALLOWED.admit(source)
        except WrongSource:
            continue
        assert ".." not in admitted.segments
        assert admitted.scheme != "https" or admitted.host in ("models.example.com", "x.example.com")


def test_redirects_may_have_a_query_and_nothing_else() -> None:
    assert ALLOWED.admits_url("https://models.example.com/a?signature=x%2f../..")
    assert not ALLOWED.admits_url("https://models.example.com/?x")
    assert not ALLOWED.admits_url("https://evil.com/?https://models.example.com/a")


def test_without_a_list_nothing_is_a_source() -> None:
    with pytest.raises(WrongSource, match="LORIKEET_ADAPTER_SOURCES"):
        AllowedSources.parse(" , ").admit("hf://my-org/repo")


@pytest.mark.parametrize(
    "text", ["hf://", "hf://a@main", "https://", "https:///a", "s3://", "my-org", "https://a.com/*"]
)
def test_a_wrong_list_is_refused(text: str) -> None:
    with pytest.raises(WrongSource):
        AllowedSources.parse(text)
