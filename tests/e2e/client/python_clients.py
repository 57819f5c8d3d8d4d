# SPDX-License-Identifier: Apache-2.0
"""What the tests of the Python client share: one interface to both clients."""

import asyncio

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


async def tokens_of(stream):
    return [int(token) async for part in stream for token in part.tokens]
