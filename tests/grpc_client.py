"""A gRPC client made from protos at run time, with a pool of descriptors of its own: nothing of the broker's code."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from grpc_tools import protoc


class Service:
    """The methods of one service at one address, by name: `service.SendMessage(topic="t", data=b"x")`."""

    def __init__(self, channel: grpc.Channel, folder: Path, file: str, name: str) -> None:
        self.pool = compiled(folder, file)
        self.channel = channel
        self._methods: dict[str, Any] = {}
        self._service = self.pool.FindServiceByName(name)

    def message(self, name: str) -> Any:
        return message_factory.GetMessageClass(self.pool.FindMessageTypeByName(name))

    def __getattr__(self, name: str) -> Any:
        method = self._service.methods_by_name[name]
        request = message_factory.GetMessageClass(method.input_type)
        response = message_factory.GetMessageClass(method.output_type)
        shape = ("unary", "stream")[method.client_streaming] + "_" + ("unary", "stream")[method.server_streaming]
        call = getattr(self.channel, shape)(
            f"/{self._service.full_name}/{name}", request.SerializeToString, response.FromString
        )
        if method.client_streaming:
            return lambda requests, **options: call((request(**one) for one in requests), **options)
        bound = Call(call, request)
        self._methods[name] = bound
        return bound


class Call:
    """One method with one request."""

    def __init__(self, call: Any, request: Any) -> None:
        self._call, self.request = call, request

    def __call__(self, timeout: float = 10.0, **fields: Any) -> Any:
        return self._call(self.request(**fields), timeout=timeout)

    def future(self, timeout: float = 10.0, **fields: Any) -> Any:
        return self._call.future(self.request(**fields), timeout=timeout)

    def with_call(self, timeout: float = 10.0, **fields: Any) -> Any:
        return self._call.with_call(self.request(**fields), timeout=timeout)


def compiled(folder: Path, file: str) -> descriptor_pool.DescriptorPool:
    """The descriptors of a proto file and of what it imports."""
    includes = Path(protoc.__file__).parent / "_proto"
    with tempfile.TemporaryDirectory() as place:
        out = Path(place) / "set"
        code = protoc.main(["protoc", f"-I{folder}", f"-I{includes}", "--include_imports", f"-o{out}", file])
        assert code == 0
        found = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes())
    pool = descriptor_pool.DescriptorPool()
    for one in found.file:
        pool.Add(one)
    return pool


def error_of(error: grpc.RpcError) -> tuple[str, str]:
    """Status and the catalogue's name of a failed call."""
    trailers = dict(error.trailing_metadata() or ())
    return error.code().name, trailers.get("lanner-error", "")
