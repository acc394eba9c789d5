"""A network of a process's own: what is lost is lost in silence, and TCP sends it again."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.verify.netns import Namespace, NoNamespaces, namespace

PATIENCE_S = 30.0
SILENT_S = 0.5  # longer than TCP needs to send a lost packet again
CLIENT = """
import socket, sys, threading
peer = socket.create_connection((sys.argv[1], int(sys.argv[2])))
def hear():
    while said := peer.recv(1):
        sys.stdout.write(said.decode()); sys.stdout.flush()
threading.Thread(target=hear, daemon=True).start()
while word := sys.stdin.read(1):
    peer.sendall(word.encode())
"""


@pytest.fixture
def apart() -> Iterator[Namespace]:
    try:
        with namespace(7) as made:
            yield made
    except NoNamespaces as error:
        pytest.skip(f"no network namespaces here: {error}")


def test_what_a_process_sends_is_lost_until_it_is_found(apart: Namespace) -> None:
    with closing(socket.create_server((apart.far_address, 0))) as listener:
        listener.settimeout(PATIENCE_S)
        port = str(listener.getsockname()[1])
        words = apart.command([sys.executable, "-u", "-c", CLIENT, apart.far_address, port])
        pipe = subprocess.PIPE
        with subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True, bufsize=0) as client:
            assert client.stdin
            assert client.stdout
            with closing(listener.accept()[0]) as peer:
                peer.settimeout(PATIENCE_S)
                client.stdin.write("a")
                assert peer.recv(1) == b"a"
                apart.lose(requests=True)
                client.stdin.write("b")
                peer.settimeout(SILENT_S)
                with pytest.raises(TimeoutError):
                    peer.recv(1)
                apart.lose(replies=True)
                peer.settimeout(PATIENCE_S)
                assert peer.recv(1) == b"b"
                peer.sendall(b"c")
                apart.lose()
                assert client.stdout.read(1) == "c"
            client.stdin.close()
