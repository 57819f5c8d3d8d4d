# SPDX-License-Identifier: Apache-2.0
"""Stands between a client and a rivulet-server, and loses replies by a script. Import rivulet_wheel first.

Proxy ends the client's HTTP/2 itself, and sends each token of a reply as a message of its own. So a script can act at an exact
message. Its replies must fit into the window of a connection, 64 KiB. Relay passes bytes on to a real server and ends that. Neither sleeps: where a client must have read what was sent, it answers
a PING first."""

import asyncio
import base64
import contextlib
import itertools
import signal
import socket
import struct
import urllib.parse

import grpc
import h2.config
import h2.connection
import h2.events
import h2.exceptions
from h2.errors import ErrorCodes
from hyperframe.frame import GoAwayFrame

from fake_server import error_status
from rivulet.v1 import inference_pb2, multiplex_pb2

PREFACE, GOAWAY = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 7
GENERATE, MULTIPLEX = "/rivulet.v1.InferenceService/Generate", "/rivulet.v1.MultiplexService/Multiplex"
OPEN_SESSION = "/rivulet.v1.SessionService/OpenSession"
FNV_INVERSE = pow(1099511628211, -1, 2**64)
UNITS = {"H": 3600, "M": 60, "S": 1, "m": 1e-3, "u": 1e-6, "n": 1e-9}  # of grpc-timeout, in seconds


def undo_fnv1a(value, tokens):
    """SessionProgress.sequence_hash before `tokens`, from that behind them."""
    for byte in reversed(b"".join(struct.pack("<i", token) for token in tokens)):
        value = (value * FNV_INVERSE % 2**64) ^ byte
    return value


def one_token_each(replies):
    """The parts of a reply (GenerateReply or MultiplexPart), cut so that each holds one token at most, and the usage comes alone. The
    samples take turns. Errors: ValueError (a text, which cannot be cut)."""
    cut, usage = [], []
    for reply in replies:
        if reply.text:
            raise ValueError("the proxy cannot cut a text")
        if reply.HasField("usage"):
            usage.append(type(reply)(usage=reply.usage))
            reply.ClearField("usage")
        count = len(reply.tokens)
        for index in range(max(count, 1)):
            part = type(reply)()
            part.CopyFrom(reply)
            for name in ("tokens", "logprobs", "top_logprobs"):
                values = list(getattr(reply, name))[index : index + 1]
                part.ClearField(name)
                getattr(part, name).extend(values)
            part.first_position += index
            if index > 0:
                part.ClearField("seed")
                part.ClearField("fingerprint")
            if index < count - 1:
                part.ClearField("finish")
                if reply.HasField("session"):
                    rest = reply.tokens[index + 1 :]
                    part.session.position -= len(rest)
                    part.session.sequence_hash = undo_fnv1a(reply.session.sequence_hash, rest)
            if count or part.ListFields():
                cut.append(part)
    if not cut:
        return usage
    # The sort keeps the order of each sample. What names the seed stays first.
    return [cut[0], *sorted(cut[1:], key=lambda part: part.first_position), *usage]


