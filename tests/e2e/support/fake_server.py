# SPDX-License-Identifier: Apache-2.0
"""A gRPC server that follows a script, in place of a rivulet-server. Import rivulet_wheel first."""

import functools
import itertools
import struct
from concurrent import futures
from typing import Any, NamedTuple

import grpc
from google.protobuf import any_pb2, message_factory
from google.rpc import error_details_pb2, status_pb2

from rivulet.v1 import inference_pb2, multiplex_pb2, session_service_pb2


def fnv1a(tokens):
    """What session.proto says."""
    value = 14695981039346656037
    for byte in b"".join(struct.pack("<i", token) for token in tokens):
        value = ((value ^ byte) * 1099511628211) % 2**64
    return value


def part(**fields):
    return inference_pb2.GenerateReply(**fields)


WHOLE = [part(seed=1, tokens=[1], text="a"), part(first_position=1, tokens=[2], text="b", finish={"reason": "FINISH_REASON_LENGTH"}), part(usage={"completion_tokens": 2})]

MODEL = inference_pb2.GetModelReply(summary={"name": "m"}, config_json="{}", chat_template="{{ messages[0].content }}")


def error_status(code, reason="", field="", retry_seconds=None, message="said by the server", **metadata):
    """An error as of rivulet-server. metadata: of its ErrorInfo."""
    status = status_pb2.Status(code=code.value[0], message=message)
    details = [error_details_pb2.ErrorInfo(domain="rivulet", reason=reason, metadata=metadata)]
    if field:
        details.append(error_details_pb2.BadRequest(field_violations=[{"field": field}]))
    if retry_seconds is not None:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromNanoseconds(round(retry_seconds * 1e9))
        details.append(retry)
    for detail in details:
        packed = any_pb2.Any()
        packed.Pack(detail)
        status.details.append(packed)
    return status


def failing(context, code, *arguments, **options):
    """Ends a call as rivulet-server does: error_status()."""
    status = error_status(code, *arguments, **options)
    context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
    context.abort(code, status.message)


def fails(code, *arguments, **options):
    """An end of a reply in a script: as failing()."""
    return lambda context: failing(context, code, *arguments, **options)


def cut(code, message="cut"):
    """An end of a reply in a script: without details, as of a balancer or the network."""
    return lambda context: context.abort(code, message)


def follow(script):
    """An answer to Generate: call i gives what is in script[i], messages and perhaps an end. The script is used up."""

    def generate(request, context):
        if not script:
            failing(context, grpc.StatusCode.INTERNAL, "SCRIPT_IS_OVER")
        for entry in script.pop(0):
            if callable(entry):
                entry(context)
            yield entry

    return generate


def token_bytes(id):
    """What a token stands for: alone, 7 is no UTF-8 and 8 is nothing."""
    return {7: b"\xc3", 8: b""}.get(id, b"t%d" % id)


class Call(NamedTuple):
    name: str
    request: Any
    metadata: dict


class OtherCalls(grpc.ServerInterceptor):
    """Notes the calls for which a server has no handler."""

    def __init__(self, calls):
        self.calls = calls

    def intercept_service(self, continuation, details):
        handler = continuation(details)
        if handler is None:
            self.calls.append(Call(details.method.rpartition("/")[2], None, dict(details.invocation_metadata)))
        return handler


class ScriptedServer:
    """Answers RPCs of rivulet.v1 by `answers`, {name: function(request, context)}: with what the function returns, or, where the
    replies are a stream, with what it yields. A request that is a stream is an iterator. Other RPCs are Unimplemented.
    calls: of each its name, request and metadata."""

    def __init__(self, answers, credentials=None, port=0):
        self.answers, self.calls = answers, []
        options = [("grpc.so_reuseport", 0), ("grpc.max_send_message_length", -1)]
        self.server = grpc.server(futures.ThreadPoolExecutor(8), interceptors=[OtherCalls(self.calls)], options=options)
        for package, name in (
            (inference_pb2, "InferenceService"), (session_service_pb2, "SessionService"), (multiplex_pb2, "MultiplexService")
        ):  # fmt: skip
            service = package.DESCRIPTOR.services_by_name[name]
            handlers = {method.name: self._handler(method) for method in service.methods}
            self.server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service.full_name, handlers)])
        address = f"127.0.0.1:{port}"
        port = self.server.add_secure_port(address, credentials) if credentials else self.server.add_insecure_port(address)
        self.target = f"127.0.0.1:{port}"

    def _handler(self, method):
        request, reply = map(message_factory.GetMessageClass, (method.input_type, method.output_type))
        kind = "_".join("stream" if streams else "unary" for streams in (method.client_streaming, method.server_streaming))
        answer = functools.partial(self._stream if method.server_streaming else self._answer, method.name)
        return getattr(grpc, f"{kind}_rpc_method_handler")(answer, request.FromString, reply.SerializeToString)

    def _answer(self, name, request, context):
        self.calls.append(Call(name, request, dict(context.invocation_metadata())))
        if name not in self.answers:
            context.abort(grpc.StatusCode.UNIMPLEMENTED, f"no answer to {name}")
        return self.answers[name](request, context)

    def _stream(self, name, request, context):
        yield from self._answer(name, request, context)

    def asked(self, name="Generate"):
        """The calls of an RPC."""
        return [call for call in self.calls if call.name == name]

    def __enter__(self):
        self.server.start()
        return self

    def __exit__(self, *exception):
        self.server.stop(None).wait()


class FakeServer(ScriptedServer):
    """Serves the model "m". Generate yields what `generate(context)` does, GetModel returns what `model(request, context)` does:
    functions that tests set. detokenized: the ids of each Detokenize."""

    def __init__(self, credentials=None):
        self.generate, self.model = lambda context: iter(WHOLE), lambda request, context: MODEL
        self.detokenized, self.tells_ends = [], True
        answers = {
            "Generate": lambda request, context: self.generate(context),
            "GetModel": lambda request, context: self.model(request, context),
            "Detokenize": self._detokenize,
            "ListModels": lambda request, context: inference_pb2.ListModelsReply(models=[{"name": "m"}]),
        }
        super().__init__(answers, credentials)

    def _detokenize(self, request, context):
        self.detokenized.append(list(request.ids))
        texts = [token_bytes(id) for id in request.ids]
        ends = itertools.accumulate(map(len, texts)) if self.tells_ends else ()
        return inference_pb2.DetokenizeReply(raw_bytes=b"".join(texts), ends=ends)
