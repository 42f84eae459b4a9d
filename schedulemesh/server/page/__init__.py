"""The page: what the cluster does and why tasks wait, as HTML that this server draws, for browsers."""
