"""Frames that are held back to be let go of together, when something else happens meanwhile."""

from __future__ import annotations

import gc
import os
import struct
import threading

import pytest
from fakechannels import ChannelService
from test_borrowed import backlog, released
from test_ring import Ends

import poolbridge
from poolbridge import _borrowed, _pump, _ring
from poolbridge._feed import Feed


@pytest.fixture
def service(tmp_path):
    running = ChannelService(str(tmp_path / "c.sock"))
    yield running
    running.close()


@pytest.fixture
def begin(service, client, other, monkeypatch):
    """Make arrays of 16 frames that the client has; those that are taken are held back."""
    monkeypatch.setattr(_borrowed, "_QUICK", 3600)
    return lambda: backlog(service, client, other, 16)


@pytest.fixture
def unwatched(other, monkeypatch):
    """Nobody looks after what is held back."""
    monkeypatch.setattr(_pump.Pump, "ringing", lambda pump: None)


class FakeFollower:
    """A follower whose stream is nobody's; `done` is what it does before frames are released."""

    anywhere = True
    recorded = False

    def __init__(self, done=lambda: None):
        self._done = done

    def before(self, grant):
        return True

    def done(self, say):
        try:
            self._done()
        finally:
            say(())


def broken():
    raise poolbridge.DriverError("no more work for this GPU")


def fork_error_of(work):
    """Whether work in a forked child raises ForkError."""
    child = os.fork()
    if not child:
        try:
            work()
        except poolbridge.ForkError:
            os._exit(7)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_a_forked_child_gets_no_frame_that_has_come(begin):
    arrays = begin()
    assert arrays._notice is None
    assert arrays._feed.frames
    assert fork_error_of(lambda: next(arrays))


def test_a_forked_child_gives_no_stream_work(begin, unwatched):
    arrays = begin()
    for _ in range(3):
        next(arrays)
    assert len(arrays._spent) == 2
    arrays._follower = FakeFollower(broken)
    assert fork_error_of(arrays.release)
    assert fork_error_of(lambda: next(arrays))
    arrays._follower = None


def test_a_device_that_fails_ends_neither_the_watcher_nor_a_request(service, other, begin, monkeypatch):
    arrays = begin()
    arrays._follower = FakeFollower(broken)
    for _ in range(3):
        next(arrays)
    service.wait(lambda: released(service) == 2)
    gone = threading.Event()
    other._pump.background(gone.set)
    assert gone.wait(30), "the watcher goes on"
    monkeypatch.setattr(_pump.Pump, "ringing", lambda pump: None)
    next(arrays)
    assert arrays._spent, "which the request finds"
    other.stats()
    assert not arrays._spent
    arrays._follower = None


def test_a_request_and_a_release_wait_for_what_another_thread_has_begun_to_let_go_of(service, other, begin, unwatched):
    arrays = begin()
    begun, goes = threading.Event(), threading.Event()

    def wait():
        begun.set()
        assert goes.wait(30)

    for ask in (other.stats, arrays.release):
        arrays._follower = FakeFollower(wait)
        for _ in range(3):
            next(arrays)
        begun.clear()
        goes.clear()
        settling = threading.Thread(target=other._session.settle)
        settling.start()
        assert begun.wait(30)
        arrays._follower = None
        asking = threading.Thread(target=ask)
        asking.start()
        asking.join(0.05)
        assert asking.is_alive(), "what it would tell the service comes after the release"
        goes.set()
        settling.join()
        asking.join()
        arrays.release()


def test_frames_are_held_back_while_the_streams_work_is_recorded(service, other, begin, unwatched):
    arrays = begin()
    follower = arrays._follower = FakeFollower()
    for _ in range(3):
        next(arrays)
    follower.recorded = True
    other.stats()
    assert released(service) == 0, "a ticket would become a part of the graph"
    arrays.release()
    other.stats()
    assert released(service) == 3


def test_what_is_held_back_is_noted_once(other, begin, unwatched):
    arrays = begin()
    for _ in range(16):
        next(arrays)
    assert len(other._session._unsettled) == 1, "however often the consumer itself has let go of it"


def test_arrays_may_be_dropped_by_whoever_holds_the_lock_of_a_closed_client(service, client):
    with poolbridge.connect(service.path, timeout=60) as other:
        arrays = backlog(service, client, other, 8)
        next(arrays)
    with other._session._lock:  # as the garbage collector may do
        del arrays
        gc.collect()


@pytest.fixture
def corrupt():
    """A ring whose reader says that it has read 12 bytes."""
    made = Ends()
    made.a.put(b"1")
    struct.pack_into("<Q", made.b_file, 64, 12)
    yield made.a
    made.close()


needs_ring = pytest.mark.skipif(not _ring.USABLE, reason="there are no rings on this processor")


def use(client, ring):
    client._session.transport.use(ring)
    client._session.transport._aside.clear()


@needs_ring
def test_a_corrupt_ring_that_a_request_finds_ends_the_session(other, corrupt):
    use(other, corrupt)
    for _ in range(2):
        with pytest.raises(poolbridge.ProtocolError, match="says that it has read 12 bytes"):
            other.stats()


@needs_ring
def test_a_corrupt_ring_that_the_watcher_finds_ends_the_session(other, begin, corrupt):
    arrays = begin()
    use(other, corrupt)
    for _ in range(3):
        next(arrays)
    other._pump._watcher.join(30)
    assert other._pump._finished
    with pytest.raises(poolbridge.ProtocolError, match="says that it has read 12 bytes"):
        other.stats()


@pytest.mark.parametrize("tell", [lambda feed: feed.put(None), lambda feed: feed.lose(None)], ids=["put", "lose"])
def test_whoever_waits_for_a_frame_may_give_up_while_it_comes(tell):
    class GivenUp(Feed):
        """A feed whose waiter gives up as soon as somebody has looked whether there is one."""

        def __init__(self):
            self.looked = self.called = 0
            super().__init__(1)

        @property
        def on_done(self):
            self.looked += 1
            return self._call if self.looked == 1 else None

        @on_done.setter
        def on_done(self, value):
            assert value is None

        def _call(self):
            self.called += 1

    feed = GivenUp()
    tell(feed)
    assert feed.called == 1
