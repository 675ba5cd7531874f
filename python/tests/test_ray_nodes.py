"""`poolbridge.ray` on two nodes that share no network, `/dev/shm` or processes; `raynodes` makes the nodes."""

from __future__ import annotations

import json
import os

import pytest
import raynodes
from realservice import POOLSVC

from poolbridge.ray import _nixl

ray = pytest.importorskip("ray", reason="ray is not installed: pip install '.[ray]'")

LACKS = raynodes.missing()

pytestmark = [
    pytest.mark.long,  # clusters of many processes
    pytest.mark.skipif(not os.access(POOLSVC, os.X_OK), reason="poolsvc is not built: make build"),
    pytest.mark.skipif(bool(LACKS), reason=LACKS),
]

CONTENTS = {"ends": [3, 3], "part": [[11, 9, 7], [17, 15, 13]], "nothing": [], "moved": [4, 4]}


def contents(of):
    return {name: of[name] for name in CONTENTS}


@pytest.fixture(scope="module")
def found():
    return json.loads(raynodes.on_two_nodes())


def test_the_nodes_share_no_network_and_no_mounts(found):
    assert not set(found["near"]["where"]) & set(found["far"]["where"])


def test_a_node_hands_on_in_place(found):
    assert contents(found["near"]) == CONTENTS
    assert found["near"]["counts"] == {"received_in_place": 4, "reasons": {}}
    assert found["sender"] == {"sent_in_place": 9, "reasons": {}}


def test_another_node_gets_the_bytes(found):
    assert contents(found["far"]) == CONTENTS


@pytest.mark.skipif(bool(_nixl.missing()), reason=_nixl.missing())
def test_nixl_reads_for_another_node_where_both_have_it(found):
    reason = "the sender is on another node"
    assert found["far"]["counts"] == {
        "received_by_nixl": 3,
        "received_moved": 1,
        "reasons": {reason: 3, f"{reason}; the transport was registered with nixl=False": 1},
    }


@pytest.mark.skipif(not _nixl.missing(), reason="NIXL is installed: the test before this one runs")
def test_without_nixl_a_mover_reads_and_the_reason_is_counted(found):
    reason = "the sender is on another node"
    assert found["far"]["counts"] == {
        "received_moved": 4,
        "reasons": {f"{reason}; {_nixl.missing()}": 3, f"{reason}; the transport was registered with nixl=False": 1},
    }


def test_a_mover_that_died_is_made_again(found):
    assert found["before"] == found["after"] == [5, 5]
    way = "received_moved" if _nixl.missing() else "received_by_nixl"
    assert found["counts"][way] == found["far"]["counts"][way] + 2


def test_nothing_is_left_on_either_node(found):
    assert found["left"] == [[0, 0, 0], [0, 0, 0]]
