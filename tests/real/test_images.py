"""The images, made from this checkout and started: small, without a shell, with nobody as root and a root that nobody
can write; what they have to do, they do there."""

import functools
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import urllib.request

import pytest
from docs import image_oci, images, pins

from tests import ROOT
from tests.real import build, containers, databases

MB = 1_000_000
BOUNDS = {each.name: each.bound for each in images.IMAGES}
NAMES = ("fallow", "gpu-idle-exporter")


@pytest.fixture(scope="session")
def made():
    try:
        return containers.make()
    except images.NoImage as why:
        if os.environ.get("DEBIAN_MIRROR"):  # somebody wants them to be made
            raise
        pytest.skip(f"images cannot be made: {why}")


@pytest.fixture(scope="session")
def started(made):
    """The same, where containers can be started."""
    if build.find("runc") is None:
        pytest.skip(build.expected("runc") or "runc is not there: run `python -m tests.real.build`")
    tried = containers.run(made["fallow"], "python3", "-c", "pass")
    if tried.code != 0:
        pytest.skip(f"containers cannot be started here: {tried.err.strip()}")
    return made


@pytest.fixture(params=NAMES)
def image(request, made):
    return made[request.param]


def files_of(image):
    return list_files(image.archive)


@functools.cache
def list_files(archive):
    return list(image_oci.list_files(image_oci.read_archive(archive, containers.processor())[1]))


# ---- what is in them -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_an_image_is_small(made, name):
    size = sum(each.size for each in files_of(made[name]))
    assert size <= BOUNDS[name], f"{size / MB:.1f} MB"


def test_nothing_in_an_image_can_be_run_but_python_and_our_programs(image):
    """No shell, no package manager, nothing setuid."""
    found = files_of(image)
    can_run = {each.name for each in found if each.isfile() and each.mode & 0o111}
    [said] = [each for each in images.IMAGES if each.name == image.root.name]
    ours = {f"usr/local/bin/{each}" for each in said.programs}
    libraries = {each for each in can_run if re.search(r"/lib/[^/]+/(ld-linux|libc)[^/]*\.so\.\d$", each)}
    assert can_run - libraries == ours | {f"usr/bin/python{pins.PYTHON}"}
    parts = {part for each in found for part in pathlib.PurePath(each.name).parts}
    assert not parts & {"sh", "bash", "dash", "busybox", "apt", "apt-get", "dpkg-deb", "pip", "ensurepip", "setuptools"}
    assert not [each.name for each in found if each.mode & 0o6000]


def test_everything_in_an_image_is_roots_and_nobody_else_may_write_it(image):
    found = files_of(image)
    assert {(each.uid, each.gid) for each in found} == {(0, 0)}
    assert [each.name for each in found if each.mode & 0o022 and not each.issym()] == ["tmp"]


def test_an_image_says_what_it_is_and_runs_as_nobody(image):
    config = image.config["config"]
    assert config["User"] == "65532:65532"
    labels = {key.removeprefix("org.opencontainers.image."): value for key, value in config["Labels"].items()}
    assert labels["title"] == image.root.name
    assert labels["version"] == containers.VERSION
    assert labels["licenses"] == "Apache-2.0"
    assert labels["revision"] == "0" * 40
    assert labels["created"] == image.config["created"] == "2026-09-21T14:13:20Z"


def test_an_image_tells_scanners_which_packages_it_is_made_of(image):
    """As images without dpkg do; licences are in it, too."""
    pinned = {line.split()[1]: line.split()[2] for line in (ROOT / "deploy/image/debian.txt").read_text().splitlines()
              if line.startswith(containers.processor())}
    told = {}
    for each in (image.root / "var/lib/dpkg/status.d").iterdir():
        said = dict(re.findall(r"^(Package|Version): (.*)$", each.read_text(), re.MULTILINE))
        told[said["Package"]] = said["Version"]
    left_out = set(pins.DEBIAN_CONTROLLER) if image.root.name == "gpu-idle-exporter" else set()
    assert told == {name: version for name, version in pinned.items() if name not in left_out}
    assert (image.root / "usr/share/doc/libc6/copyright").exists()
    assert 'ID=debian' in (image.root / "etc/os-release").read_text()
    assert list(image.root.glob("usr/local/lib/python*/dist-packages/msgspec-*.dist-info/METADATA"))


AGAIN = """
import pathlib, sys
from docs import images
folder, wheel, cache = map(pathlib.Path, sys.argv[1:4])
images.IMAGES = images.IMAGES[1:]
list(images.make(folder, wheel, version="0.0.0", revision="0" * 40, at=%d, cache=cache, processors=[sys.argv[4]]))
"""


def test_the_same_commit_gives_the_same_image(made, tmp_path):
    """Made again by another process with another umask and other hashes, of packages that were fetched but nothing
    else that was kept."""
    kept, cache = build.cache() / "images", tmp_path / "cache"
    cache.mkdir()
    for each in ("debian", "wheels"):
        (cache / each).symlink_to(kept / each)
    wheel = containers.make_wheel(tmp_path / "wheel")
    words = [sys.executable, "-c", AGAIN % containers.AT, str(tmp_path), str(wheel), str(cache), containers.processor()]
    variables = {**os.environ, "PYTHONHASHSEED": "7", "TZ": "Asia/Tokyo", "LANG": "C"}
    subprocess.run(words, cwd=ROOT, check=True, env=variables, umask=0o077)
    again = tmp_path / f"gpu-idle-exporter-{containers.VERSION}.oci.tar"
    assert again.read_bytes() == made["gpu-idle-exporter"].archive.read_bytes()


# ---- started ---------------------------------------------------------------------------------------------------------

