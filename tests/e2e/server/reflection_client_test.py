# SPDX-License-Identifier: Apache-2.0
"""A client in Python that has no code of ours: every message and method comes from the server's reflection."""

import json
import re
import sys
import unittest

try:
    import grpc
    from google.protobuf import descriptor_pool, json_format, message_factory
    from grpc_health.v1 import health_pb2, health_pb2_grpc
    from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
except ImportError as error:
    print(f"skipped: {error}; deploy/setup.sh --tests installs it into build/venv")
    sys.exit(77)

from command import SOURCE_DIR, ZOO, CommandTest, Server, rivulet
from digits import MODEL, SEED, VALUES, reference_digits

SERVICE = "rivulet.v1.InferenceService"
TIMEOUT = 120  # seconds, of any call
DIGITS = 3


class ReflectedClient:
    """Calls any method of SERVICE with requests written as dictionaries. Thread: any one."""

    def __init__(self, target):
        self.channel = grpc.insecure_channel(target)
        self.database = ProtoReflectionDescriptorDatabase(self.channel)
        self.pool = descriptor_pool.DescriptorPool(self.database)

    def message(self, full_name):
        """The class of a message that the server describes. Errors: KeyError where it does not."""
        return message_factory.GetMessageClass(self.pool.FindMessageTypeByName(full_name))

    def call(self, method_name, request, service=SERVICE):
        """The reply, or for a streaming method an iterator of replies. Errors: grpc.RpcError, ParseError."""
        method = self.pool.FindServiceByName(service).methods_by_name[method_name]
        assert not method.client_streaming, method_name
        reply = message_factory.GetMessageClass(method.output_type)
        message = json_format.ParseDict(request, message_factory.GetMessageClass(method.input_type)())
        make = self.channel.unary_stream if method.server_streaming else self.channel.unary_unary
        stub = make(
            f"/{service}/{method_name}",
            request_serializer=lambda value: value.SerializeToString(),
            response_deserializer=reply.FromString,
        )
        return stub(message, timeout=TIMEOUT)

    def details(self, error):
        """(google.rpc.Status, {name of the type: detail}) of a failed call, decoded by reflection."""
        (packed,) = [value for key, value in error.trailing_metadata() if key == "grpc-status-details-bin"]
        status = self.message("google.rpc.Status").FromString(packed)
        details = {}
        for any_message in status.details:
            detail = self.message(any_message.TypeName())()
            assert any_message.Unpack(detail), any_message
            details[any_message.TypeName()] = detail
        return status, details


