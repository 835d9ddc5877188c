"""A release: the same commit gives the same bytes, helm takes the charts as they are packed, the bills of materials
name what is pinned, and nothing is released that its version does not name."""

import functools
import hashlib
import http.server
import io
import json
import re
import subprocess
import sys
import sysconfig
import tarfile
import threading
import zipfile

import pytest
import yaml
from docs import images, krew, pins, release
from tests import ROOT, documents, objects
from tests.real import build, helm
from tests.real.conftest import need
from tests.unit.test_shipping import pinned

from fallow import __version__

AT = 1_790_000_000


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("release") / "out"
    release.make(folder, is_snapshot=True, has_images=False, url="https://example.com/v1")
    return folder


def test_everything_is_there_with_its_checksum(made):
    sums = dict(reversed(line.split()) for line in (made / "SHA256SUMS").read_text().splitlines())
    assert set(sums) == {each.name for each in made.iterdir()} - {"SHA256SUMS"}
    assert all(hashlib.sha256((made / name).read_bytes()).hexdigest() == digest for name, digest in sums.items())
    kinds = {name.removeprefix("fallow-").removeprefix("gpu-autoscaler-") for name in sums}
    assert kinds == {
        "RELEASE.md", f"{__version__}-py3-none-any.whl", f"{__version__}.tar.gz", f"{__version__}.tgz",
        f"{__version__}.cdx.json", f"gpu-idle-exporter-{__version__}.cdx.json", f"manifests-{__version__}.tar.gz",
        f"krew-{__version__}.tar.gz", "krew.yaml", krew.INSTALL,
    }


def test_checksums_are_checked_as_the_page_on_images_says(made):
    [line] = [block.text for block in documents.blocks(ROOT / "docs/operators/images.md") if "SHA256SUMS" in block.text]
    done = subprocess.run(line, shell=True, cwd=made, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.count(": OK")) == (0, len(list(made.iterdir())) - 1), done.stderr
    forged = made.parent / "forged"
    forged.mkdir()
    (forged / "SHA256SUMS").write_text((made / "SHA256SUMS").read_text())
    (forged / "RELEASE.md").write_text("something else")
    assert subprocess.run(line, shell=True, cwd=forged, capture_output=True, check=False).returncode != 0


