"""Takes personal data and secrets out of a text, before it is kept.

One table of rules, each of which finds its kind by form and, where there is one, by checksum. Pure, and linear in the
text's length whatever it says. Data without a form of its own, such as a name, an address or a password, is not found.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Sequence

import msgspec

Span = tuple[int, int]


class Rule(msgspec.Struct, frozen=True):
    """A rule for one kind of data. A match shows as `[name]`."""

    name: str
    spans: Callable[[str], Iterable[Span]]
    """A function that returns the (start, end) of each match in a text, ordered by start; they may overlap."""


def redacted(text: str, rules: Sequence[Rule] | None = None) -> str:
    """Return a text in which each match of the rules is replaced by `[name]`. rules: None: all of `RULES`."""
    for rule in RULES if rules is None else rules:
        text = _replace_spans(text, rule)
    return text


def _replace_spans(text: str, rule: Rule) -> str:
    parts, done = [], 0
    for start, end in rule.spans(text):
        if end <= done:
            continue
        if start >= done:
            parts += [text[done:start], f"[{rule.name}]"]
        done = end  # overlapping places become one
    return "".join([*parts, text[done:]]) if parts else text


def _finder_of(*patterns: str) -> Callable[[str], Iterable[Span]]:
    """Return a function that finds the spans of the patterns in a text.

    Quantifiers without a bound have to be possessive, so that no text makes the search go back and forth.
    """
    compiled = re.compile("|".join(patterns))
    return lambda text: (match.span() for match in compiled.finditer(text))


# Up to the five dashes of its end, which may be cut off; those that are encrypted have headers, with fewer of them.
_PRIVATE_KEY = r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----(?:[^-]|-(?!----))*+(?:-----END [A-Z ]{0,40}PRIVATE KEY-----)?"

_JWT = r"eyJ[\w-]{16,}+(?:\.[\w=-]++){0,4}"  # RFC 7519; all JSON begins so in base64

_KEYS = (
    r"sk-(?=[a-z_-]{0,40}[0-9A-Z])[\w-]{16,}+",  # of many services, ours among them; words have no capitals or digits
    r"(?:AKIA|ASIA)[0-9A-Z]{16}",
    r"gh[opsur]_[0-9A-Za-z]{16,}+",
    r"github_pat_\w{20,}+",
    r"glpat-[\w-]{16,}+",
    r"xox[a-z]-[\w-]{10,}+",
    r"AIza[\w-]{30,}+",
    r"[prs]k_(?:live|test)_[0-9A-Za-z]{10,}+",
    r"whsec_[\w+/=-]{16,}+",
    r"hf_[0-9A-Za-z]{20,}+",
    r"npm_[0-9A-Za-z]{30,}+",
    r"pypi-[\w-]{16,}+",
    r"SG\.[\w-]{16,64}\.[\w-]{16,}+",
)

_EMAIL = r"(?<![\w.%+-])[\w.%+-]++@[\w-]++(?:\.[\w-]++)++"

_OCTET = r"(?:25[0-5]|2[0-4][0-9]|[01]?[0-9]?[0-9])"
_IPV4 = rf"(?<![0-9])(?<![0-9]\.){_OCTET}(?:\.{_OCTET}){{3}}(?![0-9])(?!\.[0-9])"

_GAP = r"[ ()./\u00a0\u2010-\u2015\u202f-]"
_DATE = r"[0-9]{1,2}[./-][0-9]{1,2}[./-](?:19|20)[0-9]{2}(?![0-9])"
_PHONES = (
    rf"(?:\+|(?<![0-9])00)[1-9](?:{_GAP}{{0,3}}[0-9]){{6,14}}(?![0-9])",  # E.164: 15 digits at most
    r"(?<![0-9])(?:1[ .-])?(?:\([2-9][0-9]{2}\) ?|[2-9][0-9]{2}[ .-])[2-9][0-9]{2}[ .-][0-9]{4}(?![0-9])",
    rf"(?<![0-9])(?<![0-9][.,])(?!{_DATE})\(?0[1-9](?:{_GAP}{{0,3}}[0-9]){{7,10}}(?![0-9])",
)

_SEPARATORS = " -\u00a0\u2010\u2011\u2012\u2013\u202f"

# The lengths by country, as SWIFT's registry of IBAN formats has them.
_IBAN_LENGTHS = {
    code: length
    for length, codes in {
        15: "NO",
        16: "BE",
        18: "DK FI FK FO GL NL SD",
        19: "MK SI",
        20: "AT BA EE KZ LT LU MN XK",
        21: "CH HR LI LV",
        22: "BG BH CR DE GB GE IE ME RS VA",
        23: "AE GI IL IQ OM SO TL",
        24: "AD CZ DZ ES MD PK RO SA SE SK TN VG",
        25: "LY PT ST",
        26: "IS TR",
        27: "BI DJ FR GR IT MC MR SM",
        28: "AL AZ BY CY DO GT HU LB NI PL SV",
        29: "BR EG PS QA UA",
        30: "JO KW MU YE",
        31: "MT SC",
        32: "LC",
        33: "RU",
    }.items()
    for code in codes.split()
}
_IBAN_START = re.compile(r"(?=[A-Za-z]{2}[0-9]{2})")


def _ibans(text: str) -> Iterable[Span]:
    """Yield the spans of IBANs (ISO 13616), alone or in groups, by the country's length and the two check digits."""
    for match in _IBAN_START.finditer(text):
        start = match.start()
        length = _IBAN_LENGTHS.get(text[start : start + 2].upper(), 0)
        if not length:
            continue
        characters, end = "", start
        while len(characters) < length and end < len(text):
            character = text[end]
            if character.isascii() and character.isalnum():
                characters += character
            elif character not in _SEPARATORS or text[end - 1] in _SEPARATORS:
                break
            end += 1
        moved = characters[4:] + characters[:4]
        if len(characters) == length and int("".join(str(int(each, 36)) for each in moved)) % 97 == 1:
            yield start, end


