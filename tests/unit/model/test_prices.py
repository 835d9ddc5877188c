"""The book of prices: a model has one name, whoever spells it, and what is not in the book has no price."""

from decimal import Decimal

import pytest

from fallow.model import gpus, prices


@pytest.mark.parametrize(
    ("model", "name"),
    [("NVIDIA-A100-SXM4-80GB", "A100-80GB"), ("NVIDIA A100-SXM4-80GB", "A100-80GB"),
     ("NVIDIA-A100-SXM4-80GB-MIG-1g.10gb", "A100-80GB"), ("Tesla-T4-SHARED", "T4"), ("V100M16", "V100-16GB"),
     ("Tesla-V100-DGXS-16GB", "V100-16GB")],
)
def test_models_are_priced_by_what_they_are(model: str, name: str) -> None:
    assert gpus.normalise(model) == name
    assert prices.find(model) == prices.DEFAULT[name]


@pytest.mark.parametrize("model", ["NVIDIA-Foo-9000", "NVIDIA-A100", "A10", ""])
def test_what_is_not_in_the_book_has_no_price(model: str) -> None:
    assert prices.find(model) is None


@pytest.mark.parametrize("name", list(prices.DEFAULT))
def test_the_book_names_models_as_all_of_the_product_does(name: str) -> None:
    assert gpus.normalise(name) == name
    assert gpus.find(name) is not None
    assert prices.find(name, {name: Decimal(1)}) == 1
