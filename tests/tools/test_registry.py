from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestration.errors import UnknownTool
from orchestration.tools.toolbox import RegistryToolbox

ECHO = '''
from orchestration.tools import tool

@tool(effect="reads")
def echo(text: str) -> str:
    """Say it again."""
    return text

@tool
def shout(text: str) -> str:
    return text.upper()

@tool
def _hidden(text: str) -> str:
    return text

def plain(text: str) -> str:
    return text
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on the import path; what was imported from it is forgotten afterwards."""
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) and str(tmp_path) in str(sys.modules[name].__file__):
            del sys.modules[name]


def names_of(*names: str) -> list[str]:
    return [spec.name for spec in RegistryToolbox().specs(names)]


def test_the_built_in_toolsets_are_found_by_their_names() -> None:
    assert names_of("files") == ["read_file", "write_file", "list_files", "search_files"]
    assert names_of("calculator", "time") == ["calculate", "current_time"]
    assert names_of("files:read_file") == ["read_file"]


def test_a_module_stands_for_its_public_tools_and_a_function_for_itself(folder: Path) -> None:
    (folder / "own_echo.py").write_text(ECHO)

    assert names_of("own_echo") == ["echo", "shout"]
    assert names_of("own_echo:shout") == ["shout"]
    assert names_of("own_echo:_hidden") == ["_hidden"]


def test_a_module_that_lists_its_names_stands_for_the_tools_among_them(folder: Path) -> None:
    (folder / "own_listed.py").write_text(ECHO + "\n__all__ = ['shout', 'plain']\n")

    assert names_of("own_listed") == ["shout"]


def test_a_tool_that_is_named_twice_counts_once_where_it_came_first(folder: Path) -> None:
    (folder / "own_twice.py").write_text(ECHO)

    assert names_of("own_twice:shout", "time", "own_twice") == ["shout", "current_time", "echo"]


def test_two_tools_of_one_name_are_refused_with_both_their_places(folder: Path) -> None:
    (folder / "own_a.py").write_text(ECHO)
    (folder / "own_b.py").write_text(ECHO)

    with pytest.raises(UnknownTool, match=r"Two tools are named 'echo': own_a:echo and own_b:echo"):
        names_of("own_a", "own_b")


def test_a_name_that_is_not_known_is_refused_with_what_is_known() -> None:
    with pytest.raises(UnknownTool, match=r"no module 'fiels'. Known toolsets: calculator, files, history, time;"):
        names_of("fiels")
    for name in ("", "../x", "a b", ".relative", "x-y"):
        with pytest.raises(UnknownTool, match="names no tool"):
            names_of(name)


def test_a_function_that_is_no_tool_is_refused_with_the_tools_of_its_module(folder: Path) -> None:
    (folder / "own_functions.py").write_text(ECHO)

    with pytest.raises(UnknownTool, match=r"'plain' in 'own_functions' is not a tool.*echo, shout"):
        names_of("own_functions:plain")
    with pytest.raises(UnknownTool, match=r"'ecko' in 'own_functions' does not exist"):
        names_of("own_functions:ecko")
    with pytest.raises(UnknownTool, match="no public function under @tool"):
        names_of("json")


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import a_module_that_is_nowhere", "No module named 'a_module_that_is_nowhere'"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("def broken(:", "SyntaxError"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("from orchestration.tools import tool\n@tool\ndef f(a): ...", "has no type hint"),
    ],
)
def test_a_module_that_cannot_be_imported_is_refused_with_the_reason(folder: Path, source: str, reason: str) -> None:
    (folder / "own_broken.py").write_text(source)

    with pytest.raises(UnknownTool, match=r"'own_broken' cannot be imported") as refused:
        names_of("own_broken")

    assert reason in str(refused.value)


def test_a_module_that_failed_is_tried_again(folder: Path) -> None:
    toolbox = RegistryToolbox()
    with pytest.raises(UnknownTool):
        toolbox.specs(["own_late"])
    (folder / "own_late.py").write_text(ECHO)
    sys.path_importer_cache.clear()

    assert [spec.name for spec in toolbox.specs(["own_late"])] == ["echo", "shout"]


def test_type_hints_that_make_no_schema_are_refused_with_the_tool_and_the_reason(folder: Path) -> None:
    (folder / "own_hints.py").write_text(
        "from __future__ import annotations\nfrom orchestration.tools import tool\n"
        "@tool\ndef nowhere(a: Missing) -> str: ...\n"
        "@tool\ndef strange(a: object()) -> str: ...\n"
    )

    with pytest.raises(UnknownTool, match=r"own_hints:nowhere cannot be offered.*NameError: name 'Missing'"):
        names_of("own_hints:nowhere")
    with pytest.raises(UnknownTool, match=r"own_hints:strange cannot be offered"):
        names_of("own_hints:strange")


def test_an_entry_point_names_a_toolset(folder: Path) -> None:
    (folder / "own_plugin.py").write_text(ECHO)
    info = folder / "own_plugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: own-plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[perdure.tools]\nmegaphone = own_plugin\nloud = own_plugin:shout\n")

    assert names_of("megaphone") == ["echo", "shout"]
    assert names_of("loud") == ["shout"]
    assert names_of("megaphone:echo") == ["echo"]
    with pytest.raises(UnknownTool, match="calculator, files, history, loud, megaphone, time"):
        names_of("nothing_of_that_name")


def test_specs_are_made_once_for_the_same_names() -> None:
    toolbox = RegistryToolbox()

    assert toolbox.specs(["files", "time"]) is toolbox.specs(("files", "time"))