class Connection(asyncio.Protocol):
    """One connection of a client."""

    def __init__(self, proxy):
        self.proxy = proxy
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False, header_encoding="utf-8"))
        self.streams = {}
        self.pings = {}
        self.ping_ids = itertools.count()
        self.unread, self.preface_read = b"", False

    def connection_made(self, transport):
        self.transport = transport
        self.proxy.connections.add(self)
        if self.proxy.refused > 0:
            self.proxy.refused -= 1
            self.reset()
            return
        self.h2.initiate_connection()
        self.flush()

    def connection_lost(self, exception):
        self.proxy.connections.discard(self)
        for answered in self.pings.values():
            answered.cancel()
        for stream in list(self.streams.values()):
            stream.stop()

    def without_goaways(self, data):
        """Whole frames but a client's GOAWAY: h2 would send nothing on a connection that its client is about to leave."""
        self.unread += data
        passed, at = b"", 0 if self.preface_read else len(PREFACE)
        while len(self.unread) >= at + 9 and len(self.unread) >= (end := at + 9 + int.from_bytes(self.unread[at : at + 3], "big")):
            begin = at if self.preface_read else 0
            self.preface_read = True
            if self.unread[at + 3] != GOAWAY:
                passed += self.unread[begin:end]
            at = end
        if self.preface_read:
            self.unread = self.unread[at:]
        return passed

    def data_received(self, data):
        for event in self.h2.receive_data(self.without_goaways(data)):
            if isinstance(event, h2.events.RequestReceived):
                headers = dict(event.headers)
                self.streams[event.stream_id] = Stream(self, event.stream_id, headers)
            elif isinstance(event, h2.events.DataReceived):
                self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                self.streams[event.stream_id].feed(event.data)
            elif isinstance(event, h2.events.StreamEnded):
                self.streams[event.stream_id].feed_end()
            elif isinstance(event, h2.events.StreamReset):
                self.streams[event.stream_id].stop()
            elif isinstance(event, h2.events.PingAckReceived) and event.ping_data in self.pings:
                self.pings.pop(event.ping_data).set_result(None)
        self.flush()

    def flush(self):
        self.transport.write(self.h2.data_to_send())

    async def read_by_client(self):
        """Returns when the client's transport has read all that was sent. The connection says nothing more meanwhile."""
        data = struct.pack(">Q", next(self.ping_ids))
        self.pings[data] = asyncio.get_running_loop().create_future()
        self.h2.ping(data)
        self.flush()
        await self.pings[data]

    def reset(self):
        """RST."""
        linger = struct.pack("ii", 1, 0)
        self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.transport.abort()

    def close(self):
        """FIN."""
        self.transport.close()

    def go_away(self, last_stream_id, code=ErrorCodes.NO_ERROR):
        """Written past h2, which would end the connection at once."""
        self.transport.write(GoAwayFrame(last_stream_id=last_stream_id, error_code=code).serialize())


