"""What is sent with a job: its folder as Ray packs it, its lists of packages, and what is refused."""

from __future__ import annotations

import io
import json
import os
import random
import shlex
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest
from ray._private.runtime_env import packaging

from schedulemesh.client.packing import PACKER, packed_folder, packed_module
from schedulemesh.core.client.job_request import job_submission
from schedulemesh.core.client.task_request import Caller
from schedulemesh.domain.resources import parse_resources
from schedulemesh.errors import InvalidRequestError
from schedulemesh.protocol.agents import key_of
from schedulemesh.protocol.job_command import parse_command
from schedulemesh.runtime.backend import NodeView
from tests.core.test_request_service import client
from tests.runtime.composition import InThread

#: What the lists of packages have here.
LISTED = ["numpy==1", "-e ."]
CHECKED = {"packages": LISTED, "pip_check": True}

CALLER = Caller(namespace="n", runtime_env={"pip": ["of-the-caller"]})


def command_of(**given):
    """The driver command of a job, and what is sent with it."""
    return parse_command({"entrypoint": "train", **given}, PACKER)


def job(**given):
    """The request that submits a job."""
    given = {"task_id": "t", "pool_name": "p", "entrypoint": "train", **given}
    return job_submission(CALLER, given).request


def packed(folder, *excludes):
    """What of a folder is sent."""
    with zipfile.ZipFile(io.BytesIO(packed_folder(folder, excludes).data)) as archive:
        return sorted(archive.namelist())


def packed_by_ray(folder, target, *excludes):
    """What of a folder Ray sends."""
    left_out = [".git", ".venv", "venv", "__pycache__"]
    packaging.create_package(
        str(folder), target, include_gitignore=True, excludes=[*left_out, *excludes]
    )
    with zipfile.ZipFile(target) as archive:
        return sorted(archive.namelist())


def make_tree(folder, **files):
    """A folder with these files; a name that ends with __ is that of an empty folder."""
    for name, text in files.items():
        path = folder / name
        if name.endswith("/"):
            path.mkdir(parents=True)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


@pytest.fixture
def project(tmp_path):
    """A folder with what is, and is not, sent with a job."""
    names = [
        "train.py", "pkg/__init__.py", "pkg/build/step.py", "build/out.o", "conf/a.yaml", "conf/secret.yaml",
        ".env", "data/big.bin", "data/keep.bin", "logs/", "a/b/c/", "pkg/__pycache__/x.pyc", "old.pyc",
        ".git/config", ".venv/bin/python", "venv/bin/python", ".mypy_cache/x", "sub/.gitignore", "sub/x.tmp",
        "sub/y.txt", "private/key", ".hidden/x",
    ]  # fmt: skip
    folder = make_tree(tmp_path / "project", **dict.fromkeys(names, "x"))
    (folder / "sub" / ".gitignore").write_text("*.tmp\n")
    (folder / ".gitignore").write_text("# secrets\n.env\n/build\n*.bin\n!data/keep.bin\nsecret.*\n")
    (folder / ".rayignore").write_text("private/\n")
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "lib.py").write_text("x")
    (folder / "linked").symlink_to(tmp_path / "shared")
    (folder / "link.py").symlink_to("train.py")
    (folder / "dangling").symlink_to("nowhere")
    return folder


@pytest.mark.parametrize(
    "excludes", [(), ("/conf",), ("*.py", "!train.py"), ("pkg/build",), ("build/",), ("a/**/c",)]
)
def test_a_folder_is_packed_as_ray_packs_it(project, tmp_path, excludes):
    assert packed(project, *excludes) == packed_by_ray(project, tmp_path / "ray.zip", *excludes)


def test_secrets_that_git_ignores_are_not_sent_and_links_and_empty_folders_are(project):
    names = packed(project)
    assert {"train.py", "pkg/build/step.py", "data/keep.bin", "logs/", "a/b/c/"} <= set(names)
    assert {"linked/lib.py", "link.py", "conf/a.yaml", ".hidden/x", "sub/y.txt"} <= set(names)
    gone = (
        ".env",
        "secret",
        "private",
        ".git/",
        "venv",
        "__pycache__",
        "big.bin",
        "build/out",
        "x.tmp",
    )
    assert not [name for name in names if any(part in name for part in gone)]


