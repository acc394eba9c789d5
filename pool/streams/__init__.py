"""Streams: what `pool.Stream` makes, and what it delivers."""

from __future__ import annotations

from pool.streams.buffer import EventSource
from pool.streams.commands import Parked
from pool.streams.event import StreamEvent
from pool.streams.reader import Reader
from pool.streams.sink import Sink
from pool.streams.stream import Snapshot

__all__ = ["EventSource", "Parked", "Reader", "Sink", "Snapshot", "StreamEvent"]
