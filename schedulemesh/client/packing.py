"""Packs what a job takes along from the machine that submits it: the folder of its driver, modules, and what
is in its lists of packages.

A folder is walked as Ray's own packer walks it, so that the same files are sent as by ``ray job submit``:
links are followed, empty folders kept, and ``.gitignore``, ``.rayignore`` and ``excludes`` read as git reads
them. This needs no Ray, so that every client packs in the same way.
"""

from __future__ import annotations

import io
import os
import re
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pathspec import PathSpec
from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

from schedulemesh.config.settings import MAX_BLOB_BYTES
from schedulemesh.domain.containers import plain_data
from schedulemesh.domain.payloads import FOLDER_SUFFIXES, MODULE_URI, PackedModule, module_archive
from schedulemesh.errors import InvalidRequestError, shown
from schedulemesh.protocol.agents import key_of
from schedulemesh.protocol.job_command import PackedFolder, Packer

#: Bytes that are read and packed at once.
_PART_BYTES = 1024 * 1024
#: What is left out of every folder, unless a variable of Ray names something else; and the variable that has
#: ``.gitignore`` ignored.
_LEFT_OUT, _LEFT_OUT_VARIABLE = (
    ".git,.venv,venv,__pycache__",
    "RAY_OVERRIDE_RUNTIME_ENV_DEFAULT_EXCLUDES",
)
_NO_GITIGNORE_VARIABLE = "RAY_RUNTIME_ENV_IGNORE_GITIGNORE"

#: A line of a file of requirements that names another one, for packages or for constraints.
_NAMED_FILE = re.compile(
    r"\s*(?P<option>-r|--requirement|-c|--constraint)(?:\s*=\s*|\s+)(?P<file>[^\s#]+)\s*(?:#.*)?$"
)

#: Whether a path is left out.
_Excludes = Callable[[Path], bool]


def packed_folder(folder: Path, excludes: tuple[str, ...] = ()) -> PackedFolder:
    """A folder, or an archive of one, as it is sent. Raises InvalidRequestError where it is neither, or too
    large.
    """
    if os.path.isfile(folder) and folder.name.endswith(FOLDER_SUFFIXES):  # noqa: PTH113  # as below
        return _archive(folder)
    if not os.path.isdir(folder):  # noqa: PTH112  # Path.is_dir raises for names that are too long
        raise InvalidRequestError(
            f"working_dir is {shown(str(folder))}, which is no folder of this machine, nor an archive of one "
            f"({', '.join(FOLDER_SUFFIXES)}); a URI such as s3://... is given as "
            "runtime_env={'working_dir': ...}"
        )
    folder = folder.absolute()
    names = {path: _name(path, folder) for path in _contents(folder, excludes)}
    return PackedFolder(data=_zipped(folder, names), suffix=".zip")


def packed_module(path: Path, excludes: tuple[str, ...] = ()) -> tuple[PackedModule, bytes]:
    """A module, as Ray packs it: a folder with its own name, a file of Python code, or a wheel as it is.
    Raises InvalidRequestError where it is none of these, or too large.
    """
    path = path.absolute()
    if path.is_dir():
        below = {file: f"{path.name}/{_name(file, path)}" for file in _contents(path, excludes)}
        return _module(_zipped(path, below))
    if path.is_file() and path.suffix == ".py":
        return _module(_zipped(path, {path: path.name}))
    if path.is_file() and path.suffix == ".whl":
        _check_size(path, path.stat().st_size)
        data = path.read_bytes()
        # pip reads from its name what a wheel is.
        return PackedModule(uri=f"{MODULE_URI}{path.name}", key=key_of(data)), data
    raise InvalidRequestError(
        f"runtime_env['py_modules'] has {shown(str(path))}, which is no folder, .py file or .whl file of "
        "this machine"
    )


def listed_packages(file: Path, installer: str) -> list[str] | dict[str, Any]:
    """The packages that a file lists for ``pip`` or ``uv``, or the environment that a YAML file describes for
    ``conda``, as Ray reads them. Raises InvalidRequestError where it is no such file.
    """
    import yaml  # noqa: PLC0415  # 20 ms that only those need who have such a file

    is_conda = installer == "conda"
    expected = (
        "a YAML file of this machine with the environment"
        if is_conda
        else "a file of this machine that lists packages"
    )
    what = f"runtime_env[{installer!r}] is {shown(str(file))}"
    try:
        content = yaml.safe_load(_text(file)) if is_conda else _requirements(file, installer)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise InvalidRequestError(
            f"{what}, which cannot be read: {error}; give {expected}, or what is in it: "
            f"{'a dict' if is_conda else 'a list of packages'}"
        ) from None
    if is_conda and not isinstance(content, dict):
        raise InvalidRequestError(f"{what}, which has no names and values; give {expected}")
    listed: list[str] | dict[str, Any] = plain_data(content, f"runtime_env[{installer!r}]")
    return listed