@pytest.mark.parametrize(
    ("patterns", "sent"),
    [
        ((".*",), ["pkg/a.py", "pkg/data.bin", "train.py"]),
        (("*", "!train.py"), ["train.py"]),
        (("*", "!*/", "!*.py"), ["pkg/a.py", "train.py"]),
        (("/*", "!/pkg/"), ["pkg/a.py", "pkg/data.bin"]),
        (("**",), []),
        (("./*",), [".hidden", ".venv2/x", "pkg/a.py", "pkg/data.bin", "train.py"]),
    ],
)
@pytest.mark.parametrize("where", ["excludes", ".gitignore", ".rayignore"])
def test_patterns_that_match_everything_leave_out_what_git_ignores(tmp_path, patterns, sent, where):
    names = ("train.py", "pkg/a.py", "pkg/data.bin", ".hidden", ".venv2/x")
    folder = make_tree(tmp_path / "project", **dict.fromkeys(names, "x"))
    if where == "excludes":
        names_sent = packed(folder, *patterns)
    else:
        (folder / where).write_text("\n".join(patterns))
        names_sent = packed(folder)
    assert [name for name in names_sent if name != where and not name.endswith("/")] == sent


def test_a_file_in_a_folder_that_is_left_out_comes_back_where_ray_sends_it(tmp_path):
    folder = make_tree(
        tmp_path / "p", **dict.fromkeys(("data/big", "data/small", "x/data/big"), "x")
    )
    (folder / ".rayignore").write_text("data/\n!data/small\n")
    assert "data/small" in packed(folder)
    assert packed(folder) == packed_by_ray(folder, tmp_path / "ray.zip")
    (folder / ".rayignore").unlink()
    (folder / ".gitignore").write_text("data/\n!data/small\n")
    assert packed(folder) == [".gitignore"]