WHO = """
import os, sys
told = [os.getuid(), os.getgid(), os.getgroups() or [0]]
for place in ("/written", "/tmp/written", "/usr/local/bin/written"):
    try:
        open(place, "w")
    except OSError as why:
        told.append(why.strerror)
status = dict(line.split(":\\t") for line in open("/proc/self/status").read().splitlines() if line.startswith("Cap"))
print(told, {value for value in status.values()})
"""


@pytest.mark.parametrize("name", NAMES)
def test_a_container_is_nobody_and_can_write_nowhere(started, name):
    ended = containers.run(started[name], "python3", "-c", WHO)
    assert ended.err == ""
    refused = "'Read-only file system'"
    assert ended.out.startswith(f"[65532, 65532, [0], {refused}, {refused}, {refused}]")
    assert "'0000000000000000'" in ended.out


@pytest.mark.parametrize("name", NAMES)
def test_there_is_no_shell_to_start(started, name):
    ended = containers.run(started[name], "/bin/sh", "-c", "id")
    assert ended.code != 0
    assert "no such file" in ended.err


LOADS = """
import importlib, pathlib, pkgutil, sys, sysconfig
failed = []
def load(name):
    try:
        importlib.import_module(name)
    except Exception as why:
        failed.append(f"{name}: {why!r}")
for each in pathlib.Path(sysconfig.get_path("stdlib"), "lib-dynload").glob("*.so"):
    load(each.name.partition(".")[0])
import fallow
for each in pkgutil.walk_packages(fallow.__path__, "fallow.", onerror=failed.append):
    if each.name.startswith(tuple(sys.argv[1:])):
        load(each.name)
import ssl, zoneinfo
print(len(ssl.create_default_context().get_ca_certs()) > 100, len(sys.modules), failed)
"""


@pytest.mark.parametrize(("name", "rooms"), [
    ("fallow", ["fallow."]),
    ("gpu-idle-exporter", ["fallow.doors.exporter", "fallow.doors.cli.exporter", "fallow.doors.cli.spot_watch",
                           "fallow.doors.spot", "fallow.observe.node", "fallow.clients.kube", "fallow.clients.nvml",
                           "fallow.stories."]),
])
def test_everything_that_a_program_may_load_is_there(started, name, rooms):
    ended = containers.run(started[name], "python3", "-c", LOADS, *rooms)
    assert ended.err == ""
    assert re.fullmatch(r"True \d+ \[\]\n", ended.out), ended.out


@pytest.mark.parametrize(("name", "words", "said"), [
    ("fallow", ["fallow", "version"], r"fallow [\d.]+\S* \(Python 3\.11\.\d+, gpuautoscaler\.io/v1alpha1\)\n"),
    ("fallow", ["fallow", "--help"], r"Usage: fallow .*Begin here:.*"),
    ("fallow", ["gpu-pruner", "--version"], r"gpu-pruner .*"),
    ("fallow", ["gpu-autoscaler", "--help"], r"Usage: gpu-autoscaler .*"),
    ("gpu-idle-exporter", ["gpu-idle-exporter", "--version"], r"gpu-idle-exporter [\d.]+\S*\n"),
    ("gpu-idle-exporter", ["fallow", "--help"], r"Usage: fallow .*spot-watch.*"),
], ids=lambda value: "-".join(value) if isinstance(value, list) else "")
def test_a_program_answers(started, name, words, said):
    ended = containers.run(started[name], *words)
    assert (ended.code, ended.err) == (0, "")
    assert re.fullmatch(said, ended.out, re.DOTALL)


@pytest.mark.parametrize(("name", "words"), [
    ("fallow", []), ("fallow", ["fallow", "run"]), ("fallow", ["fallow", "status"]),
    ("fallow", ["fallow", "webhook"]), ("fallow", ["fallow", "extender"]),
    ("gpu-idle-exporter", ["fallow", "spot-watch"]),
], ids=lambda value: "-".join(value) if isinstance(value, list) else "")
def test_without_a_cluster_a_program_ends_with_a_sentence(started, name, words):
    ended = containers.run(started[name], *words)
    assert ended.code not in (0, 126, 127)
    assert "Traceback" not in ended.err
    [sentence] = [line for line in ended.err.splitlines() if re.search(r"ERROR|Error: ", line)]
    assert len(sentence) > 30


def test_a_command_that_is_not_on_nodes_is_said_not_to_be_there(started):
    ended = containers.run(started["gpu-idle-exporter"], "fallow", "status")
    assert ended.code == 2
    assert "there is no command 'status'" in ended.err


def test_the_exporter_serves_what_pretend_gpus_do_and_ends_when_told(started):
    port = databases.free_port()
    variables = {"HTTP_PORT": str(port), "BIND_ADDRESS": "127.0.0.1", "ATTRIBUTION": "off", "POLL_INTERVAL": "100ms"}
    with containers.running(started["gpu-idle-exporter"], "fallow", "exporter", "--fake", "2", **variables) as process:
        page = read(f"http://127.0.0.1:{port}/metrics", process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) in (0, 143)
    assert "gpu_idle_exporter_build_info" in page


def test_the_controller_works_a_pretend_cluster_on_a_root_that_it_cannot_write(started):
    """The daemon, its eyes, brain, hands and books, against servers of its own in the same container."""
    words = ["fallow", "demo", "--hours", "0.5", "--nodes", "2", "--no-stay", "--port", "0", "--dashboard-port", "0"]
    ended = containers.run(started["fallow"], *words, has_tmp=True)
    assert ended.code == 0, ended.err
    assert "Traceback" not in ended.err


def read(url, process):
    until = time.monotonic() + 60
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                return answer.read().decode()
        except OSError:
            assert process.poll() is None, process.stderr.read()
            assert time.monotonic() < until, "nothing answers"
            time.sleep(0.1)
