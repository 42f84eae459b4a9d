"""Common layouts of projects, each with a command that prints what its driver finds, in lines that begin
with ``>``.
"""

from __future__ import annotations

import os
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

#: What every script may use.
_SAYS = "def say(*values):\n    print('>', *values, flush=True)\n"
#: A driver whose task imports the project and reads its files.
_WORKS = """
import os
import ray
from says import say
ray.init()

@ray.remote(num_cpus=0)
def look():
    from pkg.model import NAME
    found = {name: os.environ.get(name) for name in ("TEAM", "PLACE")}
    return NAME, open("conf/a.txt").read(), found

say(ray.get(look.remote()))
"""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A project, and how it is submitted."""

    entrypoint: str
    #: The texts of its files by path; a path that ends with a slash is that of an empty folder.
    files: dict[str, str]
    runtime_env: dict[str, object] = field(default_factory=dict)
    #: Where the links of the folder lead to, by path.
    links: dict[str, str] = field(default_factory=dict)
    executable: tuple[str, ...] = ()
    #: Whether it is submitted as an archive.
    zipped: bool = False
    exit_code: int = 0

    def written_to(self, folder: Path) -> Path:
        """Write the project: its working directory."""
        for name, text in {"says.py": _SAYS, **self.files}.items():
            path = folder / name
            (path if name.endswith("/") else path.parent).mkdir(parents=True, exist_ok=True)
            if not name.endswith("/"):
                path.write_text(text)
                path.chmod(0o755 if name in self.executable else 0o644)
        for name, target in self.links.items():
            (folder / name).symlink_to(target)
        return _zipped(folder) if self.zipped else folder


def _zipped(folder: Path) -> Path:
    target = folder.with_suffix(".zip")
    with zipfile.ZipFile(target, "w") as archive:
        for at, _, names in os.walk(folder):
            for name in names:
                archive.write(Path(at) / name, (Path(at) / name).relative_to(folder))
    return target


_PACKAGE = {"pkg/__init__.py": "", "pkg/model.py": "NAME = 'model'\n"}
_USES = "from says import say\nfrom pkg.model import NAME\nsay(NAME, __name__)\n"
_LISTS = "find . -not -name . | sort | sed 's/^/> /'"

LAYOUTS = {
    "flat script": Layout(
        entrypoint="python train.py --steps 3",
        files={"train.py": "import sys, other\nother.say(sys.argv)", "other.py": _SAYS},
    ),
    "package run as a module": Layout(
        entrypoint="python -m pkg.train", files={**_PACKAGE, "pkg/train.py": _USES}
    ),
    "script in a folder that imports from the top": Layout(
        entrypoint="python scripts/train.py", files={**_PACKAGE, "scripts/train.py": _USES}
    ),
    "src layout": Layout(
        entrypoint="python scripts/train.py",
        files={
            "src/lib/__init__.py": "X = 1",
            "scripts/train.py": "import lib\nfrom says import say\nsay(lib.X)",
        },
        runtime_env={"env_vars": {"PYTHONPATH": "src"}},
    ),
    "command of its own": Layout(
        entrypoint="./run.sh one",
        files={"run.sh": "#!/bin/sh\necho '>' $0 $1 $(basename $PWD | cut -c 1-8)\n"},
        executable=("run.sh",),
    ),
    "console script": Layout(
        entrypoint="ray --version | sed 's/^/> /'", files={}
    ),
    "tests that import the project": Layout(
        entrypoint="pytest -q -p no:cacheprovider tests | head -1 | sed 's/^/> /'",
        files={**_PACKAGE, "tests/test_it.py": "def test_it():\n    import pkg.model\n"},
    ),
    "variables that refer to others": Layout(
        entrypoint="python show.py",
        files={
            "show.py": "import os\nfrom says import say\n"
            "say([os.environ.get(n) for n in ('A', 'B', 'C')], os.environ['PATH'].split(':')[-1])"
        },
        runtime_env={
            "env_vars": {"A": "${HOME}/x", "B": "-${NOT_SET}-", "C": "$HOME", "PATH": "${COMMANDS}:/mine"}
        },
    ),
    "what git ignores": Layout(
        entrypoint=_LISTS,
        files={
            ".gitignore": ".env\n/build\n*.bin\n!keep.bin\n", ".env": "secret", "build/x": "",
            "a/build/x": "", "a.bin": "", "keep.bin": "", ".git/config": "", "venv/x": "", ".cache/x": "",
            "__pycache__/x": "",
        },
    ),
    "what ray ignores": Layout(
        entrypoint=_LISTS,
        files={".rayignore": "data/\n!data/small\n", "data/big": "", "data/small": "", "x/data/big": ""},
    ),
    "excludes": Layout(
        entrypoint=_LISTS,
        files={"a/b/c.txt": "", "a/d.txt": "", "d.txt": "", "logs/": "", "logs2/x": ""},
        runtime_env={"excludes": ["/d.txt", "a/b", "logs2/"]},
    ),
    "links and empty folders": Layout(
        entrypoint="find . -type d | sort | sed 's/^/> /'; cat one/f two | sed 's/^/> /'",
        files={"real/f": "text\n", "out/deep/": ""},
        links={"one": "real", "two": "real/f", "gone": "nowhere"},
    ),
    "archive": Layout(
        entrypoint="python -m pkg.train", files={**_PACKAGE, "pkg/train.py": _USES}, zipped=True
    ),
    "names with spaces and signs": Layout(
        entrypoint="python 'my train.py' 'a  b' \"$HOME\" '*'",
        files={"my train.py": "import sys\nfrom says import say\nsay(sys.argv)", "данные/é.txt": ""},
    ),
    "driver with tasks": Layout(
        entrypoint="python train.py", files={**_PACKAGE, "train.py": _WORKS, "conf/a.txt": "a"}
    ),
    "driver with tasks and variables": Layout(
        entrypoint="python scripts/train.py",
        files={**_PACKAGE, "scripts/train.py": _WORKS, "conf/a.txt": "a"},
        runtime_env={"env_vars": {"TEAM": "a", "PLACE": "${HOME}/of"}},
    ),
    "driver with an environment of its own": Layout(
        entrypoint="python train.py",
        files={
            **_PACKAGE,
            "conf/a.txt": "a",
            "train.py": _WORKS.replace("init()", "init(runtime_env={'env_vars': {'PLACE': 'own'}})"),
        },
        runtime_env={"env_vars": {"TEAM": "a"}},
    ),
    "driver that writes what its tasks read": Layout(
        entrypoint="python train.py",
        files={
            **_PACKAGE,
            "conf/a.txt": "before",
            "train.py": "open('conf/a.txt', 'w').write('written')\n" + _WORKS,
        },
    ),
    "processes of its own": Layout(
        entrypoint="python train.py",
        files={
            **_PACKAGE,
            "train.py": "import multiprocessing as m\nfrom says import say\nfrom pkg import model\n"
            "def name(x):\n    return model.NAME, x\n"
            "if __name__ == '__main__':\n    say(m.get_context('spawn').Pool(1).map(name, [1]))\n",
        },
    ),
    "pipe and failure": Layout(
        entrypoint="python -c \"print('> out')\" | cat; echo '> err' >&2; exit 3",
        files={},
        exit_code=3,
    ),
    "no file but the command": Layout(
        entrypoint="python -c \"import os; print('>', os.environ['PYTHONUNBUFFERED'], os.listdir('.'))\"",
        files={},
    ),
}  # fmt: skip
