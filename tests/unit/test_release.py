"""A release: the same commit gives the same bytes, helm takes the charts as they are packed, the bills of materials
name what is pinned, and nothing is released that its version does not name."""

import hashlib
import io
import json
import subprocess
import sys
import tarfile
import zipfile

import pytest
import yaml
from docs import release
from tests import ROOT
from tests.real import build, helm
from tests.unit.test_shipping import pinned

from fallow import __version__

AT = 1_790_000_000


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("release") / "out"
    release.make(folder, is_snapshot=True)
    return folder


def test_everything_is_there_with_its_checksum(made):
    sums = dict(reversed(line.split()) for line in (made / "SHA256SUMS").read_text().splitlines())
    assert set(sums) == {each.name for each in made.iterdir()} - {"SHA256SUMS"}
    assert all(hashlib.sha256((made / name).read_bytes()).hexdigest() == digest for name, digest in sums.items())
    kinds = {name.removeprefix("fallow-").removeprefix("gpu-autoscaler-") for name in sums}
    assert kinds == {
        "RELEASE.md", f"{__version__}-py3-none-any.whl", f"{__version__}.tar.gz", f"{__version__}.tgz",
        f"controller-{__version__}.cdx.json", f"exporter-{__version__}.cdx.json", f"manifests-{__version__}.tar.gz",
    }


def test_the_same_commit_gives_the_same_bytes(made, tmp_path):
    release.make(tmp_path / "again", is_snapshot=True)
    assert (tmp_path / "again" / "SHA256SUMS").read_text() == (made / "SHA256SUMS").read_text()


def test_the_wheel_has_the_commands_and_nothing_of_the_tests(made):
    [wheel] = made.glob("*.whl")
    with zipfile.ZipFile(wheel) as opened:
        names = opened.namelist()
        [entries] = [opened.read(each).decode() for each in names if each.endswith("entry_points.txt")]
    assert "gpu-autoscaler = " in entries
    assert all(each.startswith(("fallow/", f"fallow-{__version__}.dist-info/")) for each in names)


@pytest.mark.real
@pytest.mark.parametrize("name", release.CHARTS)
def test_helm_takes_a_chart_as_it_is_packed(made, name):
    packed = made / f"{name}-{__version__}.tgz"
    done = subprocess.run([str(build.need("helm")), "template", "fallow", str(packed), "-n", "gpu-pruner-system"],
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    shown = [each for each in yaml.safe_load_all(done.stdout) if each]
    assert {helm.name(each) for each in shown} == {helm.name(each) for each in helm.render()}


def test_the_manifests_can_be_applied_from_where_they_are_unpacked(made):
    [packed] = made.glob("fallow-manifests-*")
    with tarfile.open(packed) as archive:
        names = set(archive.getnames())
    top = f"fallow-{__version__}"
    for path in (ROOT / "deploy").rglob("kustomization.yaml"):
        place = path.parent.relative_to(ROOT)
        for each in yaml.safe_load(path.read_text()).get("resources", ()):
            wanted = (path.parent / each).resolve().relative_to(ROOT)
            assert f"{top}/{wanted}" in names or f"{top}/{wanted}/kustomization.yaml" in names, place


@pytest.mark.parametrize("image", release.IMAGES)
def test_a_bill_of_materials_names_what_is_pinned(image):
    bill = json.loads(release.list_materials(image))
    found = {each["name"]: (each["version"], {one["content"] for one in each["hashes"]}) for each in bill["components"]
             if each["purl"].startswith("pkg:pypi/")}
    assert found == {
        name: (version, {each.removeprefix("--hash=sha256:") for each in hashes})
        for name, (version, hashes) in pinned(f"{image}.txt").items()
    }
    refs = [each["bom-ref"] for each in bill["components"]]
    assert len(refs) == len(set(refs))
    assert any(each.startswith("pkg:npm/preact@") for each in refs) is (image == "controller")


def test_what_changed_is_told_by_what_people_notice():
    said = release.tell_changes([
        "feat: a door", "fix(api): a hinge", "refactor: a wall", "feat!: the key is another", "Merge branch 'x'",
        "wip", "perf: it opens at once",
    ])
    assert said.index("## Breaking") < said.index("## New") < said.index("## Mended") < said.index("## Faster")
    assert "- the key is another" in said
    assert "- a hinge" in said
    assert "wall" not in said
    assert "wip" not in said


def test_an_archive_depends_on_names_and_contents_alone(tmp_path):
    (tmp_path / "b").write_text("two")
    (tmp_path / "a").write_text("one")
    first = release.pack("top", [tmp_path / "b", tmp_path / "a"], tmp_path, AT)
    (tmp_path / "a").chmod(0o600)
    assert release.pack("top", [tmp_path / "a", tmp_path / "b"], tmp_path, AT) == first
    with tarfile.open(fileobj=io.BytesIO(first)) as archive:
        assert archive.getnames() == ["top/a", "top/b"]


def test_a_commit_without_its_tag_is_no_release(tmp_path):
    done = subprocess.run([sys.executable, "-m", "docs.release", str(tmp_path / "out")], cwd=ROOT, capture_output=True,
                          text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("Error: ")
    assert "--snapshot" in done.stderr
    assert not (tmp_path / "out").exists()