def test_the_same_commit_gives_the_same_bytes(made, tmp_path):
    release.make(tmp_path / "again", is_snapshot=True, has_images=False, url="https://example.com/v1")
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
    need("helm")
    packed = made / f"{name}-{__version__}.tgz"
    done = subprocess.run([str(build.need("helm")), "template", "fallow", str(packed), "-n", "gpu-pruner-system"],
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    by_name = {("Service", "gpu-pruner-system", "gpu-autoscaler-grafana")} if name == "gpu-autoscaler" else set()
    usual = {helm.name(each) for each in helm.render()}
    assert {helm.name(each) for each in objects.read(done.stdout)} == usual | by_name


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


@pytest.mark.parametrize("image", images.IMAGES, ids=lambda image: image.name)
def test_a_bill_of_materials_names_what_is_pinned(image):
    bill = json.loads(release.list_materials(image))
    found = {each["name"]: (each["version"], {one["content"] for one in each["hashes"]}) for each in bill["components"]
             if each["purl"].startswith("pkg:pypi/")}
    assert found == {
        name: (version, {each.removeprefix("--hash=sha256:") for each in hashes})
        for name, (version, hashes) in pinned(f"{image.packages}.txt").items()
    }
    system = {each["purl"]: each["hashes"][0]["content"] for each in bill["components"]
              if each["purl"].startswith("pkg:deb/")}
    assert list(system.values()) == [each.digest for each in images.list_debian(image)]
    assert any(re.fullmatch(r"pkg:deb/debian/libc6@[\w.%-]+\?arch=arm64&distro=debian-12", each) for each in system)
    refs = [each["bom-ref"] for each in bill["components"]]
    assert len(refs) == len(set(refs))
    assert any(each.startswith("pkg:npm/preact@") for each in refs) is (image.name == "fallow")


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


def test_what_git_ignores_is_in_no_archive(tmp_path, monkeypatch):
    chart = tmp_path / "charts" / "twin"
    (chart.parent / "one" / "templates").mkdir(parents=True)
    chart.mkdir()
    (chart / "templates").symlink_to("../one/templates")
    for name in ("a.yaml", ".env", "a.yaml.swp"):
        (chart / "templates" / name).write_text(name)
    (tmp_path / ".gitignore").write_text(".env\n*.swp\n")
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    for each in (release, images):
        monkeypatch.setattr(each, "ROOT", tmp_path)
    with tarfile.open(fileobj=io.BytesIO(release.pack_chart("twin", AT))) as archive:
        assert archive.getnames() == ["twin/templates/a.yaml"]


def test_a_commit_without_its_tag_is_no_release(tmp_path):
    done = subprocess.run([sys.executable, "-m", "docs.release", str(tmp_path / "out")], cwd=ROOT, capture_output=True,
                          text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("Error: ")
    assert "--snapshot" in done.stderr
    assert not (tmp_path / "out").exists()


# ---- krew ------------------------------------------------------------------------------------------------------------


def test_the_manifest_of_krew_names_what_is_there(made):
    plugin = yaml.safe_load((made / "fallow-krew.yaml").read_text())
    assert (plugin["apiVersion"], plugin["kind"]) == ("krew.googlecontainertools.github.com/v1alpha2", "Plugin")
    assert re.fullmatch(r"v\d+\.\d+\.\d+", plugin["spec"]["version"])
    assert len(plugin["spec"]["shortDescription"]) <= 50, "krew's naming guide"
    [platform] = plugin["spec"]["platforms"]
    archive = made / platform["uri"].rpartition("/")[2]
    assert platform["uri"] == f"https://example.com/v1/{archive.name}"
    assert platform["sha256"] == hashlib.sha256(archive.read_bytes()).hexdigest()
    with tarfile.open(archive) as packed:
        assert packed.getmember(platform["bin"]).mode == 0o755
        assert {"LICENSE", pins.KREW} < set(packed.getnames())


@pytest.fixture
def type_in(made, tmp_path):
    """What krew has installed, without a network."""
    store, links, home = tmp_path / "store", tmp_path / "bin", tmp_path / "home"
    links.mkdir()
    with tarfile.open(made / f"fallow-krew-{__version__}.tar.gz") as packed:
        packed.extractall(store, filter="data")
    (links / "kubectl-fallow").symlink_to(store / "kubectl-fallow")
    env = {"PATH": "/usr/bin:/bin", "HOME": str(home), "XDG_DATA_HOME": str(home), "PYTHON": sys.executable,
           "PIP_NO_INDEX": "1", "PYTHONPATH": sysconfig.get_paths()["purelib"]}

    def run(**more):
        words = [str(links / "kubectl-fallow"), "--version"]
        return subprocess.run(words, env={**env, **more}, capture_output=True, text=True)

    return run


def test_what_krew_installs_takes_no_package_of_another_hash(type_in, tmp_path):
    name, (version, _) = next(iter(pinned(pins.KREW).items()))
    wheels, about = tmp_path / "wheels", f"{name}-{version}.dist-info"
    wheels.mkdir()
    with zipfile.ZipFile(wheels / f"{name}-{version}-py3-none-any.whl", "w") as forged:
        forged.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        forged.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        forged.writestr(f"{about}/RECORD", "")
    for _ in range(2):
        done = type_in(PYTHONPATH="", PIP_FIND_LINKS=str(wheels))
        assert (done.returncode != 0, done.stdout) == (True, "")
        assert "DO NOT MATCH THE HASHES" in done.stderr, "and it is not taken for installed"


def test_what_krew_installs_runs_and_says_what_it_needs(type_in):
    """Of the packages that it would fetch, those of this environment are taken."""
    lacking = type_in(PYTHON="false")
    assert (lacking.returncode, "needs Python 3.11 or newer" in lacking.stderr) == (1, True)
    first, second = type_in(), type_in()
    assert first.stdout == second.stdout == f"kubectl fallow {__version__}\n", first.stderr
    assert ("the first time" in first.stderr, second.stderr) == (True, "")


# ---- curl -sSL .../install.sh | bash ---------------------------------------------------------------------------------


@pytest.fixture
def shop(made, tmp_path):
    """A place with the archive of this release, and what installs it from there."""
    (tmp_path / "shop").mkdir()
    packed = (made / krew.NAME).read_bytes()
    (tmp_path / "shop" / krew.NAME).write_bytes(packed)
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path / "shop"))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    (tmp_path / "shop" / krew.INSTALL).write_text(krew.write_installer(packed, url))
    yield url
    server.shutdown()
    server.server_close()


def install(url, home, **more):
    """Of the packages that it would fetch, those of this environment are taken."""
    env = {"PATH": "/usr/bin:/bin", "HOME": str(home), "PYTHON": sys.executable, "PIP_NO_INDEX": "1",
           "PYTHONPATH": sysconfig.get_paths()["purelib"], **more}
    line = f"curl -sSL {url}/{krew.INSTALL} | bash"
    return subprocess.run(["bash", "-c", line], env=env, capture_output=True, text=True, check=False), env


def test_the_commands_are_installed_by_one_line(shop, tmp_path):
    for _ in range(2):
        done, env = install(shop, tmp_path / "home")
        assert done.returncode == 0, done.stderr
        assert f"fallow {__version__} is in {tmp_path}/home/.local/bin" in done.stdout
        assert "is not in your PATH yet" in done.stdout
    typed = tmp_path / "home" / ".local" / "bin" / "gpu-autoscaler"
    answer = subprocess.run([typed, "version"], env=env, capture_output=True, text=True, check=False)
    assert answer.stdout.startswith(f"fallow {__version__} "), answer.stderr
    assert {each.name for each in (tmp_path / "home").rglob("bin/fallow")} == {"fallow"}


def test_what_is_not_what_was_released_is_not_installed(shop, tmp_path):
    (tmp_path / "shop" / krew.NAME).write_bytes(b"something else")
    done, _ = install(shop, tmp_path / "home")
    assert (done.returncode, done.stdout) == (1, "")
    assert "its SHA-256 is another" in done.stderr
    assert not (tmp_path / "home").exists()
    done, _ = install(shop, tmp_path / "home", PYTHON="false")
    assert (done.returncode, "needs Python 3.11 or newer" in done.stderr) == (1, True)
