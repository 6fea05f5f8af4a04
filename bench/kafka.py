"""A Kafka broker to compare with, and the jars of Spark's Kafka connector, both got by Maven under their coordinates.

Nothing here is part of Lanner: `NoKafka` says why it cannot be had, and the comparison is then skipped. The jars stay
in .cache/kafka. The broker is one node that is its own controller; all else is as Kafka ships it.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lanner.testing.process import HOST, free_port

BROKER = "org.apache.kafka:kafka_2.13:4.3.1"
CONNECTOR = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.2",
    "org.apache.commons:commons-pool2:2.12.1",
)
_LOGGER = "org.slf4j:slf4j-simple:1.7.36"
_CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qg"
_MAVEN_S = 900
_READY_S = 90


class NoKafka(Exception):
    """Kafka cannot be had here; the text says why."""


def _pom(packages: tuple[str, ...]) -> str:
    found = ""
    for package in packages:
        group, name, version = package.split(":")
        found += f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId><version>{version}</version>"
        found += "</dependency>"
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion><groupId>bench</groupId>'
        f"<artifactId>bench</artifactId><version>1</version><dependencies>{found}</dependencies></project>"
    )


def jars(name: str, packages: tuple[str, ...], *, with_their_own: bool) -> list[Path]:
    """The jars of some packages, with what they need themselves or without it."""
    folder = Path.cwd() / ".cache" / "kafka" / name
    complete = folder / "complete"
    if not complete.exists():
        folder.mkdir(parents=True, exist_ok=True)
        print(f"Maven gets {', '.join(packages)}", flush=True)
        if with_their_own:
            (folder / "pom.xml").write_text(_pom(packages))
            _maven(folder, "dependency:copy-dependencies")
        else:
            for package in packages:
                _maven(folder, "dependency:copy", f"-Dartifact={package}")
        complete.touch()
    return sorted(folder.glob("*.jar"))


def _maven(folder: Path, *words: str) -> None:
    program = shutil.which("mvn")
    if program is None:
        raise NoKafka("Maven (mvn) is not installed, so the jars cannot be got")
    command = [program, "--quiet", "--batch-mode", *words, f"-DoutputDirectory={folder}"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_MAVEN_S)
    if done.returncode:
        raise NoKafka(f"Maven cannot get the jars: {(done.stdout + done.stderr)[-500:]}")


def connector_jars() -> list[Path]:
    return jars("connector", CONNECTOR, with_their_own=False)


class KafkaBroker:
    """One node. `address` is where clients connect."""

    def __init__(self, folder: Path, java: str) -> None:
        self._folder = folder
        self._java = java
        self._path = ":".join(map(str, jars("broker", (BROKER, _LOGGER), with_their_own=True)))
        self._port = free_port()
        self.address = f"{HOST}:{self._port}"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None, "it was not started"
        return self._process.pid

    def _settings(self) -> str:
        controller = f"{HOST}:{free_port()}"
        alone = ("offsets.topic", "transaction.state.log", "share.coordinator.state.topic")
        return "\n".join(
            [
                "process.roles=broker,controller",
                "node.id=1",
                f"controller.quorum.voters=1@{controller}",
                f"listeners=PLAINTEXT://{self.address},CONTROLLER://{controller}",
                f"advertised.listeners=PLAINTEXT://{self.address}",
                "controller.listener.names=CONTROLLER",
                "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
                f"log.dirs={self._folder / 'log'}",
                "auto.create.topics.enable=false",
                *(f"{name}.replication.factor=1" for name in alone),
                "transaction.state.log.min.isr=1",
                "share.coordinator.state.topic.min.isr=1",
                "",
            ]
        )

    def start(self) -> KafkaBroker:
        settings = self._folder / "server.properties"
        settings.write_text(self._settings())
        format_it = ["kafka.tools.StorageTool", "format", "-t", _CLUSTER_ID, "-c", str(settings)]
        done = subprocess.run([self._java, "-cp", self._path, *format_it], capture_output=True, text=True)
        if done.returncode:
            raise NoKafka(f"Kafka cannot format its folder: {(done.stdout + done.stderr)[-500:]}")
        quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
        heap = ["-Xms1g", "-Xmx1g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"]  # as its own scripts have it
        command = [self._java, *heap, quiet, "-cp", self._path, "kafka.Kafka", str(settings)]
        with (self._folder / "out.log").open("wb") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        ends = time.monotonic() + _READY_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > ends:
                self.stop()
                raise NoKafka(f"Kafka did not start: {(self._folder / 'out.log').read_text()[-500:]}")
            time.sleep(0.1)
        return self

    def _answers(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection((HOST, self._port), timeout=1):
            return True
        return False

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


@contextmanager
def kafka_broker(folder: Path, java: str) -> Iterator[KafkaBroker]:
    folder.mkdir(parents=True, exist_ok=True)
    broker = KafkaBroker(folder, java).start()
    try:
        yield broker
    finally:
        broker.stop()
