"""Alembic's scripts, which create and change the tables of the history."""
