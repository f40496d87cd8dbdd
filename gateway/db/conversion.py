"""Converts databases that were built by the numbered migrations from before the first release.

The last of their schemas is taken over in place, by `conversion.sql`; earlier ones are refused.

Knows the migrations only by their names and digests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from gateway.db.schema_files import MigrationRefused, read_conversion

if TYPE_CHECKING:
    from gateway.db.pool import Connection

CONVERTED: dict[str, str] = {
    "0001_foundation": "e05f373f843b48a5c69eeb1b917fbc5299ff1528acdb68c24ee470875c5ffe0f",
    "0002_tenancy": "68ca2071d89af5149d92ad2e0484042976fe5875f90abe73ba1161a4e3a342f3",
    "0003_limits": "0de0b9a0536ffd197c577b359d5c1c1bc4d50b0ff45cfb9e7a9e8a65423033af",
    "0004_webhook_health": "74eead670916165b4132e6fab9d0049972854cd35736b7880dcefaa995b06c2d",
    "0005_billing": "e1720c6ef2f6580447e7b612c8f1af02b521a885225cf780240cbdbac759c89d",
    "0006_exports": "d1bdcae6bf3fefbf8c420cae3d8b8388a23c7fa8781895cf3209a3ad2528e605",
    "0007_journals": "7c12ec03863fee6e0a90c4b9f11f8b69880789f3b06d5a9162f241e6eb06378c",
    "0008_wide_sums": "c40661603ecb1010da319a741553b5f68c419d50aa43e6fbcb5bee63d84960cd",
    "0009_late_and_closed": "ac2b7945cd74658afc9bf835a7903551c724695c051a3b5f809a71799eb9e893",
    "0010_adapter_lifecycle": "51ccc9e1f3cfad91c5d095496597ad7f65fd6ce61d88d1f32ff8fac5ca1818a7",
    "0011_watched_folder": "d46e5d8ab09984af8a7e9f0350aad059f570d4c7ed4f0d26d336f61aad1a61c0",
    "0012_prices_withdrawn": "38cd8cf7b491fbd9369fe0a784d37af1148ea371a8afeb97c281b939b53146e1",
    "0013_kept_content": "654e50256552e8c5526931511fd05eed2714d92302d34de2110f860bc099930c",
    "0014_gateways": "f91117d7b70d4670419b57fb9426297e0ea36c6dfceb7d4e459fc0c9e3ab4a0b",
    "0015_refusals": "d79a67e5bd8ecd52a965fbb58a77e3421d1e35d8f8f37627c6aacf4d80e84f5f",
    "0016_traffic": "0c7a882a43ab9fcdc63590302cf571397ba7c9b4a47daa8a1880a9096a943005",
    "0018_refused_adapters": "770796d5809c4e0f894a6fea40f4fc79766998806ab03a5527e890c284c80d4a",
    "0019_request_contents": "2cefa466894e24cd9d4b8eb9876d0acb2216439251e0d11a15a1e1f1ae204d1c",
    "0020_refusal_ids": "a830a146bf0b5ccc9423a0c38b4ada64d74ab22f0cdac44726a3900de1db569e",
    "0021_thin_traffic": "00c902b466aa193953d88e8c1579103a0216fdeba34d618ef21126559d782902",
}
"""The migrations of the schema that is converted, each with the SHA-256 of its file."""

LAST = max(CONVERTED)

_FORGET = "DELETE FROM schema_migrations"


def is_convertible(names: Sequence[str]) -> bool:
    """Tell whether these are the names of all migrations that a convertible database has."""
    return tuple(names) == tuple(CONVERTED)


def is_too_old(names: Sequence[str]) -> bool:
    """Tell whether the names are those of the first migrations alone: such an old schema is not converted."""
    return 0 < len(names) < len(CONVERTED) and tuple(names) == tuple(CONVERTED)[: len(names)]


async def convert(conn: Connection, applied: Mapping[str, str]) -> None:
    """Convert a database in the caller's transaction. applied: the migrations that it remembers, name to SHA-256.

    Raises MigrationRefused: when they are not exactly those of the schema that can be converted.
    """
    for name, sha256 in applied.items():
        if name not in CONVERTED:
            raise MigrationRefused(f"the database has migration {name}, which this version of Lorikeet does not know")
        if sha256 != CONVERTED[name]:
            raise MigrationRefused(f"migration {name} was edited after it was applied to this database")
    if not is_convertible(sorted(applied)):
        raise MigrationRefused(
            f"the database is at migration {max(applied)}: run `lorikeet migrate` of the version that ends with {LAST} "
            "first, then that of this version"
        )
    conversion = read_conversion()
    await conn.execute(conversion.sql)
    await conn.execute(_FORGET)