def listed_by_git(folder):
    """The files that git does not ignore."""
    files = subprocess.run(
        ["git", "ls-files", "--others", "--exclude-standard", "-z"],
        cwd=folder,
        env={**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "XDG_CONFIG_HOME": str(folder)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return sorted(files.split("\0")[:-1])


def random_patterns(rng):
    """Lines of a .gitignore."""
    names = ("a", "b", "a.x", "b.y", "*.x", "a*", "*", "a/b", "**/b", "a/**", "b/*", "[ab]", "?")
    return [
        rng.choice(("", "", "!")) + rng.choice(("", "", "/")) + rng.choice(names) + end
        for end in (rng.choice(("", "", "/")) for _ in range(rng.randrange(4)))
    ]


@pytest.mark.parametrize("seed", range(8))
def test_what_gitignore_leaves_out_at_any_depth_is_what_git_ignores(tmp_path, seed):
    rng = random.Random(seed)
    for number in range(8):
        folder = tmp_path / str(number)
        folder.mkdir()
        subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
        for _ in range(20):
            names = [rng.choice("ab") for _ in range(rng.randrange(4))]
            parent = folder.joinpath(*names)
            if not any(one.is_file() for one in (parent, *parent.parents)):
                parent.mkdir(parents=True, exist_ok=True)
                (parent / rng.choice(("a.x", "b.y", "c", "d.x"))).write_text("x")
                if rng.random() < 0.4:
                    (parent / ".gitignore").write_text("\n".join(random_patterns(rng)))
        files = [name for name in packed(folder) if not name.endswith("/")]
        assert files == listed_by_git(folder)


def test_what_a_gitignore_brings_back_that_a_folder_above_leaves_out_is_sent(tmp_path):
    names = ("logs/keep.log", "logs/b.log", "logs/old/c.log", "gone/keep.log", "ray/keep.tmp")
    folder = make_tree(tmp_path / "p", **dict.fromkeys(names, "x"))
    (folder / ".gitignore").write_text("*.log\n/gone/\n")
    (folder / "logs" / ".gitignore").write_text("!keep.log\n")
    (folder / "gone" / ".gitignore").write_text("!keep.log\n")
    # What is left out otherwise, nothing in a .gitignore brings back.
    (folder / ".rayignore").write_text("*.tmp\n")
    (folder / "ray" / ".gitignore").write_text("!keep.tmp\n")
    sent = [name for name in packed(folder) if "ignore" not in name]
    assert sent == ["logs/keep.log"]


def test_gitignore_is_not_respected_where_ray_is_told_so(project, monkeypatch):
    monkeypatch.setenv("RAY_RUNTIME_ENV_IGNORE_GITIGNORE", "1")
    assert ".env" in packed(project)


def test_ray_unpacks_what_was_sent_with_its_permissions(project, tmp_path):
    (project / "train.py").chmod(0o755)
    (tmp_path / "sent.zip").write_bytes(packed_folder(project).data)
    packaging.unzip_package(
        str(tmp_path / "sent.zip"),
        str(tmp_path / "there"),
        remove_top_level_directory=False,
        unlink_zip=False,
    )
    there = tmp_path / "there"
    assert (there / "logs").is_dir()
    assert (there / "train.py").stat().st_mode & 0o777 == 0o755
    assert (there / "pkg" / "__init__.py").read_text() == "x"


def test_the_same_folder_is_the_same_archive(project):
    first = packed_folder(project).data
    os.utime(project / "train.py", (0, 0))
    assert packed_folder(project).data == first


def test_a_link_to_a_folder_that_it_lies_in_is_refused(project):
    (project / "pkg" / "up").symlink_to("..")
    with pytest.raises(InvalidRequestError, match="'pkg/up', a link to a folder that it lies in"):
        packed_folder(project)
    assert "train.py" in packed(project, "up")


def test_a_name_that_is_no_utf_8_is_refused_in_a_sentence(project):
    (project / os.fsdecode(b"caf\xe9.txt")).write_text("x")
    with pytest.raises(InvalidRequestError, match=r"caf\\xe9.txt', a name that is no UTF-8"):
        packed_folder(project)
    assert "train.py" in packed(project, "*.txt")


def test_a_folder_that_is_too_large_is_refused_before_it_is_read_to_its_end(tmp_path):
    with (tmp_path / "noise").open("wb") as file:
        file.write(os.urandom(18 * 2**20))
        file.truncate(2**43)
    with pytest.raises(InvalidRequestError, match="more than 16 MB packed; leave out"):
        packed_folder(tmp_path)


@pytest.mark.parametrize("suffix", [".zip", ".tar.gz"])
def test_an_archive_is_sent_as_it_is(project, tmp_path, suffix):
    archive = tmp_path / f"code{suffix}"
    if suffix == ".zip":
        archive.write_bytes(packed_folder(project).data)
    else:
        with tarfile.open(archive, "w:gz") as tar:
            tar.add(project, arcname=".")
    folder = command_of(working_dir=archive)[1].folder
    assert (folder.data, folder.suffix) == (archive.read_bytes(), suffix)


def test_what_is_named_zip_and_is_none_is_refused(tmp_path):
    (tmp_path / "code.zip").write_text("x")
    with pytest.raises(InvalidRequestError, match="no ZIP archive"):
        command_of(working_dir=tmp_path / "code.zip")


def test_the_folder_is_stored_with_the_job(project):
    request = job(working_dir=project)
    spec = request.submission.agent.payload
    assert request.blobs[spec.folder_key] == packed_folder(project).data
    assert (spec.folder_key, spec.folder_suffix) == (key_of(packed_folder(project).data), ".zip")
    assert job().submission.agent.payload.folder_key == ""


def test_a_module_is_packed_as_ray_packs_it(project, tmp_path):
    target = tmp_path / "by_ray.zip"
    packaging.create_package(
        str(project),
        target,
        include_gitignore=True,
        include_parent_dir=True,
        excludes=[".git", ".venv", "venv", "__pycache__", "conf"],
    )
    (uri,), ((_, data),) = modules_of({"py_modules": [project], "excludes": ["conf"]})
    with zipfile.ZipFile(io.BytesIO(data)) as ours, zipfile.ZipFile(target) as rays:
        assert sorted(ours.namelist()) == sorted(rays.namelist())
    assert packaging.is_zip_uri(uri)


def test_modules_may_be_paths_imported_modules_files_wheels_and_uris(project, tmp_path):
    wheel = tmp_path / "own-1.0-py3-none-any.whl"
    wheel.write_bytes(b"a wheel")
    uri = "s3://bucket/module.zip"
    listed = [str(project / "pkg"), json, project / "train.py", wheel, uri]
    uris, modules = modules_of({"py_modules": listed})
    assert uris == [*(module.uri for module, _ in modules), uri]
    assert uris[3] == f"gcs://{wheel.name}"
    assert [names_in(data) for _, data in modules[:1]] == [["pkg/__init__.py", "pkg/build/step.py"]]
    assert "json/decoder.py" in names_in(modules[1][1])
    assert names_in(modules[2][1]) == ["train.py"]
    assert modules[3][1] == b"a wheel"


def modules_of(runtime_env):
    """The addresses of a job's modules, and the modules that are sent with it."""
    command, sent = command_of(runtime_env=runtime_env)
    return command.runtime_env["py_modules"], sent.modules


def names_in(archive):
    with zipfile.ZipFile(io.BytesIO(archive)) as opened:
        return sorted(opened.namelist())


def test_modules_are_stored_with_the_job(project):
    request = job(runtime_env={"py_modules": [project / "pkg"]})
    (module,) = request.submission.agent.payload.modules
    assert request.blobs[module.key] == packed_module(project / "pkg")[1]
    options = json.loads(request.submission.agent.options)
    assert options["runtime_env"] == {"py_modules": [module.uri]}


@pytest.mark.parametrize(
    ("listed", "said"),
    [
        (["/no/such/folder"], "no folder, .py file or .whl file"),
        ("pkg", "a list of paths"),
        ([3], "must be the path"),
        ([""], "must be the path"),
    ],
)
def test_what_is_no_module_is_refused(listed, said):
    with pytest.raises(InvalidRequestError, match=said):
        command_of(runtime_env={"py_modules": listed})


def test_modules_of_another_machine_are_not_read(project):
    with pytest.raises(InvalidRequestError, match="takes URIs"):
        parse_command({"entrypoint": "train", "runtime_env": {"py_modules": [str(project)]}}, None)


def test_actors_that_stay_are_named_with_their_namespace():
    assert command_of(keep_actors=["caches/weights", "a/b/c"])[0].keep_actors == (
        "caches/weights",
        "a/b/c",
    )
    for wrong in (["weights"], ["/weights"], ["caches/"], [3], "caches/weights"):
        with pytest.raises(InvalidRequestError, match="keep_actors"):
            command_of(keep_actors=wrong)


def test_modules_are_handed_to_ray_before_the_runner_starts(project, tmp_path):
    service = InThread(tmp_path / "j.sqlite", state_path=str(tmp_path / "state"))
    room = parse_resources({"cpu": 4})
    service.backend.free = [NodeView(node_id="n", total=room, free=room, labels={})]
    service.do(service.running.monitor.observe())
    calls = client(service)
    calls.ensure_pool("p", resources={"cpu": 4})
    env = {"py_modules": [project / "pkg"]}
    assert calls.submit_job("j", "train", "p", {"cpu": 1}, runtime_env=env)["success"]
    (actor,) = service.backend.actors
    ((uri, archive),) = service.backend.folders.items()
    assert names_in(archive) == ["pkg/__init__.py", "pkg/build/step.py"]
    assert actor.request.options["runtime_env"] == {"py_modules": [uri]}

    service.backend.folders.clear()
    calls.cancel_task("j")
    assert calls.submit_job("again", "train", "p", {"cpu": 1}, runtime_env=env)["success"]
    assert service.backend.folders == {uri: archive}
    service.close()


def test_a_uri_is_left_to_ray():
    env = {"working_dir": "s3://bucket/code.zip", "env_vars": {"A": "1"}}
    agent = job(runtime_env=env).submission.agent
    assert json.loads(agent.options)["runtime_env"] == env
    assert agent.payload.folder_key == ""


@pytest.mark.parametrize("within", ["as such", "in runtime_env"])
@pytest.mark.parametrize(
    "given", ["x" * 10**6, "~nobody-here/code", "http://[code", "a\0b", "missing"]
)
def test_what_is_no_folder_is_refused(given, within):
    folder = {"working_dir": given}
    asked = folder if within == "as such" else {"runtime_env": folder}
    with pytest.raises(InvalidRequestError, match="no folder of this machine"):
        command_of(**asked)


@pytest.mark.parametrize("entrypoint", ["echo a\0b", ["echo", "a\0b"]])
def test_a_command_with_a_zero_byte_is_refused(entrypoint):
    with pytest.raises(InvalidRequestError, match="zero byte"):
        command_of(entrypoint=entrypoint)


@pytest.mark.parametrize(
    ("entrypoint", "said"),
    [
        (["python train.py --lr 1"], "one word with spaces.*use sh -c 'python train.py --lr 1';"),
        (["python", "a.py", "&&", "echo", "it's"], r"sh -c 'python a.py && echo '"),
        (["python", "a.py", ">", "out file"], r"the word '>'.*sh -c 'python a.py > '"),
        (["cat", "x", "|", "wc"], r"use sh -c 'cat x \| wc'; in Python"),
        (["python", "a.py", "2>&1"], "which only a shell understands"),
    ],
)
def test_what_only_a_shell_understands_is_refused_with_the_command_to_use(entrypoint, said):
    with pytest.raises(InvalidRequestError, match=said) as refused:
        command_of(entrypoint=entrypoint)
    # What is advised works, and is what was meant.
    advised = str(refused.value).partition("use ")[2].rpartition("; in Python")[0]
    shell, option, line = shlex.split(advised)
    assert (shell, option) == ("sh", "-c")
    words = [
        word for one in entrypoint for word in (one.split() if len(entrypoint) == 1 else [one])
    ]
    assert shlex.split(line) == words
    assert command_of(entrypoint=[shell, option, line])[0].entrypoint == (shell, option, line)


@pytest.mark.parametrize(
    "entrypoint", [["sort", "-t", "|"], ["sh", "-c", "a && b"], ["x", "a|b"], "a | b"]
)
def test_words_that_a_program_can_have_are_its_arguments(entrypoint):
    assert command_of(entrypoint=entrypoint)


# Root reads every file whatever its mode; what not even root reads is there on Linux only.
@pytest.mark.skipif(
    not Path("/proc/self/mem").exists(),
    reason="without /proc there is no file that root cannot read",
)
def test_a_file_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / "weights").symlink_to("/proc/self/mem")
    with pytest.raises(InvalidRequestError, match="has 'weights', which cannot be read"):
        command_of(working_dir=tmp_path)
    assert (
        command_of(working_dir=tmp_path, runtime_env={"excludes": ["weights"]})[1].folder
        is not None
    )


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ({"pip": "requirements.txt"}, {"packages": LISTED, "pip_check": False}),
        ({"pip": {"packages": "requirements.txt"}}, {"packages": LISTED, "pip_check": False}),
        ({"pip": {"packages": "requirements.txt", "pip_check": True}}, CHECKED),
        ({"uv": "requirements.txt"}, {"packages": LISTED, "uv_check": False}),
        ({"uv": {"packages": "requirements.txt"}}, {"packages": LISTED, "uv_check": False}),
        ({"conda": "env.yml"}, {"dependencies": ["python=3.11"]}),
        ({"conda": "my-env"}, "my-env"),
        ({"pip": ["numpy"]}, ["numpy"]),
    ],
)  # fmt: skip
def test_lists_of_packages_are_read_where_the_job_is_submitted(tmp_path, monkeypatch, given, read):
    (tmp_path / "requirements.txt").write_text("numpy==1\n-e .\n")
    (tmp_path / "env.yml").write_text("dependencies: ['python=3.11']\n")
    monkeypatch.chdir(tmp_path)
    (name,) = given
    assert command_of(runtime_env=given)[0].runtime_env == {name: read}
    request = job(runtime_env=given)
    assert json.loads(request.submission.agent.options)["runtime_env"] == {name: read}


