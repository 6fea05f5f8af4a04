"""The packages that a plain install does not bring, and what to say where one of them is missing.

`pip install lanner` is the client and the command line. The extra `server` brings what a broker needs, the extra
`spark` what Spark needs. What stands on an extra asks here before it imports it, so that its caller reads what to type
rather than the name of a module.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

from lanner.errors import NotInstalled

# By the names that are imported. Spark's Java is not among them: a machine may have one of its own.
MODULES: Final = {
    "server": (
        "google",
        "grpc",
        "grpc_health",
        "grpc_reflection",
        "httptools",
        "lmdb",
        "starlette",
        "uvicorn",
        "yaml",
    ),
    "spark": ("pyarrow", "pyspark", "yaml"),
}


def need(extra: str, what: str) -> None:
    """Raise NotInstalled, with the way to install it, where the extra that `what` stands on is not there."""
    missing = [name for name in MODULES[extra] if find_spec(name) is None]
    if missing:
        raise NotInstalled(
            f"{what} needs the extra '{extra}', and there is no {', '.join(missing)} here. Type: "
            f"pip install 'lanner[{extra}]' (in a checkout: make setup)",
            extra=extra,
            missing=missing,
        )
