"""Every call that anybody can make of a scheduler: a struct each, with its fields, checks and least role."""
