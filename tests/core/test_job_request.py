"""Folders of the submitting machine that are sent with a job, and what is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from schedulemesh.core.client.job_request import job_command
from schedulemesh.errors import InvalidRequestError


@pytest.mark.parametrize("within", ["as such", "in runtime_env"])
@pytest.mark.parametrize(
    "given", ["x" * 10**6, "~nobody-here/code", "http://[code", "a\0b", "missing"]
)
def test_what_is_no_folder_is_refused(given, within):
    folder = {"working_dir": given}
    asked = folder if within == "as such" else {"runtime_env": folder}
    with pytest.raises(InvalidRequestError, match="no folder of this machine"):
        job_command({"entrypoint": "train", **asked})


@pytest.mark.parametrize("entrypoint", ["echo a\0b", ["echo", "a\0b"]])
def test_a_command_with_a_zero_byte_is_refused(entrypoint):
    with pytest.raises(InvalidRequestError, match="zero byte"):
        job_command({"entrypoint": entrypoint})


# Root reads every file whatever its mode; what not even root reads is there on Linux only.
@pytest.mark.skipif(
    not Path("/proc/self/mem").exists(),
    reason="without /proc there is no file that root cannot read",
)
def test_a_file_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / "weights").symlink_to("/proc/self/mem")
    with pytest.raises(InvalidRequestError, match="has 'weights', which cannot be read"):
        job_command({"entrypoint": "train", "working_dir": tmp_path})
    excluding = {"entrypoint": "train", "runtime_env": {"excludes": ["weights"]}}
    assert job_command({"working_dir": tmp_path, **excluding}).working_dir is not None
