"""Hostile cases: tar archives, plain and gzipped, as no honest packer makes them."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import pickle
import tarfile
from collections.abc import Callable, Iterable
from typing import Any

from adapters.peft_config import CONFIG_NAME
from adapters.peft_format import WEIGHTS_NAME
from tests.adapters.hostile.case import Case, file_of, good_files, weights_bytes

Member = tuple[tarfile.TarInfo, bytes]
GOOD = good_files()


def member(name: str, content: bytes = b"", **attributes: Any) -> Member:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for attribute, value in attributes.items():
        setattr(info, attribute, value)
    return info, content


def good_members(prefix: str = "") -> list[Member]:
    return [member(prefix + name, content) for name, content in GOOD.items()]


def pack(members: Iterable[Member], format: int = tarfile.PAX_FORMAT) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=format, encoding="utf-8", errors="surrogateescape") as archive:
        for info, content in members:
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def extra(reason: str, name: str, content: bytes = b"something", **attributes: Any) -> Case:
    """Return a case of an archive with one more member, in front of the good ones.

    reason: the reason for which the archive is refused. name, content: the member. attributes: fields of its header.
    """
    return Case(file_of(lambda: pack([member(name, content, **attributes), *good_members()])), reason)


def case_of(reason: str, make: bytes | Callable[[], bytes]) -> Case:
    return Case(file_of(make), reason)


def first_bytes(content: bytes, num_bytes: int) -> bytes:
    return content[:num_bytes]


def with_size_field(field: bytes) -> bytes:
    """Return a good archive with the first member's size replaced, and the checksum made right."""
    block = bytearray(pack(good_members(), tarfile.USTAR_FORMAT))
    block[124:136] = field
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block[:512])
    return bytes(block)


def with_damaged_second_header() -> bytes:
    content = bytearray(pack(good_members()))
    second = content.index(WEIGHTS_NAME.encode())
    content[second + 100] ^= 0x55
    return bytes(content)


def pax(records: dict[str, str]) -> list[Member]:
    """Return good members, the first under an extended header."""
    members = good_members()
    members[0][0].pax_headers = records
    return members


def bomb(num_bytes: int) -> bytes:
    """Return a gzipped archive of a good adapter after a member of num_bytes zeros."""
    return gzip.compress(pack([member("zeros.txt", bytes(num_bytes)), *good_members()]), 9)


def long_names(depth: int) -> bytes:
    """Return GNU headers that each announce the name of the next, in front of a good archive."""
    header = tarfile.TarInfo("././@LongLink")
    header.type, header.size = tarfile.GNUTYPE_LONGNAME, 1
    block = header.tobuf(tarfile.GNU_FORMAT) + b"x".ljust(512, b"\0")
    return block * depth + pack(good_members())


