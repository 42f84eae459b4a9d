"""Everything that goes into the engine and comes out of it."""
