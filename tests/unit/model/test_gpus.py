"""The book of GPU models: it is the shipped catalogue, and finds models under the names that nodes and drivers use."""

import json

import pytest
from tests.unit.sim import folder

from fallow.model import gpus


def test_the_book_says_what_the_catalogue_says() -> None:
    shipped = json.loads(folder.find("mig_profiles.json").read_text())
    ours = {
        model.name: {
            "compute": model.mig.compute, "memory": model.mig.memory, "pci": list(model.mig.pci),
            "profiles": [
                {
                    "profile": each.name, "compute_slices": each.compute, "memory_slices": each.memory,
                    "starts": list(each.starts),
                    "max_instances": each.most, "memory_gib": each.memory_gib, "sm": each.sms,
                    "resource": each.resource,
                }
                for each in model.mig.profiles
            ],
        }
        for model in gpus.MODELS if model.mig
    }
    assert ours == {gpus.normalise(name): said for name, said in shipped.items()}


@pytest.mark.parametrize("model", gpus.MODELS, ids=lambda model: model.name)
def test_every_model_makes_sense(model: gpus.Model) -> None:
    assert gpus.find(model.name) is model
    for profile in model.mig.profiles if model.mig else ():
        assert all(0 <= start <= model.mig.memory - profile.memory for start in profile.starts)
        assert profile.compute * profile.most <= model.mig.compute
        assert profile.memory_gib is None or profile.memory_gib <= model.memory_gib * profile.memory / model.mig.memory


@pytest.mark.parametrize("name", gpus.SPEEDS)
def test_every_speed_is_of_a_model_and_from_slow_to_fast(name: str) -> None:
    speed = gpus.SPEEDS[name]
    assert name in {model.name for model in gpus.MODELS}
    assert 0 < speed.tensor[0] <= speed.tensor[1] < 1100
    assert 100 < speed.memory[0] <= speed.memory[1] < 5000
    assert ("fp8" in speed.formats) <= ("bf16" in speed.formats)


@pytest.mark.parametrize(
    ("product", "model"),
    [
        ("NVIDIA-A100-SXM4-80GB", "A100-80GB"), ("NVIDIA A100-SXM4-40GB", "A100-40GB"),
        ("NVIDIA-A100-80GB-PCIe", "A100-80GB"),
        ("NVIDIA-A100-PCIE-40GB", "A100-40GB"), ("A100-SXM4-40GB", "A100-40GB"), ("NVIDIA-H100-80GB-HBM3", "H100-80GB"),
        ("NVIDIA H100 PCIe", "H100-80GB"), ("NVIDIA-H100-NVL", "H100-94GB"), ("NVIDIA-GH200-480GB", "H100-96GB"),
        ("NVIDIA-H200", "H200-141GB"), ("NVIDIA-H200-NVL", "H200-141GB"), ("NVIDIA-B200", "B200-180GB"),
        ("NVIDIA-GB200", "GB200-186GB"),
        ("NVIDIA-A30", "A30"), ("A30-24GB", "A30"),
        ("Tesla-T4", "T4"), ("Tesla T4", "T4"), ("NVIDIA-Tesla-T4-SHARED", "T4"),
        ("Tesla-V100-SXM2-16GB", "V100-16GB"), ("Tesla-V100-SXM2-32GB", "V100-32GB"), ("V100M32", "V100-32GB"),
        ("Tesla-P100-PCIE-16GB", "P100"), ("P100", "P100"), ("NVIDIA-A10G", "A10G"), ("NVIDIA-L40S", "L40S"),
        ("NVIDIA-A100-SXM4-40GB-MIG-1g.5gb", "A100-40GB"), ("NVIDIA-A100-SXM4-80GB-MIG-1g.10gb-SHARED", "A100-80GB"),
        ("  nvidia-l4 ", "L4"), ("NVIDIA H20", "H20"), ("NVIDIA A2", "A2"), ("Tesla V100S-PCIE-32GB", "V100S-32GB"),
        ("Tesla V100-FHHL-16GB", "V100-FHHL-16GB"), ("Tesla P100-PCIE-12GB", "P100-12GB"), ("Tesla P4", "P4"),
        ("NVIDIA RTX A6000", "RTX-A6000"), ("NVIDIA RTX 6000 Ada Generation", "RTX-6000-ADA"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX-PRO-6000-BLACKWELL"),
        ("NVIDIA-RTX-PRO-6000-Blackwell-Workstation-Edition", "RTX-PRO-6000-BLACKWELL"),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "RTX-PRO-6000-BLACKWELL-MAX-Q"),
    ],
)
def test_a_product_name_leads_to_its_model(product: str, model: str) -> None:
    found = gpus.find(product)
    assert found is not None
    assert found.name == model


