"""Reads slices of tensors from safetensors files: one, or several with an index as of Hugging Face."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from schedulemesh.checkpoints.forms import DTYPES, Library, TensorForm, check_dtype
from schedulemesh.dispatch.plan import Box
from schedulemesh.errors import InvalidRequestError

_INDEX = ".safetensors.index.json"
_NAMES = {code: name for name, (code, _) in DTYPES.items()}


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


class SafetensorsCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """The tensors of safetensors files; files are open only while they are read."""

    forms: Mapping[str, TensorForm]
    #: The file of each tensor.
    files: Mapping[str, Path]
    library: Library
    #: What the files say beside tensors; of several files together.
    metadata: Mapping[str, str]

    def copy(self, boxes: Iterable[tuple[str, Box, Any]]) -> None:
        """Copies boxes of stored tensors into arrays of their size; only their pages of the file are read."""
        by_file: dict[Path, list[tuple[str, Box, Any]]] = {}
        for each in boxes:
            by_file.setdefault(self.files[each[0]], []).append(each)
        for path, some in by_file.items():
            with _opened(path, self.library) as file:
                for key, box, array in some:
                    check_dtype(self.library, self.forms[key].dtype)
                    array[...] = file.get_slice(key)[_slices(box)]


def open_safetensors(path: str | Path, *, library: Library = "torch") -> SafetensorsCheckpoint:
    """The checkpoint at ``path``: a safetensors file, or a folder of them, of several with an index.

    ``library`` is that of the arrays that are read; NumPy has no bfloat16. Raises ``InvalidRequestError`` if
    a file is missing or damaged, or a tensor is not where the index says.
    """
    if library not in ("torch", "numpy"):
        raise InvalidRequestError(f"library={library!r}; allowed are 'torch' and 'numpy'")
    listed, paths = _listed(Path(path))
    forms: dict[str, TensorForm] = {}
    files: dict[str, Path] = {}
    metadata: dict[str, str] = {}
    for file_path in paths:
        with _opened(file_path, library) as file:
            metadata.update(file.metadata() or {})
            for key in file.keys():  # noqa: SIM118  # it is no mapping
                if key in files:
                    raise InvalidRequestError(f"{key!r} is in {files[key]} and in {file_path}")
                forms[key], files[key] = _form(key, file.get_slice(key)), file_path
    for key, file_path in listed.items():
        if files.get(key) != file_path:
            raise InvalidRequestError(
                f"the index says that {key!r} is in {file_path}, which does not have it"
            )
    return SafetensorsCheckpoint(forms=forms, files=files, library=library, metadata=metadata)


def _listed(path: Path) -> tuple[dict[str, Path], list[Path]]:
    """The file of each tensor, if there is an index, and all files."""
    if path.is_file():
        return {}, [path]
    indexes, files = sorted(path.glob("*" + _INDEX)), sorted(path.glob("*.safetensors"))
    if len(indexes) == 1:
        listed = {key: path / name for key, name in _index(indexes[0]).weight_map.items()}
        return listed, sorted(set(listed.values()))
    if len(files) == 1 and not indexes:
        return {}, files
    raise InvalidRequestError(
        f"{path} has {len(files)} safetensors files and {len(indexes)} indexes; allowed are one file, or "
        f"several with one *{_INDEX}"
    )


def _index(path: Path) -> _Index:
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Index)
    except (OSError, msgspec.MsgspecError) as error:
        raise InvalidRequestError(f"{path} cannot be read: {error}") from error


@contextmanager
def _opened(path: Path, library: Library) -> Iterator[Any]:
    try:
        import safetensors
    except ImportError as error:
        raise InvalidRequestError(
            "safetensors is not installed; pip install 'schedulemesh-core[checkpoints]'"
        ) from error
    framework = "pt" if library == "torch" else "numpy"
    try:
        file = safetensors.safe_open(path, framework=framework)
    except (OSError, safetensors.SafetensorError) as error:
        raise InvalidRequestError(f"{path} cannot be read: {error}") from error
    with file as opened:
        yield opened


def _form(key: str, stored: Any) -> TensorForm:
    code = stored.get_dtype()
    if code not in _NAMES:
        raise InvalidRequestError(f"{key!r} has the dtype {code}; allowed are {', '.join(_NAMES)}")
    return TensorForm(tuple(stored.get_shape()), _NAMES[code])


def _slices(box: Box) -> Any:
    return tuple(slice(*span) for span in box) or ...
