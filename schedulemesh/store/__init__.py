"""The journal: stores facts and blobs durably, in SQLite or PostgreSQL, and recovers the state from them.

What is stored is defined elsewhere: the facts in ``schedulemesh.engine.messages.facts``, snapshots in
``schedulemesh.engine.state.snapshot``, saved states in ``schedulemesh.protocol.agents``.
"""
