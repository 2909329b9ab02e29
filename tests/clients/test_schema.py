"""Schemathesis: requests made from the schema, right and wrong ones, on every route."""

import pytest
import schemathesis
from hypothesis import HealthCheck, settings

from elmokit.serve.schema import openapi
from support.serving import serving

schemathesis.checks.load_all_checks()
schema = schemathesis.openapi.from_dict(openapi())
CHECKS = [
    schemathesis.checks.not_a_server_error,
    schemathesis.checks.CHECKS.get_one("status_code_conformance"),
    schemathesis.checks.CHECKS.get_one("content_type_conformance"),
    schemathesis.checks.CHECKS.get_one("response_schema_conformance"),
]


@pytest.fixture(scope="module")
def open_server():
    with serving() as running:
        yield running


@schema.parametrize()
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_500_and_no_undocumented_status(case, open_server):
    response = case.call(base_url=f"http://127.0.0.1:{open_server.port}")
    case.validate_response(response, checks=CHECKS)
