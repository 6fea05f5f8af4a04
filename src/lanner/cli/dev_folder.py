"""The folder of a local cluster: which brokers are in it, where they listen, and how each is started.

    dev.json       ports and brokers: written before any broker is started
    dev.lock       held while they run
    node-1/        a broker's data
    node-1.log     what it says

The first start decides who founds the cluster. Brokers that come later join; brokers that were removed from the
cluster are remembered, because their node ids may not come back.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from lanner.errors import DataDirectoryRefused, ValidationError

HOST: Final = "127.0.0.1"
PORT: Final = 7400
NODES: Final = 3
NODES_MAX: Final = 9  # one more would listen where the first broker of the next ten does
_FORMAT: Final = 1
_FILE: Final = "dev.json"
_LOCK: Final = "dev.lock"
# What this process was told about one broker must not reach all of them.
_OWN_VARIABLES: Final = frozenset(
    f"LANNER_{name}" for name in ("DATA", "HTTP", "NATIVE", "GRPC", "NAME", "RACK", "SEEDS", "JOIN", "ADVERTISE")
)


@dataclass(frozen=True, slots=True)
class LocalBroker:
    """Where one broker of a local cluster is."""

    number: int
    folder: Path
    port: int

    @property
    def name(self) -> str:
        return f"node-{self.number}"

    @property
    def native(self) -> str:
        return f"{HOST}:{self.port + 10 * self.number}"

    @property
    def http(self) -> str:
        return f"{HOST}:{self.port + 10 * self.number + 1}"

    @property
    def grpc(self) -> str:
        return f"{HOST}:{self.port + 10 * self.number + 2}"

    @property
    def data(self) -> Path:
        return self.folder / self.name

    @property
    def log(self) -> Path:
        return self.folder / f"{self.name}.log"

    @property
    def belongs(self) -> bool:
        """Whether this broker has recorded which cluster it is of."""
        return (self.data / "founding.json").exists()

    def check_ports(self) -> None:
        """Refuse now what the broker would refuse later, in its log."""
        for door, address in (("native", self.native), ("REST", self.http), ("gRPC", self.grpc)):
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind((HOST, int(address.rpartition(":")[2])))
                except OSError as error:
                    raise ValidationError(
                        f"cannot listen on {address}, the {door} port of {self.name} ({os.strerror(error.errno or 0)}):"
                        " stop what listens there, or choose other ports with --port",
                        field="port",
                        address=address,
                    ) from error

    def log_tail(self, lines_max: int = 10) -> list[str]:
        try:
            with self.log.open("rb") as log:
                log.seek(0, os.SEEK_END)
                log.seek(max(0, log.tell() - 16_384))
                lines = log.read().decode("utf-8", errors="replace").splitlines()
        except FileNotFoundError:
            return []
        return [_worded(line) for line in lines[-lines_max:]]


def _worded(line: str) -> str:
    """What a broker says in JSON, for people."""
    try:
        said = json.loads(line)
        return f"{said['type']}: {said['message']}" if "type" in said else str(said["event"])
    except (ValueError, KeyError, TypeError):
        return line


@dataclass(slots=True)
class DevFolder:
    """What dev.json says."""

    path: Path
    port: int
    founders: int
    joined: list[int] = field(default_factory=list)
    removed: list[int] = field(default_factory=list)

    @property
    def brokers(self) -> list[LocalBroker]:
        """The brokers that belong to the cluster, founders first."""
        numbers = [*range(1, self.founders + 1), *self.joined]
        return [LocalBroker(number, self.path, self.port) for number in numbers if number not in self.removed]

    @property
    def founded(self) -> bool:
        """Whether some founder has recorded the cluster; before that, nothing about it is settled."""
        return any(LocalBroker(number, self.path, self.port).belongs for number in range(1, self.founders + 1))

    @property
    def newcomers(self) -> list[LocalBroker]:
        """Brokers that ask to be let in: the others must be up for that."""
        return [broker for broker in self.brokers if broker.number > self.founders and not broker.belongs]

    def command(self, broker: LocalBroker) -> list[str]:
        words = ["--data", str(broker.data), "--name", broker.name, "--native", broker.native, "--http", broker.http]
        words += ["--grpc", broker.grpc]
        others = [other for other in self.brokers if other.number != broker.number]
        founders = [LocalBroker(number, self.path, self.port) for number in range(1, self.founders + 1)]
        is_replaced = not broker.belongs and any(other.belongs for other in others)
        if broker.number > self.founders or (is_replaced and not any(one in others for one in founders)):
            words += ["--join", ",".join(other.native for other in [one for one in others if one.belongs] or others)]
        elif self.founders > 1:
            words += ["--seeds", ",".join(one.native for one in founders)]
        return [sys.executable, "-m", "lanner.cli", "up", "--json", *words]

    def environment(self) -> dict[str, str]:
        return {name: value for name, value in os.environ.items() if name not in _OWN_VARIABLES}

    def forget(self, broker: LocalBroker) -> None:
        """A broker was removed from the cluster."""
        self.removed.append(broker.number)
        self.save()

    def save(self) -> None:
        document = {
            "format": _FORMAT,
            "port": self.port,
            "founders": self.founders,
            "joined": self.joined,
            "removed": self.removed,
        }
        fresh = self.path / (_FILE + ".new")
        with fresh.open("w", encoding="ascii") as file:
            file.write(json.dumps(document) + "\n")
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self.path / _FILE)


def lock_folder(path: Path) -> int:
    """Keep others out for as long as this process lives, or until the descriptor is closed."""
    path.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(descriptor, 20).decode("ascii", "replace").strip()
        os.close(descriptor)
        raise DataDirectoryRefused(
            f"{path} is in use by another `lanner dev` (process {holder or 'unknown'}): stop that first, or give "
            "another folder with --data, and other ports with --port"
        ) from None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, str(os.getpid()).encode("ascii"), 0)
    return descriptor


def open_folder(path: Path, nodes: int | None, port: int | None) -> DevFolder:
    """The cluster in this folder, made where there is none, with as many brokers as asked for."""
    path.mkdir(parents=True, exist_ok=True)
    found = _read(path)
    if found is None or not found.founded:
        folder = found or DevFolder(path, PORT, NODES)
        folder = DevFolder(path, folder.port if port is None else port, folder.founders if nodes is None else nodes)
    else:
        folder = found
        if port not in (None, folder.port):
            raise ValidationError(
                f"the brokers in {path} know each other by the ports of --port {folder.port}: start them with that, or "
                "without --port; for other ports give another folder with --data",
                field="port",
            )
        _resize(folder, nodes)
    _check(folder)
    folder.save()
    return folder


def _resize(folder: DevFolder, nodes: int | None) -> None:
    present = folder.brokers
    if nodes is None or nodes == len(present):
        return
    if nodes < len(present):
        spare = present[-1].name
        raise ValidationError(
            f"{folder.path} is a cluster of {len(present)} brokers, not of {nodes}: start it with --nodes "
            f"{len(present)}. To make it smaller, start it and say `lanner broker remove {spare}`, which moves what "
            f"{spare} holds to the others first",
            field="nodes",
        )
    number = max((folder.founders, *folder.joined, *folder.removed))
    folder.joined += range(number + 1, number + 1 + nodes - len(present))


def _check(folder: DevFolder) -> None:
    highest = max(broker.number for broker in folder.brokers)
    if highest > NODES_MAX:
        raise ValidationError(
            f"node-{highest} would be one too many: a folder has room for brokers 1 to {NODES_MAX}, removed ones "
            "counted; start afresh in another folder with --data, or run brokers by hand with `lanner up`",
            field="nodes",
        )
    if folder.port + 10 * highest + 2 > 65_535:
        raise ValidationError(f"--port {folder.port} leaves no ports for node-{highest}: choose a lower one")


def _read(path: Path) -> DevFolder | None:
    try:
        found: Any = json.loads((path / _FILE).read_bytes()[:4_096])
    except FileNotFoundError:
        if (path / "identity.json").exists():
            raise DataDirectoryRefused(
                f"{path} is the data of a single broker (made by `lanner up`): give another folder with --data"
            ) from None
        if (path / "node-1").exists():
            raise DataDirectoryRefused(
                f"{path} has brokers in it but no {_FILE} that says how they belong together: restore that file, or "
                "give another folder with --data"
            ) from None
        return None
    except ValueError:
        found = None
    if not isinstance(found, dict) or found.get("format") != _FORMAT or not _is_sound(found):
        raise DataDirectoryRefused(
            f"{path / _FILE} is not what this version of `lanner dev` writes: give another folder with --data, or "
            "start it with the version that made it"
        )
    return DevFolder(path, found["port"], found["founders"], found["joined"], found["removed"])


def _is_sound(found: dict[str, Any]) -> bool:
    numbers = [found.get("port"), found.get("founders")]
    for name in ("joined", "removed"):
        if not isinstance(found.get(name), list):
            return False
        numbers += found[name]
    if not all(isinstance(number, int) and 0 < number <= 65_535 for number in numbers):
        return False
    return bool(found["founders"] + len(found["joined"]) > len(found["removed"]))
