from __future__ import annotations

import os
import stat
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestration.tools.search import Search, search
from orchestration.tools.workspace import UNFINISHED
from persistence.records.message import CallStatus
from tests.tools.bench import Bench, call, contents, statuses

SECRET = "the secret outside"


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "secret.txt").write_text(SECRET)
    return folder


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    folder.mkdir()
    return folder


@pytest.fixture
def files(workspace: Path) -> Bench:
    return Bench(workspace, ("files",))


def test_what_was_written_is_read_listed_and_found(files: Bench, workspace: Path) -> None:
    assert files.text("write_file", path="notes/plan.md", content="one\ntwo ü\n") == "Created notes/plan.md (11 bytes)."

    assert (workspace / "notes/plan.md").read_text() == "one\ntwo ü\n"
    assert files.text("read_file", path="./notes//plan.md") == "one\ntwo ü\n"
    assert files.text("list_files") == "notes/"
    assert files.text("list_files", path="notes") == "plan.md (11 bytes)"
    assert files.text("search_files", pattern="tw.") == "notes/plan.md:2: two ü"


def test_a_workspace_that_is_not_there_yet_is_made(tmp_path: Path) -> None:
    files = Bench(tmp_path / "new" / "one", ("files",))

    assert files.text("list_files") == "(The folder is empty.)"
    files.text("write_file", path="a", content="x")
    assert (tmp_path / "new/one/a").read_text() == "x"


PATHS_OUT = ["/etc/passwd", "../outside/secret.txt", "a/../../outside/secret.txt", "..", "~/x", "~root/x", "a/.."]


@pytest.mark.parametrize("path", PATHS_OUT)
@pytest.mark.usefixtures("outside")
def test_no_path_leads_out_of_the_workspace(files: Bench, workspace: Path, path: str) -> None:
    (workspace / "a").mkdir()

    for name, more in (
        ("read_file", {}),
        ("list_files", {}),
        ("write_file", {"content": "x"}),
        ("search_files", {"pattern": "."}),
    ):
        refusal = files.refusal(name, path=path, **more)
        assert "workspace" in refusal
        assert SECRET not in refusal
    assert sorted(p.name for p in workspace.rglob("*")) == ["a"]


def test_no_symlink_is_followed_wherever_it_stands(files: Bench, workspace: Path, outside: Path) -> None:
    (workspace / "file").symlink_to(outside / "secret.txt")
    (workspace / "folder").symlink_to(outside)
    (workspace / "inner").mkdir()
    (workspace / "inner/link").symlink_to("../folder")
    (workspace / "dangling").symlink_to(outside / "new.txt")
    (workspace / "own.txt").write_text("fine")
    (workspace / "own_link").symlink_to("own.txt")

    for path in ("file", "folder/secret.txt", "inner/link/secret.txt", "own_link", "folder/new.txt", "dangling"):
        assert "symbolic link" in files.refusal("write_file", path=path, content="overwritten")
        assert "symbolic link" in files.refusal("search_files", pattern=".", path=path)
    for path in ("file", "folder/secret.txt", "inner/link/secret.txt", "own_link"):
        assert "symbolic link" in files.refusal("read_file", path=path)
    for path in ("folder", "inner/link"):
        assert "symbolic link" in files.refusal("list_files", path=path)
    listing = files.text("list_files")
    assert "file (a symbolic link, which is not followed)" in listing
    assert files.text("search_files", pattern=".") == "own.txt:1: fine"
    assert (outside / "secret.txt").read_text() == SECRET
    assert sorted(p.name for p in outside.iterdir()) == ["secret.txt"]


def test_a_folder_that_is_swapped_for_a_symlink_meanwhile_leads_nowhere(
    files: Bench, workspace: Path, outside: Path
) -> None:
    (outside / "data.txt").write_text(SECRET)
    over = threading.Event()

    def swap() -> None:
        while not over.is_set():
            (workspace / "d").mkdir(exist_ok=True)
            (workspace / "d/data.txt").write_text("inside")
            os.rename(workspace / "d", workspace / "kept")
            os.symlink(outside, workspace / "d")
            os.unlink(workspace / "d")
            os.rename(workspace / "kept", workspace / "d")
            (workspace / "d/data.txt").unlink()
            for left in (workspace / "d").iterdir():
                left.unlink()
            (workspace / "d").rmdir()

    def swap_on() -> None:
        while not over.is_set():
            try:
                swap()
            except OSError:  # a write of the other side came in between
                continue

    swapper = threading.Thread(target=swap_on)
    swapper.start()
    seen: set[str] = set()
    try:
        for n in range(150):
            (read, write) = files.run(
                call("read_file", path="d/data.txt"), call("write_file", path="d/data.txt", content=f"inside {n}")
            )
            seen.add(read.result.content)
            assert write.result.status in (CallStatus.SUCCEEDED, CallStatus.FAILED)
            if n % 30 == 0:
                seen.add(files.text("search_files", pattern="secret"))
    finally:
        over.set()
        swapper.join()

    assert not any(SECRET in text for text in seen)
    assert (outside / "data.txt").read_text() == SECRET
    assert sorted(p.name for p in outside.iterdir()) == ["data.txt", "secret.txt"]


