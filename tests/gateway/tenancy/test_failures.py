"""Guesses of one address are capped, in bounded memory, and other addresses do not notice."""

from __future__ import annotations

from gateway.tenancy.failures import WINDOW_S, FailureCap
from gateway.tenancy.throttle import FREE_FAILURES, MAX_DELAY_S, lockout_s


def test_an_address_is_blocked_until_its_window_ends() -> None:
    cap = FailureCap(3)
    for now_s in (100.0, 101.0, 102.0):
        assert cap.blocked_for_s("192.0.2.1", now_s) == 0
        cap.count("192.0.2.1", now_s)
    assert cap.blocked_for_s("192.0.2.1", 102.0) == WINDOW_S - 2
    assert cap.blocked_for_s("192.0.2.2", 102.0) == 0
    assert cap.blocked_for_s("192.0.2.1", 100.0 + WINDOW_S) == 0
    cap.count("192.0.2.1", 100.0 + WINDOW_S)
    assert cap.blocked_for_s("192.0.2.1", 100.0 + WINDOW_S) == 0, "a new window has begun"


def test_an_address_cannot_escape_into_its_own_ipv6_network() -> None:
    cap = FailureCap(3)
    for host in range(3):
        cap.count(f"2001:db8::{host}", 0.0)
    assert cap.blocked_for_s("2001:db8::ffff", 0.0) > 0


def test_memory_is_bounded_and_the_quiet_are_forgotten_first() -> None:
    cap = FailureCap(1, max_clients=100)
    for number in range(1000):
        cap.count("198.51.100.7", 0.0)
        cap.count(f"10.0.{number // 256}.{number % 256}", 0.0)
    assert len(cap) == 100
    assert cap.blocked_for_s("198.51.100.7", 0.0) > 0
    assert cap.blocked_for_s("10.0.0.0", 0.0) == 0


def test_without_a_cap_nothing_is_kept() -> None:
    cap = FailureCap(0)
    cap.count("192.0.2.1", 0.0)
    assert (len(cap), cap.blocked_for_s("192.0.2.1", 0.0)) == (0, 0)


def test_a_lockout_grows_from_nothing_to_a_quarter_of_an_hour() -> None:
    delays = [lockout_s(failures) for failures in range(1, 40)]
    assert delays[:FREE_FAILURES] == [0] * FREE_FAILURES
    assert delays[FREE_FAILURES : FREE_FAILURES + 4] == [1, 2, 4, 8]
    assert delays == sorted(delays)
    assert delays[-1] == MAX_DELAY_S == lockout_s(10**9)
