"""Known, absent, unseen: none of them is true or false."""

from typing import Any

import pytest

from fallow.model import seen
from fallow.model.seen import ABSENT, Known, Register, Unseen


@pytest.mark.parametrize("found", [Known(()), Known((1,)), ABSENT, Unseen("403")], ids=repr)
def test_no_if_can_read_an_unseen_one_as_empty(found: Any) -> None:
    with pytest.raises(TypeError, match="neither true nor false"):
        bool(found)
    with pytest.raises(TypeError, match="neither true nor false"):
        assert found or ()


def test_what_is_not_known_in_a_register_is_all_alike() -> None:
    assert Register({"a": 1}).find("a") == Known(1)
    assert Register({"a": 1}).find("b") is ABSENT
    rest = Unseen("403")
    assert Register({"a": 1}, rest).find("b") is rest


def test_an_empty_answer_is_absent() -> None:
    assert seen.several(()) is ABSENT
    assert seen.several((1, 2)) == Known((1, 2))
    assert [seen.sure(found) for found in (seen.several((1,)), ABSENT, Unseen("403"))] == [(1,), (), ()]
