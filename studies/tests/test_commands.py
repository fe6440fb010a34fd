"""``python -m studies``: every study's options, configurations and mentions."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from studies import __main__ as command
from studies.__main__ import STUDIES, load, main
from studies.options import read

REPOSITORY = Path(__file__).resolve().parents[2]
NAMES = [name for names in STUDIES.values() for name in names]
#: Configurations that are not the defaults of the study of the same name.
CONFIGS = {"minka_lafferty_mixtures": "minka_lafferty_text", "minka_lafferty_ap": None}
FIVE_WORD = ["--num-docs", "5", "--length", "4", "--repetitions", "2", "--max-updates", "3"]


@pytest.mark.slow
def test_lists_the_studies_without_importing_them() -> None:
    found = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "studies"],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=True,
    )
    for room in STUDIES.values():
        for name, line in room.items():
            assert re.search(rf"^  {name} +{re.escape(line)}$", found.stdout, re.MULTILINE)
    assert not re.search(r"\| +(torch|pyro|scipy)$", found.stderr, re.MULTILINE)


def test_every_module_with_a_study_is_listed() -> None:
    files = [
        path.stem
        for room in STUDIES
        for path in (REPOSITORY / "studies" / room).glob("*.py")
        if "\nSTUDY = " in path.read_text()
    ]
    assert sorted(files) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_setting_is_an_option_with_help(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    study = load(name)
    with pytest.raises(SystemExit, match="0"):
        read(name, study, ["--help"])
    text = capsys.readouterr().out
    for field in fields(study.settings):
        assert "--" + field.name.replace("_", "-") in text
    assert read(name, study, []).settings == study.settings()
    quick = read(name, study, ["--quick"])
    assert quick.out == Path(f"runs/{name}-quick")
    changed = {f.name for f in fields(quick.settings)} & set(study.quick)
    assert changed == set(study.quick)
    assert all(getattr(quick.settings, key) == study.quick[key] for key in changed)
    assert quick.settings != study.settings()


@pytest.mark.parametrize(
    "path", sorted((REPOSITORY / "studies" / "configs").glob("*.yaml")), ids=lambda path: path.stem
)
def test_committed_configurations_are_the_defaults(path: Path) -> None:
    name = CONFIGS.get(path.stem, path.stem)
    if name is None:
        settings = read("", load("minka_lafferty_text"), ["--config", str(path)]).settings
        assert (settings.corpus, settings.num_docs, settings.categories) == ("ap_allwords", 772, ())
    else:
        study = load(name)
        assert read(name, study, ["--config", str(path)]).settings == study.settings()


def test_an_option_goes_before_quick_and_quick_before_the_file(tmp_path: Path) -> None:
    study = load("putthividhya_table1")
    file = tmp_path / "some.yaml"
    file.write_text("num_topics: [3, 4]\nrepeats: 7\nseed: 5\n")
    settings = read("putthividhya_table1", study, ["--config", str(file)]).settings
    assert (settings.num_topics, settings.repeats, settings.seed) == ((3, 4), 7, 5)
    settings = read(
        "putthividhya_table1", study, ["--quick", "--seed=6", f"--config={file}"]
    ).settings
    assert (settings.num_topics, settings.repeats, settings.seed) == ((20, 80), 7, 6)
    settings = read("putthividhya_table1", study, ["--quick", "--num-topics", "5", "6"]).settings
    assert settings.num_topics == (5, 6)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("num_topic: 3", "unknown setting 'num_topic'; known: corpus, num_topics"),
        ("repeats: many", "repeats"),
        ("num_topics: [3, x]", "num_topics"),
        ("repeats: 0", "repeats is 0"),
        ("- 3", "expected lines"),
        ("a: [", "cannot be read"),
        (None, "cannot be read"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(
    content: str | None, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "some.yaml"
    if content is not None:
        file.write_text(content)
    out = tmp_path / "out"
    assert main(["putthividhya_table1", "--config", str(file), "--out", str(out)]) == 1
    assert message in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["factors"], 2, "no study 'factors'"),
        (["putthividhya_table1", "--repeats", "many"], 2, "repeats"),
        (["putthividhya_table1", "--repeat", "2"], 2, "--repeat"),
        (["putthividhya_table1", "--corpus", "nowhere.npz"], 1, "there is no corpus nowhere.npz"),
        (["putthividhya_table1", "--data", "nowhere"], 1, "there is no corpus nowhere"),
    ],
)
def test_wrong_commands_say_what_is_wrong(
    arguments: list[str],
    code: int,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LNTM_DATA", str(tmp_path))
    try:
        found: Any = main(arguments)
    except SystemExit as ended:
        found = ended.code
    assert found == code
    assert message in capsys.readouterr().err


def test_runs_and_prints_what_it_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert main(["minka_lafferty_five_word", *FIVE_WORD, "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert (out / "tables.md").read_text() in printed
    assert "| ep " in printed
    assert main(["minka-lafferty-five-word", "--seed", "7", "--out", str(out)]) == 1
    assert "made with another num_docs" in capsys.readouterr().err


def test_an_interruption_names_the_command_that_continues(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: Any, again: str | None) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "measure", interrupted)
    assert main(["putthividhya_table1"]) == 130
    assert "the same command continues" in capsys.readouterr().err


def test_mentioned_commands_exist() -> None:
    texts = [
        *(REPOSITORY / name for name in ("README.md", "studies/README.md", "Makefile")),
        *(REPOSITORY / "docs").glob("*.md"),
        *(REPOSITORY / "studies" / "pages").glob("*.md"),
        *(REPOSITORY / "studies" / "configs").glob("*.yaml"),
    ]
    mentioned = set()
    for path in texts:
        text = path.read_text(encoding="utf-8")
        mentioned |= set(re.findall(r"-m studies ([a-z_0-9]+)", text))
        for config in re.findall(r"studies/configs/[\w.]+", text):
            assert (REPOSITORY / config).is_file(), f"{path}: {config}"
        for result in re.findall(r"studies/results/[\w.-]+\.json", text):
            assert (REPOSITORY / result).is_file(), f"{path}: {result}"
    assert mentioned == set(NAMES)
