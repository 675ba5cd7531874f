"""The asyncio client."""

from __future__ import annotations

import asyncio
import gc
import inspect
import threading

import numpy as np
import pytest
from fakeservice import working

import poolbridge
from poolbridge._session.calls import Waiter
from poolbridge._wire import messages as m


def run(service, body, **options):
    async def main():
        async with await poolbridge.connect_async(service.path, **options) as client:
            await client.create_pool("frames", max_bytes=1 << 20)
            return await body(client)

    return asyncio.run(main())


def test_it_has_the_methods_of_the_blocking_client():
    def public(kind):
        return {
            name: [
                (parameter.name, parameter.kind, parameter.default)
                for parameter in inspect.signature(method).parameters.values()
            ]
            for name, method in inspect.getmembers(kind, inspect.isfunction)
            if not name.startswith("_")
        }

    assert public(poolbridge.AsyncClient) == public(poolbridge.Client)
    assert public(poolbridge.AsyncLease) == public(poolbridge.Lease)
    assert inspect.signature(poolbridge.connect_async).parameters == inspect.signature(poolbridge.connect).parameters


def test_a_buffer_goes_from_hand_to_hand(service):
    async def body(client):
        lease = await client.allocate((2, 3), "int32")
        np.asarray(lease)[:] = 7
        await lease.publish("x")
        async with await client.get("x") as got:
            assert got.to_numpy().tolist() == [[7] * 3] * 2
            assert got.readonly
        assert got.released
        assert (await client.stats()).names == 1
        await client.unpublish("x")
        await lease.release()
        with pytest.raises(poolbridge.LeaseReleasedError):
            await lease.release()
        with pytest.raises(poolbridge.NotFoundError):
            await client.get("x")
        assert await client.trim() == 4096
        await client.destroy_pool("frames")

    run(service, body)


def test_many_requests_at_once(service):
    async def body(client):
        leases = await asyncio.gather(*(client.allocate(16, "int64") for _ in range(50)))
        assert len({lease._lease_state.grant.id for lease in leases}) == 50
        await asyncio.gather(*(lease.release() for lease in leases))
        return await client.stats()

    assert run(service, body).leases == 0


def test_a_cancelled_wait_is_cancelled_at_the_service(service):
    async def body(client):
        waiting = []
        service.tricks["get"] = lambda c, r: waiting.append((c, r))
        task = asyncio.create_task(client.get("x", timeout=60))
        await asyncio.sleep(0)  # lets the task send its request first
        await client.stats()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await client.stats()
        ((connection, request),) = waiting
        assert service.seen(m.Cancel) == [m.Cancel(request=request.number)]
        connection.send(m.Reply(number=request.number, error=m.Error("cancelled", "as you wish")))
        await client.stats()

    run(service, body)


def test_a_lease_granted_while_its_wait_was_cancelled_is_given_back(service):
    async def body(client):
        late = []
        service.tricks["alloc"] = lambda c, r: late.append((c, r))
        task = asyncio.create_task(client.allocate(4, timeout=60))
        await asyncio.sleep(0)  # lets the task send its request first
        await client.stats()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        ((connection, request),) = late
        with service.changed:
            connection.handle(request)
        assert service.leases == 1
        while not service.seen(m.Release):
            await asyncio.sleep(0.01)
        await client.stats()
        assert service.leases == 0

    run(service, body)


def test_a_lease_whose_pool_is_being_opened_is_given_back_when_cancelled(service):
    with poolbridge.connect(service.path) as maker:
        maker.create_pool("other", max_bytes=1 << 16)
        with maker.allocate(4) as lease:
            lease.publish("x", keep=True)
        maker.stats()  # the service has heard of the end of the lease

        async def body(client):
            service.tricks["open"] = lambda c, r: None
            task = asyncio.create_task(client.get("x", timeout=60))
            await asyncio.sleep(0)  # lets the task send its request first
            await client.stats()
            await client.stats()
            assert service.leases == 1
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await client.stats()
            assert service.leases == 0

        run(service, body)


def test_a_stalled_service_is_a_typed_timeout(service):
    async def body(client):
        client.timeout = 0.1
        service.tricks["stats"] = lambda c, r: None
        with pytest.raises(poolbridge.ServiceStalledError):
            await client.stats()

    run(service, body)


def test_a_service_that_says_it_is_working_is_not_stalled(service):
    async def body(client):
        def slowly(connection, request):
            working(client, connection, request)
            with service.changed:
                connection.handle(request)

        service.tricks["alloc"] = slowly
        client.timeout = 0.5
        await (await client.allocate(4)).release()
        service.tricks["alloc"] = lambda c, r: working(client, c, r)
        client._session.patience = 0.5
        with pytest.raises(poolbridge.ServiceStalledError):
            await client.allocate(4)

    run(service, body)


