"""All secrets that the rules know are removed, whatever is around them; the rest stays; and no text takes long."""

from __future__ import annotations

import base64
import string
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.text.redact import RULES, redacted

LETTERS_AND_DIGITS = string.ascii_letters + string.digits
CASES = [
    ("mail bob.x+1@ex-ample.co.uk. Bye", "mail [email]. Bye"),
    ("müller@bücher.example, root@localhost", "[email], root@localhost"),
    ("<a@b.com>;mailto:c@d.org", "<[email]>;mailto:[email]"),
    ("4111 1111 1111 1111 12/27 123", "[card] 12/27 123"),
    ("card:4111-1111-1111-1111x", "card:[card]x"),
    ("378282246310005, 4111111111111112", "[card], 4111111111111112"),
    ("at 1700000000000 ms, no. 12345678", "at 1700000000000 ms, no. 12345678"),
    ("DE89 3704 0044 0532 0130 00 and", "[iban] and"),
    ("gb29nwbk60161331926819", "[iban]"),
    ("DE88370400440532013000", "DE88370400440532013000"),
    ("call +49 (0)30 1234567 or 0171-1234567", "call [phone] or [phone]"),
    ("(555) 234-5678, 1-555-234-5678, 06.12.34.56.78", "[phone], [phone], [phone]"),
    ("on 01.02.2024 12:30, 2024-01-02, pi 3.14159265358979", "on 01.02.2024 12:30, 2024-01-02, pi 3.14159265358979"),
    ("from 192.168.0.1:80, not 1.2.3.4.5 or 256.1.1.1", "from [ip]:80, not 1.2.3.4.5 or 256.1.1.1"),
    ("task-management-and-planning", "task-management-and-planning"),
    ("-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----\nbye", "[private key]\nbye"),
    ("-----BEGIN PRIVATE KEY-----\nMIIE and cut off", "[private key]"),
    (
        "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-256-CBC,0A1B\n\nMIIE\n"
        "-----END RSA PRIVATE KEY-----\nbye -- now",
        "[private key]\nbye -- now",
    ),
    ("-----BEGIN PRIVATE KEY-----\nM\n-----BEGIN PRIVATE KEY-----\nN\n-----END PRIVATE KEY-----", "[private key]" * 2),
    ("", ""),
]


@pytest.mark.parametrize(("text", "expected"), CASES)
def test_known_secrets_are_removed_and_other_text_stays(text: str, expected: str) -> None:
    assert redacted(text) == expected


def luhn_digit(digits: str) -> str:
    """Return the check digit of digits by Luhn's definition: every other digit from the right doubled, its digits
    added.
    """
    total = sum(sum(map(int, str(int(digit) * (2 if at % 2 == 0 else 1)))) for at, digit in enumerate(reversed(digits)))
    return str(-total % 10)


def in_groups(text: str, size: int, separator: str) -> str:
    return separator.join(text[at : at + size] for at in range(0, len(text), size))


SEPARATORS = st.sampled_from(["", " ", "-", "\u00a0"])
NUMBERS = st.text("0123456789", min_size=11, max_size=17)
CARDS = st.builds(
    lambda first, rest, size, separator: in_groups(first + rest + luhn_digit(first + rest), size, separator),
    st.sampled_from("23456789"),
    NUMBERS,
    st.sampled_from([4, 5, 6, 19]),
    SEPARATORS,
)


def iban(country: str, account: str, size: int, separator: str) -> str:
    check = 98 - int("".join(str(int(each, 36)) for each in account + country + "00")) % 97
    return in_groups(f"{country}{check:02}{account}", size, separator)


