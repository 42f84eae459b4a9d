"""Warm hosts: the class is loaded first, the object built when an agent is wanted."""

from __future__ import annotations

import pytest

from schedulemesh.protocol.agents import AgentInit, Handled, ShippedClass, pack, unpack


@pytest.mark.parametrize("devices", [("1",), ("0", "1")])
def test_a_ready_host_loads_before_it_builds(monkeypatch, devices):
    import os

    from schedulemesh.core.agent.control_channel import ControlChannel
    from schedulemesh.core.agent.warm_host import AsyncWarmHost, WarmHost, warm_host_class
    from schedulemesh.core.transport.user_code import ship_class
    from schedulemesh.protocol.agents import Accelerators
    from tests.integration.agents import Counter

    marks = []
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "all")
    monkeypatch.setattr(
        "schedulemesh.core.agent.control_channel._current", None
    )  # this process hosts no agent
    monkeypatch.setattr(ControlChannel, "start", lambda self: None)
    monkeypatch.setattr("schedulemesh.core.agent.warm_host.mark_this_process", marks.append)
    monkeypatch.setattr(WarmHost, "_sm_report", lambda self: (self._sm_error, self._sm_gpu_ids))
    shipped = ship_class(Counter)
    seen = Accelerators(ids=devices, env_vars={"CUDA_VISIBLE_DEVICES": ",".join(devices)})
    host = warm_host_class(described(shipped))(shipped, seen, None, 55)
    assert marks == [55]
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ",".join(devices)
    assert unpack(host.schedulemesh_ready(), Handled).error == ""
    assert (host._sm_object, isinstance(host, AsyncWarmHost)) == (None, False)
    init = pack(
        AgentInit(
            scheduler="mesh",
            namespace="n",
            agent_name="a",
            incarnation=1,
            mark=77,
            labels={"x": "y"},
            shipped=b"",
            arguments=None,
            saved=None,
        )
    )
    assert host.schedulemesh_build(init, [], []) == ("", devices)
    assert (host._sm_object.name, host.add(2)) == ("a", 2)
    broken = warm_host_class(described(shipped))(b"\xc1", seen, None, 55)
    assert "DecodeError" in unpack(broken.schedulemesh_ready(), Handled).error


def described(shipped):
    import msgspec

    return msgspec.msgpack.decode(shipped, type=ShippedClass)
