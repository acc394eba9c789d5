"""Replicated maps: what `pool.ReplicatedMap` answers, and what its watches tell."""

from __future__ import annotations

from pool.maps.deltas import Position, Resync
from pool.maps.map import Counted, Resized, Written
from pool.maps.watch import Change, Watch

__all__ = ["Change", "Counted", "Position", "Resized", "Resync", "Watch", "Written"]