def _text(file: Path) -> str:
    return file.read_text("utf-8-sig")


def _requirements(file: Path, installer: str, including: tuple[Path, ...] = ()) -> list[str]:
    """The lines of a file of requirements, with those of the files that it includes in their place: a node
    has none of them. Raises InvalidRequestError, and OSError and ValueError for a file that cannot be read.
    """
    lines: list[str] = []
    for line in _text(file).strip().split("\n"):
        named = _NAMED_FILE.match(line)
        other = None if named is None else file.parent / named["file"]
        if named is None or other is None or not other.is_file():
            lines.append(line)
        elif named["option"] in ("-c", "--constraint"):
            raise InvalidRequestError(
                f"runtime_env[{installer!r}] has {shown(line.strip())} in {shown(str(file))}, a file that "
                "the nodes have not; name the versions where the packages are, or give a URL"
            )
        elif other.resolve() in (*including, file.resolve()):
            raise InvalidRequestError(
                f"runtime_env[{installer!r}] is {shown(str(file))}, which includes itself with "
                f"{shown(line.strip())}; remove that line"
            )
        else:
            lines += _requirements(other, installer, (*including, file.resolve()))
    return lines


def _module(archive: bytes) -> tuple[PackedModule, bytes]:
    key = key_of(archive)
    return PackedModule(uri=module_archive(key), key=key), archive


PACKER = Packer(folder=packed_folder, module=packed_module, packages=listed_packages)


def _zipped(source: Path, names: Mapping[Path, str]) -> bytes:
    """An archive of files and empty folders, by the names that they have in it."""
    buffer = io.BytesIO()

    def check() -> None:
        _check_size(source, buffer.tell())

    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, name in names.items():
            _add(archive, path, name, check)
    check()
    return buffer.getvalue()


def _archive(file: Path) -> PackedFolder:
    _check_size(file, file.stat().st_size)
    suffix = next(suffix for suffix in FOLDER_SUFFIXES if file.name.endswith(suffix))
    if suffix == ".zip" and not zipfile.is_zipfile(file):
        raise InvalidRequestError(f"working_dir is {str(file)!r}, which is no ZIP archive")
    return PackedFolder(data=file.read_bytes(), suffix=suffix)


def _check_size(source: Path, size: int) -> None:
    if size > MAX_BLOB_BYTES:
        raise InvalidRequestError(
            f"{str(source)!r} takes more than {MAX_BLOB_BYTES // 2**20} MB packed; leave out "
            "what the driver does not need with a .gitignore, a .rayignore or runtime_env={'excludes': "
            "[...]}, or put it where all nodes find it: a shared file system, or a URI as runtime_env's "
            "working_dir or py_modules"
        )


def _contents(folder: Path, excludes: Sequence[str]) -> list[Path]:
    """The files and empty folders below a folder that Ray would send, in a fixed order."""
    contents: list[Path] = []

    def visit(path: Path) -> None:
        if path.is_symlink() and path.is_dir() and _leads_back(path):
            raise InvalidRequestError(
                f"{str(folder)!r} has {_name(path, folder)!r}, a link to a folder that it lies in; leave "
                "it out with runtime_env={'excludes': [...]}"
            )
        if path.is_file() or (path.is_dir() and path != folder and not any(path.iterdir())):
            contents.append(path)

    try:
        _travel(folder, [_excludes_of(folder, [*_left_out(), *excludes])], [], visit)
    except InvalidRequestError:
        raise
    except (OSError, ValueError) as error:
        raise InvalidRequestError(f"{str(folder)!r} cannot be packed: {error}") from error
    return sorted(contents)


def _travel(
    path: Path,
    excludes: Sequence[_Excludes],
    gitignores: Sequence[_GitIgnore],
    visit: Callable[[Path], object],
) -> None:
    """Call ``visit`` for a path and each one below it that nothing leaves out, with links followed.
    ``gitignores``: those of the folders above it, the outermost first. Raises OSError, and ValueError for a
    pattern that git does not have.
    """
    if (patterns := _patterns_in(path / ".rayignore")) is not None:
        excludes = [*excludes, _excludes_of(path, patterns)]
    if _respects_gitignore() and (patterns := _patterns_in(path / ".gitignore")) is not None:
        gitignores = [*gitignores, _GitIgnore(path, patterns)]
    if _is_ignored_by_git(path, gitignores) or any(leaves_out(path) for leaves_out in excludes):
        return
    visit(path)
    if path.is_dir():
        for child in path.iterdir():
            _travel(child, excludes, gitignores, visit)