@pytest.mark.parametrize("option", ["-r ", "--requirement ", "--requirement=", "  -r  "])
def test_lists_that_a_list_includes_are_read_beside_it(tmp_path, option):
    (tmp_path / "sub").mkdir()
    (tmp_path / "requirements.txt").write_text(f"a==1\n{option}sub/more.txt  # others\nb\n")
    (tmp_path / "sub" / "more.txt").write_text("c\n-r ../last.txt\n-r https://x/y.txt\n")
    (tmp_path / "last.txt").write_text("d\n-r none.txt\n-c https://x/c.txt\n")
    env = command_of(runtime_env={"pip": str(tmp_path / "requirements.txt")})[0].runtime_env
    assert env["pip"]["packages"] == [
        "a==1", "c", "d", "-r none.txt", "-c https://x/c.txt", "-r https://x/y.txt", "b",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("-c limits.txt", "'-c limits.txt' in .*a file that the nodes have not; name the versions"),
        ("--constraint=limits.txt", "'--constraint=limits.txt' in .*the nodes have not"),
        ("-r requirements.txt", "includes itself with '-r requirements.txt'; remove"),
        ("-r back.txt", "includes itself with '-r requirements.txt'; remove"),
    ],
)
@pytest.mark.parametrize("installer", ["pip", "uv"])
def test_a_list_that_no_node_can_read_is_refused(tmp_path, installer, line, said):
    (tmp_path / "requirements.txt").write_text(f"a\n{line}\n")
    (tmp_path / "limits.txt").write_text("a<2\n")
    (tmp_path / "back.txt").write_text("-r requirements.txt\n")
    with pytest.raises(InvalidRequestError, match=rf"runtime_env\['{installer}'\].*{said}"):
        command_of(runtime_env={installer: str(tmp_path / "requirements.txt")})