def test_special_files_are_refused_and_never_waited_for(files: Bench, workspace: Path) -> None:
    os.mkfifo(workspace / "pipe")
    (workspace / "a.txt").write_text("text")

    assert files.refusal("read_file", path="pipe") == "'pipe' is a special file, not a file."
    assert files.refusal("write_file", path="pipe", content="x") == "'pipe' is a special file, not a file."
    assert "pipe (a special file)" in files.text("list_files")
    assert files.text("search_files", pattern="t") == "a.txt:1: text"


def test_a_device_is_refused_before_it_is_opened(files: Bench, workspace: Path) -> None:
    try:
        os.mknod(workspace / "zero", 0o600 | stat.S_IFCHR, os.makedev(1, 5))
    except PermissionError:
        pytest.skip("making a device file needs root")

    assert files.refusal("read_file", path="zero") == "'zero' is a special file, not a file."
    assert files.text("search_files", pattern="x") == "No line matches."


def test_folders_and_missing_files_are_said_so(files: Bench, workspace: Path) -> None:
    (workspace / "d").mkdir()
    (workspace / "f").write_text("x")

    assert files.refusal("read_file", path="d") == "'d' is a folder, not a file."
    assert files.refusal("read_file", path=".") == "'.' is a folder: list it instead."
    assert files.refusal("read_file", path="d/none") == "There is no 'd/none' in the workspace."
    assert files.refusal("list_files", path="none") == "There is no 'none' in the workspace."
    assert files.refusal("search_files", pattern="x", path="none") == "There is no 'none' in the workspace."
    assert files.refusal("write_file", path="d", content="x") == "'d' is a folder, not a file."
    assert "'f' is not a folder" in files.refusal("write_file", path="f/g", content="x")
    assert "'f' is not a folder" in files.refusal("list_files", path="f")
    assert "32 folders deep" in files.refusal("write_file", path="a/" * 40 + "b", content="x")
    assert "cannot be used: File name too long" in files.refusal("write_file", path="n" * 300, content="x")


def test_a_long_file_is_read_in_pages_that_make_up_the_whole(files: Bench, workspace: Path) -> None:
    lines = [f"line {n}\n" for n in range(1, 5001)]
    (workspace / "long.txt").write_text("".join(lines))

    first = files.text("read_file", path="long.txt")
    last = files.text("read_file", path="long.txt", offset=4001)

    assert first == "".join(lines[:2000]) + "[The file goes on: read it with offset=2001.]"
    assert last == "".join(lines[4000:])
    assert files.text("read_file", path="long.txt", offset=3, limit=1).startswith("line 3\n[The file goes on")
    assert files.refusal("read_file", path="long.txt", offset=5001) == "The file has fewer than 5001 lines."


def test_one_unbroken_line_is_read_in_pages_too(files: Bench, workspace: Path) -> None:
    whole = "".join(f"{n:07d}ü" for n in range(20_000))
    (workspace / "line.json").write_text(whole)
    parts: list[str] = []
    column = 1
    while True:
        text = files.text("read_file", path="line.json", column=column)
        part, more, where = text.partition("\n[The file goes on: read it with offset=1 and column=")
        parts.append(part)
        if not more:
            break
        column = int(where.removesuffix(".]"))

    assert "".join(parts) == whole
    assert len(parts) == 3
    assert "fewer than" in files.refusal("read_file", path="line.json", column=len(whole) + 1)


@settings(max_examples=60, deadline=None)
@given(
    lines=st.lists(
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=8), max_size=12
    ),
    limit=st.integers(1, 4),
)
def test_pages_of_any_text_make_up_the_whole(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], limit: int
) -> None:
    files = Bench(tmp_path_factory.mktemp("pages"), ("files",))
    whole = "\n".join(lines)
    files.text("write_file", path="f", content=whole)
    parts: list[str] = []
    offset = 1
    while whole:
        text = files.text("read_file", path="f", offset=offset, limit=limit)
        part, more, _ = text.partition(f"[The file goes on: read it with offset={offset + limit}.]")
        parts.append(part)
        if not more:
            break
        offset += limit

    assert "".join(parts) == whole.removeprefix("\ufeff")


