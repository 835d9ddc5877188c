"""What each GPU model is: its memory, how fast it is, and how MIG may cut it.

In: a product name as nodes, exporters, drivers and clouds spell it, and the memory of the GPU where the name does not
tell. Out: the one name of the model in the whole product, and a Model, or None: what is not in the book is not known,
and never taken for a neighbour.
Sources: NVIDIA's MIG user guide (profiles, placements, instances), its data sheets and product briefs (memory, rated
board power, speed); of the A10G, which is sold to one cloud only, the power limit that its driver shows. MIG occupies
memory slices: a start is a memory slice. What the guide does not say (memory or SMs of some profiles) is None. Labels
of a node and its driver know better than this book.
"""

import functools
import re
from typing import Final

import msgspec

from fallow import names


class Profile(msgspec.Struct, frozen=True):
    """A MIG instance: what it takes, where it may begin, how many a GPU has at most."""

    name: str
    compute: int
    memory: int
    starts: tuple[int, ...]
    most: int
    memory_gib: float | None
    sms: int | None

    @property
    def resource(self) -> str:
        return name_resource(self.name)


def name_resource(profile: str) -> str:
    """`1g.5gb+me` is asked for as `nvidia.com/mig-1g.5gb.me`."""
    return names.MIG_PREFIX + spell_plainly(profile)


def spell_plainly(profile: str) -> str:
    """As names of Kubernetes have it, which know no plus sign: `1g.5gb.me`."""
    return profile.replace("+", ".")


def read_plain(spelled: str) -> str:
    """The profile that is so spelled: `1g.5gb+me`."""
    return f"{spelled.removesuffix('.me')}+me" if spelled.endswith(".me") else spelled


class Mig(msgspec.Struct, frozen=True):
    compute: int  # slices
    memory: int
    pci: tuple[str, ...]
    profiles: tuple[Profile, ...]

    def find(self, name: str) -> Profile | None:
        return next((profile for profile in self.profiles if profile.name == name), None)


class Model(msgspec.Struct, frozen=True):
    """`memory_gib`: as sold; drivers keep some of it for themselves. `watts`: rated board power; of several forms (SXM,
    PCIe) and of settings that are far apart the lowest, so that none of them works unnoticed below half of it. `mig`:
    None also where it may be cut and the catalogue does not say how."""

    name: str
    memory_gib: int
    watts: int
    mig: Mig | None = None


# Compute and memory slices, starts, instances at most; the last is the whole GPU. Rows of a model are in this order.
_Kind = tuple[int, int, tuple[int, ...], int]
_IN_SEVEN: Final[tuple[_Kind, ...]] = (
    (1, 1, (0, 1, 2, 3, 4, 5, 6), 7),  # 1g
    (1, 1, (0, 1, 2, 3, 4, 5, 6), 1),  # 1g+me
    (1, 2, (0, 2, 4, 6), 4),  # 1g with the memory of two
    (2, 2, (0, 2, 4), 3),
    (3, 4, (0, 4), 2),
    (4, 4, (0,), 1),
    (7, 8, (0,), 1),
)
_IN_FOUR: Final[tuple[_Kind, ...]] = (
    (1, 1, (0, 1, 2, 3), 4),  # 1g
    (1, 1, (0, 1, 2, 3), 1),  # 1g+me
    (2, 2, (0, 2), 2),  # 2g
    (2, 2, (0, 2), 1),  # 2g+me
    (4, 4, (0,), 1),
)


def _cut(kinds: tuple[_Kind, ...], pci: tuple[str, ...], *rows: tuple[str, float | None, int | None]) -> Mig:
    """Each row: the profile's name, its GiB and SMs."""
    profiles = tuple(Profile(name, *kind, memory, sms) for kind, (name, memory, sms) in zip(kinds, rows, strict=True))
    return Mig(kinds[-1][0], kinds[-1][1], pci, profiles)


