# SPDX-License-Identifier: Apache-2.0
"""Channels: targets, TLS, retries, keepalive, the methods of the service. The settings equal the C++ client's."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import wrappers_pb2
from google.protobuf.message import Message

from rivulet import errors
from rivulet.core import requests
from rivulet.core.cookies import Attempts, SessionCookies
from rivulet.v1 import admin_service_pb2, inference_pb2, multiplex_pb2, session_service_pb2


@dataclass(frozen=True)
class TlsOptions:
    """Certificates of the server and of this client. Files are PEM.

    root_certs_file: CA certificates that may have signed the server's certificate; None: the roots that come with gRPC.
    client_cert_file, client_key_file: this client's certificate and key (mutual TLS); both or neither.
    server_name: name expected in the certificate, if it is not the target's host.
    """

    root_certs_file: str | PathLike[str] | None = None
    client_cert_file: str | PathLike[str] | None = None
    client_key_file: str | PathLike[str] | None = None
    server_name: str | None = None

    def credentials(self) -> Any:
        """Reads the files. Errors: ValueError (a certificate without its key or the reverse, an empty file), OSError (a
        file that cannot be read)."""
        if (self.client_cert_file is None) != (self.client_key_file is None):
            raise ValueError("tls: client_cert_file and client_key_file must both be given, or neither")
        return grpc.ssl_channel_credentials(
            *(self._read(name) for name in ("root_certs_file", "client_key_file", "client_cert_file"))
        )

    def _read(self, name: str) -> bytes | None:
        path = getattr(self, name)
        if path is None:
            return None
        try:
            pem = Path(path).read_bytes()
        except OSError as error:
            error.strerror = f"tls.{name}: {error.strerror}"
            raise
        if not pem.strip():
            raise ValueError(f"tls.{name}: {path} is empty")
        return pem


# Names that gRPC resolves itself. Any other target must be HOST:PORT: gRPC would use port 443 for a host alone, and look up a
# URL as a host name.
_SCHEMES = ("dns:", "ipv4:", "ipv6:", "unix:", "unix-abstract:", "vsock:", "xds:")


def check_target(target: str) -> None:
    """Errors: ValueError."""
    if target.startswith(_SCHEMES):
        return
    form = "must be HOST:PORT, for example localhost:50051 or [::1]:50051"
    scheme, mark, rest = target.partition("://")
    if mark:
        tls = ", and tls=rivulet.TlsOptions() for TLS" if scheme == "https" else ""
        raise ValueError(f"target: {form}{tls}; got the URL {target!r}")
    host, colon, port = target.rpartition(":")
    if not host or not colon or target.endswith("]"):
        raise ValueError(f"target: {form}; got {target!r}")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise ValueError(f"target: {form}, with brackets around an IPv6 address; got {target!r}")
    if not re.fullmatch("[0-9]{1,5}", port) or not 1 <= int(port) <= 65535:
        raise ValueError(f"target: {form}, with a port from 1 to 65535; got {target!r}")


@dataclass(frozen=True)
class ConnectOptions:
    """The arguments of Client and AsyncClient, checked."""

    target: str
    tls: TlsOptions | None
    connect_timeout: float
    wait_for_ready: bool
    max_attempts: int
    max_receive_bytes: int
    metadata: requests.Metadata = field(repr=False)
    tenant: str
    key: str = field(repr=False)

    def __post_init__(self) -> None:
        check_target(requests.text("target", self.target))
        if self.tls is not None and not isinstance(self.tls, TlsOptions):
            raise TypeError(f"tls: must be a TlsOptions; got {self.tls!r}")
        if not 0.001 <= requests.real("connect_timeout", self.connect_timeout) <= 3600:
            raise ValueError(f"connect_timeout: must be 0.001 to 3600 seconds; got {self.connect_timeout}")
        requests.boolean("wait_for_ready", self.wait_for_ready)
        if not 1 <= requests.int32("max_attempts", self.max_attempts) <= 5:
            raise ValueError(f"max_attempts: must be 1 to 5; got {self.max_attempts}")
        requests.count("max_receive_bytes", self.max_receive_bytes)
        if not re.fullmatch(r"[!-~]*", requests.text("tenant", self.tenant)):
            raise ValueError(f"tenant: must be printable ASCII without spaces; got {self.tenant!r}")
        # Errors do not quote it.
        if not isinstance(self.key, str):
            raise TypeError(f"key: must be a str; got {type(self.key).__name__}")
        if not re.fullmatch(r"[!-~]*", self.key):
            raise ValueError("key: must be printable ASCII without spaces")
        key = (("authorization", f"Bearer {self.key}"),) if self.key else ()
        tenant = (("rivulet-tenant", self.tenant),) if self.tenant else ()
        object.__setattr__(self, "metadata", (*tenant, *key, *requests.metadata(self.metadata)))

    def open(self, library: Any) -> Any:
        """A channel of `library`: grpc or grpc.aio."""
        arguments = self._arguments()
        if self.tls is None:
            return library.insecure_channel(self.target, options=arguments)
        return library.secure_channel(self.target, self.tls.credentials(), options=arguments)

    def _arguments(self) -> list[tuple[str, Any]]:
        arguments: list[tuple[str, Any]] = [
            ("grpc.service_config", service_config(self.max_attempts)),
            ("grpc.max_receive_message_length", self.max_receive_bytes),
            ("grpc.primary_user_agent", "rivulet-python/0.1"),
            # gRPC gives a connection attempt at least this time.
            ("grpc.min_reconnect_backoff_ms", int(self.connect_timeout * 1000)),
            # A connection that failed is tried again within a call's retries; gRPC's own first wait of 1 s would outlast them all.
            ("grpc.initial_reconnect_backoff_ms", 100),
            # A gateway serves soon after its server is back; gRPC's own longest wait is two minutes.
            ("grpc.max_reconnect_backoff_ms", 5_000),
            # A peer that has vanished is noticed within 80 s while a call runs; the server allows a ping every 30 s.
            ("grpc.keepalive_time_ms", 60_000),
            ("grpc.keepalive_timeout_ms", 20_000),
            ("grpc.http2.max_pings_without_data", 0),
        ]
        if self.tls is not None and self.tls.server_name is not None:
            arguments.append(("grpc.ssl_target_name_override", self.tls.server_name))
        return arguments

    def call_arguments(self, method: str, call: requests.CallOptions, more: requests.Metadata = ()) -> dict[str, Any]:
        """The arguments of a gRPC call besides its message; `more`: metadata of this call. Errors: TypeError, ValueError."""
        requests.refuse_unknown(method, call, requests.CallOptions)
        return {
            "timeout": requests.timeout(call.get("timeout")),
            "metadata": (*self.metadata, *requests.metadata(more), *requests.metadata(call.get("metadata", ()))),
            "wait_for_ready": self.wait_for_ready,
        }


# Session names the position in each of these, so that a repetition changes nothing.
_REPEATABLE = ("Append", "RewindSession", "SnapshotSession", "CloseSession", "GetSession", "ListSessions")


def service_config(max_attempts: int) -> str:
    """gRPC retries calls that end with UNAVAILABLE before the first message of their reply. It does not retry calls
    that create a session, because they could create two, and Generate, which RepeatedReply repeats."""
    if max_attempts == 1:
        return "{}"
    retry = {
        "maxAttempts": max_attempts, "initialBackoff": "0.1s", "maxBackoff": "2s", "backoffMultiplier": 2,
        "retryableStatusCodes": ["UNAVAILABLE"],
    }  # fmt: skip
    inference = inference_pb2.DESCRIPTOR.services_by_name["InferenceService"]
    names = [{"service": inference.full_name, "method": method.name} for method in inference.methods if method.name != "Generate"]
    names += [{"service": "rivulet.v1.SessionService", "method": method} for method in _REPEATABLE]
    names += [{"service": "grpc.reflection.v1alpha.ServerReflection"}]
    return json.dumps({
        "methodConfig": [{"name": names, "retryPolicy": retry}], "retryThrottling": {"maxTokens": 10, "tokenRatio": 0.1},
    })  # fmt: skip


class Methods:
    """The calls of a channel, sync or asyncio.

    Two messages of grpc.health.v1 have one field each, with the numbers and types of the wrappers used here. So no
    further package is needed, and no package can conflict.
    """

    def __init__(self, channel: Any) -> None:
        def unary(name: str, request: Any, reply: Any, service: str = "rivulet.v1.InferenceService") -> Any:
            return channel.unary_unary(
                f"/{service}/{name}", request_serializer=request.SerializeToString, response_deserializer=reply.FromString
            )

        def session(name: str, kind: Any = channel.unary_unary) -> Any:
            request, reply = (getattr(session_service_pb2, name + end) for end in ("Request", "Reply"))
            return kind(
                f"/rivulet.v1.SessionService/{name}",
                request_serializer=request.SerializeToString, response_deserializer=reply.FromString,
            )  # fmt: skip

        self.generate = channel.unary_stream(
            "/rivulet.v1.InferenceService/Generate",
            request_serializer=inference_pb2.GenerateRequest.SerializeToString,
            response_deserializer=inference_pb2.GenerateReply.FromString,
        )
        self.score = unary("Score", inference_pb2.ScoreRequest, inference_pb2.ScoreReply)
        self.tokenize = unary("Tokenize", inference_pb2.TokenizeRequest, inference_pb2.TokenizeReply)
        self.detokenize = unary("Detokenize", inference_pb2.DetokenizeRequest, inference_pb2.DetokenizeReply)
        self.list_models = unary("ListModels", inference_pb2.ListModelsRequest, inference_pb2.ListModelsReply)
        self.get_model = unary("GetModel", inference_pb2.GetModelRequest, inference_pb2.GetModelReply)
        self.get_load = unary("GetLoad", inference_pb2.GetLoadRequest, inference_pb2.GetLoadReply)
        self.health = unary("Check", wrappers_pb2.StringValue, wrappers_pb2.Int32Value, "grpc.health.v1.Health")
        self.reflection = channel.stream_stream(  # the gateway uses only the status
            "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", request_serializer=bytes, response_deserializer=bytes
        )
        admin = "rivulet.v1.AdminService"
        self.load_model = unary("LoadModel", admin_service_pb2.LoadModelRequest, admin_service_pb2.LoadModelReply, admin)
        self.unload_model = unary("UnloadModel", admin_service_pb2.UnloadModelRequest, admin_service_pb2.UnloadModelReply, admin)
        self.get_log_level = unary("GetLogLevel", admin_service_pb2.GetLogLevelRequest, admin_service_pb2.GetLogLevelReply, admin)
        self.set_log_level = unary("SetLogLevel", admin_service_pb2.SetLogLevelRequest, admin_service_pb2.SetLogLevelReply, admin)
        self.open_session = session("OpenSession")
        self.append = session("Append")
        self.fork_session = session("ForkSession")
        self.rewind_session = session("RewindSession")
        self.snapshot_session = session("SnapshotSession", channel.unary_stream)
        self.restore_session = session("RestoreSession", channel.stream_unary)
        self.close_session = session("CloseSession")
        self.get_session = session("GetSession")
        self.list_sessions = session("ListSessions")
        self.multiplex = channel.stream_stream(
            "/rivulet.v1.MultiplexService/Multiplex",
            request_serializer=multiplex_pb2.MultiplexRequest.SerializeToString,
            response_deserializer=multiplex_pb2.MultiplexReply.FromString,
        )


class Connection:
    """The channel of a client, sync or asyncio."""

    def __init__(self, options: ConnectOptions, library: Any) -> None:
        """library: grpc or grpc.aio. Errors: OSError, ValueError (certificates)."""
        self._options = options
        self._channel = options.open(library)
        self._methods: Methods | None = Methods(self._channel)  # None after close()
        self.cookies = SessionCookies()
        self.max_attempts = options.max_attempts
        self._max_message_bytes = 0  # of a request; 0: not known before a GetModel

    def _attempts(self, method: str, message: Any, options: requests.CallOptions) -> Attempts:
        return Attempts(method, self.cookies.of_call(message), options)

    def too_large(self, message: Message) -> errors.RivuletError | None:
        """The error of a request above the server's size limit, if GetModel has told the limit."""
        if not self._max_message_bytes or message.ByteSize() <= self._max_message_bytes:
            return None
        return errors.InvalidArgument(
            f"a {message.DESCRIPTOR.name} of {message.ByteSize()} bytes is more than the server takes at once, which is "
            f"{self._max_message_bytes} (its setting max-message-mib)",
            "MESSAGE_TOO_LARGE",
        )

    @property
    def knows_most_bytes(self) -> bool:
        """Whether GetModel has told the size limit of a request."""
        return self._max_message_bytes > 0

    def _noted(self, reply: Any) -> Any:
        """Keeps the server's limits that a reply tells."""
        if isinstance(reply, inference_pb2.GetModelReply):
            self._max_message_bytes = reply.limits.max_message_bytes
        return reply

    def _prepare(self, method: str, message: Any, options: requests.CallOptions, cookie: str) -> tuple[Any, dict[str, Any]]:
        """The function that begins a call, and its arguments besides the message. Errors: TypeError, ValueError,
        InvalidArgument (MESSAGE_TOO_LARGE)."""
        if isinstance(message, Message) and (error := self.too_large(message)):
            raise error
        arguments = self._options.call_arguments(method, options, {"cookie": cookie} if cookie else ())
        if self._methods is None:
            raise ValueError("the client is closed")
        return getattr(self._methods, method), arguments
