"""What labels say of a node, in the words of every cloud."""

from typing import Any

import msgspec
import pytest

from fallow.model import cluster, node_facts
from fallow.model.cost import CapacityType
from fallow.observe.cluster import objects

ON_DEMAND, SPOT, RESERVED, UNKNOWN = CapacityType


def node(labels: dict[str, str] | None = None, **said: Any) -> cluster.Node:
    """As the eyes read it from the API server."""
    spec, annotations = {"providerID": said.pop("provider_id", "")}, said.pop("annotations", {})
    status = {"allocatable": {"nvidia.com/gpu": "8"}, "capacity": {"cpu": "96", "memory": "1176Gi"}, **said}
    body = {
        "metadata": {"uid": "u", "name": "n1", "labels": labels or {}, "annotations": annotations}, "spec": spec,
        "status": status,
    }
    return objects.see_node(msgspec.convert(body, objects.NodeItem))


EKS = {
    "node.kubernetes.io/instance-type": "p4d.24xlarge", "topology.kubernetes.io/region": "us-east-1",
    "topology.kubernetes.io/zone": "us-east-1a", "eks.amazonaws.com/capacityType": "ON_DEMAND",
    "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB", "nvidia.com/gpu.count": "8",
}


def test_a_node_of_eks() -> None:
    seen = node(EKS, provider_id="aws:///us-east-1a/i-0abc", annotations={"gpuautoscaler.io/price-per-hour": "20"})
    assert node_facts.read(seen) == node_facts.NodeFacts(
        node="n1", provider="aws", region="us-east-1", zone="us-east-1a", instance_type="p4d.24xlarge",
        capacity_type=ON_DEMAND, gpu_model="A100-40GB", gpus=8, cpu=96_000, memory=1176 * 1024, annotated="20",
    )


def test_a_node_that_says_nothing_is_nothing() -> None:
    seen = node(allocatable={}, capacity={"cpu": "many"})
    assert node_facts.read(seen) == node_facts.NodeFacts(node="n1")


def test_old_labels_and_a_region_from_the_settings() -> None:
    old = {"beta.kubernetes.io/instance-type": "g5.xlarge", "failure-domain.beta.kubernetes.io/zone": "eu-1b"}
    facts = node_facts.read(node(old), region="eu-1")
    assert (facts.instance_type, facts.zone, facts.region) == ("g5.xlarge", "eu-1b", "eu-1")


@pytest.mark.parametrize(("address", "provider"), [
    ("aws:///us-east-1a/i-0abc", "aws"), ("gce://project/us-central1-a/gke-1", "gcp"),
    ("azure:///subscriptions/s/resourceGroups/g/x/0", "azure"), ("kind://docker/kind/n1", ""), ("", ""),
], ids=["aws", "gce", "azure", "kind", "none"])
def test_the_provider_is_by_the_provider_id(address: str, provider: str) -> None:
    assert node_facts.read(node(provider_id=address)).provider == provider


@pytest.mark.parametrize(("labels", "provider", "capacity"), [
    ({"karpenter.sh/capacity-type": "spot"}, "aws", SPOT),
    ({"karpenter.sh/capacity-type": "on-demand"}, "aws", ON_DEMAND),
    ({"karpenter.sh/capacity-type": "reserved"}, "aws", RESERVED),
    ({"eks.amazonaws.com/capacityType": "SPOT"}, "aws", SPOT),
    ({"eks.amazonaws.com/capacityType": "ON_DEMAND"}, "aws", ON_DEMAND),
    ({"eks.amazonaws.com/capacityType": "CAPACITY_BLOCK"}, "aws", RESERVED),
    ({"cloud.google.com/gke-spot": "true"}, "gcp", SPOT), ({"cloud.google.com/gke-preemptible": "true"}, "gcp", SPOT),
    ({"cloud.google.com/gke-provisioning": "standard"}, "gcp", ON_DEMAND), ({}, "gcp", ON_DEMAND),
    ({"kubernetes.azure.com/scalesetpriority": "spot"}, "azure", SPOT), ({}, "azure", ON_DEMAND),
    ({"gpuautoscaler.io/capacity-type": "spot"}, "", SPOT),
    ({"gpuautoscaler.io/capacity-type": "reserved"}, "", RESERVED),
    ({"node.kubernetes.io/lifecycle": "spot"}, "aws", SPOT),
    ({"node.kubernetes.io/lifecycle": "normal"}, "aws", ON_DEMAND),
    ({"lifecycle": "Ec2Spot"}, "aws", SPOT), ({"spotinst.io/node-lifecycle": "od"}, "aws", ON_DEMAND),
    ({}, "aws", UNKNOWN), ({}, "", UNKNOWN), ({"karpenter.sh/capacity-type": "borrowed"}, "", UNKNOWN),
], ids=lambda value: str(value))
def test_how_it_was_bought(labels: dict[str, str], provider: str, capacity: CapacityType) -> None:
    assert node_facts.find_capacity(labels, provider) is capacity


MIG_SINGLE = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb", "nvidia.com/gpu.count": "56"}


@pytest.mark.parametrize(("labels", "offered", "count"), [
    ({"nvidia.com/gpu.count": "8"}, {"nvidia.com/gpu": "7"}, 8), ({}, {"nvidia.com/gpu": "4"}, 4), ({}, {}, None),
    ({"nvidia.com/gpu.count": "2", "nvidia.com/gpu.replicas": "4"}, {"nvidia.com/gpu": "8"}, 2),
    (MIG_SINGLE, {"nvidia.com/gpu": "56"}, 8), ({"karpenter.k8s.aws/instance-gpu-count": "1"}, {}, 1),
    ({"nvidia.com/gpu.count": "x" * 9}, {"nvidia.com/gpu": "4"}, 4),
], ids=["one ill", "offered", "none", "shared", "MIG as GPUs", "karpenter", "nonsense"])
def test_physical_gpus_are_counted(labels: dict[str, str], offered: dict[str, str], count: int | None) -> None:
    assert node_facts.count_gpus(node(labels, allocatable=offered)) == count


@pytest.mark.parametrize(("labels", "model"), [
    ({"nvidia.com/gpu.product": "NVIDIA-A100", "nvidia.com/gpu.memory": "81920"}, "A100-80GB"),
    ({"cloud.google.com/gke-accelerator": "nvidia-tesla-t4"}, "T4"),
    ({"cloud.google.com/gke-accelerator": "nvidia-tesla-a100", "nvidia.com/gpu.product": "NVIDIA-L4"}, "L4"),
    ({"nvidia.com/gpu.product": "NVIDIA-Foo-9000"}, "FOO-9000"), ({}, ""),
], ids=["by memory", "gke", "the driver knows better", "unknown", "none"])
def test_the_model_has_one_name(labels: dict[str, str], model: str) -> None:
    assert node_facts.find_model(node(labels)) == model
