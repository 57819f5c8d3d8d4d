# SPDX-License-Identifier: Apache-2.0
"""What the tests of the Python client share: one interface to both clients, and a proxy that cuts connections."""

import asyncio
import socket
import threading

import rivulet_wheel  # makes rivulet what is imported below

import rivulet


class Awaited:
    """A Client or Session with methods that can be awaited."""

    def __init__(self, of):
        self.of = of

    def __getattr__(self, name):
        value = getattr(self.of, name)
        if not callable(value) or name == "keep":
            return value
        if name in ("generate", "generate_all", "generate_many", "multiplex", "score_many", "stream_images"):
            return lambda *arguments, **options: AwaitedStream(value(*arguments, **options))

        async def call(*arguments, **options):
            return self.wrap(value(*arguments, **options))

        return call

    def wrap(self, result):
        if isinstance(result, list):
            return [self.wrap(entry) for entry in result]
        return Awaited(result) if isinstance(result, rivulet.Session) else result

    async def __aenter__(self):
        self.of.__enter__()
        return self

    async def __aexit__(self, *exception):
        self.of.__exit__(*exception)


class AwaitedStream:
    """The same for what is iterated."""

    def __init__(self, of):
        self.of = of

    def __getattr__(self, name):
        return getattr(self.of, name)

    def __aiter__(self):
        return self

    async def __anext__(self):
        try:
            return next(self.of)
        except StopIteration:
            raise StopAsyncIteration from None

    async def collect(self):
        return self.of.collect()

    async def aclose(self):
        self.of.close()

    async def __aenter__(self):
        self.of.__enter__()
        return self

    async def __aexit__(self, *exception):
        self.of.__exit__(*exception)


class Both:
    """client(): a client whose calls can be awaited. call(): what a function of a client returns; of an AsyncClient it is awaited."""

    def use(self, function, target=None, **options):
        """Runs a coroutine function of a client(), of `server` where no target is given."""

        async def run():
            async with self.client(target or self.server.target, **options) as client:
                await asyncio.wait_for(function(client), 300)

        asyncio.run(run())


class Sync(Both):
    def client(self, target, **options):
        return Awaited(rivulet.Client(target, **options))

    def call(self, target, function, **options):
        with rivulet.Client(target, **options) as client:
            return function(client)


class Async(Both):
    def client(self, target, **options):
        return rivulet.AsyncClient(target, **options)

    def call(self, target, function, **options):
        async def run():
            async with rivulet.AsyncClient(target, **options) as client:
                return await function(client)

        return asyncio.run(run())


class CutProxy:
    """Passes connections on to `target`. While `left` is above 0, only PASSED bytes from there come through on a connection, more
    than any part of a reply has; then it waits for cut(), or, with `at_once`, cuts itself. Each cut takes one off `left`."""

    PASSED = 6000

    def __init__(self, target):
        host, port = target.split(":")
        self.address = (host, int(port))
        self.lock = threading.Lock()
        self.left = 0
        self.at_once = False
        self.ends = []  # the sockets of the connections that are open

    def __enter__(self):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.target = "127.0.0.1:%d" % self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()
        return self

    def __exit__(self, *exception):
        self.listener.close()
        self.cut()

    def accept(self):
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            far = socket.create_connection(self.address)
            with self.lock:
                self.ends += [near, far]
            threading.Thread(target=self.pass_on, args=(near, far), daemon=True).start()
            threading.Thread(target=self.pass_on, args=(far, near), daemon=True).start()

    def cut(self):
        """Ends all connections."""
        with self.lock:
            for end in self.ends:
                try:
                    end.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass  # its peer was first
                end.close()
            self.left -= bool(self.ends)
            self.ends = []

    def pass_on(self, source, sink):
        passed = 0
        try:
            while data := source.recv(64):
                sink.sendall(data)
                passed += len(data)
                if passed >= self.PASSED and source.getpeername() == self.address and self.left > 0:
                    if self.at_once:
                        self.cut()
                    return
        except OSError:
            return


async def tokens_of(stream):
    return [int(token) async for part in stream for token in part.tokens]
