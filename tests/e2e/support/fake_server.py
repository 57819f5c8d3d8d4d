# SPDX-License-Identifier: Apache-2.0
"""A gRPC server that follows a script, in place of a rivulet-server. Import rivulet_wheel first."""

import itertools
from concurrent import futures

import grpc
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2

from rivulet.v1 import inference_pb2


def part(**fields):
    return inference_pb2.GenerateReply(**fields)


WHOLE = [part(seed=1, tokens=[1], text="a"), part(first_position=1, tokens=[2], text="b", finish={"reason": "FINISH_REASON_LENGTH"}), part(usage={"completion_tokens": 2})]

MODEL = inference_pb2.GetModelReply(summary={"name": "m"}, config_json="{}", chat_template="{{ messages[0].content }}")


def failing(context, code, reason="", field="", retry_seconds=None):
    """Ends a call as rivulet-server does."""
    status = status_pb2.Status(code=code.value[0], message="said by the server")
    details = [error_details_pb2.ErrorInfo(domain="rivulet", reason=reason)]
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
    context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
    context.abort(code, "said by the server")


def token_bytes(id):
    """What a token stands for: alone, 7 is no UTF-8 and 8 is nothing."""
    return {7: b"\xc3", 8: b""}.get(id, b"t%d" % id)


class Recorder(grpc.ServerInterceptor):
    def __init__(self, calls):
        self.calls = calls

    def intercept_service(self, continuation, details):
        self.calls.append((details.method.rpartition("/")[2], dict(details.invocation_metadata)))
        return continuation(details)


class FakeServer:
    """Serves the model "m". Generate yields what `generate(context)` does, GetModel returns what `model(request, context)` does:
    functions that tests set. metadata: of each Generate. calls: the names of all calls and their metadata. detokenized: the ids of
    each Detokenize."""

    def __init__(self, credentials=None):
        self.generate, self.metadata, self.requests, self.calls = lambda context: iter(WHOLE), [], [], []
        self.model = lambda request, context: MODEL
        self.detokenized, self.tells_ends = [], True
        self.server = grpc.server(futures.ThreadPoolExecutor(8), interceptors=[Recorder(self.calls)])
        messages = inference_pb2
        handlers = {
            "Generate": grpc.unary_stream_rpc_method_handler(
                self._generate, messages.GenerateRequest.FromString, messages.GenerateReply.SerializeToString
            ),
            "GetModel": grpc.unary_unary_rpc_method_handler(
                lambda request, context: self.model(request, context),
                messages.GetModelRequest.FromString, messages.GetModelReply.SerializeToString,
            ),
            "Detokenize": grpc.unary_unary_rpc_method_handler(
                self._detokenize, messages.DetokenizeRequest.FromString, messages.DetokenizeReply.SerializeToString
            ),
            "ListModels": grpc.unary_unary_rpc_method_handler(
                lambda request, context: messages.ListModelsReply(models=[{"name": "m"}]),
                messages.ListModelsRequest.FromString, messages.ListModelsReply.SerializeToString,
            ),
        }  # fmt: skip
        self.server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("rivulet.v1.InferenceService", handlers)])
        address = "127.0.0.1:0"
        port = self.server.add_secure_port(address, credentials) if credentials else self.server.add_insecure_port(address)
        self.target = f"127.0.0.1:{port}"

    def _detokenize(self, request, context):
        self.detokenized.append(list(request.ids))
        texts = [token_bytes(id) for id in request.ids]
        ends = itertools.accumulate(map(len, texts)) if self.tells_ends else ()
        return inference_pb2.DetokenizeReply(raw_bytes=b"".join(texts), ends=ends)

    def _generate(self, request, context):
        self.requests.append(request)
        self.metadata.append(dict(context.invocation_metadata()))
        yield from self.generate(context)

    def __enter__(self):
        self.server.start()
        return self

    def __exit__(self, *exception):
        self.server.stop(None).wait()