_DIGIT_RUN = re.compile(rf"[0-9]++(?:[{_SEPARATORS}][0-9]++)*+")
_DIGIT_GROUP = re.compile(r"[0-9]++")
MIN_CARD_DIGITS, MAX_CARD_DIGITS = 13, 19


def _cards(text: str) -> Iterable[Span]:
    """Yield the spans of payment cards (ISO 7812): 13 to 19 digits, alone or in groups, whose Luhn sum is right.

    In a longer row of groups every part that could be a card is taken; groups are not taken apart.
    """
    for run in _DIGIT_RUN.finditer(text):
        if run.end() - run.start() >= MIN_CARD_DIGITS:
            yield from _cards_of([group.span() for group in _DIGIT_GROUP.finditer(text, *run.span())], text)


def _cards_of(groups: list[Span], text: str) -> Iterable[Span]:
    """Yield the spans of payment card numbers. groups: the spans of the groups of digits in one row, in order."""
    ends = list(itertools.accumulate((end - start for start, end in groups), initial=0))
    digits = "".join(text[start:end] for start, end in groups)
    # Sums up to each digit with every other one doubled: those with even indices, and those with odd ones.
    sums = [
        list(itertools.accumulate((_LUHN[doubled == at % 2][int(digit)] for at, digit in enumerate(digits)), initial=0))
        for doubled in (0, 1)
    ]
    for first, (start, _) in enumerate(groups):
        if text[start] in "01":  # of no payment card; times in milliseconds begin so
            continue
        for last in range(first, len(groups)):
            num_digits = ends[last + 1] - ends[first]
            if num_digits > MAX_CARD_DIGITS:
                break
            of_end = sums[ends[last + 1] % 2]  # the last digit is not doubled, the one before it is
            if num_digits >= MIN_CARD_DIGITS and (of_end[ends[last + 1]] - of_end[ends[first]]) % 10 == 0:
                yield start, groups[last][1]


_LUHN = (tuple(range(10)), tuple(2 * digit - 9 * (digit > 4) for digit in range(10)))
"""The numbers that digits add to the Luhn sum: a table for plain digits, and one for doubled ones."""


KEY_RULES = (
    Rule("private key", _finder_of(_PRIVATE_KEY)),
    Rule("token", _finder_of(_JWT)),
    Rule("key", _finder_of(*_KEYS)),
)
"""The rules for secrets, such as API keys."""

RULES = (
    *KEY_RULES,
    Rule("iban", _ibans),
    Rule("email", _finder_of(_EMAIL)),
    Rule("ip", _finder_of(_IPV4)),
    Rule("card", _cards),
    Rule("phone", _finder_of(*_PHONES)),
)
"""All rules in order: a rule does not see the text that an earlier one has replaced."""
