# SPDX-License-Identifier: Apache-2.0
"""Ids of requests: which of a client's are taken, and where they come back."""

import re
import sys
import unittest

from command import CONFORMANCE, SOURCE_DIR, CommandTest, Server, rivulet

sys.path.insert(0, str(SOURCE_DIR / "proto"))
try:
    import grpc
    from google.rpc import error_details_pb2, status_pb2

    pb, inference = grpc.protos_and_services("rivulet/v1/inference.proto")
    multiplex_pb, multiplex_service = grpc.protos_and_services("rivulet/v1/multiplex.proto")
except (ImportError, NotImplementedError) as error:
    print(f"skipped: {error}; deploy/setup.sh --tests installs it into build/venv")
    sys.exit(77)

MODEL = CONFORMANCE / "tiny-elu-relu"
NAME = MODEL.name
LIMIT = 60  # seconds, of any call
UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
ID_KEY, DETAILS_KEY = "x-request-id", "grpc-status-details-bin"


def ids_in(metadata):
    return [value for key, value in metadata or () if key == ID_KEY]


def id_of(status):
    """The id in the details of a google.rpc.Status; None where there is none."""
    info = error_details_pb2.RequestInfo()
    return next((info.request_id for detail in status.details if detail.Unpack(info)), None)


def generate(max_tokens=3, temperature=1.0):
    sampling = pb.SamplingParams(seed=1, temperature=temperature)
    return pb.GenerateRequest(model=NAME, tokens=pb.TokenSequence(ids=[1, 2]), sampling=sampling, max_tokens=max_tokens)


class RequestIdTest(CommandTest):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(MODEL, args=["--backend", "cpu", "--threads", "1"])
        cls.server.__enter__()
        cls.addClassCleanup(cls.server.__exit__)

    def channel(self, *options):
        channel = grpc.insecure_channel(self.server.target, options=[("grpc.use_local_subchannel_pool", 1), *options])
        self.addCleanup(channel.close)
        return channel

    def fails(self, call, code):
        """The exception of a call that fails: its id is in the trailing metadata and the details, and nowhere else."""
        with self.assertRaises(grpc.RpcError) as raised:
            call()
        error = raised.exception
        self.assertEqual(error.code(), code, error)
        self.assertEqual(ids_in(error.initial_metadata()), [])
        details = status_pb2.Status.FromString(dict(error.trailing_metadata())[DETAILS_KEY])
        self.assertEqual(ids_in(error.trailing_metadata()), [id_of(details)])
        return error

    def test_an_id_returns_with_messages_and_trailers(self):
        stub = inference.InferenceServiceStub(self.channel())
        call = stub.Generate(generate(), metadata=[(ID_KEY, "given/1:a+b=")], timeout=LIMIT)
        self.assertEqual(sum(len(reply.tokens) for reply in call), 3)
        self.assertEqual((ids_in(call.initial_metadata()), ids_in(call.trailing_metadata())), (["given/1:a+b="], ["given/1:a+b="]))
        _, call = stub.ListModels.with_call(pb.ListModelsRequest(), timeout=LIMIT)
        self.assertRegex(ids_in(call.trailing_metadata())[0], f"^{UUID}$")
        self.assertEqual(ids_in(call.initial_metadata()), ids_in(call.trailing_metadata()))

    def test_what_is_no_id_is_replaced(self):
        stub = inference.InferenceServiceStub(self.channel())
        for metadata in ([(ID_KEY, "two words")], [(ID_KEY, "a"), (ID_KEY, "b")], [(ID_KEY, "x" * 129)], [(ID_KEY, "")]):
            _, call = stub.ListModels.with_call(pb.ListModelsRequest(), metadata=metadata, timeout=LIMIT)
            self.assertRegex(ids_in(call.trailing_metadata())[0], f"^{UUID}$", metadata)

    def test_errors_have_the_id_in_trailers_and_details_alone(self):
        channel = self.channel()
        stub = inference.InferenceServiceStub(channel)
        self.fails(lambda: list(stub.Generate(generate(temperature=-1), timeout=LIMIT)), grpc.StatusCode.INVALID_ARGUMENT)
        self.fails(lambda: stub.GetModel(pb.GetModelRequest(model="none"), timeout=LIMIT), grpc.StatusCode.NOT_FOUND)
        self.fails(lambda: channel.unary_unary("/rivulet.v1.InferenceService/Score")(b"\xff", timeout=LIMIT),
                   grpc.StatusCode.INVALID_ARGUMENT)
        self.fails(lambda: channel.unary_unary("/no.Such/Method")(b"", timeout=LIMIT), grpc.StatusCode.UNIMPLEMENTED)

    def test_members_of_multiplex_have_the_ids_of_their_keys(self):
        stub = multiplex_service.MultiplexServiceStub(self.channel())
        messages = [multiplex_pb.MultiplexRequest(key=1, generate=generate()),
                    multiplex_pb.MultiplexRequest(key=2, generate=generate(temperature=-1)),
                    multiplex_pb.MultiplexRequest(key=3, cancel=multiplex_pb.CancelRequest())]
        call = stub.Multiplex(iter(messages), metadata=[(ID_KEY, "stream")], timeout=LIMIT)
        parts = [part for reply in call for part in reply.parts]
        ids = {part.key: id_of(status) for part in parts for status in (part.error, part.refused) if status.code}
        self.assertEqual(ids, {2: "stream/2", 3: "stream"})
        self.assertEqual((ids_in(call.initial_metadata()), ids_in(call.trailing_metadata())), (["stream"], ["stream"]))

    def test_the_command_shows_the_id_of_a_failed_request(self):
        bad = ("--tokens", "1", "--temperature", "-1")
        failed = rivulet("generate", "--target", self.server.target, "--model-name", NAME, *bad)
        self.assertTrue(re.search(rf" \(request {UUID}\)$", failed.err.strip()), failed)
        # A server in the command's own process has no log to look into.
        failed = rivulet("generate", "--model", MODEL, *bad)
        self.assertEqual((failed.code, "request" in failed.err), (2, False), failed)


if __name__ == "__main__":
    unittest.main()
