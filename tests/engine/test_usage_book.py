"""Usage stays with the engine until it is acknowledged, within bounds, and all of it is counted."""

from __future__ import annotations

from engine.protocol import Usage, UsageRecord
from engine.usage_book import UsageBook


def record(name: str) -> UsageRecord:
    return UsageRecord(name, 0, "stop", Usage(3, 4, discarded_tokens=2), b"")


def keep_records(book: UsageBook, *names: str, holder: bytes = b"", now_s: float = 0.0) -> None:
    for name in names:
        book.keep(record(name), "db", holder, now_s)


def names(records: list[UsageRecord]) -> list[str]:
    return [each.request_id for each in records]


def test_the_book_is_bounded_by_count_and_age_and_counts_what_it_dropped() -> None:
    book = UsageBook(max_records=3, max_age_s=10)
    for number in range(5):
        keep_records(book, f"r{number}", now_s=number)
    assert (len(book), book.num_dropped) == (3, 2)
    keep_records(book, "late", now_s=14.5)
    assert names(book.adopt("db", b"g")) == ["late"]
    assert book.num_dropped == 5
    assert book.adopt("db", b"g") == []
    book.expire(now_s=30)
    assert (len(book), book.num_dropped) == (0, 6)


def test_a_gateway_takes_over_what_nobody_holds_and_only_of_its_own_database() -> None:
    book = UsageBook()
    keep_records(book, "held", holder=b"first")
    keep_records(book, "free")
    book.keep(record("foreign"), "another", b"", 0.0)
    assert names(book.adopt("db", b"second")) == ["free"]
    book.orphan(b"first")
    assert names(book.adopt("db", b"second", limit=5)) == ["held"]
    assert names(book.adopt("another", b"third")) == ["foreign"]


def test_what_is_acknowledged_is_handed_to_nobody() -> None:
    book = UsageBook()
    keep_records(book, "a", "b", "c")
    book.acknowledge([("a", 0), ("c", 0), ("unknown", 0)], "db")
    book.acknowledge([("b", 0)], "another")
    assert names(book.adopt("db", b"g")) == ["b"]


def test_a_big_handover_comes_in_parts() -> None:
    book = UsageBook()
    keep_records(book, *(f"r{number}" for number in range(5)))
    assert names(book.adopt("db", b"g", limit=3) + book.adopt("db", b"g", limit=3)) == [f"r{n}" for n in range(5)]


def test_all_that_was_ever_kept_is_counted_whatever_became_of_it() -> None:
    book = UsageBook(max_records=2)
    keep_records(book, "a", "b", "c")
    book.acknowledge([("b", 0)], "db")
    assert (book.num_prompt_tokens, book.num_completion_tokens) == (9, 18)
