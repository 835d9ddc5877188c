"""A Secret shows itself nowhere, also inside of what holds it."""

import msgspec

from fallow.model.secret import Secret


class Holder(msgspec.Struct):
    token: Secret[str]


def test_a_secret_is_shown_nowhere_but_where_it_is_asked_for() -> None:
    held = Holder(Secret("s3cret"))
    assert "s3cret" not in f"{held} {held!r} {held.token} {held.token!r} {[held.token]}"
    assert held.token.reveal() == "s3cret"
