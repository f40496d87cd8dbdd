"""Passwords that guessers try first, though they are long enough: common words, runs of keys, well-known facts.

Some of a password must be left without common words, runs, and words about its user and this server, with the usual
digits read as letters. A few digits, such as those of a year, and signs count for nothing.
"""

from __future__ import annotations

import re
import unicodedata

MIN_DISTINCT = 5
"""The least number of different characters in a password."""

MIN_REST = 4
"""The least number of characters that must be left once common words are removed from a password."""

FREE_DIGITS = 8
"""The number of digits that `MIN_REST` does not count: a date has as many."""

MIN_OWN = 3
"""The least length of a part of the user's address or name that is removed like a common word."""

LEET = str.maketrans("013457@$!|", "oieastasil")

ROWS = ("abcdefghijklmnopqrstuvwxyz", "01234567890", "qwertyuiop", "asdfghjkl", "zxcvbnm", "qwertzuiop", "azertyuiop")
MIN_RUN = 4
"""The least number of neighbors in an alphabet or on a keyboard that count as a run."""

WORDS = frozenset(
    """
    abc access account adidas admin administrator alexander amanda america amsterdam andrea andrew angel anthony
    apple apples arsenal asdf ashley august austin autumn babygirl bailey banana barcelona baseball basketball
    batman beach bear berlin blink bond boston brandon buster butterfly caroline changeit changeme charlie cheese
    chelsea chicken chocolate chris christmas class computer cookie correct corvette cowboy dallas daniel dashboard
    david december default demo diamond dolphin dragon eagles easy edc elephant england enter everton family
    february flower football forever france freedom friday friends garfield gateway george germany ginger google
    guest guitar hallo hannah happy harley heaven hello hockey holiday horse hunter iloveyou internet iphone jackson
    jasmine jennifer jessica jesus jordan joshua justin killer king kitten knight letmein liverpool login london
    loser love lovely loveme lover lucky maggie manager manchester march marina marlboro martin master matrix
    matthew mercedes merlin michael michelle mickey microsoft monday money monkey monster morgan mother mustang
    myspace naruto nicole ninja nothing november october office oliver online orange paris pass passphrase passwd
    password passwort peanut pepper phoenix please pokemon poohbear porsche princess private purple qaz qwerty
    raiders rainbow ranger robert root samantha samsung saturday scooter secret secure security september server
    service shadow silver snoopy soccer spider spring staple start starwars strong success summer sunday sunflower
    sunshine superman superuser sweet system tennis test testing thomas thunder tigger trustme trustno trustnoone
    tuesday turtle user username vanessa victoria viking wednesday welcome whatever white william windows winter
    wizard work world wsx yankees yellow you zaq zxcvbn
    """.split()  # noqa: SIM905 - a list of them would be a page long
)


def is_common(password: str, *about: str) -> bool:
    """Tell whether a password is one that guessers try early.

    about: facts about its user, such as the e-mail address and the name.
    """
    plain = unicodedata.normalize("NFKC", password).casefold()
    if len(set(plain)) < MIN_DISTINCT or _is_repeated(plain):
        return True
    own = {part for text in about for part in re.split(r"[^a-z0-9]+", text.casefold()) if len(part) >= MIN_OWN}
    words = sorted(WORDS | own | {"lorikeet"}, key=len, reverse=True)
    core = re.sub(r"^[\W\d_]+|[\W\d_]+$", "", plain)  # a year or a sign at an end stands for no letter
    return any(_num_counted_characters(form, words) < MIN_REST for form in (plain, core.translate(LEET)))


def _is_repeated(text: str) -> bool:
    """Tell whether a text is a shorter one, written over and over."""
    return text in (text + text)[1:-1]


def _num_counted_characters(text: str, words: list[str]) -> int:
    """Return the number of a text's characters that count: those outside of words, runs, signs and a few digits."""
    for word in words:
        text = text.replace(word, " ")
    left = [character for character in _without_runs(text) if character.isalnum()]
    num_digits = sum(character.isdigit() for character in left)
    return len(left) - num_digits + max(0, num_digits - FREE_DIGITS)


def _without_runs(text: str) -> str:
    """Return a text without the runs of at least MIN_RUN neighbors in it, in either direction."""
    for row in (*ROWS, *(row[::-1] for row in ROWS)):
        for length in range(len(row), MIN_RUN - 1, -1):
            for first in range(len(row) - length + 1):
                text = text.replace(row[first : first + length], " ")
    return text