MODELS: Final = (
    Model("A100-40GB", 40, 250, mig=_cut(
        _IN_SEVEN, ("0x20B010DE", "0x20F110DE"),
        ("1g.5gb", 4.75, 14), ("1g.5gb+me", 4.75, 14), ("1g.10gb", 9.62, 14), ("2g.10gb", 9.62, 28),
        ("3g.20gb", 19.5, 42), ("4g.20gb", 19.5, 56), ("7g.40gb", 39.25, 98),
    )),
    Model("A100-80GB", 80, 300, mig=_cut(
        _IN_SEVEN, ("0x20B210DE", "0x20B510DE"),
        ("1g.10gb", 9.62, 14), ("1g.10gb+me", 9.62, 14), ("1g.20gb", 19.5, 14), ("2g.20gb", 19.5, 28),
        ("3g.40gb", 39.25, 42), ("4g.40gb", 39.25, 56), ("7g.80gb", 78.5, 98),
    )),
    Model("H100-80GB", 80, 350, mig=_cut(
        _IN_SEVEN, ("0x233010DE", "0x233110DE"),
        ("1g.10gb", None, 16), ("1g.10gb+me", None, 16), ("1g.20gb", None, 26), ("2g.20gb", None, 32),
        ("3g.40gb", None, 60), ("4g.40gb", None, 64), ("7g.80gb", None, 132),
    )),
    Model("H100-94GB", 94, 350, mig=_cut(
        _IN_SEVEN, ("0x232110DE",),
        ("1g.12gb", 10.75, 16), ("1g.12gb+me", 10.75, 16), ("1g.24gb", 21.62, 26), ("2g.24gb", 21.62, 32),
        ("3g.47gb", 46.38, 60), ("4g.47gb", 46.38, 64), ("7g.94gb", 93.12, 132),
    )),
    Model("H100-96GB", 96, 450, mig=_cut(
        _IN_SEVEN, ("0x234210DE", "0x233D10DE"),
        ("1g.12gb", None, 16), ("1g.12gb+me", None, 16), ("1g.24gb", None, 26), ("2g.24gb", None, 32),
        ("3g.48gb", None, 60), ("4g.48gb", None, 64), ("7g.96gb", None, 132),
    )),
    Model("H200-141GB", 141, 600, mig=_cut(
        _IN_SEVEN, ("0x233510DE", "0x233B10DE"),
        ("1g.18gb", 16.0, 16), ("1g.18gb+me", 16.0, 16), ("1g.35gb", 32.25, 26), ("2g.35gb", 32.25, 32),
        ("3g.71gb", 69.5, 60), ("4g.71gb", 69.5, 64), ("7g.141gb", None, 132),
    )),
    Model("B200-180GB", 180, 1000, mig=_cut(
        _IN_SEVEN, ("0x290110DE",),
        ("1g.23gb", 22.0, 18), ("1g.23gb+me", 22.0, 18), ("1g.45gb", 44.25, 30), ("2g.45gb", 44.25, 36),
        ("3g.90gb", None, None), ("4g.90gb", None, None), ("7g.180gb", None, None),
    )),
    Model("GB200-186GB", 186, 1200, mig=_cut(
        _IN_SEVEN, ("0x294110DE",),
        ("1g.23gb", 22.0, 18), ("1g.23gb+me", 22.0, 18), ("1g.47gb", 45.5, 32), ("2g.47gb", 45.5, 38),
        ("3g.93gb", None, None), ("4g.93gb", None, None), ("7g.186gb", None, None),
    )),
    Model("A30", 24, 165, mig=_cut(
        _IN_FOUR, ("0x20B710DE",),
        ("1g.6gb", 5.7, 14), ("1g.6gb+me", 5.7, 14), ("2g.12gb", 11.4, 28), ("2g.12gb+me", 11.4, 28),
        ("4g.24gb", 22.8, 56),
    )),
    Model("H20", 96, 400),
    Model("P4", 8, 75), Model("P40", 24, 250), Model("P100-12GB", 12, 250), Model("P100", 16, 250),
    Model("V100-16GB", 16, 250), Model("V100-32GB", 32, 250), Model("V100S-32GB", 32, 250),
    Model("V100-FHHL-16GB", 16, 150), Model("T4", 16, 70),
    Model("A2", 16, 60), Model("A10", 24, 150), Model("A10G", 24, 300), Model("A40", 48, 300),
    Model("L4", 24, 72), Model("L40", 48, 300), Model("L40S", 48, 350),
    Model("RTX-A6000", 48, 300), Model("RTX-6000-ADA", 48, 300),
    Model("RTX-PRO-6000-BLACKWELL", 96, 600), Model("RTX-PRO-6000-BLACKWELL-MAX-Q", 96, 300),
)

class Speed(msgspec.Struct, frozen=True):
    """Peaks of the data sheets, of the slowest and the fastest form (PCIe, SXM, NVL) that has this name. `tensor`:
    dense TFLOPS in FP16, and in BF16 where there is that; `memory`: GB/s. `formats`: what its tensor cores compute
    beside FP16, of those that models are commonly made for."""

    tensor: tuple[float, float]
    memory: tuple[float, float]
    formats: frozenset[str] = frozenset()


