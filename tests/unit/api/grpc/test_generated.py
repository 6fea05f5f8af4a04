"""The generated code is what the protos say, and every method of a service is served."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

from google.protobuf.descriptor import ServiceDescriptor

from lanner.api.grpc import door
from lanner.api.grpc.generated.lanner.v1 import queue_pb2 as lanner_pb2
from lanner.api.grpc.generated.queue.v1 import queue_pb2
from lanner.api.grpc.queue_service import QueueService

ROOT = Path(__file__).parents[4]
GENERATED = ROOT / "src" / "lanner" / "api" / "grpc" / "generated"


def test_the_generated_code_is_up_to_date(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "tools/generate_grpc.py", str(tmp_path)], cwd=ROOT, check=True, timeout=120)
    made = {path.relative_to(tmp_path): path.read_text() for path in tmp_path.rglob("*.py*") if path.is_file()}
    kept = {
        path.relative_to(GENERATED): path.read_text()
        for path in GENERATED.rglob("*.py*")
        if "__pycache__" not in path.parts
    }
    assert kept == made, "run: python tools/generate_grpc.py"


def served(service: ServiceDescriptor, methods: Any) -> None:
    assert set(methods) == set(service.methods_by_name)
    for name, method in methods.items():
        if service.methods_by_name[name].server_streaming:
            assert method.sends, f"{name} is to send several answers"


def test_every_method_of_queue_is_served() -> None:
    backing: Any = None
    served(queue_pb2.DESCRIPTOR.services_by_name["QueueService"], QueueService(backing).methods())


def test_every_method_of_lanner_is_served() -> None:
    backing: Any = None
    served(lanner_pb2.DESCRIPTOR.services_by_name["Queue"], door.lanner_methods(backing))


async def test_a_taken_address_is_an_error_and_not_shared() -> None:
    service: Any = None
    first, second = door.GrpcDoor(service), door.GrpcDoor(service)
    host, port = await first.start("localhost", 0)
    try:
        assert host == "127.0.0.1"
        try:
            await second.start(host, port)
        except OSError as error:
            assert error.errno is not None
        else:
            await second.stop(0)
            raise AssertionError("two doors listen at one address")
    finally:
        await first.stop(0)
        await asyncio.sleep(0)
