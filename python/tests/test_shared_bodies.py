"""What holds for every channel holds for one whose frames go through shared memory, with the service itself."""

from __future__ import annotations

import pytest

pytest.importorskip(
    "poolbridge._native", reason="poolbridge is installed without its native module", exc_type=ImportError
)

from functools import partialmethod

from realservice import RealService
from test_achannels import (  # noqa: F401
    test_a_cancelled_wait_loses_no_frame,
    test_requeueing_time_limits_and_closing,
)
from test_acks import (  # noqa: F401
    queue,
    test_a_block_that_an_exception_leaves_gives_its_frame_back_at_once,
    test_a_frame_that_a_loop_was_left_with_goes_to_another,
    test_a_frame_that_nobody_has_any_more_goes_back_where_it_is_acknowledged_by_hand,
    test_a_requeued_frame_goes_to_another_though_an_array_lives_on,
    test_acknowledging_after_the_end_of_the_session_says_that_it_is_too_late,
    test_an_array_that_is_kept_throughout_holds_nobody_up,
    test_an_async_frame_is_settled_once,
    test_arrays_that_are_made_once_are_not_acknowledged_by_hand,
    test_no_frame_is_given_back_to_a_broadcast,
)
from test_borrowed import (  # noqa: F401
    test_a_channel_that_is_shut_ends_the_arrays,
    test_a_frame_is_let_go_of_when_the_next_is_asked_for,
    test_a_wrap_cannot_end_the_lease_of_its_frame,
    test_a_wrap_that_copies_does_so_for_every_frame,
    test_a_wrap_that_fails_costs_the_frame_and_nothing_else,
    test_an_array_is_made_once_for_a_block_and_a_shape,
    test_every_frame_is_seen_and_known,
    test_nothing_is_left_when_the_client_closes,
    test_the_asyncio_client_has_them_too,
)
from test_channels import (  # noqa: F401
    test_a_full_channel_fails_and_the_lease_lives_on,
    test_a_late_subscriber_begins_with_the_newest_or_the_oldest_kept,
    test_a_subscriber_may_be_another_thread_than_the_publisher,
    test_a_subscriber_may_spin,
    test_bytes_are_published_as_unsigned_bytes,
    test_closing_the_client_ends_a_waiting_subscriber_with_an_error,
    test_frames_come_in_order_and_end_with_the_channel,
    test_shutting_twice,
    test_steady_streaming_maps_nothing,
    test_what_a_stranger_publishes_is_copied,
    test_what_is_no_array_is_not_made_one,
)

import poolbridge


@pytest.fixture
def service(tmp_path, monkeypatch):
    for client in poolbridge.Client, poolbridge.AsyncClient:
        monkeypatch.setattr(client, "create_channel", partialmethod(client.create_channel, shared=True))
    running = RealService(str(tmp_path / "r.sock"))
    yield running
    running.close()
