# SPDX-License-Identifier: Apache-2.0
"""A connection attempt that fails is made again within a call's retries, by the command and by the Python client.

One failure is enough to need it: a server that is starting, a balancer that is being replaced, or gRPC 1.51 itself, which reads errno
only after other library calls and so takes an attempt in progress for a failed one where those changed it (without /proc and /sys).
"""

import contextlib
import socket
import threading
import unittest
from collections.abc import Iterator

import rivulet_wheel  # makes rivulet what is imported below

import rivulet
from command import CONFORMANCE, CommandTest, Server
from command import rivulet as command

MODEL = CONFORMANCE / "tiny-elu-relu"


def forward(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while piece := source.recv(1 << 16):
            sink.sendall(piece)
        sink.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def bad_begin(target: str, failures: int) -> Iterator[tuple[str, list[int]]]:
    """HOST:PORT of a front that closes the first connections at once and passes the others on to `target`; the list has one
    element for each connection."""
    accepted: list[int] = []
    with contextlib.ExitStack() as sockets, socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    client, _ = listener.accept()
                    accepted.append(len(accepted))
                    if len(accepted) <= failures:
                        client.close()
                        continue
                    server = socket.create_connection(target.rsplit(":", 1))
                    for end in (client, server):
                        sockets.callback(end.close)
                    for pair in ((client, server), (server, client)):
                        threading.Thread(target=forward, args=pair, daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{listener.getsockname()[1]}", accepted
        listener.shutdown(socket.SHUT_RDWR)


class ReconnectTest(CommandTest):
    def test_the_command_survives_a_failed_connection(self) -> None:
        with Server(MODEL) as server, bad_begin(server.target, 1) as (front, accepted):
            self.succeeds(command("models", "--target", front))
            self.assertEqual(len(accepted), 2)

    def test_the_python_client_survives_a_failed_connection(self) -> None:
        with Server(MODEL) as server, bad_begin(server.target, 1) as (front, accepted), rivulet.Client(front) as client:
            self.assertEqual([model.name for model in client.models()], ["tiny-elu-relu"])
            self.assertEqual(len(accepted), 2)


if __name__ == "__main__":
    unittest.main()
