"""The supervisor: decides with the engine, stores facts in the journal, and acts through a backend.

The most important modules: ``reactor`` (decide, persist, then act), ``executor`` (executes instructions),
``agent_start`` (how an agent is started), ``eviction`` (how a victim is saved and terminated), ``pg_manager``
(placement groups), ``cluster_monitor`` (observes nodes and agents).
"""
