"""Hostile cases: zip archives as no honest packer makes them."""

from __future__ import annotations

import io
import pickle
import stat
import struct
import zipfile
from collections.abc import Callable, Iterable
from typing import Any

from adapters.peft_config import CONFIG_NAME
from adapters.peft_format import WEIGHTS_NAME
from tests.adapters.hostile.case import Case, file_of, good_files

Member = tuple[zipfile.ZipInfo, bytes]
GOOD = good_files()
LOCAL, CENTRAL, END = b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06"


def member(name: str, content: bytes = b"", mode: int = 0, **attributes: Any) -> Member:
    info = zipfile.ZipInfo(name)
    info.compress_type = zipfile.ZIP_DEFLATED
    info.external_attr = mode << 16
    for attribute, value in attributes.items():
        setattr(info, attribute, value)
    return info, content


def good_members(prefix: str = "") -> list[Member]:
    return [member(prefix + name, content) for name, content in GOOD.items()]


def pack(members: Iterable[Member]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for info, content in members:
            archive.writestr(info, content)
    return buffer.getvalue()


def case_of(reason: str, make: bytes | Callable[[], bytes]) -> Case:
    return Case(file_of(make), reason)


def extra(reason: str, name: str, content: bytes = b"something", mode: int = 0, **attributes: Any) -> Case:
    """Return a case of an archive with one more member, in front of the good ones.

    reason: the reason for which the archive is refused. name, content: the member. mode: the member's Unix mode; 0:
    none. attributes: fields of its header.
    """
    return case_of(reason, lambda: pack([member(name, content, mode, **attributes), *good_members()]))


def replaced(old: bytes, new: bytes) -> bytes:
    """Return a good archive with other bytes of the same length in its headers."""
    assert len(old) == len(new)
    return pack(good_members()).replace(old, new)


def changed(signature: bytes, offset: int, value: int, size: int) -> bytes:
    """Return a good archive with a number changed in every header of this signature; offsets as in APPNOTE.TXT."""
    content = bytearray(pack(good_members()))
    at = content.find(signature)
    while at >= 0:
        content[at + offset : at + offset + size] = value.to_bytes(size, "little")
        at = content.find(signature, at + 1)
    return bytes(content)


def overlapping() -> bytes:
    """Return an archive in whose directory both entries lead to the same file, as in zip bombs without recursion."""
    content = bytearray(pack(good_members()))
    second = content.rfind(CENTRAL)
    content[second + 42 : second + 46] = bytes(4)
    return bytes(content)


def many_entries(count: int) -> bytes:
    """Return an archive with a directory alone, of `count` names that lead nowhere."""
    header = struct.Struct("<4s6H3I5H2I")
    numbers = (20, 20, 0, 0, 0, 33, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0)
    entries = b"".join(header.pack(CENTRAL, *numbers) + b"%08d" % number for number in range(count))
    end = END + struct.pack("<4H2IH", 0, 0, count & 0xFFFF, count & 0xFFFF, len(entries), 4, 0)
    return LOCAL + entries + end


CASES: dict[str, Case] = {
    "leads out": extra("leads out of its folder ('..')", "../adapter_config.json"),
    "absolute": extra("has an absolute name", "/etc/passwd"),
    "a drive": extra("has an absolute name", "c:/windows/x"),
    "backslashes": case_of(
        "has a backslash in its name",
        lambda: pack([member("aaXbbXcc.txt", b"x"), *good_members()]).replace(b"aaXbbXcc", b"..\\..\\cc"),
    ),
    "symbolic link": extra("is a symbolic link, not a file", "x", b"/etc/passwd", stat.S_IFLNK | 0o777),
    "weights are a link": case_of(
        "member 'adapter_model.safetensors' is a symbolic link",
        lambda: pack([good_members()[0], member(WEIGHTS_NAME, b"/etc/shadow", stat.S_IFLNK | 0o777)]),
    ),
    "device": extra("is a device or a pipe, not a file", "x", b"", stat.S_IFBLK),
    "pipe": extra("is a device or a pipe, not a file", "x", b"", stat.S_IFIFO),
    "encrypted": case_of("is encrypted", lambda: changed(CENTRAL, 8, 1, 2)),
    "patched data": case_of("the zip archive is damaged", lambda: changed(CENTRAL, 8, 0x20, 2)),
    "bzip2 within": extra("by another method than deflate", "x", compress_type=zipfile.ZIP_BZIP2),
    "lzma within": extra("by another method than deflate", "x", compress_type=zipfile.ZIP_LZMA),
    "an unknown method": case_of("by another method than deflate", lambda: changed(CENTRAL, 10, 99, 2)),
    "a member twice": case_of(
        "member 'adapter_config.json' occurs twice",
        lambda: pack([*good_members(), member("Xdapter_config.json", b"{}")]).replace(b"Xdapter", b"adapter"),
    ),
    "two configurations": extra("is a second adapter_config.json", f"other/{CONFIG_NAME}", b"{}"),
    "files apart": case_of("are not in one folder", lambda: pack([good_members("a/")[0], good_members("b/")[1]])),
    "too deep": case_of("lies deeper than in one folder", lambda: pack(good_members("a/b/"))),
    "a newline in a name": extra("control or invisible characters", "x\ny"),
    "a nul in a name": case_of(
        "control or invisible characters",
        lambda: pack([member("Xadapter_config.json", b"{}"), *good_members()]).replace(b"Xadapter", b"\0adapter"),
    ),
    "a name written backwards": extra("control or invisible characters", "\u202enosj.gifnoc"),
    "wide letters": extra("is named almost like", "\uff41dapter_config.json"),
    "a name that is not the utf-8 it says": case_of(
        "the zip archive is damaged",
        lambda: pack([member("\u00e4.txt", b"x"), *good_members()]).replace("\u00e4".encode(), b"\xff\xff"),
    ),
    "no name": case_of("member '' has no name", lambda: pack([member("", b"x"), *good_members()])),
    "a pickle by name": extra("is a pickle by its name", "adapter_model.pth"),
    "as torch.save writes it": case_of(
        "member 'archive/data.pkl' is a pickle by its name",
        lambda: pack([member("archive/data.pkl", pickle.dumps({})), member("archive/data/0", bytes(64))]),
    ),
    "an archive within": extra("is an archive within the archive", "inner.zip", pack(good_members())),
    "a bomb by ratio": extra("unpacks to more than 100 times its size", "zeros.txt", bytes(20 << 20)),
    "a bomb by size": extra("unpacked, 25165824 are allowed", "zeros.txt", bytes(32 << 20)),
    "a bomb of weights": case_of(
        "unpacks to more than 100 times its size",
        lambda: pack([good_members()[0], member(WEIGHTS_NAME, bytes(20 << 20))]),
    ),
    "sizes that are too small": case_of("the zip archive is damaged: Bad CRC-32", lambda: changed(CENTRAL, 24, 10, 4)),
    "sizes that are too large": case_of("is cut short", lambda: changed(CENTRAL, 24, 5000, 4)),
    "sizes of 4 GiB": case_of("takes 4294967294 bytes; unpacked", lambda: changed(CENTRAL, 24, 0xFFFFFFFE, 4)),
    "zip64 sizes that are not there": case_of("takes 4294967295 bytes", lambda: changed(CENTRAL, 24, 0xFFFFFFFF, 4)),
    "offsets out of the file": case_of("the zip archive is damaged", lambda: changed(CENTRAL, 42, 0x7FFFFFFF, 4)),
    "a directory out of the file": case_of("the zip archive is damaged", lambda: changed(END, 16, 0x7FFFFFFF, 4)),
    "a directory that overlaps": case_of("the zip archive is damaged", overlapping),
    "a directory of another name": case_of(
        "the zip archive is damaged: File name in directory",
        lambda: pack(good_members()).replace(b"adapter_model", b"adapter_xodel", 1),
    ),
    "a wrong checksum": case_of("the zip archive is damaged: Bad CRC-32", lambda: changed(CENTRAL, 16, 1, 4)),
    "damaged data": case_of("the zip archive is damaged", lambda: changed(LOCAL, 30 + len(CONFIG_NAME), 0xFFFFFF, 3)),
    "10,000 entries": case_of(
        "the directory of the zip archive has more than 262144 bytes", lambda: many_entries(10_000)
    ),
    "2,000 entries": case_of("there are more than 1000 members", lambda: many_entries(2000)),
    "cut short": case_of("the zip archive is damaged: File is not a zip file", lambda: pack(good_members())[:-30]),
    "no members": case_of("adapter_config.json is missing", lambda: pack([])),
    "no weights": case_of("adapter_model.safetensors is missing", lambda: pack(good_members()[:1])),
    "empty files": case_of("is not valid JSON", lambda: pack([member(name) for name in GOOD])),
}
