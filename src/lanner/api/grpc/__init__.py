"""The gRPC door: Queue's own service for the clients it had, and Lanner's for new ones.

It translates messages to calls and back, and does nothing else. `methods` is what every method goes through (reading,
errors, cancellation), `problems` how an error is told, `backing` what the door asks of the broker.
"""

from lanner.api.grpc.door import GrpcDoor

__all__ = ["GrpcDoor"]