IBANS = st.one_of(
    st.builds(iban, st.just("DE"), st.text("0123456789", min_size=18, max_size=18), st.just(4), SEPARATORS),
    st.builds(
        iban,
        st.just("MT"),
        st.text(string.ascii_uppercase + "0123456789", min_size=27, max_size=27),
        st.just(4),
        SEPARATORS,
    ),
)
WORDS = st.text(LETTERS_AND_DIGITS + "_-", min_size=1, max_size=20)
EMAILS = st.builds(
    lambda name, host, top: f"{name}@{host}.{top}",
    st.text(LETTERS_AND_DIGITS + "._%+-äß", min_size=1, max_size=80),
    WORDS,
    st.text(string.ascii_letters, min_size=2, max_size=8),
)
BODIES = st.text(LETTERS_AND_DIGITS, min_size=36, max_size=60)
KEYS = st.builds(
    lambda prefix, body: f"{prefix}{body}",
    st.sampled_from(
        ["sk-", "sk-proj-", "sk-lk-", "ghp_", "gho_", "github_pat_", "glpat-", "xoxb-", "AIza", "sk_live_", "hf_"]
    ),
    BODIES,
)
AWS = st.text(string.ascii_uppercase + string.digits, min_size=16, max_size=16).map(lambda body: f"AKIA{body}")
JWTS = st.builds(
    lambda claims, signature: ".".join(
        base64.urlsafe_b64encode(part).decode().rstrip("=")
        for part in (b'{"alg":"HS256"}', b'{"sub":"%d"}' % claims, signature)
    ),
    st.integers(0),
    st.binary(min_size=32, max_size=32),
)
ADDRESSES = st.builds(lambda *parts: ".".join(map(str, parts)), *[st.integers(0, 255)] * 4)
PHONES = st.builds(
    lambda country, rest, size, separator: f"+{country}{separator}{in_groups(rest, size, separator)}",
    st.sampled_from(["1", "49", "44", "352"]),
    st.text("0123456789", min_size=8, max_size=12),
    st.sampled_from([2, 3, 4, 12]),
    st.sampled_from(["", " ", "-", ".", " (0) "[:1]]),
)
SECRETS = st.one_of(CARDS, IBANS, EMAILS, KEYS, AWS, JWTS, ADDRESSES, PHONES)
# Characters that belong to no number and no name.
AROUND = st.text(st.sampled_from(" \n\t,;:()[]{}<>\"'!?=|/"), max_size=8)
PLAIN = st.lists(st.text(string.ascii_lowercase, min_size=1, max_size=9), max_size=6).map(" ".join)


@given(SECRETS, PLAIN, AROUND, AROUND, PLAIN)
def test_no_secret_survives_whatever_is_around_it(secret: str, before: str, left: str, right: str, after: str) -> None:
    text = f"{before}{left}, {secret} ,{right}{after}"
    shown = redacted(text)
    assert secret not in shown
    shown = shown.replace(", +[", ", [")  # digits may be those of a card as well as of a phone
    assert shown.startswith(f"{before}{left}, [") and shown.endswith(f"] ,{right}{after}")


@given(st.one_of(CARDS, IBANS, JWTS), st.text(string.ascii_letters, min_size=1, max_size=9))
def test_letters_that_touch_a_secret_do_not_hide_it(secret: str, letters: str) -> None:
    assert secret not in redacted(f"{letters}{secret}")
    assert secret not in redacted(f"{secret}{letters}")


@given(st.lists(SECRETS, min_size=2, max_size=5), st.sampled_from([" ", "\n", ", ", " and "]))
def test_no_secret_hides_another(secrets: list[str], between: str) -> None:
    shown = redacted(between.join(secrets))
    assert [secret for secret in secrets if secret in shown] == []


@given(st.lists(st.text(string.ascii_letters, min_size=1, max_size=12), max_size=30).map(" ".join))
def test_plain_words_stay(text: str) -> None:
    assert redacted(text) == text


BOMBS = ["a", "1", "0", "1 ", "4111 ", "25 ", "+1 ", "0 1", "07 ", "sk-", "sk-a", "DE8", "DE89 1", "a@", "a.", "@a."]
BOMBS += [
    "a@b-",
    "eyJ",
    "eyJaaaaaaaaaaaaaaaa.",
    "1.",
    "(",
    "ghp_",
    "SG.",
    "SG." + "a" * 20 + ".",
    "-----BEGIN PRIVATE KEY-----",
]


@pytest.mark.parametrize("piece", BOMBS)
def test_time_grows_with_the_length_alone(piece: str) -> None:
    """Eight times the text takes eight times as long, not sixty-four times."""

    def seconds(num_chars: int) -> float:
        text, times = (piece * num_chars)[:num_chars], []
        for _ in range(2):
            started_s = time.thread_time()
            redacted(text)
            times.append(time.thread_time() - started_s)
        return min(times)

    assert seconds(1 << 16) < 25 * max(seconds(1 << 13), 1e-3)


def test_names_of_rules_are_no_secrets_themselves() -> None:
    shown = " ".join(f"[{rule.name}]" for rule in RULES)
    assert redacted(shown) == shown
