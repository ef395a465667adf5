"""Two hosts on one machine: network namespaces with a cable between them, for tests that need root."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

MISSING = "two hosts need `ip netns` of the Debian package iproute2, run as root"


@dataclass(frozen=True)
class Host:
    """A network namespace with a host name of its own."""

    name: str
    address: str
    cable: str

    def start(self, command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        """A command on this host; it is the only process of the `Popen`, and its children keep to this host."""
        named = ["unshare", "--uts", "sh", "-c", f'hostname {self.name}; exec "$@"', "sh"]
        return subprocess.Popen(["ip", "netns", "exec", self.name, *named, *command], **options)

    def cut(self) -> None:
        """Its cable: no packet comes or goes, and no connection is closed."""
        _ip("-n", self.name, "link", "set", self.cable, "down")

    def pids(self) -> list[int]:
        return [int(pid) for pid in _ip("netns", "pids", self.name).split()]


@contextmanager
def two_hosts(tag: str) -> Iterator[tuple[Host, Host]]:
    """Connected to each other and to nothing else; whatever still runs on them is killed at the end."""
    if shutil.which("ip") is None or subprocess.run(["ip", "netns", "add", f"{tag}0"], capture_output=True).returncode:
        pytest.fail(MISSING, pytrace=False)
    first, second = (Host(f"{tag}{i}", f"10.77.0.{i + 1}", f"{tag}v{i}") for i in range(2))
    try:
        _ip("netns", "add", second.name)
        _ip("link", "add", first.cable, "type", "veth", "peer", "name", second.cable)
        for host in (first, second):
            _ip("link", "set", host.cable, "netns", host.name)
            _ip("-n", host.name, "addr", "add", f"{host.address}/24", "dev", host.cable)
            for link in (host.cable, "lo"):
                _ip("-n", host.name, "link", "set", link, "up")
        yield first, second
    finally:
        for host in (first, second):
            for pid in host.pids() if Path("/run/netns", host.name).exists() else ():
                subprocess.run(["kill", "-9", str(pid)], check=False)
            subprocess.run(["ip", "netns", "del", host.name], check=False, capture_output=True)


def _ip(*command: str) -> str:
    return subprocess.run(["ip", *command], check=True, capture_output=True, text=True).stdout
