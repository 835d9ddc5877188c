"""What energy costs and emits, beside the price of GPUs.

In: millijoules of the ledger, what the operator says of a kWh. Out: money in nano units, grams of CO2; None where
nobody said what a kWh is worth. Only with `in_cost` is it added to what GPUs cost (`charge`), and then to every sum
alike.
Invariant: an hour without a measured energy has none, here and in every sum: it is not guessed.
"""

from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Final, TypeVar

import msgspec

from fallow.model.cost import UNIT, Amounts, CostSum, KeySum, Nano, SpendState

KWH: Final = 3_600_000_000  # millijoules
S = TypeVar("S", CostSum, KeySum)


class EnergyTerms(msgspec.Struct, frozen=True, kw_only=True):
    """Of a kWh: `price` in the ledger's currency, `grams` of CO2. None: nobody said."""

    price: Decimal | None = None
    grams: Decimal | None = None
    in_cost: bool = False

    def cost_of(self, energy_mj: int) -> Nano | None:
        return None if self.price is None else round(self.price * UNIT * energy_mj / KWH)

    def grams_of(self, energy_mj: int) -> Decimal | None:
        return None if self.grams is None else self.grams * energy_mj / KWH

    def charge(self, sums: Iterable[S]) -> Sequence[S]:
        """With energy in their cost, where that was asked for. What is burned while a share works counts as used."""
        if not self.in_cost or self.price is None:
            return list(sums)
        return [msgspec.structs.replace(one, parts={
            state: self._add(state, amounts) for state, amounts in one.parts.items()
        }) for one in sums]

    def _add(self, state: SpendState, amounts: Amounts) -> Amounts:
        more = self.cost_of(amounts.energy_mj) or 0
        used = more if state is SpendState.used else 0
        return msgspec.structs.replace(amounts, cost=amounts.cost + more, use_cost=amounts.use_cost + used)
