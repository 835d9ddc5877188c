"""What is in an image: files of Debian's packages, of Python's, and of fallow, without what no program of ours loads.

In: packages as bytes. Out: a tree: path -> what is there.
Invariant: a tree depends on the packages alone. No shell, no package manager and nothing that could install one is in
it; licences, and what scanners ask for (which package, which version), are.
"""

import io
import re
import tarfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from docs import debian, pins

NOBODY: Final = 65532
PLACE: Final = f"usr/local/lib/python{pins.PYTHON}/dist-packages"
_STDLIB: Final = f"usr/lib/python{pins.PYTHON}"
# Merged /usr, as every Debian of today has it; packages of bookworm still say /lib.
_MERGED: Final = ("bin", "sbin", "lib", "lib64")
_LINKS: Final = {
    **{each: f"usr/{each}" for each in _MERGED},
    "usr/bin/python3": f"python{pins.PYTHON}", "usr/lib/ssl/certs": "/etc/ssl/certs",
    "usr/lib/ssl/cert.pem": "/etc/ssl/certs/ca-certificates.crt",
}
_OURS: Final = {
    "etc/passwd": f"root:x:0:0:root:/:/sbin/nologin\nfallow:x:{NOBODY}:{NOBODY}:fallow:/:/sbin/nologin\n",
    "etc/group": f"root:x:0:\nfallow:x:{NOBODY}:\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}
# Of Debian's packages: documents but licences, translations, iconv's tables (Python has its own), programs but Python,
# time zones twice over; of Python: IDLE, Tk, other terminals' and databases' modules,
# codecs of East Asia before Unicode, protocols that nobody speaks here, debuggers, its own tests and installers.
_LEFT_OUT_OF_DEBIAN: Final = re.compile(
    r"usr/share/(?!doc/[^/]+/copyright$|ca-certificates/|zoneinfo/)|usr/share/zoneinfo/(posix|right)/|usr/(s?bin)/(?!python)"
    r"|usr/lib/[^/]+/(gconv|perl|audit)/|etc/(?!debian_version|os-release)|var/|lib/(init|systemd|udev)/|root|home|"
    rf"{_STDLIB}/(test|idlelib|tkinter|turtledemo|lib2to3|ensurepip|distutils|pydoc_data|venv|curses|dbm|unittest|xmlrpc|"
    rf"msilib|__pycache__)/|{_STDLIB}/(sitecustomize|turtle|pydoc|crypt|nis|doctest|pdb|pickletools|mailbox|imaplib|"
    rf"nntplib|telnetlib|aifc|cgi|cgitb|smtpd)\.py$|{_STDLIB}/lib-dynload/(_curses|_dbm|_gdbm|_tkinter|_test|_xxtest|"
    r"_codecs_|readline|nis|ossaudiodev|_crypt|xx)[^/]*$|usr/lib/[^/]+/libmvec\.|.*/__pycache__/"
)
_SQLITE: Final = (f"{_STDLIB}/sqlite3/", f"{_STDLIB}/lib-dynload/_sqlite3")
# Of Python's: what wheels bring for who compiles against them, tests them, or has programs coloured; what numpy loads
# only when it is asked for, and nobody here asks.
_LEFT_OUT_OF_WHEELS: Final = re.compile(
    r".*\.(c|h|hpp|pyx|pxd|pxi|pyi|a|f90|f|pyf|typed)$|numpy/(.*/)?tests/|numpy/(f2py|distutils|testing/tests|_pyinstaller|polynomial)/"
    r"|numpy/(.*/)?examples/|numpy/_core/_(simd|multiarray_tests|umath_tests|operand_flag_tests|rational_tests|struct_ufunc_tests)\."
    r"|(pycparser|markdown_it|mdurl)/|pygments/(lexers|styles|formatters)/(?!__init__|_mapping)|.*\.dist-info/RECORD$"
)


class File(NamedTuple):
    """A file, or a link where `target` is said; a folder where neither is."""

    content: bytes | None = None
    target: str = ""
    mode: int = 0o644


Tree = dict[str, File]


def of_debian(packages: Iterable[bytes]) -> Tree:
    """The system: what was unpacked, and the few files that a setup script would have made."""
    tree: Tree = {}
    for package in packages:
        paragraph, files = debian.open_package(package)
        with files:
            tree.update(_unpack(files))
        [name] = re.findall(r"^Package: (.*)$", paragraph, re.MULTILINE)
        tree[f"var/lib/dpkg/status.d/{name}"] = File(paragraph.encode())  # where scanners look in images without dpkg
    trusted = [tree.pop(each) for each in sorted(tree) if each.startswith("usr/share/ca-certificates/")]
    tree["etc/ssl/certs/ca-certificates.crt"] = File(b"".join(each.content or b"" for each in trusted))
    if not any("/libsqlite3." in path for path in tree):
        tree = {path: file for path, file in tree.items() if not path.startswith(_SQLITE)}
    tree.update({path: File(text.encode()) for path, text in _OURS.items()})
    tree.update({path: File(target=target) for path, target in _LINKS.items()})
    return {**tree, "tmp": File(mode=0o1777), **{each: File(mode=0o755) for each in ("dev", "proc", "sys")}}


def _unpack(files: tarfile.TarFile) -> Iterator[tuple[str, File]]:
    for each in files:
        path = _merge(each.name.removeprefix("./").rstrip("/"))
        if each.isdir() or not path or _LEFT_OUT_OF_DEBIAN.match(path):
            continue
        if each.issym():
            yield path, File(target=each.linkname)
        else:
            read = files.extractfile(each)  # through a hard link, too
            assert read is not None
            runs = each.mode & 0o111 and not path.endswith(".py")
            yield path, File(read.read(), mode=0o755 if runs else 0o644)


def _merge(path: str) -> str:
    return f"usr/{path}" if path.partition("/")[0] in _MERGED else path


def of_wheels(wheels: Iterable[bytes]) -> Tree:
    """As pip would install them, but for programs."""
    tree: Tree = {}
    for wheel in wheels:
        with zipfile.ZipFile(io.BytesIO(wheel)) as opened:
            tree.update(_install({each: opened.read(each) for each in opened.namelist() if not each.endswith("/")}))
    return tree


def _install(found: dict[str, bytes]) -> Iterator[tuple[str, File]]:
    libraries: dict[bytes, str] = {}
    for path in sorted(found, key=len, reverse=True):
        if _LEFT_OUT_OF_WHEELS.match(path):
            continue
        assert ".data/" not in path, f"{path}: nobody has said where this belongs"
        # The same library under two names, as wheels have them that know no links: the longer is the file.
        twin = libraries.setdefault(found[path], path) if ".so" in path else path
        yield f"{PLACE}/{path}", File(found[path]) if twin == path else File(target=twin.rpartition("/")[2])


def of_programs(enters: Mapping[str, str]) -> Tree:
    """Name -> where it enters. Neither the folder of the program nor a user's own is searched for modules."""
    text = "#!/usr/bin/python3 -sP\nimport sys\nfrom fallow.doors.cli import enter\nsys.exit(enter.{}())\n"
    return {f"usr/local/bin/{each}": File(text.format(place).encode(), mode=0o755) for each, place in enters.items()}