PLAIN: dict[str, Case] = {
    "leads out": extra("leads out of its folder ('..')", "../adapter_config.json"),
    "leads out from within": extra("leads out of its folder", "a/../../etc/cron.d/x"),
    "absolute": extra("has an absolute name", "/etc/passwd"),
    "a drive": extra("has an absolute name", "C:autoexec.bat"),
    "backslashes": extra("has a backslash in its name", "..\\..\\x"),
    "symbolic link": extra("is a symbolic link, not a file", "x", b"", type=tarfile.SYMTYPE, linkname="/etc/passwd"),
    "weights are a link": case_of(
        "member 'adapter_model.safetensors' is a symbolic link",
        lambda: pack([good_members()[0], member(WEIGHTS_NAME, type=tarfile.SYMTYPE, linkname="/etc/shadow")]),
    ),
    "a linked folder and a file through it": case_of(
        "member 'out' is a symbolic link",
        lambda: pack([member("out", type=tarfile.SYMTYPE, linkname="/tmp"), *good_members("out/")]),
    ),
    "hard link": extra("is a hard link, not a file", "x", b"", type=tarfile.LNKTYPE, linkname=CONFIG_NAME),
    "character device": extra("is a device, not a file", "x", b"", type=tarfile.CHRTYPE, devmajor=1, devminor=5),
    "block device": extra("is a device, not a file", "x", b"", type=tarfile.BLKTYPE, devmajor=8),
    "pipe": extra("is a pipe, not a file", WEIGHTS_NAME, b"", type=tarfile.FIFOTYPE),
    "unknown kind": extra("is of a kind that is not supported", "x", b"", type=b"Z"),
    "sparse": case_of(
        "is of a kind that is not supported",
        lambda: pack(pax({"GNU.sparse.map": "0,1", "GNU.sparse.size": "9999999", "GNU.sparse.numblocks": "1"})),
    ),
    "a member twice": case_of(
        "member 'adapter_config.json' occurs twice", lambda: pack([*good_members(), good_members()[0]])
    ),
    "a member twice, by a detour": case_of("occurs twice", lambda: pack([*good_members(), *good_members("./")])),
    "two configurations": extra("is a second adapter_config.json", f"other/{CONFIG_NAME}"),
    "two adapters": case_of("is a second", lambda: pack([*good_members("one/"), *good_members("two/")])),
    "files apart": case_of("are not in one folder", lambda: pack([good_members("one/")[0], good_members("two/")[1]])),
    "too deep": case_of("lies deeper than in one folder", lambda: pack(good_members("a/b/"))),
    "a newline in a name": extra("control or invisible characters", "x\nadapter_config.json"),
    "a nul in a name": case_of(
        "control or invisible characters", lambda: pack(pax({"path": "adapter_config.json\0.txt"}))
    ),
    "a terminal's escape in a name": extra("member '\\x1b[2J' has a name with control", "\x1b[2J"),
    "a name written backwards": extra("control or invisible characters", "\u202enosj.gifnoc_retpada"),
    "an invisible character": extra("control or invisible characters", "adapter\u200b_config.json"),
    "wide letters": extra("is named almost like", "\uff41dapter_config.json"),
    "capitals": extra("is named almost like", "Adapter_Config.JSON"),
    "letters of another script": case_of(
        "adapter_config.json is missing; there is '\\u0430dapter_config.json'",
        lambda: pack([member("\u0430dapter_config.json", GOOD[CONFIG_NAME]), good_members()[1]]),
    ),
    "a name that is no text": extra("control or invisible characters", "\udcff\udcfe"),
    "a name of 5,000 characters": extra("has a name of more than 1024 characters", "x" * 5000),
    "a pickle by name": extra("'adapter_model.bin' is a pickle by its name", "adapter_model.bin"),
    "an optimizer": extra("'run/optimizer.pt' is a pickle by its name", "run/optimizer.pt"),
    "a checkpoint": extra("is a pickle by its name", "model.CKPT"),
    "an archive within": extra("is an archive within the archive", "inner.tar.gz"),
    "only an archive within": case_of(
        "is an archive within", lambda: pack([member("inner.tar", pack(good_members()))])
    ),
    "pickled weights": case_of(
        "is a pickle: only safetensors is read",
        lambda: pack([good_members()[0], member(WEIGHTS_NAME, pickle.dumps(list(range(500))))]),
    ),
    "no configuration": case_of("adapter_config.json is missing", lambda: pack(good_members()[1:])),
    "no weights": case_of("adapter_model.safetensors is missing", lambda: pack(good_members()[:1])),
    "empty files": case_of("is not valid JSON", lambda: pack([member(name) for name in GOOD])),
    "no members": case_of("neither a tar", lambda: pack([])),
    "2,000 members": case_of(
        "there are more than 1000 members", lambda: pack([member(f"{number}.txt") for number in range(2000)])
    ),
    "a header of a megabyte": case_of(
        "more than 262144 bytes of headers", lambda: pack(pax({"comment": "x" * (1 << 20)}))
    ),
    "a thousand headers in a row": case_of("the tar archive is damaged: maximum recursion", lambda: long_names(1000)),
    "a size that is no number": case_of(
        "the tar archive is damaged: invalid header", lambda: with_size_field(b"zzzzzzzzzzz\0")
    ),
    "a size below zero": case_of("takes -256 bytes; unpacked", lambda: with_size_field(b"\xff" * 11 + b"\x00")),
    "a size of 2^80": case_of("unpacked, 25165824 are allowed", lambda: with_size_field(b"\x80" + b"\x01" + bytes(10))),
    "a size beyond the archive": case_of("the tar archive is damaged", lambda: with_size_field(b"00000100000\0")),
    "cut in a header": case_of(
        "the tar archive is damaged: truncated header", lambda: first_bytes(pack(good_members()), 300)
    ),
    "cut in the weights": case_of(
        "the tar archive is damaged: unexpected end", lambda: first_bytes(pack(good_members()), 1700)
    ),
    "a damaged header": case_of("bytes follow the end of the tar archive, or a header", with_damaged_second_header),
    "bytes after the end": case_of("bytes follow the end of the tar", lambda: pack(good_members()) + b"more"),
    "two archives in a row": case_of("bytes follow the end of the tar", lambda: pack(good_members()) * 2),
    "nothing at all": case_of("neither a tar, a tar.gz nor a zip archive", b""),
    "noise": case_of("neither a tar, a tar.gz nor a zip archive", bytes(range(256)) * 8),
    "weights alone": case_of("neither a tar, a tar.gz nor a zip archive", weights_bytes()),
    "a pickle": case_of("but a pickle", pickle.dumps({"a": 1})),
    "bzip2": case_of("but a bzip2 file", lambda: bz2.compress(pack(good_members()))),
    "xz": case_of("but an xz file", lambda: lzma.compress(pack(good_members()))),
    "zstandard": case_of("but a Zstandard file", b"\x28\xb5\x2f\xfd" + bytes(100)),
    "7z": case_of("but a 7z archive", b"7z\xbc\xaf\x27\x1c" + bytes(100)),
    "rar": case_of("but a RAR archive", b"Rar!\x1a\x07\x01\x00" + bytes(100)),
}