_AMPERE, _LATER = frozenset({"bf16"}), frozenset({"bf16", "fp8"})
# Where a data sheet says only what sparsity gives, half of it. Who is not here has no data sheet with these figures, or
# is several GPUs by one name that differ too much.
SPEEDS: Final = {
    "V100-16GB": Speed((112, 125), (900, 900)), "V100-32GB": Speed((112, 125), (900, 900)),
    "V100S-32GB": Speed((130, 130), (1134, 1134)), "T4": Speed((65, 65), (300, 320)),
    "A100-40GB": Speed((312, 312), (1555, 1555), _AMPERE), "A100-80GB": Speed((312, 312), (1935, 2039), _AMPERE),
    "A30": Speed((165, 165), (933, 933), _AMPERE), "A2": Speed((18, 18), (200, 200), _AMPERE),
    "A10": Speed((125, 125), (600, 600), _AMPERE), "A40": Speed((149.7, 149.7), (696, 696), _AMPERE),
    "L4": Speed((121, 121), (300, 300), _LATER), "L40": Speed((181.05, 181.05), (864, 864), _LATER),
    "L40S": Speed((362.05, 362.05), (864, 864), _LATER), "H100-80GB": Speed((756.5, 989.5), (2000, 3350), _LATER),
    "H200-141GB": Speed((835.5, 989.5), (4800, 4800), _LATER),
}

# A product name made short -> the model, where that is not its own name.
_ALIASES: Final = {
    "A30-24GB": "A30", "H100": "H100-80GB", "H100-MEGA-80GB": "H100-80GB", "H100-NVL": "H100-94GB",
    "H100-NVL-94GB": "H100-94GB", "GH200-480GB": "H100-96GB", "H200": "H200-141GB", "H200-NVL": "H200-141GB",
    "B200": "B200-180GB", "GB200": "GB200-186GB", "P100-16GB": "P100", "T4-16GB": "T4", "L4-24GB": "L4",
    "RTX-6000-ADA-GENERATION": "RTX-6000-ADA",
    "RTX-PRO-6000-BLACKWELL-SERVER-EDITION": "RTX-PRO-6000-BLACKWELL",
    "RTX-PRO-6000-BLACKWELL-WORKSTATION-EDITION": "RTX-PRO-6000-BLACKWELL",
    "RTX-PRO-6000-BLACKWELL-MAX-Q-WORKSTATION-EDITION": "RTX-PRO-6000-BLACKWELL-MAX-Q",
    "V100-DGXS-16GB": "V100-16GB", "V100-DGXS-32GB": "V100-32GB", "V100M16": "V100-16GB", "V100M32": "V100-32GB",
}
# What GKE calls an accelerator whose name tells no size, by its own list of accelerators.
_GKE: Final = {"nvidia-tesla-a100": "A100-40GB", "nvidia-tesla-v100": "V100-16GB", "nvidia-tesla-p100": "P100"}
_SIZES: Final = {"A100": (40, 80), "V100": (16, 32), "P100": (12, 16), "H100": (80, 94, 96)}  # GiB, as sold
_NEAR: Final = 0.1  # drivers keep up to a twentieth for themselves; an instance of MIG has half of it, and less
_MAKER: Final = re.compile(r"^(NVIDIA-|TESLA-|GRACE-HOPPER-)+")
_SHARED: Final = re.compile(r"-(SHARED|MIG-\S+)$")
_FORM: Final = re.compile(r"-(SXM\d?|SMX\d?|PCIE|HBM\dE?)(?=-|$)")
_BY_NAME: Final = {model.name: model for model in MODELS}


@functools.lru_cache(1024)
def normalise(product: str, memory_mib: int | None = None) -> str:
    """The one name of a model: `NVIDIA A100-SXM4-80GB-MIG-1g.10gb` -> `A100-80GB`, `NVIDIA-H100-NVL` -> `H100-94GB`. Of
    what is not in the book: its product name without maker, form and sharing. `memory_mib`: of one whole GPU, as its
    node tells; it is heeded where the name leaves the size open."""
    text = _MAKER.sub("", product.strip().replace(" ", "-").upper())
    while _SHARED.search(text):
        text = _SHARED.sub("", text)
    text = _FORM.sub("", text)
    if memory_mib is not None and text in _SIZES:
        gib = memory_mib / 1024
        near = min(_SIZES[text], key=lambda size: abs(size - gib))
        text = f"{text}-{near}GB" if abs(near - gib) <= near * _NEAR else text
    return _ALIASES.get(text, text)


def normalise_gke(accelerator: str, memory_mib: int | None = None) -> str:
    """Of the label cloud.google.com/gke-accelerator: `nvidia-tesla-t4` -> `T4`, `nvidia-h100-80gb` -> `H100-80GB`."""
    return _GKE.get(accelerator) or normalise(accelerator, memory_mib)


def find(product: str) -> Model | None:
    """`NVIDIA A100-SXM4-80GB`, `NVIDIA-A100-80GB-PCIe-MIG-1g.10gb`, `Tesla-T4-SHARED`: the model that it is."""
    return _BY_NAME.get(normalise(product))


def shorten(product: str) -> str:
    """For people: as it is written, but for a maker that everybody knows."""
    return product.removeprefix("NVIDIA").lstrip(" -")
