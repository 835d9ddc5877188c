"""The extender's flags: nothing that decides listens beyond loopback without certificates."""

import pytest

from fallow.decide import packing as engine
from fallow.settings import UsageError, packing


def read(**given: object) -> packing.ExtenderSettings:
    return packing.read_extender(given, {})


def test_beyond_loopback_certificates_are_needed() -> None:
    for address in (None, ":9444", "0.0.0.0:9444", "10.0.0.1:9444"):
        with pytest.raises(UsageError, match="--cert-dir is needed"):
            read(**({"addr": address} if address else {}))
    assert read(cert_dir="/etc/x").address == ("0.0.0.0", 9444)
    assert read(addr="127.0.0.1:9444").cert_dir is None


@pytest.mark.parametrize(("given", "said"), [
    ({"addr": "nowhere"}, "is not IP:PORT"), ({"addr": ""}, "say where to listen"),
    ({"addr": "127.0.0.1:1", "policy": "Best"}, "no packing policy is called 'Best'"),
    ({"addr": "127.0.0.1:1", "policy": "Random"}, "no packing policy"), ({"health_addr": "x"}, "--health-addr"),
])
def test_what_is_wrong_is_said_in_a_sentence(given: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        read(**given)


def test_policies_are_read_in_any_case_and_are_the_engines() -> None:
    assert read(addr="127.0.0.1:1", policy="fgd").policy == "FGD"
    assert {*packing.POLICIES, "Random"} == set(engine.POLICIES)