@pytest.mark.parametrize(
    ("name", "file", "said"),
    [
        ("pip", "numpy", "is 'numpy', which cannot be read: .*a list of packages"),
        ("uv", "folder", "is 'folder', which cannot be read: .*a list of packages"),
        ("pip", "latin-1.txt", "is 'latin-1.txt', which cannot be read: .*utf-8"),
        ("pip", "x" * 5000, "which cannot be read: .*a list of packages"),
        ("conda", "none.yml", "is 'none.yml', which cannot be read: .*a dict"),
        ("conda", "broken.yaml", "is 'broken.yaml', which cannot be read: .*a dict"),
        ("conda", "list.yaml", "is 'list.yaml', which has no names and values"),
        ("conda", "date.yaml", r"\['a'\] is .*only plain data"),
    ],
)
def test_a_list_of_packages_that_cannot_be_read_is_refused(tmp_path, monkeypatch, name, file, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "latin-1.txt").write_bytes(b"numpy # gr\xfcn\n")
    (tmp_path / "broken.yaml").write_text("a: [")
    (tmp_path / "list.yaml").write_text("[python]")
    (tmp_path / "date.yaml").write_text("a: 2024-01-01")
    with pytest.raises(InvalidRequestError, match=rf"(?s)runtime_env\['{name}'\].*{said}"):
        command_of(runtime_env={name: file})


@pytest.mark.parametrize(
    "env", [{"pip": "/etc/passwd"}, {"uv": {"packages": "r.txt"}}, {"conda": "env.yaml"}]
)
def test_files_of_another_machine_are_not_read(env):
    with pytest.raises(InvalidRequestError, match="a file of your machine"):
        parse_command({"entrypoint": "train", "runtime_env": env}, None)


def test_git_agrees_about_what_is_ignored(project):
    try:
        subprocess.run(["git", "init", "-q", project], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no git")
    listed = subprocess.run(
        ["git", "-C", project, "ls-files", "--others", "--exclude-standard"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    linked = {"linked/lib.py", "dangling"}
    left_out = ("venv", "__pycache__", "private/")
    of_git = {name for name in listed if not any(part in name for part in left_out)}
    of_ours = {name for name in packed(project) if not name.endswith("/")}
    assert of_ours - linked == of_git - {"linked", "dangling"}
