# SPDX-License-Identifier: Apache-2.0
"""What scripts share that ask for Generate in the name of several tenants."""

import re
import sys
import time

from victim import SOURCE_DIR

import grpc

sys.path.insert(0, str(SOURCE_DIR / "proto"))
pb, services = grpc.protos_and_services("rivulet/v1/inference.proto")


class Tenants:
    """A server's InferenceService, for a `with` statement; it serves one model."""

    def __init__(self, target: str):
        self.channel = grpc.insecure_channel(target)
        self.stub = services.InferenceServiceStub(self.channel)

    def __enter__(self) -> "Tenants":
        return self

    def __exit__(self, *exception) -> None:
        self.channel.close()

    def generate(self, tenant: str, *, samples: int = 1, tokens: int = 1 << 20, timeout: float = 120):
        """A stream of replies."""
        request = pb.GenerateRequest(tokens=pb.TokenSequence(ids=[1]), max_tokens=tokens, num_samples=samples)
        return self.stub.Generate(request, timeout=timeout, metadata=(("rivulet-tenant", tenant),))

    def load(self):
        return self.stub.GetLoad(pb.GetLoadRequest(), timeout=30).models[0]

    def first_token_seconds(self, tenant: str, timeout: float) -> float | None:
        """How long one token takes; None: longer than `timeout`. Errors: grpc.RpcError."""
        begin = time.monotonic()
        try:
            next(iter(self.generate(tenant, tokens=1, timeout=timeout)))
        except grpc.RpcError as error:
            if error.code() != grpc.StatusCode.DEADLINE_EXCEEDED:
                raise
            return None
        return round(time.monotonic() - begin, 4)


def reason(error: grpc.RpcError) -> str:
    """The reason of its ErrorInfo, or its code."""
    details = dict(error.trailing_metadata() or ()).get("grpc-status-details-bin", b"")
    found = re.search(rb"ErrorInfo.*?([A-Z][A-Z_]{3,})", details, re.DOTALL)
    return found.group(1).decode() if found else error.code().name