@pytest.mark.parametrize(
    "product", [
        "", "NVIDIA", "NVIDIA-A100", "NVIDIA-V100", "G2", "NVIDIA-H21", "NVIDIA-H20-3e", "Quadro RTX 6000",
        "A100-80GB-2", "gfx942",
    ]
)
def test_what_is_not_in_the_book_is_not_known_and_never_a_neighbour(product: str) -> None:
    assert gpus.find(product) is None


NAMES = [
    "T4", "L4", "L40S", "A10", "A10G", "A30", "A40", "V100-16GB", "V100-32GB", "P100", "A100-40GB", "A100-80GB",
    "H100-80GB", "H100-94GB", "H100-96GB", "H200-141GB", "B200-180GB", "GB200-186GB",
]


@pytest.mark.accepts("cost", 7)
@pytest.mark.parametrize("name", NAMES)
def test_every_name_of_the_list_is_a_model_and_its_own_name(name: str) -> None:
    assert gpus.normalise(name) == name
    assert gpus.find(name) is not None


@pytest.mark.accepts("cost", 7)
@pytest.mark.parametrize("form", ["", "-SHARED", "-MIG-1g.10gb", "-MIG-1g.10gb-SHARED"])
def test_however_it_is_shared_or_cut_it_is_one_model(form: str) -> None:
    assert gpus.normalise(f"NVIDIA-A100-SXM4-80GB{form}") == "A100-80GB"


@pytest.mark.accepts("cost", 7)
def test_a_model_that_nobody_knows_keeps_its_cleaned_name_and_is_not_in_the_book() -> None:
    assert gpus.normalise("NVIDIA-Foo-9000") == "FOO-9000"
    assert gpus.find("NVIDIA-Foo-9000") is None


@pytest.mark.parametrize(("product", "mib", "model"), [
    ("NVIDIA-A100", 40536, "A100-40GB"), ("NVIDIA-A100-SXM4", 81920, "A100-80GB"), ("Tesla-V100", 16160, "V100-16GB"),
    ("Tesla-V100-SXM2", 32510, "V100-32GB"), ("NVIDIA-H100", 81559, "H100-80GB"), ("NVIDIA-H100", 95830, "H100-94GB"),
    ("NVIDIA-H100", 97871, "H100-96GB"), ("Tesla-P100", 12198, "P100-12GB"), ("Tesla-P100-PCIE", 16280, "P100"),
    ("NVIDIA-A100-MIG-1g.10gb", 9728, "A100"),  # that is the instance's memory
    ("NVIDIA-A100", 60000, "A100"), ("NVIDIA-A100", None, "A100"), ("NVIDIA-A100-SXM4-80GB", 40536, "A100-80GB"),
    ("NVIDIA-L4", 23034, "L4"), ("NVIDIA-Foo-9000", 81920, "FOO-9000"),
], ids=lambda value: str(value))
def test_memory_tells_the_size_that_a_name_leaves_open(product: str, mib: int | None, model: str) -> None:
    assert gpus.normalise(product, mib) == model


@pytest.mark.parametrize(("label", "model"), [
    ("nvidia-tesla-t4", "T4"), ("nvidia-l4", "L4"), ("nvidia-h100-80gb", "H100-80GB"),
    ("nvidia-tesla-a100", "A100-40GB"),
    ("nvidia-a100-80gb", "A100-80GB"), ("nvidia-tesla-v100", "V100-16GB"), ("nvidia-tesla-p100", "P100"),
    ("nvidia-tesla-p4", "P4"), ("nvidia-h100-mega-80gb", "H100-80GB"), ("nvidia-h200-141gb", "H200-141GB"),
    ("nvidia-b200", "B200-180GB"), ("nvidia-gb200", "GB200-186GB"), ("tpu-v5", "TPU-V5"),
])
def test_gke_calls_its_accelerators_in_its_own_way(label: str, model: str) -> None:
    assert gpus.normalise_gke(label) == model
