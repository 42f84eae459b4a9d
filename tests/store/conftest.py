"""A real PostgreSQL server, started by the tests that ask for one."""

from __future__ import annotations

import itertools
import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from sqlalchemy import URL

from schedulemesh.store.address import address_of

_numbers = itertools.count()


def _programs():
    """The folder of the server's programs; Debian keeps it off the PATH."""
    found = shutil.which("initdb")
    places = [Path(found).resolve().parent] if found else []
    places += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((place for place in places if (place / "pg_ctl").exists()), None)


class Server:
    """A PostgreSQL server on a Unix socket of its own, run by a user who is not root."""

    def __init__(self, programs, folder):
        self._programs = programs
        self.folder = folder
        self._user = "postgres" if os.geteuid() == 0 else None
        if self._user:
            owner = pwd.getpwnam(self._user)
            os.chown(folder, owner.pw_uid, owner.pw_gid)
        self._run("initdb", "-D", folder / "data", "-U", "tester", "--auth=trust", "-E", "UTF8")
        with (folder / "data" / "postgresql.conf").open("a") as file:
            file.write(f"listen_addresses = ''\nunix_socket_directories = '{folder}'\n")

    def start(self):
        """Return once it takes connections."""
        self._run("pg_ctl", "-D", self.folder / "data", "-l", self.folder / "log", "-w", "start")

    def stop(self, mode="immediate"):
        """Return once it is gone; "immediate" is as if it had crashed."""
        self._run("pg_ctl", "-D", self.folder / "data", "-m", mode, "-w", "stop")

    @property
    def url(self):
        """What a user would give as state_path."""
        url = URL.create(
            "postgresql+psycopg", "tester", database="postgres", query={"host": str(self.folder)}
        )
        return url.render_as_string(hide_password=False)

    def _run(self, program, *arguments):
        # pg_ctl's server keeps its output open, so nothing is read from a pipe here.
        with (self.folder.parent / f"{self.folder.name}.out").open("ab") as out:
            subprocess.run(
                [self._programs / program, *arguments],
                user=self._user,
                cwd="/",
                check=True,
                timeout=60,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )


@pytest.fixture(scope="session")
def server():
    pytest.importorskip("psycopg", reason="psycopg is not installed: pip install '.[postgres]'")
    programs = _programs()
    if programs is None:
        pytest.skip("no PostgreSQL server is installed: apt-get install postgresql")
    # A Unix socket's path must be short, and the server's user must be able to reach it.
    with tempfile.TemporaryDirectory(prefix="pg-", dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        home = Path(folder) / "s"
        home.mkdir()
        found = Server(programs, home)
        found.start()
        yield found
        found.stop()


@pytest.fixture
def database(server, tmp_path):
    """Addresses in the database; each test has a namespace of its own."""
    namespace = f"test-{next(_numbers)}"
    return lambda name: address_of(server.url, tmp_path, namespace, name)
