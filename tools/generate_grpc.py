"""Make the Python code of the protos: `python tools/generate_grpc.py`. A test makes it again and compares.

Generated modules import each other by the paths of their protos, one of which is `types`, the name of a module of the
standard library. So these imports are rewritten to whole names.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROTOS = ROOT / "proto"
PACKAGE = "lanner.api.grpc.generated"
TARGET = ROOT / "src" / PACKAGE.replace(".", "/")
_IMPORT = re.compile(r"^from ((?:lanner|queue|types)\.v1) import", re.MULTILINE)


def generate(target: Path) -> None:
    """Write the modules of every proto below `target`."""
    from grpc_tools import protoc

    files = sorted(str(path.relative_to(PROTOS)) for path in PROTOS.rglob("*.proto"))
    includes = Path(protoc.__file__).parent / "_proto"
    target.mkdir(parents=True, exist_ok=True)
    code = protoc.main(
        ["protoc", f"-I{PROTOS}", f"-I{includes}", f"--python_out={target}", f"--pyi_out={target}", *files]
    )
    if code != 0:
        sys.exit(code)
    for path in [*target.rglob("*_pb2.py"), *target.rglob("*_pb2.pyi")]:
        path.write_text(_IMPORT.sub(rf"from {PACKAGE}.\1 import", path.read_text(encoding="utf-8")), encoding="utf-8")
        for folder in (path.parent, path.parent.parent):
            (folder / "__init__.py").touch()
    (target / "__init__.py").write_text(
        '"""Made from proto/ by tools/generate_grpc.py; never edited by hand."""\n', encoding="utf-8"
    )


if __name__ == "__main__":
    generate(Path(sys.argv[1]) if len(sys.argv) > 1 else TARGET)