class Stream:
    """One call of a client."""

    def __init__(self, connection, id, headers):
        self.connection, self.id, self.path, self.cookie = connection, id, headers[":path"], headers.get("cookie")
        timeout = headers.get("grpc-timeout")
        self.timeout = int(timeout[:-1]) * UNITS[timeout[-1]] if timeout else None
        self.messages = asyncio.Queue()  # of the client; None is their end
        self.buffer = b""
        self.begun = self.ended = False
        self.heard = False  # the client has said all
        self.tasks = set()
        serve = {GENERATE: self.generate, MULTIPLEX: self.multiplex}.get(self.path, self.pass_on)
        self.start(serve())

    def start(self, coroutine):
        task = asyncio.get_running_loop().create_task(coroutine)
        self.tasks.add(task)
        task.add_done_callback(self.done)
        return task

    def done(self, task):
        self.tasks.discard(task)
        if not task.cancelled() and task.exception():
            self.connection.proxy.failed(task.exception())

    def stop(self):
        """Nothing more is sent."""
        self.ended = True
        for task in self.tasks - {asyncio.current_task()}:
            task.cancel()

    def feed(self, data):
        self.buffer += data
        while len(self.buffer) >= 5 and len(self.buffer) >= (end := 5 + int.from_bytes(self.buffer[1:5], "big")):
            self.messages.put_nowait(self.buffer[5:end])
            self.buffer = self.buffer[end:]

    def feed_end(self):
        self.heard = True
        self.messages.put_nowait(None)

    # What is sent.

    def begin(self, http_status=200, content_type="application/grpc"):
        if not self.begun:
            headers = [(":status", str(http_status)), ("content-type", content_type), *self.connection.proxy.gives(self.cookie)]
            self.connection.h2.send_headers(self.id, headers)
            self.begun = True
            self.connection.flush()

    def send(self, message, most=None):
        """most: only so many bytes of it."""
        self.begin()
        framed = b"\0" + len(message).to_bytes(4, "big") + message
        self.connection.h2.send_data(self.id, framed[:most])
        self.connection.flush()

    def end(self, code, message="", metadata=()):
        """Trailers; before the first message they come as headers, as those of a rivulet-server."""
        first = [(":status", "200"), ("content-type", "application/grpc"), *self.connection.proxy.gives(self.cookie)]
        values = [] if self.begun else first
        values += [("grpc-status", str(code)), ("grpc-message", urllib.parse.quote(message))]
        for key, value in metadata:
            values.append((key, base64.b64encode(value).decode() if key.endswith("-bin") else value))
        self.connection.h2.send_headers(self.id, values, end_stream=True)
        self.connection.flush()
        self.stop()

    def end_by(self, error):
        self.end(error.code().value[0], error.details() or "", error.trailing_metadata() or ())

    def end_without_trailers(self):
        """A client that has more to say is told to stop, as by every server: gRPC would wait for the end of its own side."""
        self.begin()
        self.connection.h2.end_stream(self.id)
        if not self.heard:
            self.connection.h2.reset_stream(self.id, ErrorCodes.NO_ERROR)
        self.connection.flush()
        self.stop()

    def answer_http(self, http_status):
        """As a balancer does."""
        self.begin(http_status, "text/html")
        self.connection.h2.send_data(self.id, b"<h1>no server</h1>", end_stream=True)
        self.connection.flush()
        self.stop()

    def reset(self, code):
        self.connection.h2.reset_stream(self.id, code)
        self.connection.flush()
        self.stop()

    # What is answered.

    async def pass_on(self):
        """A call that no script is about."""

        async def messages():
            while (message := await self.messages.get()) is not None:
                yield message

        try:
            async for reply in self.connection.proxy.channel(self.cookie).stream_stream(self.path)(messages()):
                self.send(reply)
        except grpc.aio.AioRpcError as error:
            self.end_by(error)
        else:
            self.end(0)

    async def generate(self):
        request = await self.messages.get()
        call = Call(self, inference_pb2.GenerateRequest.FromString(request), self.timeout)
        replies, error = await received(call.channel.unary_stream(GENERATE)(request), inference_pb2.GenerateReply)
        await call.play(replies)
        if call.ended:
            return
        if error is None:
            self.end(0)
        else:
            self.end_by(error)

    async def multiplex(self):
        self.open = {}
        while (message := await self.messages.get()) is not None:
            request = multiplex_pb2.MultiplexRequest.FromString(message)
            if request.HasField("generate"):
                self.open[request.key] = self.start(self.multiplexed(request))
            elif request.key in self.open and not self.open[request.key].done():
                self.open.pop(request.key).cancel()
                call_error = error_status(grpc.StatusCode.CANCELLED)
                self.send(multiplex_pb2.MultiplexReply(parts=[{"key": request.key, "error": call_error}]).SerializeToString())
        await asyncio.gather(*self.open.values(), return_exceptions=True)
        if not self.ended:
            self.end(0)

    async def multiplexed(self, request):
        """One request of a stream."""
        own = request.timeout.ToNanoseconds() / 1e9 if request.HasField("timeout") else self.timeout
        call = Call(self, request.generate, own, request.key)
        only = iter([request.SerializeToString()])
        replies, error = await received(call.channel.stream_stream(MULTIPLEX)(only), multiplex_pb2.MultiplexReply)
        parts = [part for reply in replies for part in reply.parts]
        await call.play([part for part in parts if not part.HasField("error")])
        for part in parts:
            if part.HasField("error") and not call.ended:
                call.fail(part.error)
        if error is not None and not call.ended:
            self.end_by(error)


