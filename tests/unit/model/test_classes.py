"""The class of a workload: the first source that answers, and what is said about words that nobody understands."""

from __future__ import annotations

import hypothesis
import pytest
from hypothesis import strategies as st

from fallow import names
from fallow.model import classes, kinds
from fallow.model.classes import Behaviour, ContainerText, WorkClass, WorkFacts
from fallow.model.seen import ABSENT, Input, Known, Unseen
from fallow.model.units import DAY

PATTERNS = classes.Patterns()
NOTEBOOK = ContainerText("docker.io/jupyter:2")
OURS, THEIRS = names.WORKLOAD_TYPE, names.WORKLOAD_TYPE_ALIAS


def found(known: classes.Patterns = PATTERNS, **facts: object) -> tuple[str, str]:
    made = classes.classify(WorkFacts(**facts), known)  # type: ignore[arg-type]
    return str(made.work), str(made.source)


@pytest.mark.accepts("packing", 1)
@pytest.mark.parametrize("place", ["gitlab.example.com/team", "jupyter.example.com/a", "example.com/vllm", "my.lab/x"])
def test_the_host_and_the_folders_of_an_image_tell_nothing(place: str) -> None:
    assert found(containers=(ContainerText(f"{place}/app:1"),), gpus=1) == ("batch", "default")


@pytest.mark.accepts("packing", 2)
def test_a_second_container_may_tell_it_and_a_label_wins() -> None:
    both = (ContainerText("registry/app:1"), NOTEBOOK)
    assert found(containers=both) == ("notebook", "pattern")
    assert found(containers=both, said=({OURS: "serving"},)) == ("inference", "label")


@pytest.mark.parametrize(("container", "expected"), [
    (ContainerText("pytorch", ("python",), ("TRAIN.py",)), "training"),
    (ContainerText("nvcr.io/nvidia/tritonserver:24"), "inference"),
    (ContainerText("vllm/vllm-openai"), "inference"),
    (ContainerText("app", ("start-lab",)), "notebook"),
    (ContainerText("collaboration"), "batch"),
    (ContainerText("app", ("torchrun", "x.py"), ("--serving",)), "training"),
    (ContainerText("app", ("sh", "-c"), ("x" * 20_000 + "jupyter",)), "batch"),
    (ContainerText(""), "batch"),
], ids=["any-case", "triton", "vllm", "lab", "no-lab", "training-first", "far-behind", "nothing"])
def test_what_a_container_runs_tells_its_class(container: ContainerText, expected: str) -> None:
    assert found(containers=(container,))[0] == expected


def test_the_first_container_that_fits_decides_and_peoples_patterns_go_first() -> None:
    two = (NOTEBOOK, ContainerText("torchrun"))
    assert found(containers=two)[0] == "notebook"
    own = classes.Patterns({WorkClass.batch: ("jup",), WorkClass.inference: ("torch",)})
    assert found(own, containers=two) == ("batch", "pattern")
    assert found(own, containers=two[1:]) == ("inference", "pattern")


def test_a_bad_pattern_is_named() -> None:
    with pytest.raises(ValueError, match=r"^'\(x' is not a valid RE2 expression: "):
        classes.Patterns({WorkClass.training: ("fine", "(x")})


@pytest.mark.parametrize("trick", ["a)|(b", "(?P<x>a", "a|", "[", "*"])
def test_no_pattern_reaches_beyond_itself(trick: str) -> None:
    """Each must be one by itself: joined, `a)|(b` would be."""
    if trick == "a|":
        assert classes.Patterns({WorkClass.batch: (trick,)})
        return
    with pytest.raises(ValueError):
        classes.Patterns({WorkClass.batch: (trick, "z")})


