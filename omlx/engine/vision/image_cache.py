"""Which pictures files hold: a picture that was seen is known by what it came from, so that it is not opened again.

A picture that some request holds is there with its pixels; of the others digest and layout are kept, a few hundred
bytes each, which is all that is needed while their features are in memory. Any thread may ask.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from weakref import WeakValueDictionary

from omlx.engine.vision.media import ImageLayout, Picture, Pixels
from omlx.lru import LRUCache

_KNOWN = 4096


class ImageCache:
    """`has_features` says of a picture's digest whether its features are in memory."""

    def __init__(self, has_features: Callable[[bytes], bool]) -> None:
        self._has_features = has_features
        self.opened = 0
        """Files that were unpacked and processed."""
        self._known: LRUCache[bytes, tuple[bytes, ImageLayout]] = LRUCache(max_entries=_KNOWN)
        self._held: WeakValueDictionary[bytes, Picture] = WeakValueDictionary()
        self._lock = threading.Lock()

    @property
    def held_bytes(self) -> int:
        """Of the pixels that requests hold."""
        with self._lock:
            return sum(picture.nbytes for picture in self._held.values())

    def find(self, name: bytes, pixels: Callable[[], Pixels]) -> Picture | None:
        """The picture of that name; None where it has to be opened. `pixels` makes them, should they be needed still:
        features may be dropped between now and then."""
        with self._lock:
            held, known = self._held.get(name), self._known.get(name)
            if held is not None or known is None or not self._has_features(known[0]):
                return held
            picture = self._held[name] = Picture(*known, None, pixels)
            return picture

    def get(self, name: bytes, opened: Callable[[], Picture]) -> Picture:
        """The picture of that name, which `opened` makes where it is not known."""
        features = self.find(name, lambda: opened().pixels())
        if features is not None:
            return features
        picture = opened()
        with self._lock:
            self.opened += 1
            self._held[name] = picture
            self._known.put(name, (picture.digest, picture.layout))
        return picture
