"""A value that is not shown: it prints as `***` wherever it is printed, and only `reveal()` gives it away.

One type for settings and for all clients, so that no repr, log or error of a tree that holds one can show it.
"""

from typing import Generic, TypeVar

T = TypeVar("T")


class Secret(Generic[T]):
    __slots__ = ("_value",)

    def __init__(self, value: T) -> None:
        self._value = value

    def reveal(self) -> T:
        return self._value

    def __repr__(self) -> str:
        return "***"
