# SPDX-License-Identifier: Apache-2.0
"""Client of Rivulet, a gRPC server for linear transformers.

    import rivulet

    with rivulet.Client("127.0.0.1:50051") as client:
        for part in client.generate("ROMEO:", model="shakespeare-rfa", max_tokens=200):
            print(part.text, end="", flush=True)

Client is for programs with threads, AsyncClient for asyncio; both have the same methods. They return the dataclasses of
rivulet.replies and rivulet.model_replies, and raise the exceptions of rivulet.errors. rivulet.v1 holds the messages of
the protocol.
"""

from importlib.metadata import version as _version

from rivulet import draw
from rivulet.aio.client import AsyncClient
from rivulet.aio.multiplex import AsyncMultiplex
from rivulet.aio.session import AsyncSession
from rivulet.aio.streams import AsyncGenerateStream, AsyncSessionStream
from rivulet.core.admin import Unloaded
from rivulet.core.connection import TlsOptions
from rivulet.core.images import Snapshot
from rivulet.core.multiplex import MultiplexPart
from rivulet.core.requests import (
    CallOptions, Constraint, GenerateOptions, ImageOptions, Metadata, Priority, Prompt, PromptCache, Reasoning, SamplingOptions,
    ScoreOptions, SessionGenerateOptions, Speculation,
)  # fmt: skip
from rivulet.errors import (
    Aborted, AlreadyExists, Cancelled, Code, DataLoss, DeadlineExceeded, FailedPrecondition, Internal, InvalidArgument, NotFound,
    OutOfRange, PermissionDenied, ResourceExhausted, RivuletError, Unauthenticated, Unavailable, Unimplemented, Unknown,
)  # fmt: skip
from rivulet.model_replies import (
    Architecture, ImageContent, Limits, Mixture, Model, ModelLoad, ModelSummary, ServerLoad, SpecialToken, TextContent, TokenContent,
)  # fmt: skip
from rivulet.replies import (
    Durability, Finish, FinishReason, Generation, HealthStatus, Part, PartialGeneration, Sample, Score, SessionInfo, Text, Tokens, TopLogprobs, Usage,
)  # fmt: skip
from rivulet.threads.client import Client
from rivulet.threads.multiplex import Multiplex
from rivulet.threads.session import Session
from rivulet.threads.streams import GenerateStream, SessionStream

__version__ = _version("rivulet-client")

__all__ = [
    "Aborted", "AlreadyExists", "Architecture", "AsyncClient", "AsyncGenerateStream", "AsyncMultiplex", "AsyncSession",
    "AsyncSessionStream", "CallOptions", "Cancelled", "Client", "Code", "Constraint", "DataLoss", "DeadlineExceeded", "Durability", "FailedPrecondition", "Finish",
    "FinishReason", "GenerateOptions", "GenerateStream", "Generation", "HealthStatus", "ImageContent", "ImageOptions",
    "Internal", "InvalidArgument", "Limits", "Metadata", "Mixture", "Model", "ModelLoad", "ModelSummary", "Multiplex",
    "MultiplexPart", "NotFound", "OutOfRange", "Part", "PartialGeneration", "PermissionDenied", "Priority", "Prompt", "PromptCache", "Reasoning", "ResourceExhausted", "RivuletError", "Sample", "SamplingOptions",
    "Score", "ScoreOptions", "ServerLoad", "Session", "SessionGenerateOptions", "SessionInfo", "SessionStream", "Snapshot", "SpecialToken", "Speculation", "Text", "TextContent", "TlsOptions",
    "TokenContent", "Tokens", "TopLogprobs", "Unauthenticated", "Unavailable", "Unimplemented", "Unknown",
    "Unloaded", "Usage", "draw",
]  # fmt: skip
