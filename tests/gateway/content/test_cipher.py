"""Sealed content is opened only with its key and in its own place; keys can be rotated, and a key file is made once."""

from __future__ import annotations

import base64
import os
import stat
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from structlog.testing import capture_logs

from gateway.content.keys import content_keys
from gateway.domain.content.keys import BadContentKey, ContentKey, parse_keys
from gateway.domain.errors import ContentUnreadable
from gateway.settings import BadSetting, load_settings
from gateway.support.cipher import NONCE_BYTES, Cipher, Place, Sealed

OLD, NEW = ContentKey(b"o" * 32), ContentKey(b"n" * 32)
PLACE = Place("proj_a", "stored_chats.reply", "chatcmpl-1")


def test_content_is_opened_unchanged_and_is_sealed_differently_every_time(cipher: Cipher) -> None:
    sealed = [cipher.seal(b"a secret", PLACE) for _ in range(2)]
    assert [cipher.open(each, PLACE) for each in sealed] == [b"a secret"] * 2
    assert sealed[0].data != sealed[1].data
    assert b"secret" not in sealed[0].data


@pytest.mark.parametrize(
    "elsewhere",
    [
        Place("proj_b", "stored_chats.reply", "chatcmpl-1"),
        Place("proj_a", "stored_chats.messages", "chatcmpl-1"),
        Place("proj_a", "stored_chats.reply", "chatcmpl-2"),
    ],
)
def test_sealed_content_is_not_opened_in_another_place(cipher: Cipher, elsewhere: Place) -> None:
    with pytest.raises(ContentUnreadable):
        cipher.open(cipher.seal(b"a secret", PLACE), elsewhere)


def test_every_changed_byte_is_noticed(cipher: Cipher) -> None:
    sealed = cipher.seal(b"a secret", PLACE)
    for index in range(len(sealed.data)):
        data = bytearray(sealed.data)
        data[index] ^= 1
        with pytest.raises(ContentUnreadable):
            cipher.open(Sealed(sealed.key_id, bytes(data)), PLACE)
    for length in (0, 5, NONCE_BYTES, len(sealed.data) - 1):
        with pytest.raises(ContentUnreadable):
            cipher.open(Sealed(sealed.key_id, sealed.data[:length]), PLACE)


def test_the_gateways_key_itself_opens_nothing(cipher: Cipher) -> None:
    sealed = cipher.seal(b"a secret", PLACE)
    with pytest.raises(InvalidTag):
        AESGCM(b"k" * 32).decrypt(sealed.data[:NONCE_BYTES], sealed.data[NONCE_BYTES:], PLACE.associated_data)


def test_a_rotated_key_still_opens_what_it_sealed() -> None:
    before, after = Cipher([OLD]), Cipher([NEW, OLD])
    sealed = before.seal(b"a secret", PLACE)
    assert after.open(sealed, PLACE) == b"a secret"
    assert after.seal(b"another", PLACE).key_id == NEW.id
    assert after.open(after.seal(b"changed", PLACE, key_id=OLD.id), PLACE) == b"changed"
    assert after.tags({"a": "b"}, "proj_a", OLD.id) == before.tags({"a": "b"}, "proj_a")
    with pytest.raises(ContentUnreadable):
        Cipher([NEW]).open(sealed, PLACE)


def test_tags_tell_equal_pairs_of_one_project_and_nothing_else(cipher: Cipher) -> None:
    (tag,) = cipher.tags({"topic": "greeting"}, "proj_a")
    assert set(cipher.tags({"topic": "greeting", "x": "y"}, "proj_a")) > {tag}
    assert cipher.tags({"topic": "greeting"}, "proj_b") != [tag]
    assert cipher.tags({"greeting": "topic"}, "proj_a") != [tag]
    assert cipher.tags({"topicg": "reeting"}, "proj_a") != [tag]


def test_the_id_of_a_key_says_nothing_about_it() -> None:
    assert OLD.id != NEW.id
    assert len(OLD.id) == 16
    assert OLD.secret.hex() not in OLD.id


def test_the_key_file_is_made_once(tmp_path: Path) -> None:
    path = tmp_path / "data" / "content.key"
    (made,) = content_keys(None, path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert content_keys(None, path) == (made,)
    assert [other.name for other in path.parent.iterdir()] == ["content.key"]


def test_processes_that_make_the_key_file_at_once_get_the_same_key(tmp_path: Path) -> None:
    program = (
        "import pathlib, sys; from gateway.content.keys import content_keys;"
        "print(content_keys(None, pathlib.Path(sys.argv[1]))[0].id)"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "content.key")]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    assert len({process.communicate()[0] for process in processes}) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["content.key"]


def test_an_unfinished_key_file_of_another_container_is_left_alone(tmp_path: Path) -> None:
    """Containers that share the folder may have processes with the same pid, which is in the file's temporary name."""
    theirs = tmp_path / f".content.key.{os.getpid()}"
    theirs.write_text("half writ")
    (made,) = content_keys(None, tmp_path / "content.key")
    assert content_keys(None, tmp_path / "content.key") == (made,)
    assert theirs.read_text() == "half writ"


def test_a_key_file_that_others_may_read_is_logged(tmp_path: Path) -> None:
    path = tmp_path / "content.key"
    with capture_logs() as logs:
        content_keys(None, path)
        assert logs == []
        path.chmod(0o640)
        content_keys(None, path)
    assert [(line["event"], line["mode"]) for line in logs] == [("content_key_open_to_others", "640")]


def test_the_setting_replaces_the_key_file_and_may_name_older_keys(tmp_path: Path) -> None:
    text = ", ".join(base64.b64encode(key.secret).decode() for key in (NEW, OLD))
    assert parse_keys(text) == content_keys(text, tmp_path / "content.key") == (NEW, OLD)
    assert not (tmp_path / "content.key").exists()


@pytest.mark.parametrize("text", ["", " , ", "short", "x" * 44, base64.b64encode(b"y" * 31).decode()])
def test_a_malformed_key_stops_the_start_without_being_shown(text: str, tmp_path: Path) -> None:
    with pytest.raises(BadContentKey, match=r"32 bytes|a key") as refused:
        parse_keys(text)
    assert text == "" or text not in str(refused.value)
    if text.strip(" ,"):
        with pytest.raises(BadSetting, match=r"LORIKEET_CONTENT_KEY: Expected 32 bytes in base64"):
            load_settings({"LORIKEET_CONTENT_KEY": text})
    path = tmp_path / "content.key"
    path.write_text(text)
    with pytest.raises(BadContentKey, match=r"content\.key does not hold the key"):
        content_keys(None, path)


def test_places_are_told_apart_whatever_ids_hold() -> None:
    assert Place("a", "bc", "d").associated_data != Place("ab", "c", "d").associated_data
    assert msgspec.msgpack.decode(PLACE.associated_data) == {
        "project_id": "proj_a",
        "name": "stored_chats.reply",
        "id": "chatcmpl-1",
    }