GZIPPED: dict[str, Case] = {
    "leads out": case_of("leads out of its folder", lambda: gzip.compress(pack([member("../x"), *good_members()]))),
    "a bomb by ratio": case_of("the archive unpacks to more than 100 times its size", lambda: bomb(20 << 20)),
    "a bomb by its member's size": case_of(
        "takes 67108864 bytes; unpacked, 25165824 are allowed", lambda: bomb(64 << 20)
    ),
    "a bomb of headers": case_of(
        "more than 262144 bytes of headers", lambda: gzip.compress(pack(pax({"comment": "x" * (32 << 20)})))
    ),
    "a bomb after the end": case_of(
        "more than 262144 bytes of headers or padding", lambda: gzip.compress(pack(good_members()) + bytes(64 << 20))
    ),
    "a bomb in a bomb": case_of("the tar archive is damaged", lambda: gzip.compress(gzip.compress(bytes(32 << 20)))),
    "cut short": case_of("the gzip data are cut short", lambda: first_bytes(gzip.compress(pack(good_members())), 300)),
    "without its checksum": case_of("the gzip data are cut short", lambda: gzip.compress(pack(good_members()))[:-8]),
    "a wrong checksum": case_of(
        "the gzip data are damaged", lambda: gzip.compress(pack(good_members()))[:-8] + b"\x01\x02\x03\x04" + bytes(4)
    ),
    "bytes after the end": case_of("bytes follow the gzip data", lambda: gzip.compress(pack(good_members())) + b"more"),
    "two gzip members": case_of("bytes follow the gzip data", lambda: gzip.compress(pack(good_members())) * 2),
    "a preset dictionary": case_of("the gzip data are", b"\x1f\x8b\x08\xff" + bytes(100)),
    "no tar within": case_of("the tar archive is damaged", lambda: gzip.compress(b"not a tar archive" * 100)),
    "empty": case_of("the tar archive is damaged", lambda: gzip.compress(b"")),
}

CASES: dict[str, Case] = {
    **{f"tar, {name}": case for name, case in PLAIN.items()},
    **{f"tar.gz, {name}": case for name, case in GZIPPED.items()},
}
