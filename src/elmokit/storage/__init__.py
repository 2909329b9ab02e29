"""Files, folders, locks, caches and vectors on disk, for every package that writes."""

from typing import Self


class Closing:
    """A mixin for classes with `close`: makes them context managers that are closed at the end of the block."""

    def close(self) -> None:
        """Release the resources."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
