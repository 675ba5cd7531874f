"""`poolbridge.ray` on two nodes that share no network, `/dev/shm` or processes; `raynodes` makes them of namespaces."""

from __future__ import annotations

import json
import os

import pytest
import raynodes
from realservice import POOLSVC

ray = pytest.importorskip("ray", reason="ray is not installed: pip install '.[ray]'")

LACKS = raynodes.missing()

pytestmark = [
    pytest.mark.skipif(not os.access(POOLSVC, os.X_OK), reason="poolsvc is not built: make build"),
    pytest.mark.skipif(bool(LACKS), reason=LACKS),
]

PART = [[11.0, 9.0, 7.0], [17.0, 15.0, 13.0]]


@pytest.fixture(scope="module")
def found():
    return json.loads(raynodes.on_two_nodes())


def test_the_nodes_share_no_network_and_no_mounts(found):
    assert not set(found["near"]["where"]) & set(found["far"]["where"])


def test_a_node_hands_on_in_place(found):
    assert found["near"]["ends"] == [3, 3]
    assert found["near"]["part"] == PART
    assert found["near"]["counts"] == {"received_in_place": 2, "reasons": {}}
    assert found["sender"] == {"sent_in_place": 4, "reasons": {}}


def test_another_node_gets_the_bytes_by_a_mover(found):
    assert found["far"]["ends"] == [3, 3]
    assert found["far"]["part"] == PART
    assert found["far"]["counts"] == {"received_moved": 2, "reasons": {"the sender is on another node": 2}}