def test_binary_files_are_said_so_and_odd_encodings_are_shown(files: Bench, workspace: Path) -> None:
    (workspace / "image.png").write_bytes(b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR" + bytes(100))
    (workspace / "latin.txt").write_bytes("café\n".encode("latin-1"))
    (workspace / "bom.txt").write_bytes(b"\xef\xbb\xbfwith mark\r\n")
    (workspace / "empty").touch()

    assert "'image.png' is a binary file (116 bytes)" in files.refusal("read_file", path="image.png")
    assert files.text("read_file", path="latin.txt") == "caf\ufffd\n"
    assert files.text("read_file", path="bom.txt") == "with mark\r\n"
    assert files.text("read_file", path="empty") == "(The file is empty.)"
    assert (
        files.text("search_files", pattern="mark$") == "bom.txt:1: \ufeffwith mark\n[1 binary files were not searched.]"
    )


def test_a_file_is_replaced_whole_and_keeps_its_mode(files: Bench, workspace: Path) -> None:
    script = workspace / "run.sh"
    script.write_text("old")
    script.chmod(0o750)
    with script.open() as old:
        assert files.text("write_file", path="run.sh", content="new content") == "Replaced run.sh (11 bytes)."

        assert old.read() == "old", "a reader of the old file is not disturbed"
    assert script.read_text() == "new content"
    assert stat.S_IMODE(script.stat().st_mode) == 0o750


def test_readers_never_see_half_a_file(files: Bench, workspace: Path) -> None:
    texts = ["a" * 200_000, "b" * 200_000]
    (workspace / "f").write_text(texts[0])
    over = threading.Event()
    seen: set[str] = set()

    def read_on() -> None:
        while not over.is_set():
            seen.add((workspace / "f").read_text())

    reader = threading.Thread(target=read_on)
    reader.start()
    for n in range(40):
        files.text("write_file", path="f", content=texts[n % 2])
    over.set()
    reader.join()

    assert seen <= set(texts)


def test_a_write_that_fails_leaves_the_old_file_and_no_other(files: Bench, workspace: Path) -> None:
    (workspace / "f").write_text("old")
    soft, hard = _limit_file_size(10_000)
    try:
        refusal = files.refusal("write_file", path="f", content="x" * 50_000)
    finally:
        _limit_file_size(soft, hard)

    assert refusal == "'f' cannot be used: File too large."
    assert (workspace / "f").read_text() == "old"
    assert [p.name for p in workspace.iterdir()] == ["f"]


def _limit_file_size(size: int, hard: int | None = None) -> tuple[int, int]:
    import resource

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1] if hard is None else hard))
    return before


