"""The supervisor: it decides with the engine, remembers in the journal, and acts through a backend."""
