"""Files, folders, locks, caches and vectors on the disk: used by every package that writes."""

from typing import Self


class Closing:
    """A mixin for what has a `close`: as a context manager it is closed at the end of the block."""

    def close(self) -> None:
        """Free what was opened."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