def test_many_writers_of_one_new_folder_do_not_disturb_each_other(files: Bench, workspace: Path) -> None:
    start = threading.Barrier(8)
    refused: list[str] = []

    def write(writer: int) -> None:
        for n in range(40):
            start.wait(10)
            run = files.one("write_file", path=f"new{n}/b/c/{writer}", content="x")
            refused.extend([run.result.content] if run.result.is_error else [])

    writers = [threading.Thread(target=write, args=(n,)) for n in range(8)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()

    assert refused == []
    assert len(list(workspace.glob("new*/b/c/*"))) == 8 * 40


def test_unfinished_files_are_neither_listed_nor_searched(files: Bench, workspace: Path) -> None:
    (workspace / f"{UNFINISHED}0123").write_text("half")

    assert files.text("list_files") == "(The folder is empty.)"
    assert files.text("search_files", pattern="half") == "No line matches."


def test_a_huge_folder_is_listed_up_to_a_limit_that_is_said(files: Bench, workspace: Path) -> None:
    for n in range(1005):
        (workspace / f"f{n:04d}").touch()

    lines = files.text("list_files").splitlines()

    assert lines[:2] == ["f0000 (0 bytes)", "f0001 (0 bytes)"]
    assert lines[999:] == ["f0999 (0 bytes)", "[… 5 more entries …]"]


@pytest.fixture
def tree(workspace: Path) -> Path:
    for path, text in {
        "b.py": "import os\nx = 1\n",
        "src/a.py": "x = (1 + 2)\nX = 3\n",
        "src/deep/c.md": "x marks\nthe spot",
        "src/deep/d.txt": "nothing",
    }.items():
        (workspace / path).parent.mkdir(parents=True, exist_ok=True)
        (workspace / path).write_text(text)
    return workspace


@pytest.mark.parametrize(
    ("arguments", "hits"),
    [
        ({"pattern": r"^x\b"}, ["b.py:2: x = 1", "src/a.py:1: x = (1 + 2)", "src/deep/c.md:1: x marks"]),
        ({"pattern": r"^x\b", "glob": "*.py"}, ["b.py:2: x = 1", "src/a.py:1: x = (1 + 2)"]),
        ({"pattern": "x", "glob": "src/*.md"}, ["src/deep/c.md:1: x marks"]),
        ({"pattern": "^x", "glob": "**/*.py"}, ["b.py:2: x = 1", "src/a.py:1: x = (1 + 2)"]),
        ({"pattern": "(1 + 2)", "literal": True}, ["src/a.py:1: x = (1 + 2)"]),
        ({"pattern": "x =", "path": "src"}, ["src/a.py:1: x = (1 + 2)"]),
        ({"pattern": "x =", "path": "src", "ignore_case": True}, ["src/a.py:1: x = (1 + 2)", "src/a.py:2: X = 3"]),
        ({"pattern": "spot$", "path": "src/deep/c.md"}, ["src/deep/c.md:2: the spot"]),
        ({"pattern": "absent"}, ["No line matches."]),
    ],
)
@pytest.mark.usefixtures("tree")
def test_a_search_finds_the_lines_that_match(files: Bench, arguments: dict[str, object], hits: list[str]) -> None:
    assert files.text("search_files", **arguments).splitlines() == hits


@pytest.mark.usefixtures("tree")
def test_a_pattern_that_is_no_regular_expression_is_refused(files: Bench) -> None:
    assert "The pattern is no regular expression: missing )" in files.refusal("search_files", pattern="(x")


def test_a_search_with_very_many_hits_says_where_it_stopped(files: Bench, workspace: Path) -> None:
    (workspace / "many.txt").write_text("hit\n" * 1000)

    lines = files.text("search_files", pattern="hit").splitlines()

    assert len(lines) == 201
    assert lines[-1] == "[Stopped after 200 hits; search for something rarer, or fewer files.]"


def test_a_hit_in_a_very_long_line_is_shown_with_what_stands_around_it(files: Bench, workspace: Path) -> None:
    (workspace / "min.js").write_text("a" * 50_000 + "needle" + "b" * 50_000)

    line = files.text("search_files", pattern="needle")

    assert line.startswith("min.js:1: …aaa")
    assert line.endswith("bbb…")
    assert "aneedleb" in line
    assert len(line) < 400


EVIL = {"pattern": "(a+)+$"}


def test_a_search_that_would_never_end_is_ended(files: Bench, workspace: Path) -> None:
    (workspace / "a.txt").write_text("found a\n")
    (workspace / "b.txt").write_text("a" * 64 + "!\n")

    text = search(files.context(call("search_files")), (), Search(EVIL["pattern"]), limit_s=0.5)

    assert text.splitlines() == [
        "a.txt:1: found a",
        "[Stopped after 0.5 s; make the pattern simpler or search fewer files.]",
    ]
    assert _search_processes() == []


def test_a_search_that_would_never_end_stops_when_the_turn_is_interrupted(files: Bench, workspace: Path) -> None:
    (workspace / "b.txt").write_text("a" * 64 + "!\n")
    timer = threading.Timer(0.3, files.stop.set)
    timer.start()
    began = time.monotonic()

    runs = files.run(call("search_files", **EVIL), call("list_files"), threads=1)
    timer.join()

    assert time.monotonic() - began < 10
    assert statuses(runs) == [CallStatus.INTERRUPTED, CallStatus.NOT_RUN]
    assert contents(runs)[0].endswith("No line matches.\n[Stopped: the search was interrupted.]")
    assert _search_processes() == []


def test_a_search_that_would_never_end_does_not_hold_up_other_threads(files: Bench, workspace: Path) -> None:
    (workspace / "b.txt").write_text("a" * 64 + "!\n")
    search = threading.Thread(target=files.run, args=(call("search_files", **EVIL),))
    search.start()
    began = time.monotonic()
    beats = 0
    while beats < 50:
        time.sleep(0.01)
        beats += 1
    took = time.monotonic() - began
    files.stop.set()
    search.join(10)

    assert took < 5, "50 sleeps of 10 ms, while the pattern backtracks"
    assert not search.is_alive()


def _search_processes() -> list[str]:
    found: list[str] = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rsplit(")", 1)[1].split()
            if int(fields[1]) == os.getpid() and "search_process" in (entry.parent / "cmdline").read_text():
                found.append(entry.parent.name)
        except (OSError, IndexError):  # it has ended meanwhile
            continue
    return found
