"""One server of a tiny model for the tests of a file that do not change it."""

import pytest

from support.serving import RunningServer, serving


@pytest.fixture(scope="module")
def server() -> RunningServer:
    with serving() as running:
        yield running
