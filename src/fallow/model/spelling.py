"""Words that are nearly right: what somebody may have meant.

In: a word as it was typed, and the words there are. Out: the end of a sentence, or nothing.
"""

from collections.abc import Mapping

MOST = 3


def suggest(word: str, known: Mapping[str, str]) -> str:
    """`; did you mean A or B?`. `known`: what may be typed, and what to show for it."""
    import difflib  # only who mistypes waits for it

    meant, word = {each.lower(): shown for each, shown in known.items()}, word.lower()
    likely = [word] if word in meant else difflib.get_close_matches(word, meant, 2 * MOST)
    close = dict.fromkeys(meant[each] for each in likely)
    return f"; did you mean {' or '.join(list(close)[:MOST])}?" if close else ""