async def received(replies, kind):
    """All messages of a server, and the error that ended them, or None."""
    messages = []
    try:
        async for reply in replies:
            messages.append(kind.FromString(reply))
    except grpc.aio.AioRpcError as error:
        return messages, error
    return messages, None


class Call:
    """A request for a reply that is on its way through a proxy: a Generate, or a request of a Multiplex stream with `key`."""

    def __init__(self, stream, request, timeout, key=None):
        self.stream, self.request, self.key = stream, request, key
        self.proxy = stream.connection.proxy
        self.channel = self.proxy.channel(stream.cookie)  # before step(), by which the proxy may turn to another server
        self.after, self.fault = self.proxy.step(request, stream.cookie, timeout)
        self.failed = False

    def message(self, part):
        if self.key is None:
            return part.SerializeToString()
        part.key = self.key
        return multiplex_pb2.MultiplexReply(parts=[part]).SerializeToString()

    async def play(self, replies):
        """Sends the reply, and the fault at its place."""
        messages = [self.message(part) for part in one_token_each(replies)]
        until = len(messages) if self.fault is None else len(range(*slice(self.after).indices(len(messages))))
        self.send(messages[:until])
        if self.fault is None or self.ended:
            return
        self.next_message = messages[until] if until < len(messages) else b""
        self.proxy.faults += 1
        await self.fault(self)
        self.send(messages[until:])

    @property
    def ended(self):
        return self.failed or self.stream.ended

    def send(self, messages):
        for message in messages:
            if not self.ended:
                self.stream.send(message)

    def fail(self, error):
        """Ends the request as a rivulet-server does: with a google.rpc.Status."""
        self.failed = True
        if self.key is None:
            self.stream.end(error.code, error.message, [("grpc-status-details-bin", error.SerializeToString())])
        else:
            self.stream.send(multiplex_pb2.MultiplexReply(parts=[{"key": self.key, "error": error}]).SerializeToString())


# Faults: what happens to a call in place of its next message.


def reset(refused=0):
    """RST of the connection. The next `refused` connections are reset as well."""

    async def act(call):
        call.proxy.refused = refused
        call.stream.connection.reset()
        call.stream.stop()

    return act


async def half_open(call):
    """Silence until the client has read all, then RST, as of a peer that started again."""
    call.stream.begin()
    await call.stream.connection.read_by_client()
    await reset()(call)


