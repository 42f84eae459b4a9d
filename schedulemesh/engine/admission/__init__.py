"""From a submission to a decision, and to a claim on the books."""