def test_a_service_that_vanishes_fails_every_call(service):
    async def body(client):
        service.tricks["stats"] = lambda c, r: c.hang_up()
        results = await asyncio.gather(*(client.stats() for _ in range(3)), return_exceptions=True)
        assert [type(result) for result in results] == [poolbridge.ConnectionLostError] * 3
        assert client.closed

    run(service, body)


def test_a_hostile_packet_ends_the_session(service):
    async def body(client):
        service.tricks["stats"] = lambda c, r: c.send(b"\xc1")
        with pytest.raises(poolbridge.ProtocolError):
            await client.stats()

    run(service, body)


def test_no_service(tmp_path):
    with pytest.raises(poolbridge.ServiceNotRunningError, match="poolsvc serve"):
        asyncio.run(poolbridge.connect_async(tmp_path / "none"))
    with pytest.raises(poolbridge.ServiceStartTimeoutError):
        asyncio.run(poolbridge.connect_async(tmp_path / "none", wait=0.1))


def test_dropped_leases_end_and_an_idle_client_answers_a_recall(service):
    async def body(client):
        array = np.asarray(await client.allocate(4))
        block = service.buffers[max(service.buffers)].block.id
        await client.stats()
        assert service.leases == 1
        service.connections[-1].recall(block)
        await asyncio.sleep(0.05)
        assert not service.seen(m.Dropped)
        del array
        gc.collect()
        while not service.seen(m.Dropped):
            await asyncio.sleep(0.01)
        assert service.leases == 0

    run(service, body)


def test_a_full_socket_does_not_block_the_loop(service):
    async def body(client):
        leases = [await client.allocate(1) for _ in range(200)]

        gate = threading.Event()
        service.tricks["stats"] = lambda c, r: gate.wait()
        client.timeout = 1
        stalled = asyncio.create_task(client.stats())
        await asyncio.sleep(0.05)
        del leases
        gc.collect()
        for number in range(2000):
            client._session.release_grant(
                m.Grant(
                    id=10**6 + number,
                    buffer=1,
                    generation=1,
                    pool=1,
                    block=10**9,
                    block_nbytes=1,
                    tensor=m.Tensor(dtype="int8"),
                )
            )
        await asyncio.sleep(0.05)
        gate.set()
        del service.tricks["stats"]
        with pytest.raises(poolbridge.ServiceStalledError):
            await stalled
        client.timeout = 60
        assert (await client.stats()).leases == 0

    run(service, body)


def test_a_dropped_client_warns_and_goes(service):
    async def main():
        client = await poolbridge.connect_async(service.path)
        with pytest.warns(ResourceWarning, match="unclosed"):
            del client
            gc.collect()
        while service.connections[0].is_alive():
            await asyncio.sleep(0.01)

    asyncio.run(main())


def test_the_last_array_of_a_dropped_client_goes_after_the_loop(service):
    async def main():
        client = await poolbridge.connect_async(service.path)
        await client.create_pool("p", max_bytes=1 << 16)
        return np.asarray(await client.allocate(4))

    with pytest.warns(ResourceWarning, match="unclosed"):
        arrays = [asyncio.run(main())]
        gc.collect()
    last = threading.Thread(target=arrays.clear, daemon=True)
    last.start()
    last.join(60)
    assert not last.is_alive()
    service.connections[0].join(60)
    assert not service.connections[0].is_alive()


def test_the_event_loop_goes_on_while_packets_come_and_come(service, monkeypatch):
    async def flood():
        async with await poolbridge.connect_async(service.path, timeout=60) as client:
            reads = []
            with monkeypatch.context() as patched:

                def receive():
                    reads.append(1)
                    assert len(reads) < 1 << 16, "that never ends"
                    return True

                patched.setattr(client._session, "receive", receive)
                client._reader._readable()
                first = len(reads)
                await asyncio.sleep(0)
                assert len(reads) > first, "it is read on"
            assert (await client.stats()).sessions

    asyncio.run(flood())


def test_a_wait_goes_on_while_notices_leave_its_condition_false(service):
    async def body(client):
        met = False
        waiter = Waiter(lambda: met)
        waiting = asyncio.ensure_future(client._reader.wait(waiter, 60))
        while waiter.on_done is None:
            await asyncio.sleep(0)
        waiter.tell()
        await asyncio.wait([waiting], timeout=0.05)
        assert not waiting.done()
        met = True
        waiter.tell()
        assert await waiting

    run(service, body)
