"""Clients that others have written, against a server of a tiny model: `make test-clients`, in its own environment.

There nothing is skipped: a client that is not installed is a failure. `make test` does not collect these files.
"""

import os

import pytest

from support.serving import serving

collect_ignore_glob = [] if os.environ.get("ELMOKIT_CLIENTS") else ["test_*.py"]


@pytest.fixture(scope="session")
def server():
    with serving(api_key="secret") as running:
        yield running


@pytest.fixture(scope="session")
def url(server) -> str:
    return f"http://127.0.0.1:{server.port}"