def _left_out() -> Sequence[str]:
    """What is left out of every folder."""
    names = os.environ.get(_LEFT_OUT_VARIABLE, _LEFT_OUT).split(",")
    return [name.strip() for name in names if name.strip()]


def _respects_gitignore() -> bool:
    return os.environ.get(_NO_GITIGNORE_VARIABLE, "0") != "1"


def _patterns_in(file: Path) -> Sequence[str] | None:
    """The lines of a file that says what is not sent; None: there is no such file."""
    return file.read_text("utf-8").splitlines() if file.is_file() else None


def _written_out(pattern: str) -> str:
    """A pattern that pathspec reads as git does: what ends with ``/**`` or ``/**/`` matches what is in a
    folder, at any depth, and not the folder itself, which pathspec takes it for.
    """
    if pattern.endswith("/**/"):
        return f"{pattern}*/"
    return f"{pattern}/*" if pattern.endswith("/**") else pattern


class _GitIgnore:
    """The patterns of one folder, of which the last that matches a path decides, as in git."""

    def __init__(self, folder: Path, patterns: Iterable[str]) -> None:
        self.folder = folder
        self.patterns = [GitIgnoreSpecPattern(_written_out(pattern)) for pattern in patterns]

    def verdict(self, path: Path) -> bool | None:
        """Whether the patterns leave out a path itself, whatever becomes of the folders that it lies in;
        None: none of them matches. The folder itself is none of theirs, though ``.*`` matches its name.
        """
        if path == self.folder:
            return None
        name = path.relative_to(self.folder).as_posix()
        name = f"{name}/" if path.is_dir() else name
        includes = [pattern.include for pattern in self.patterns if _matches(pattern, name)]
        return includes[-1] if includes else None


def _is_ignored_by_git(path: Path, gitignores: Sequence[_GitIgnore]) -> bool:
    """Whether git ignores a path in a folder that it does not ignore: the innermost file that says anything
    of it decides.
    """
    verdicts = (gitignore.verdict(path) for gitignore in reversed(gitignores))
    return next((verdict for verdict in verdicts if verdict is not None), False)


def _excludes_of(folder: Path, patterns: Iterable[str]) -> _Excludes:
    """Whether patterns leave out a path in a folder, as git reads them, and Ray leaves it out as well, which
    brings back what lies in a folder that is left out.
    """
    rules = _GitIgnore(folder, patterns)
    spec = PathSpec(rules.patterns)

    def leaves_out(path: Path) -> bool:
        ways = [one for one in (path, *path.parents) if one.is_relative_to(folder)][:-1]
        # Ray does not mark folders, so it looks into one that only ``data/`` matches.
        return any(map(rules.verdict, ways)) and any(
            spec.match_file(one.relative_to(folder).as_posix()) for one in ways
        )

    return leaves_out


def _matches(pattern: GitIgnoreSpecPattern, name: str) -> bool:
    """Whether a pattern matches a path itself. It also finds the folders that the path lies in: the one group
    of its expression marks the slash behind a folder.
    """
    if pattern.regex is None:  # of an empty line, or a comment
        return False
    return any(
        match.lastgroup is None or match.end(match.lastgroup) == len(name)
        for match in pattern.regex.finditer(name)
    )


def _leads_back(link: Path) -> bool:
    """Whether a link leads to a folder that it lies in itself, so that its path would have no end."""
    target = link.resolve()
    return any(parent.resolve() == target for parent in link.parents)


def _add(archive: zipfile.ZipFile, path: Path, name: str, check: Callable[[], None]) -> None:
    """Add a file or an empty folder; ``check`` is called after each part of it."""
    entry = zipfile.ZipInfo(name + "/" if path.is_dir() else name)
    entry.compress_type = zipfile.ZIP_DEFLATED
    try:
        status = path.stat()
        entry.external_attr, entry.file_size = status.st_mode << 16, status.st_size
        if path.is_dir():
            archive.writestr(entry, b"")
            return
        with path.open("rb") as source, archive.open(entry, "w") as packed:
            while part := source.read(_PART_BYTES):
                packed.write(part)
                check()
    except OSError as error:
        raise InvalidRequestError(
            f"the folder has {name!r}, which cannot be read ({error.strerror}); make it readable, or leave "
            "it out with runtime_env={'excludes': [...]}"
        ) from error


def _name(path: Path, folder: Path) -> str:
    """The name of a file in a folder. Raises InvalidRequestError where it is no text."""
    name = path.relative_to(folder).as_posix()
    try:
        name.encode()
    except UnicodeEncodeError:
        raise InvalidRequestError(
            f"the folder has {os.fsencode(name)!r}, a name that is no UTF-8, which no archive can have; "
            "rename it, or leave it out with runtime_env={'excludes': [...]}"
        ) from None
    return name
