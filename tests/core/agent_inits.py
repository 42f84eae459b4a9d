"""What the process of an agent is started with, in tests that look at the process alone."""

from __future__ import annotations

from schedulemesh.protocol.agents import AgentInit


def agent_init(**fields):
    """An AgentInit of agent ``a`` without a class; the fields that are given differ."""
    required = {
        "scheduler": "mesh",
        "namespace": "space",
        "agent_name": "a",
        "incarnation": 1,
        "labels": {},
        "shipped": b"",
        "arguments": None,
        "saved": None,
    }
    return AgentInit(**required | fields)
