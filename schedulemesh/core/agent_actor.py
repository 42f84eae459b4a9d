"""The agent under the path that the documents promise."""

from schedulemesh.core.agent.agent_actor import AgentActor

__all__ = ["AgentActor"]
