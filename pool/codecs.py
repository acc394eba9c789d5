"""How arguments and results are encoded, by name: what a codec of your own has."""

from __future__ import annotations

from pool.core.codec import Codec

__all__ = ["Codec"]
