"""A file outside of the package adds readers, commands and sections of the report."""

from __future__ import annotations

import gzip
import importlib
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from markupsafe import Markup
from matplotlib.figure import Figure
from support.markdown import code_of
from support.pages import Page

import torch_lntm as lntm
from torch_lntm.cli import main, register_command
from torch_lntm.cli.command import COMMANDS
from torch_lntm.corpus import register_reader
from torch_lntm.corpus.readers.formats import FORMATS
from torch_lntm.errors import ConfigError, CorpusError

HOSTILE = "</td><script>alert(1)</script><img src=x onerror=alert(2)>\"'&"
NOTES = "\n".join(
    f"{sender} | {text}"
    for sender, text in [
        ("ann", "the river floods the valley and the river floods the town"),
        ("ben", "the choir sings and the choir rehearses in the valley"),
        ("ann", "floods close the bridge over the river"),
        (HOSTILE, "the choir sings on the bridge in town"),
    ]
)


@pytest.fixture(autouse=True)
def own_folder(monkeypatch, tmp_path):
    """Every test runs in a folder of its own."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def plugin(tmp_path):
    """The plug-in of docs/plugins.md in a file, and a corpus that it reads."""
    Path("letters.py").write_text(code_of("plugins.md").partition("\nimport torch_lntm")[0])
    Path("letters.note").write_text(NOTES)
    return "letters.py"


@pytest.mark.slow
def test_a_plugin_adds_a_reader_a_command_and_a_section(plugin, capsys):
    assert main(["longest", "letters.note", "--num-docs", "1", "--plugin", plugin]) == 0
    assert re.fullmatch(r"document 0: \d+ words\n", capsys.readouterr().out)
    fit = ["fit", "letters.note", "--plugin", plugin, "--out", "run", "--num-topics", "2"]
    options = ["--no-progress", "--max-iterations", "2", "--test-fraction", "0"]
    assert main([*fit, *options]) == 0
    assert main(["report", "run", "--plugin", plugin, "--no-progress"]) == 0
    page = Page(Path("run/report.html").read_text())
    assert "Senders" in page.said("h2")
    assert {"ann", "ben", HOSTILE} <= set(page.said("td"))
    assert page.all("img") == []
    assert any("river floods" in text for text in page.said("blockquote"))


def test_a_command_of_a_plugin_is_known_wherever_the_plugin_is_named(plugin, capsys):
    Path("second.py").write_text(
        "import torch_lntm.cli as cli\n"
        "@cli.register_command('quiet')\n"
        "def second():\n"
        "    'Say nothing.'\n"
    )
    with pytest.raises(SystemExit):
        main(["longest", "letters.note"])
    assert "no command 'longest'; expected" in capsys.readouterr().err
    for arguments in (
        ["--plugin", plugin, "longest", "letters.note", "--plugin", "second.py"],
        ["longest", "letters.note", f"--plugin={plugin}"],
        ["quiet", "--plugin", "second.py"],
    ):
        assert main(arguments) == 0
        assert capsys.readouterr().out.count("document") == (3 if "longest" in arguments else 0)
        COMMANDS.pop("longest", None)
    for arguments, text in (
        (["--help"], "longest    Print the longest documents of a corpus."),
        (["longest", "--help"], "--num-docs NUM_DOCS"),
    ):
        with pytest.raises(SystemExit) as stop:
            main(["--plugin", plugin, *arguments])
        assert stop.value.code == 0
        assert text in capsys.readouterr().out


def test_registered_readers_read_texts_counts_and_zipped_files(plugin, monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("letters")
    corpus = lntm.read_corpus("letters.note", min_df=1)
    assert list(corpus.metadata["sender"]) == ["ann", "ben", "ann", HOSTILE]
    Path("letters.note.gz").write_bytes(gzip.compress(NOTES.encode()))
    assert lntm.read_corpus("letters.note.gz", min_df=1).fingerprint() == corpus.fingerprint()
    corpus.save("store")
    assert lntm.read_corpus("store").num_tokens == corpus.num_tokens
    Path("counts.pairs").write_text("a=2 b=1\nc=3\n")
    counts = lntm.read_corpus("counts.pairs", metadata={"label": ["x", "y"]})
    assert counts.to_scipy().toarray().tolist() == [[2, 1, 0], [0, 0, 3]]
    assert (counts.labels, counts.name) == (("x", "y"), "counts")
    renamed = lntm.read_corpus("counts.pairs", vocabulary=["x", "y", "z"])
    assert renamed.vocabulary == ("x", "y", "z")
    with pytest.raises(CorpusError, match="min_df cannot be used with counts"):
        lntm.read_corpus("counts.pairs", min_df=2)


def readable(path, options):
    return []


@pytest.mark.parametrize(
    ("name", "suffixes", "message"),
    [
        ("csv", [".x"], "format name 'csv' is registered already"),
        ("taken", [".x"], r"'taken' is registered already, by .*readable; choose another"),
        ("mine", [".csv"], "files that end in .csv have the format 'csv' already"),
        ("mine", [".took"], "files that end in .took have the format 'taken' already"),
    ],
)
def test_a_reader_that_cannot_be_registered_is_refused(name, suffixes, message):
    register_reader("taken", [".first"], readable)
    register_reader("taken", [".took"], readable)
    assert FORMATS["taken"].suffixes == (".took",)
    with pytest.raises(ConfigError, match=message):
        register_reader(name, suffixes, lambda path, options: [])
    assert "mine" not in FORMATS


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda path, options: 3, r"record 1: cannot be read, .*\(TypeError"),
        (lambda path, options: ["text"], "record 1: expected a mapping of fields, got 'text'"),
        (lambda path: ["text"], r"record 1: cannot be read, .*\(TypeError"),
        (lambda path, options: [{"body": "a"}], "record 1: expected a text in the field 'text'"),
    ],
)
def test_a_reader_that_returns_something_else_is_named(function, message):
    register_reader("wrong", [".wrong"], function)
    Path("a.wrong").write_text("")
    with pytest.raises((ConfigError, CorpusError), match=message):
        lntm.read_corpus("a.wrong")
    register_reader("wrong_counts", [".counts"], lambda path, options: [], holds="counts")
    Path("a.counts").write_text("")
    with pytest.raises(ConfigError, match="expected a Corpus"):
        lntm.read_corpus("a.counts")


def test_errors_of_a_reader_name_the_file_and_the_document():
    def fails(path, options):
        yield {"text": "wood"}
        yield {"text": "stone", "year": int("MCM")}

    register_reader("fails", [".fails"], fails)
    register_reader("fails_at_once", [".counts"], lambda path, options: 1 / 0, holds="counts")
    for name, message in (
        ("a.fails", r"^a\.fails, record 2: .*\(ValueError: "),
        ("a.counts", r"^a\.counts: .*\(ZeroDivisionError: "),
    ):
        Path(name).write_text("")
        with pytest.raises(CorpusError, match=message):
            lntm.read_corpus(name)


# ---------------------------------------------------------------- commands


def quiet(*, times: int = 1):
    """Do nothing.

    Args:
        times: How often.
    """


@pytest.mark.parametrize(
    ("name", "command", "message"),
    [
        ("fit", quiet, "command name 'fit' is registered already, by torch_lntm"),
        ("taken", print, r"'taken' is registered already, by .*quiet; choose another"),
        ("Quiet", quiet, "expected lower-case letters"),
        ("--quiet", quiet, "expected lower-case letters"),
    ],
)
def test_a_command_that_cannot_be_registered_is_refused(name, command, message):
    register_command("taken", quiet)
    register_command("taken", quiet)
    with pytest.raises(ConfigError, match=message):
        register_command(name, command)


# ---------------------------------------------------------------- sections


@pytest.fixture(scope="module")
def fitted():
    corpus = lntm.Corpus.from_matrix(np.random.default_rng(0).poisson(1.0, (20, 10)))
    return lntm.guides.TaylorGuide(lntm.models.ctm(3, 10)), corpus


def test_a_section_shows_text_tables_and_figures_and_no_markup_of_theirs(fitted):
    def contents(page):
        assert page.model is fitted[0].model
        assert page.level == 0.95
        figure = Figure()
        figure.set_label(HOSTILE)
        figure.subplots().set_title(HOSTILE, parse_math=False)
        columns = {Markup(HOSTILE): [Markup(f"cell {HOSTILE}"), 0.123456, 1234567]}
        return [Markup(f"text {HOSTILE}"), pd.DataFrame(columns), figure]

    sections = {f"Mine {HOSTILE}": contents}
    file = lntm.report(*fitted, "page.html", sections=sections, overwrite=True)
    page = Page(file.read_text(encoding="utf-8"))
    assert f"text {HOSTILE}" in page.said("p")
    assert f"Mine {HOSTILE}" in page.said("h2")
    assert HOSTILE in page.said("th")
    assert {f"cell {HOSTILE}", "0.1235", "1234567"} <= set(page.said("td"))
    assert HOSTILE in page.said("title")
    assert HOSTILE in page.said("text")
    assert len([attributes for attributes in page.all("script") if "type" not in attributes]) == 1


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (lambda page: 3, "returned int; expected text, a data frame"),
        (lambda page: ["text", b"GIF89a"], "returned bytes; expected text"),
        ("text", "expected a title and a function"),
    ],
)
def test_a_section_of_another_kind_is_refused_before_the_page_is_written(
    fitted, contents, message, tmp_path
):
    with pytest.raises(ConfigError, match=message):
        lntm.report(*fitted, "new.html", sections={"Mine": contents})
    assert not Path("new.html").exists()
    with pytest.raises(ConfigError, match="'Keywords' is registered already, by torch_lntm"):
        lntm.reports.register_section("Keywords", len)