def within_a_message(act):
    """Half of the next message's bytes, then `act`."""

    async def cut(call):
        call.stream.send(call.next_message, 5 + len(call.next_message) // 2)
        await act(call)

    return cut


async def no_trailers(call):
    """The end of the stream, without a status."""
    call.stream.end_without_trailers()


def http(code):
    """What a balancer answers in place of a server."""

    async def act(call):
        call.stream.answer_http(code)

    return act


def rst_stream(code):
    async def act(call):
        call.stream.reset(code)

    return act


def trailers(code):
    """A status without details, of the whole call."""

    async def act(call):
        call.stream.end(code.value[0], "said by something on the way")

    return act


def error(*arguments, **options):
    """A status with details, which only a rivulet-server sends: error_status()."""

    async def act(call):
        call.fail(error_status(*arguments, **options))

    return act


async def fin(call):
    """FIN of the connection."""
    call.stream.connection.close()
    call.stream.stop()


async def go_away_unseen(call):
    """GOAWAY that says that the server has not seen the call, then FIN."""
    call.stream.connection.go_away(max(call.stream.id - 2, 0))
    await fin(call)


async def go_away_by_error(call):
    call.stream.connection.go_away(call.stream.id, ErrorCodes.INTERNAL_ERROR)
    await fin(call)


async def go_away_gracefully(call):
    """GOAWAY that lets the call end."""
    call.stream.connection.go_away(call.stream.id)
    await call.stream.connection.read_by_client()


async def stall(call):
    """Nothing more, until the client ends the call."""
    call.stream.begin()
    await asyncio.Event().wait()


class Proxy:
    """A port for one client, for an `async with` statement. Each request takes the next of `steps`, (messages that pass, fault), None
    for one that is let through, as those after the last are; `forever`: the last step is taken again and again. Messages are counted
    as slices are: -1 is all but the last. Call number i goes to targets[i], or the last of them; `by_cookie`: a call with the cookie
    COOKIE goes to targets[0], another one to targets[1], with OTHER_COOKIE for the client.

    target: for the client. requests, cookies, timeouts: of each call the GenerateRequest, the cookie and the seconds until its deadline.
    faults: how many were played."""

    COOKIE, OTHER_COOKIE = "replica=0", "replica=1"

    def __init__(self, targets, steps=(), forever=False, refused=0, by_cookie=False):
        self.steps = list(steps)
        self.forever = forever
        self.refused = refused  # how many connections are still to be reset at once
        self.requests, self.cookies, self.timeouts, self.faults, self.connections, self.exceptions = [], [], [], 0, set(), []
        self.targets, self.by_cookie = targets, by_cookie

    def channel(self, cookie):
        if self.by_cookie:
            return self.channels[int(cookie != self.COOKIE)]
        return self.channels[min(len(self.requests), len(self.channels) - 1)]

    def gives(self, cookie):
        """Headers of an answer to a call with this cookie."""
        return [("set-cookie", f"{self.OTHER_COOKIE}; path=/")] if self.by_cookie and cookie is None else []

    def step(self, request, cookie, timeout):
        self.requests.append(request)
        self.cookies.append(cookie)
        self.timeouts.append(timeout)
        index = len(self.requests) - 1
        if self.forever:
            index = min(index, len(self.steps) - 1)
        return (self.steps[index] if index < len(self.steps) else None) or (None, None)

    def failed(self, exception):
        """A bug of the proxy, which the test must see."""
        self.exceptions.append(exception)

    async def __aenter__(self):
        self.stack = contextlib.AsyncExitStack()
        self.channels = [await self.stack.enter_async_context(grpc.aio.insecure_channel(target)) for target in self.targets]
        self.server = await asyncio.get_running_loop().create_server(lambda: Connection(self), "127.0.0.1", 0)
        self.target = "127.0.0.1:%d" % self.server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exception):
        self.server.close()
        for connection in list(self.connections):
            connection.transport.abort()
        await self.stack.aclose()
        for bug in self.exceptions:
            raise bug


class Relay:
    """A port for one client, for an `async with` statement. It passes bytes on to the `first` server (command.Server), sends this the
    signal once `passed` bytes have come back, and passes later connections on to the target `second`. After SIGKILL the connection ends
    there, whatever the server had sent; after another signal as the server ends it. came_back: the client has made a later connection."""

    def __init__(self, first, second, passed, sent=signal.SIGKILL):
        self.first, self.second, self.left, self.sent = first, second, passed, sent
        self.signalled = self.came_back = False

    async def __aenter__(self):
        self.writers = []
        self.server = await asyncio.start_server(self.accept, "127.0.0.1", 0)
        self.target = "127.0.0.1:%d" % self.server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exception):
        self.server.close()
        for writer in self.writers:
            writer.close()

    async def accept(self, near_reader, near):
        self.came_back = self.signalled
        host, port = (self.second if self.signalled else self.first.target).split(":")
        far_reader, far = await asyncio.open_connection(host, int(port))
        self.writers += [near, far]
        await asyncio.gather(self.pass_on(near_reader, far), self.pass_on(far_reader, near, answers=not self.signalled))

    async def pass_on(self, reader, writer, answers=False):
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(4096):
                writer.write(data)
                await writer.drain()
                self.left -= len(data) * answers
                if answers and self.left <= 0 and not self.signalled:
                    self.signalled = True
                    self.first.process.send_signal(self.sent)
                    if self.sent == signal.SIGKILL:
                        break
        writer.close()
