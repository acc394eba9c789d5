"""A network of its own for a process: a namespace, and a cable (veth) to the machine.

    process in its namespace  [near] ---- cable ---- [far]  the fault proxy listens here

Packets are lost as on a bad cable: neither side is told, TCP sends them again.  They get lost
because one end addresses its frames to a machine that is not there, so a direction at a time may be
cut, and the kernel needs neither a packet filter nor netem.  Only root may do this, and needs `ip`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import attrs

NOBODY: Final = "02:00:00:00:00:01"  # no machine has this address


class NoNamespaces(Exception):
    """This machine does not allow them; says why."""


def _ip(*words: str) -> str:
    program = shutil.which("ip")
    if program is None:
        raise NoNamespaces("there is no program `ip`")
    done = subprocess.run([program, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise NoNamespaces(f"ip {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


@attrs.frozen(kw_only=True)
class Namespace:
    """One namespace and its cable."""

    name: str
    far: str  # the machine's end of the cable, and its address there
    far_address: str
    near: str
    near_address: str
    far_mac: str
    near_mac: str

    def command(self, words: list[str]) -> list[str]:
        """Return what runs a program in here, as the very process that is started."""
        return ["ip", "netns", "exec", self.name, *words]

    def lose(self, *, requests: bool = False, replies: bool = False) -> None:
        """Lose all packets that go to the server, or that come from it, or none."""
        self._neighbour(
            "-n", self.name, self.near, self.far_address, NOBODY if requests else self.far_mac
        )
        self._neighbour(self.far, self.near_address, NOBODY if replies else self.near_mac)

    @staticmethod
    def _neighbour(*words: str) -> None:
        *where, device, address, mac = words
        facts = ("lladdr", mac, "dev", device, "nud", "permanent")
        _ip(*where, "neigh", "replace", address, *facts)


@contextmanager
def namespace(number: int) -> Iterator[Namespace]:
    """Make the namespace with this number of this process's; it is gone afterwards.

    Raises:
        NoNamespaces: It cannot be made.
    """
    name = f"pool-{os.getpid()}-{number}"
    far, near = f"p{os.getpid()}-{number}f", f"p{os.getpid()}-{number}n"
    # 198.18.0.0/15 is for tests of networks; four addresses a cable, 8 cables a process.
    host = (os.getpid() * 8 + number) % (1 << 14) * 4
    prefix = f"198.18.{host >> 8}" if host >> 8 < 256 else f"198.19.{(host >> 8) - 256}"
    far_address, near_address = f"{prefix}.{host % 256 + 1}", f"{prefix}.{host % 256 + 2}"
    _ip("netns", "add", name)
    try:
        _ip("link", "add", far, "type", "veth", "peer", "name", near, "netns", name)
        for where, device, address in (((), far, far_address), (("-n", name), near, near_address)):
            _ip(*where, "addr", "add", f"{address}/30", "dev", device)
            _ip(*where, "link", "set", device, "up")
        _ip("-n", name, "link", "set", "lo", "up")
        made = Namespace(
            name=name,
            far=far,
            far_address=far_address,
            near=near,
            near_address=near_address,
            far_mac=_mac(far),
            near_mac=_mac(near, "-n", name),
        )
        made.lose()
        yield made
    finally:
        _ip("netns", "del", name)  # the cable goes with it


def _mac(device: str, *where: str) -> str:
    return _ip(*where, "-o", "link", "show", device).partition("link/ether ")[2].split()[0]