class ReflectionClientTest(CommandTest):
    @classmethod
    def setUpClass(cls):
        server = Server(MODEL, ZOO / "shakespeare-rfa")
        server.__enter__()
        cls.addClassCleanup(server.__exit__)
        cls.client = ReflectedClient(server.target)
        cls.addClassCleanup(cls.client.channel.close)

    def fails_with(self, method, request):
        """(the error, its google.rpc.Status, its details) of a call that must fail."""
        with self.assertRaises(grpc.RpcError) as raised:
            list(self.client.call(method, request))
        status, details = self.client.details(raised.exception)
        self.assertEqual(status.code, raised.exception.code().value[0])
        self.assertEqual(status.message, raised.exception.details())
        return raised.exception, status, details

    def test_the_server_lists_its_services_and_describes_its_own(self):
        self.assertEqual(
            sorted(self.client.database.get_services()),
            ["grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection", SERVICE, "rivulet.v1.MultiplexService",
             "rivulet.v1.SessionService"],
        )
        methods = self.client.pool.FindServiceByName(SERVICE).methods_by_name
        self.assertEqual(sorted(methods), ["Detokenize", "Generate", "GetLoad", "GetModel", "ListModels", "Score", "Tokenize"])
        self.assertEqual([name for name in methods if methods[name].server_streaming], ["Generate"])

    def test_health_is_described_and_called_by_what_is_described(self):
        health = self.client.pool.FindServiceByName("grpc.health.v1.Health")
        self.assertEqual(sorted(health.methods_by_name), ["Check", "Watch"])
        self.assertTrue(health.methods_by_name["Watch"].server_streaming)
        for service in ("", "mnist-linear"):
            reply = self.client.call("Check", {"service": service}, "grpc.health.v1.Health")
            self.assertEqual(json_format.MessageToDict(reply), {"status": "SERVING"})
            self.assertEqual(health_pb2.HealthCheckResponse.FromString(reply.SerializeToString()).status, health_pb2.HealthCheckResponse.SERVING)

    def test_what_the_guide_asks_with_grpcurl_is_answered(self):
        guide = (SOURCE_DIR / "docs/api.md").read_text(encoding="utf-8")
        commands = re.findall(r"^grpcurl -plaintext (?:-d '(.*)' )?127\.0\.0\.1:50051 (.*)$", guide, re.MULTILINE)
        self.assertEqual(len(commands), guide.count("\ngrpcurl "))
        self.assertGreaterEqual(len(commands), 7)
        for request, wanted in commands:
            with self.subTest(command=(request, wanted)):
                if wanted == "list":
                    self.assertIn(SERVICE, self.client.database.get_services())
                elif wanted.startswith("describe "):
                    self.assertTrue(self.client.message(wanted.removeprefix("describe ")).DESCRIPTOR.fields)
                else:
                    service, method = wanted.split("/")
                    reply = self.client.call(method, json.loads(request or "{}"), service)
                    parts = [reply] if hasattr(reply, "DESCRIPTOR") else list(reply)
                    self.assertGreater(sum(part.ByteSize() for part in parts), 0)

    def test_digits_arrive_pixel_by_pixel_and_equal_those_of_the_command(self):
        digits, usage, messages = [[] for _ in range(DIGITS)], None, 0
        request = {"model": "mnist-linear", "tokens": {}, "sampling": {"seed": SEED}, "numSamples": DIGITS}
        for part in self.client.call("Generate", request):
            if messages == 0:
                self.assertEqual((part.HasField("seed"), part.seed), (True, SEED))
            messages += 1
            if part.tokens:
                self.assertEqual(part.first_position, len(digits[part.sample_index]))
            digits[part.sample_index] += part.tokens
            usage = part.usage if part.HasField("usage") else None
        self.assertEqual(digits, reference_digits(DIGITS))
        self.assertEqual((usage.prompt_tokens, usage.completion_tokens), (0, DIGITS * VALUES))
        self.assertGreater(messages, DIGITS, "nothing was streamed")

    def test_a_score_equals_that_of_the_command(self):
        digit = reference_digits(1)[0]
        line = json.dumps({"tokens": digit}) + "\n"
        expected = self.succeeds(
            rivulet("score", "--model", MODEL, "--input", "-", "--outputs", "0,783", stdin=line)
        ).lines()[0]
        reply = self.client.call("Score", {"model": "mnist-linear", "tokens": {"ids": digit}, "outputPositions": [0, 783]})
        self.assertEqual((reply.nll_nats, reply.num_scored), (expected["nll_nats"], VALUES))
        for ours, theirs in zip(reply.outputs, expected["outputs"], strict=True):
            self.assertEqual(len(ours.values), 3 * 10)
            for value, printed in zip(ours.values, theirs, strict=True):
                self.assertAlmostEqual(value, printed, delta=1e-6 * max(1, abs(printed)))

    def test_models_and_their_contents_are_listed(self):
        models = self.client.call("ListModels", {}).models
        self.assertEqual([model.name for model in models], ["mnist-linear", "shakespeare-rfa"])
        reply = self.client.call("GetModel", {"model": "mnist-linear"})
        self.assertEqual(reply.content.WhichOneof("kind"), "image")
        self.assertEqual((reply.content.image.height, reply.content.image.width), (28, 28))
        self.assertEqual(json.loads(reply.config_json), json.loads((MODEL / "config.json").read_text()))
        text = self.client.call("GetModel", {"model": "shakespeare-rfa"}).content.text.alphabet
        self.assertIn("R", text)

    def test_health_is_that_of_grpc_for_the_server_and_each_model(self):
        stub = health_pb2_grpc.HealthStub(self.client.channel)
        for service in ("", "mnist-linear", "shakespeare-rfa"):
            reply = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=TIMEOUT)
            self.assertEqual(reply.status, health_pb2.HealthCheckResponse.SERVING, service)
        with self.assertRaises(grpc.RpcError) as raised:
            stub.Check(health_pb2.HealthCheckRequest(service="nobody"), timeout=TIMEOUT)
        self.assertEqual(raised.exception.code(), grpc.StatusCode.NOT_FOUND)

    def test_a_bad_field_is_named_in_details_that_reflection_decodes(self):
        error, status, details = self.fails_with(
            "Generate", {"model": "shakespeare-rfa", "text": "A", "sampling": {"topP": 2}}
        )
        self.assertEqual(error.code(), grpc.StatusCode.INVALID_ARGUMENT)
        info = details["google.rpc.ErrorInfo"]
        self.assertEqual((info.reason, info.domain), ("INVALID_SAMPLING", "rivulet"))
        (violation,) = details["google.rpc.BadRequest"].field_violations
        self.assertEqual((violation.field, violation.description), ("sampling.top_p", status.message))
        self.assertIn("2", status.message)

    def test_an_unknown_model_is_not_found(self):
        error, _, details = self.fails_with("Generate", {"model": "nobody", "tokens": {}})
        self.assertEqual(error.code(), grpc.StatusCode.NOT_FOUND)
        self.assertEqual(details["google.rpc.ErrorInfo"].reason, "MODEL_NOT_FOUND")
        self.assertEqual(details["google.rpc.BadRequest"].field_violations[0].field, "model")

    def test_no_generated_code_of_ours_took_part(self):
        ours = [name for name in sys.modules if name.startswith(("rivulet.", "rivulet_", "google.rpc"))]
        self.assertEqual(ours, [])


if __name__ == "__main__":
    unittest.main()