@pytest.mark.parametrize(("key", "expected"), [
    (("kubeflow.org", "Notebook"), "notebook"), (("kubeflow.org", "Workspace"), "notebook"),
    (("serving.kserve.io", "InferenceService"), "inference"),
    (("serving.kserve.io", "LLMInferenceService"), "inference"),
    (("apps.nvidia.com", "NIMService"), "inference"), (("serving.knative.dev", "Service"), "inference"),
    (("ray.io", "RayService"), "inference"), (("ray.io", "RayJob"), "batch"),
    *(((group, kind), "training") for group, kind in [
        ("kubeflow.org", "PyTorchJob"), ("kubeflow.org", "TFJob"), ("kubeflow.org", "MPIJob"),
        ("kubeflow.org", "XGBoostJob"), ("kubeflow.org", "JAXJob"), ("trainer.kubeflow.org", "TrainJob"),
        ("jobset.x-k8s.io", "JobSet"),
    ]),
])
def test_the_kind_of_an_owner_tells_it(key: tuple[str, str], expected: str) -> None:
    assert found(owned=kinds.find_class(*key), containers=(NOTEBOOK,)) == (expected, "owner")


def seen(**changed: float) -> Known[Behaviour]:
    usual = {"seconds": DAY, "coverage": 0.8, "mean": 0.2, "deviation": 0.05, "idle": 0.0}
    return Known(Behaviour(**{**usual, **changed}))


@pytest.mark.parametrize(("behaviour", "expected"), [
    (seen(mean=0.6), ("training", "observed")), (seen(mean=0.59), ("batch", "default")),
    (seen(), ("inference", "observed")), (seen(deviation=0.1), ("batch", "default")),
    (seen(mean=0.31), ("batch", "default")),
    (seen(mean=0.14, deviation=0.2, idle=0.5), ("notebook", "observed")),
    (seen(mean=0.14, deviation=0.2, idle=0.49), ("batch", "default")),
    (seen(mean=0.9, coverage=0.79), ("batch", "default")), (seen(mean=0.9, seconds=DAY - 1), ("batch", "default")),
    (Unseen("no metrics"), ("batch", "default")), (ABSENT, ("batch", "default")),
])
def test_a_day_of_behaviour_tells_it(behaviour: Input[Behaviour], expected: tuple[str, str]) -> None:
    assert found(behaviour=behaviour) == expected


@pytest.mark.parametrize(("asked", "expected"), [
    ({"gpus": 2}, "training"), ({"gpus": 1}, "batch"), ({"gpus": None, "memory": None}, "batch"),
    ({"memory": 32 * 1024**3}, "batch"), ({"memory": 32 * 1024**3 + 1}, "training"),
])
def test_much_of_anything_is_training(asked: dict[str, int | None], expected: str) -> None:
    assert found(**asked)[0] == expected


@pytest.mark.parametrize(("said", "expected", "events"), [
    (({OURS: "gaming"}, {OURS: "dev"}), ("notebook", "label"), ["UnknownWorkloadType"]),
    (({OURS: "gaming"},), ("batch", "default"), ["UnknownWorkloadType"]),
    (({THEIRS: "serving"},), ("inference", "label"), []),
    (({OURS: "training", THEIRS: "serving"},), ("training", "label"), ["ConflictingAnnotation"]),
    (({OURS: "Batch", THEIRS: "Batch"},), ("batch", "label"), []),
    (({}, {}, {OURS: "training"}), ("training", "label"), []),
])
def test_words_are_read_in_their_order_and_strange_ones_are_said(
    said: tuple[dict[str, str], ...], expected: tuple[str, str], events: list[str]
) -> None:
    made = classes.classify(WorkFacts(said=said), PATTERNS)
    assert (made.work, made.source) == expected
    assert [each.reason for each in made.events] == events


@hypothesis.given(st.builds(
    WorkFacts, said=st.lists(st.dictionaries(st.sampled_from([OURS, THEIRS, "x"]), st.text(max_size=12))).map(tuple),
    containers=st.lists(st.builds(ContainerText, image=st.text(), command=st.lists(st.text()).map(tuple))).map(tuple),
    gpus=st.none() | st.integers(), memory=st.none() | st.integers(),
))
def test_every_workload_has_a_class_and_always_the_same(facts: WorkFacts) -> None:
    made = classes.classify(facts, PATTERNS)
    assert made == classes.classify(facts, PATTERNS)
    assert len(set(made.events)) == len(made.events)
