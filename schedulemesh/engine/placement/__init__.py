"""Placement: chooses the node, the devices and the placement group of an agent."""
