"""Admission: from a submission to a decision, and to a claim on quota and node or group."""
