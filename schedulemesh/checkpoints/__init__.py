"""Checkpoints of parallel groups: each rank reads and writes only its slices, in whatever layout it runs.

``open_safetensors`` and ``open_dcp`` open what is stored, ``load_shards`` reads the part of one rank, and
``write_safetensors`` and ``write_dcp`` write it. The libraries are imported where they are used: safetensors
is the extra ``checkpoints``, torch is installed by its users.
"""

from schedulemesh.checkpoints.dcp_reading import open_dcp
from schedulemesh.checkpoints.dcp_writing import write_dcp
from schedulemesh.checkpoints.dtensors import Described, describe_dtensors, sharding_of
from schedulemesh.checkpoints.forms import StoredTensors, TensorForm
from schedulemesh.checkpoints.loading import load_shards
from schedulemesh.checkpoints.safetensors_reading import open_safetensors
from schedulemesh.checkpoints.safetensors_writing import write_safetensors

__all__ = [
    "Described",
    "StoredTensors",
    "TensorForm",
    "describe_dtensors",
    "load_shards",
    "open_dcp",
    "open_safetensors",
    "sharding_of",
    "write_dcp",
    "write_safetensors",
]
