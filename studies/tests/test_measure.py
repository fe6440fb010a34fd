"""The framework: cells are measured once, kept at once, and written as a whole."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from studies import measure as framework
from studies.measure import (
    Cells,
    Study,
    check_choices,
    check_numbers,
    corpus_file,
    dumps,
    measure,
    write,
)
from studies.tables import entry, entry_of_fits, mean_and_error, table, table_of, with_error
from torch_lntm.corpus import Corpus
from torch_lntm.errors import ConfigError
from torch_lntm.guides import TaylorGuide
from torch_lntm.inference import VariationalEM
from torch_lntm.models import ctm


@dataclass(frozen=True)
class Squares:
    """What to square.

    Attributes:
        numbers: The numbers.
        names: Names.
        scale: A factor.
    """

    numbers: tuple[int, ...] = (1, 2, 3)
    names: tuple[str, ...] = ("a",)
    scale: float = 1.0


@dataclass(frozen=True)
class Row:
    key: str
    value: float


class Interrupted:
    """A study of squares that notes what it measures, and is interrupted at a number."""

    def __init__(self, at: int | None = None) -> None:
        self.at = at
        self.measured: list[int] = []
        self.study = Study(Squares, self.run, self.tables)

    def square(self, key: tuple[str, int]) -> Row:
        if key[1] == self.at:
            raise KeyboardInterrupt
        self.measured.append(key[1])
        return Row(key[0], float(key[1] ** 2))

    def run(self, settings: Squares, cells: Cells) -> list[Row]:
        keys = [("square", number) for number in settings.numbers]
        return [Row(**row) for row in cells.each(keys, self.square)]

    def tables(self, rows: list[Row]) -> str:
        return table(["key", "value"], [[row.key, f"{row.value:g}"] for row in rows])


def test_an_interrupted_study_goes_on_where_it_ended(tmp_path: Path) -> None:
    whole = measure("squares", Interrupted().study, Squares(), tmp_path / "whole", progress=False)
    first, second = Interrupted(at=3), Interrupted()
    with pytest.raises(KeyboardInterrupt):
        measure("squares", first.study, Squares(), tmp_path / "parts", progress=False)
    assert first.measured == [1, 2]
    kept = json.loads((tmp_path / "parts" / "result.json").read_text())
    assert list(kept["cells"]) == ["square, 1", "square, 2"]
    found = measure("squares", second.study, Squares(), tmp_path / "parts", progress=False)
    assert second.measured == [3]
    assert found == whole
    records = [
        json.loads((tmp_path / name / "result.json").read_text()) for name in ("whole", "parts")
    ]
    assert records[0]["cells"] == records[1]["cells"]
    assert [len(session["cells"]) for session in records[1]["sessions"]] == [2, 1]


def test_a_finished_study_is_not_measured_again(tmp_path: Path) -> None:
    measure("squares", Interrupted().study, Squares(), tmp_path, progress=False)
    before = (tmp_path / "result.json").read_text()
    (tmp_path / "tables.md").unlink()
    again = Interrupted(at=1)
    measure("squares", again.study, Squares(), tmp_path, progress=False)
    assert (tmp_path / "result.json").read_text() == before
    assert (tmp_path / "tables.md").read_text().endswith("| square |     9 |\n")


def test_the_record_says_when_where_and_with_what(tmp_path: Path) -> None:
    measure("squares", Interrupted().study, Squares(scale=2.0), tmp_path, progress=False)
    record = json.loads((tmp_path / "result.json").read_text())
    assert record["study"] == "squares"
    assert record["settings"] == {"numbers": [1, 2, 3], "names": ["a"], "scale": 2.0}
    (session,) = record["sessions"]
    assert {"date", "commit", "uncommitted_changes", "machine", "versions"} < set(session)
    assert session["versions"]["torch"]
    assert session["machine"]["cores"] >= 1
    assert session["seconds"] >= 0


def test_other_settings_and_other_studies_are_refused_and_nothing_is_lost(tmp_path: Path) -> None:
    measure("squares", Interrupted().study, Squares(), tmp_path, progress=False)
    before = (tmp_path / "result.json").read_text()
    with pytest.raises(ConfigError, match="made with another numbers, scale; name another --out"):
        measure("squares", Interrupted().study, Squares((4,), scale=3.0), tmp_path)
    with pytest.raises(ConfigError, match="is of the study squares"):
        measure("cubes", Interrupted().study, Squares(), tmp_path)
    assert (tmp_path / "result.json").read_text() == before


def test_a_setting_that_selects_adds_cells_to_the_same_folder(tmp_path: Path) -> None:
    first, second = Interrupted(), Interrupted()
    for squares, numbers in ((first, (1, 2)), (second, (2, 4))):
        study = replace(squares.study, selects=("numbers",))
        measure("squares", study, Squares(numbers), tmp_path, progress=False)
    assert second.measured == [4]
    record = json.loads((tmp_path / "result.json").read_text())
    assert list(record["cells"]) == ["square, 1", "square, 2", "square, 4"]
    assert record["settings"]["numbers"] == [1, 2, 4]
    assert (tmp_path / "tables.md").read_text().count("square") == 2
    with pytest.raises(ConfigError, match="made with another scale; name another --out"):
        measure("squares", study, Squares((2, 4), scale=3.0), tmp_path)


def test_a_number_that_selects_cells_keeps_its_largest_value(tmp_path: Path) -> None:
    study = replace(Interrupted().study, selects=("scale",))
    for scale in (3.0, 2.0):
        measure("squares", study, Squares(scale=scale), tmp_path, progress=False)
    assert json.loads((tmp_path / "result.json").read_text())["settings"]["scale"] == 3.0


def test_some_cells_are_measured_anew_and_the_others_stay(tmp_path: Path) -> None:
    measure("squares", Interrupted().study, Squares(), tmp_path, progress=False)
    again = Interrupted()
    measure("squares", again.study, Squares(), tmp_path, again="square, 2", progress=False)
    assert again.measured == [2]
    record = json.loads((tmp_path / "result.json").read_text())
    assert [session["cells"] for session in record["sessions"]] == [
        ["square, 1", "square, 3"],
        ["square, 2"],
    ]
    before = (tmp_path / "result.json").read_text()
    with pytest.raises(ConfigError, match="no cell's name contains 'cube'"):
        measure("squares", again.study, Squares(), tmp_path, again="cube")
    assert (tmp_path / "result.json").read_text() == before


def test_an_interrupted_study_leaves_what_it_was_to_measure_anew_missing(tmp_path: Path) -> None:
    measure("squares", Interrupted().study, Squares(), tmp_path, progress=False)
    stopped = Interrupted(at=2)
    with pytest.raises(KeyboardInterrupt):
        measure("squares", stopped.study, Squares(), tmp_path, again="square", progress=False)
    last = Interrupted()
    measure("squares", last.study, Squares(), tmp_path, progress=False)
    assert (stopped.measured, last.measured) == ([1], [2, 3])


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"study": "squares", "settings": {}}'])
def test_a_file_that_is_no_result_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text(content)
    with pytest.raises(ConfigError, match="not a result of a study"):
        measure("squares", Interrupted().study, Squares(), tmp_path)
    assert (tmp_path / "result.json").read_text() == content


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    with pytest.raises(ConfigError, match="is a file; expected a folder"):
        measure("squares", Interrupted().study, Squares(), tmp_path / "out")


def test_a_figure_is_drawn_where_there_is_one(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    def figure(rows: list[Row]) -> Figure:
        plot = Figure(figsize=(2, 2))
        plot.subplots().plot([row.value for row in rows])
        return plot

    squares = Interrupted()
    study = Study(Squares, squares.run, squares.tables, figure)
    measure("squares", study, Squares(), tmp_path / "with", progress=False)
    measure("squares", squares.study, Squares(), tmp_path / "without", progress=False)
    assert (tmp_path / "with" / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(p.name for p in (tmp_path / "without").iterdir()) == ["result.json", "tables.md"]


def test_a_write_that_fails_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "a" / "file", b"old")

    def full(*_: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(framework.os, "replace", full)
    with pytest.raises(OSError, match="disk full"):
        write(tmp_path / "a" / "file", b"new")
    assert (tmp_path / "a" / "file").read_bytes() == b"old"


def test_a_fresh_cell_is_what_a_kept_one_will_be() -> None:
    cells = Cells()
    values = [0.1, math.inf, -math.inf, None, "x"]
    fresh = cells.one("row", lambda: {"values": tuple(values), "row": Row("x", math.nan), 1: 2})
    kept = Cells(json.loads(json.dumps(cells.done, allow_nan=False)))
    for found in (fresh, kept.one("row", lambda: pytest.fail("measured again"))):
        assert found["values"] == values
        assert found["1"] == 2
        row = Row(**found["row"])
        assert row.key == "x"
        assert math.isnan(row.value)


def test_a_corpus_is_found_by_name_and_by_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LNTM_DATA", str(tmp_path))
    (tmp_path / "ap.npz").touch()
    assert corpus_file("ap") == tmp_path / "ap.npz"
    assert corpus_file(str(tmp_path / "ap.npz")) == tmp_path / "ap.npz"
    with pytest.raises(ConfigError, match=r"no corpus .*pa\.npz; .* LNTM_DATA"):
        corpus_file("pa")


def test_numbers_and_choices_are_checked() -> None:
    settings = Squares(numbers=(2, 0), names=("a", "c"), scale=0.0)
    with pytest.raises(ConfigError, match="numbers is 0; expected a whole number >= 1"):
        check_numbers(settings, {"numbers": 1})
    with pytest.raises(ConfigError, match=r"scale is 0\.0; expected a positive number"):
        check_numbers(settings, {}, ["scale"])
    check_numbers(settings, {"numbers": 0}, [], ["scale"])
    with pytest.raises(ConfigError, match="scale is nan; expected a number >= 0"):
        check_numbers(Squares(scale=math.nan), {}, [], ["scale"])
    with pytest.raises(ConfigError, match="names are a, c; expected some of a, b"):
        check_choices(settings, "names", ["a", "b"])
    with pytest.raises(ConfigError, match="names are none"):
        check_choices(Squares(names=()), "names", ["a"])


def test_tables_are_aligned_markdown() -> None:
    lines = table(["a", "value"], [["x", "1"], ["long name", "22"]]).splitlines()
    assert lines == [
        "| a         | value |",
        "| --------- | ----: |",
        "| x         |     1 |",
        "| long name |    22 |",
    ]
    assert table_of([{"a": "x", "b": "1"}]) == table(["a", "b"], [["x", "1"]])


def test_means_have_their_standard_errors() -> None:
    assert mean_and_error([1.0, 3.0]) == (2.0, 1.0)
    assert with_error([1.0, 3.0], 1) == "2.0 (1.0)"
    assert with_error([1.5], 2) == "1.50"
    assert with_error([], 2) == "–"
    assert entry(math.nan, 1.0, 2) == "–"
    assert entry_of_fits(1.0, 0.25, 0.5, 2) == "1.00 (0.25; 0.50)"
    assert entry_of_fits(1.0, 0.25, math.nan, 1) == "1.0 (0.2; –)"


def test_lists_of_numbers_take_one_line_and_strings_stay() -> None:
    record = {"text": "a [ 1 ] b", "numbers": [1, -2.5e-7, None, True], "rows": [[1], [2, 3]]}
    record |= {"names": ["x", "y"], "none": []}
    text = dumps(record)
    assert json.loads(text) == record
    assert '"numbers": [1, -2.5e-07, null, true]' in text
    assert "[2, 3]\n" in text
    assert '"a [ 1 ] b"' in text


def test_a_fit_that_ctrl_c_ended_early_is_no_cell(tmp_path: Path) -> None:
    """Outside of a study it would be a result."""

    def fit(_: Any) -> str:
        model = ctm(2, 4)
        guide = TaylorGuide(model)
        guide.solve = _interrupted  # type: ignore[method-assign]
        engine = VariationalEM(model, guide, start="model", progress=False)
        return engine.fit(Corpus.from_matrix(np.ones((3, 4)))).stop_reason

    assert fit(None) == "interrupted"
    study = Study(Squares, lambda settings, cells: cells.each(["one"], fit), lambda _: "")
    with pytest.raises(KeyboardInterrupt):
        measure("squares", study, Squares(), tmp_path, progress=False)
    assert not (tmp_path / "result.json").exists()


def _interrupted(*_: Any, **__: Any) -> Any:
    raise KeyboardInterrupt
