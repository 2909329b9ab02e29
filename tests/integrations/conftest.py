"""Adapters for other libraries: `make test-integrations`, in an environment of its own, and `make test-flair`.

There nothing is skipped: a library that is not installed is a failure. `make test` collects only those files whose
library is part of its environment.
"""

import os

IN_EVERY_ENVIRONMENT = {"test_sklearn.py", "test_arrow.py"}
IN_FLAIRS_ENVIRONMENT = {"test_flair.py"}

_environment = os.environ.get("ELMOKIT_INTEGRATIONS")


def pytest_ignore_collect(collection_path):
    name = collection_path.name
    if not name.startswith("test_"):
        return None
    wanted = {
        None: name in IN_EVERY_ENVIRONMENT,
        "flair": name in IN_FLAIRS_ENVIRONMENT,
        "all": name not in IN_FLAIRS_ENVIRONMENT,
    }
    return None if wanted[_environment] else True
