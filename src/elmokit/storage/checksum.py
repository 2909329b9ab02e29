"""Short names for contents: equal ones have equal names, in every process and on every machine."""

from __future__ import annotations

import hashlib
import json

KEY_BYTES = 16


def key_of(facts: object) -> bytes:
    """A digest of 16 bytes of anything JSON can express."""
    # ASCII JSON keeps words apart whatever is in them, and can express lone surrogates.
    return hashlib.blake2b(json.dumps(facts, sort_keys=True).encode("ascii"), digest_size=KEY_BYTES).digest()


def name_of(facts: object) -> str:
    """The same as 32 letters and digits, for a file's name."""
    return key_of(facts).hex()
