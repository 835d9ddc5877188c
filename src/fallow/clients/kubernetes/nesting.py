"""JSON that is nested too deep for a decoder, cut down: so that one object does not hide the others, or end us.

In: bytes of JSON; whoever may write an object whose fields are free can nest them ten thousand deep. Out: the same,
in which a mark stands for whatever is deeper than any object we read; `is_cut` tells what carries the mark.
Invariant: nothing that was cut passes for whole. Who writes the mark himself hides his own object only.
"""

import re

MOST_DEEP = 100  # of a list of objects; what we read is a tenth as deep

_MARK = b'"fallow: cut here, nested too deep"'
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[][{}]', re.DOTALL)


def cut(body: bytes | memoryview) -> bytes:
    pieces: list[bytes | memoryview] = []
    depth, kept = 0, 0
    for token in _TOKEN.finditer(body):
        match body[token.start()]:
            case 0x5B | 0x7B:  # [ {
                depth += 1
                if depth == MOST_DEEP + 1:
                    pieces += body[kept : token.start()], _MARK
            case 0x5D | 0x7D:  # ] }
                depth -= 1
                if depth == MOST_DEEP:
                    kept = token.end()
    return b"".join((*pieces, body[kept:]))


def is_cut(body: bytes | memoryview) -> bool:
    return _MARK in bytes(body)
