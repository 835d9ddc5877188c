"""How images are made: what is left out, that the same trees give the same bytes, that nothing is taken which is not
what was pinned; and that manifests name the images by the names they are made with."""

import functools
import hashlib
import http.server
import io
import json
import re
import tarfile
import threading
import tomllib
import zipfile

import pytest
import yaml
from docs import debian, image_load, image_oci, image_tree, images, pins
from docs.image_tree import File
from tests import ROOT

from fallow import __version__
from fallow.doors.cli import enter

ABOUT = image_oci.About(name="fallow", version="1.2.3", revision="abc", at=1_790_000_000, description="a thing",
                        program="gpu-pruner", port=8080)


def make_package(files, control="Package: tools\nVersion: 1\n"):
    """A .deb."""
    parts = {"debian-binary": b"2.0\n", "control.tar.xz": make_tar({"./control": control}),
             "data.tar.xz": make_tar(files)}
    made = b"!<arch>\n"
    for name, content in parts.items():
        made += f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(content):<10}`\n".encode() + content
        made += b"\n" * (len(content) % 2)
    return made


def make_tar(files):
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:xz") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o4755
            archive.addfile(entry, io.BytesIO(content.encode()))
    return made.getvalue()


def make_wheel(files):
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return made.getvalue()


# ---- what is in it ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [
    "./bin/sh", "./usr/bin/apt-get", "./usr/sbin/tool", "./usr/share/doc/tools/README", "./usr/share/man/man1/x.1",
    "./usr/lib/x86_64-linux-gnu/gconv/BIG5.so", "./etc/init.d/tool", "./usr/lib/python3.11/idlelib/run.py",
    "./usr/lib/python3.11/test/x.py", "./usr/lib/python3.11/ensurepip/__init__.py", "./var/lib/tool/x",
])
def test_what_no_program_of_ours_loads_is_left_out_of_a_package(path):
    tree = image_tree.of_debian([make_package({path: "x"})])
    assert not [each for each in tree if each.endswith(path.removeprefix("./"))]


def test_a_package_is_unpacked_with_its_licence_into_a_merged_usr_and_told_to_scanners():
    tree = image_tree.of_debian([make_package({
        "./lib/x86_64-linux-gnu/libx.so.1": "x", "./usr/share/doc/tools/copyright": "free", "./usr/bin/python3.11": "p",
    })])
    assert tree["usr/lib/x86_64-linux-gnu/libx.so.1"].content == b"x"
    assert tree["lib"].target == "usr/lib"
    assert tree["usr/share/doc/tools/copyright"].content == b"free"
    assert tree["usr/bin/python3.11"].mode == 0o755, "and not setuid"
    assert tree["var/lib/dpkg/status.d/tools"].content == b"Package: tools\nVersion: 1\n"


def test_authorities_are_one_file():
    place = "./usr/share/ca-certificates/mozilla"
    tree = image_tree.of_debian([make_package({f"{place}/b.crt": "B\n", f"{place}/a.crt": "A\n"})])
    assert tree["etc/ssl/certs/ca-certificates.crt"].content == b"A\nB\n"
    assert not [each for each in tree if "mozilla" in each]


def test_a_wheel_is_installed_without_what_only_compilers_and_tests_need_and_each_library_once():
    tree = image_tree.of_wheels([make_wheel({
        "numpy/__init__.py": "1", "numpy/tests/test_x.py": "1", "numpy/core.pyx": "1",
        "x.dist-info/METADATA": "Name: x", "x.dist-info/RECORD": "", "x.libs/libx.so.1": "lib",
        "x.libs/libx.so.1.15": "lib",
    })])
    place = image_tree.PLACE
    assert set(tree) == {f"{place}/{each}" for each in ("numpy/__init__.py", "x.dist-info/METADATA", "x.libs/libx.so.1",
                                                        "x.libs/libx.so.1.15")}
    assert tree[f"{place}/x.libs/libx.so.1"] == File(target="libx.so.1.15")


def test_each_program_of_an_image_enters_where_pip_would_have_it_enter():
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    for image in images.IMAGES:
        for name, where in image.programs.items():
            assert callable(getattr(enter, where))
            on_nodes = where == "fallow_on_nodes"  # of which pip knows nothing
            assert on_nodes or scripts[name] == f"fallow.doors.cli.enter:{where}"


# ---- the same bytes --------------------------------------------------------------------------------------------------


def test_an_archive_depends_on_its_trees_alone(tmp_path):
    one = {"usr/b": File(b"2"), "usr/a": File(b"1", mode=0o755), "bin": File(target="usr/bin")}
    other = dict(reversed(one.items()))
    for name, tree in (("one", one), ("other", other)):
        image_oci.write_archive(tmp_path / name, ABOUT, {"amd64": [image_oci.pack_layer(tree)]})
    assert (tmp_path / "one").read_bytes() == (tmp_path / "other").read_bytes()


def test_an_archive_is_read_as_it_was_written_and_what_was_changed_is_found_out(tmp_path):
    path = tmp_path / "made"
    trees = {"amd64": {"a": File(b"1")}, "arm64": {"a": File(b"2")}}
    image_oci.write_archive(path, ABOUT, {each: [image_oci.pack_layer(tree)] for each, tree in trees.items()})
    config, [layer] = image_oci.read_archive(path, "arm64")
    assert config["architecture"] == "arm64"
    assert layer.extractfile("a").read() == b"2"
    content = path.read_bytes()
    path.write_bytes(content.replace(b"gpu-pruner", b"gpu-pruned"))
    with pytest.raises(AssertionError):
        image_oci.read_archive(path, "arm64")


def test_an_archive_is_given_to_docker_as_it_reads_one(tmp_path, monkeypatch):
    """A program that keeps what it is given stands for docker."""
    archive = tmp_path / f"gpu-idle-exporter-{__version__}.oci.tar"
    layers = [image_oci.pack_layer({"a": File(b"1")}), image_oci.pack_layer({"b": File(b"2")})]
    image_oci.write_archive(archive, ABOUT, {images.this_processor(): layers})
    tool = tmp_path / "docker"
    tool.write_text(f'#!/bin/sh\necho "$1 $2" > {tmp_path}/typed\ncp "$3" {tmp_path}/taken\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    image_load.take([archive])
    assert (tmp_path / "typed").read_text() == "load --input\n"
    with tarfile.open(tmp_path / "taken") as taken:
        [said] = json.load(taken.extractfile("manifest.json"))
        assert said["RepoTags"] == [
            f"gpu-idle-exporter:{__version__}", "ghcr.io/affinode/gpu-idle-exporter:latest"]
        config = json.load(taken.extractfile(said["Config"]))
        plain = [taken.extractfile(each).read() for each in said["Layers"]]
    assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(each).hexdigest()}" for each in plain]
    tool.write_text("#!/bin/sh\nexit 3\n")
    with pytest.raises(images.NoImage, match="did not take gpu-idle-exporter"):
        image_load.take([archive])


def test_where_nothing_takes_images_that_is_said(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(images.NoImage, match="neither docker nor podman"):
        image_load.take([])


# ---- nothing but what was pinned -------------------------------------------------------------------------------------


@pytest.fixture
def mirror(tmp_path):
    (tmp_path / "pool").mkdir()
    (tmp_path / "pool" / "x.deb").write_bytes(b"package")
    serve = functools.partial(Quiet, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), serve) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


def test_a_package_is_fetched_once(mirror, tmp_path):
    digest = hashlib.sha256(b"package").hexdigest()
    assert images.fetch("pool/x.deb", digest, cache=tmp_path / "cache", mirror=mirror) == b"package"
    assert images.fetch("pool/x.deb", digest, cache=tmp_path / "cache", mirror="http://127.0.0.1:1") == b"package"


def test_a_package_that_is_not_the_one_that_was_pinned_is_not_taken(mirror, tmp_path):
    for _ in range(2):
        with pytest.raises(images.NoImage, match=r"x\.deb is not what was pinned"):
            images.fetch("pool/x.deb", "0" * 64, cache=tmp_path / "cache", mirror=mirror)


def test_a_package_that_debian_has_replaced_is_said_to_be(mirror, tmp_path):
    with pytest.raises(images.NoImage, match=r"y\.deb cannot be fetched .* make pins"):
        images.fetch("pool/y.deb", "0" * 64, cache=tmp_path / "cache", mirror=mirror)


def test_debians_packages_are_pinned_for_both_processors():
    names = {}
    for line in (ROOT / "deploy/image/debian.txt").read_text().splitlines()[1:]:
        processor, name, _, digest, place = line.split()
        names.setdefault(processor, set()).add(name)
        assert re.fullmatch(r"[0-9a-f]{64}", digest)
        assert re.fullmatch(rf"debian(-security)?/pool/\S+_({processor}|all)\.deb", place)
    assert names == {each: {*pins.DEBIAN, *pins.DEBIAN_CONTROLLER} for each in pins.PROCESSORS}


def test_a_package_of_debian_is_opened_as_dpkg_does():
    paragraph, files = debian.open_package(make_package({"./usr/bin/odd": "12345"}))
    assert paragraph.startswith("Package: tools")
    assert files.getnames() == ["./usr/bin/odd"]


# ---- names -----------------------------------------------------------------------------------------------------------


def test_manifests_and_charts_name_the_images_that_are_made():
    """Each by the name it has in its archive; what is not ours is the scheduler of the cluster."""
    made = {f"{each.name}:{__version__}" for each in images.IMAGES}
    used = {line.split()[1] for place in ("deploy", "examples") for path in (ROOT / place).rglob("*.yaml")
            for line in path.read_text().splitlines() if re.match(r"\s+(- )?image: \S+", line)}
    assert {each for each in used if each.startswith(("fallow", "gpu-idle"))} == made
    values = yaml.safe_load((ROOT / "charts/fallow/values.yaml").read_text())
    assert {values["image"]["repository"], values["exporter"]["image"]} == {each.name for each in images.IMAGES}


@pytest.mark.parametrize(("path", "image"), [
    ("deploy/controller/20-gpu-pruner.yaml", "fallow"), ("deploy/webhook/30-webhook.yaml", "fallow"),
    ("deploy/spot-watch/30-spot-watch.yaml", "gpu-idle-exporter"),
    ("examples/exporter/daemonset/20-daemonset.yaml", "gpu-idle-exporter"),
])
def test_a_manifest_starts_a_program_that_is_in_its_image(path, image):
    [made] = [each for each in images.IMAGES if each.name == image]
    [spec] = [each["spec"]["template"]["spec"] for each in yaml.safe_load_all((ROOT / path).read_text())
              if each["kind"] in ("Deployment", "DaemonSet")]
    [container] = spec["containers"]
    assert container["image"] == f"{image}:{__version__}"
    assert container.get("command", list(made.programs))[0] in made.programs


def test_a_mirror_is_the_one_that_is_named(monkeypatch):
    """Where this machine is no Debian, as those of the workflows are."""
    monkeypatch.setenv("DEBIAN_MIRROR", "http://mirror.example/")
    assert images.find_mirror() == "http://mirror.example"


def test_no_image_is_made_without_the_dashboard(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(images, "ROOT", tmp_path)
    monkeypatch.setattr("sys.argv", ["docs.images", str(tmp_path / "out")])
    with pytest.raises(SystemExit, match="the dashboard is not built, and the wheel would be without: make ui"):
        images.main()
    assert not (tmp_path / "out").exists()
