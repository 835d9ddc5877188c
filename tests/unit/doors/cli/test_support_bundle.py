"""The file of `fallow support-bundle`: all of it is written, or nothing of it is left."""

import resource
import signal

import click
import pytest

from fallow.doors.cli import support_bundle


@pytest.fixture
def small_disk():
    """No file of this process may be longer than 1,000 bytes, as on a disk that is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    former = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    signal.signal(signal.SIGXFSZ, former)


def test_a_full_disk_leaves_no_half_of_a_file(tmp_path, small_disk):
    with pytest.raises(click.ClickException, match="nothing is left of it: File too large") as told:
        support_bundle.write(tmp_path / "a.tar.gz", b"x" * 5000)
    assert told.value.exit_code == 1
    assert list(tmp_path.iterdir()) == []


def test_it_is_its_owners_alone_and_writes_over_nothing(tmp_path):
    path = tmp_path / "a.tar.gz"
    support_bundle.write(path, b"one")
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(click.ClickException, match="File exists"):
        support_bundle.write(path, b"two")
    assert path.read_bytes() == b"one"
    assert list(tmp_path.iterdir()) == [path]
