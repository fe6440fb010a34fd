"""Topics, sources, transform and evaluate."""

from __future__ import annotations

import csv
import io
import json
import re
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from support.commands import QUICK, fit_quickly
from support.corpora import save_counts
from support.folders import edit_json

import torch_lntm as lntm
from torch_lntm.cli import main
from torch_lntm.corpus.examples import example_file
from torch_lntm.io.models import write_model


@pytest.mark.slow
def test_topics(run_folder, capsys):
    capsys.readouterr()
    assert main(["topics", run_folder, "--print-as", "json", "--top-n", "2"]) == 0
    records = json.loads(capsys.readouterr().out)
    assert {record["topic"] for record in records} == {0, 1, 2}
    assert all(len(record["words"].split()) == 2 for record in records)
    for words in ("frex", "lift", "score"):
        assert main(["topics", run_folder, "--print-as", "json", "--words", words]) == 0
        found = json.loads(capsys.readouterr().out)
        assert [row["topic"] for row in found] == [record["topic"] for record in records]
        assert all(len(row["words"].split()) == 10 for row in found)


def proportions(*arguments):
    """The rows that transform writes, and their proportions."""
    assert main(["transform", *arguments, "--out", "x.csv", "--overwrite", "--no-progress"]) == 0
    rows = rows_of(Path("x.csv").read_text())
    heads = [name for name in rows[0] if name.startswith("topic_")]
    return rows, np.array([[float(row[name]) for name in heads] for row in rows])


@pytest.mark.slow
def test_transform_writes_every_document(run_folder, counts, capsys):
    rows, theta = proportions(run_folder, counts)
    assert "40 documents to x.csv: 1 empty" in capsys.readouterr().err
    assert theta.shape == (40, 3)
    np.testing.assert_allclose(theta.sum(1), 1, atol=1e-5)
    run = lntm.load_run(run_folder)
    posterior = lntm.guides.TaylorGuide(run.model).posterior(lntm.read_corpus(counts).batch())
    np.testing.assert_allclose(theta, posterior.theta_mode().numpy(), atol=1e-4)
    prior = run.model.theta(run.model.prior.loc).detach().numpy()
    np.testing.assert_allclose(theta[7], prior, rtol=1e-6)
    assert [row["document"] for row in rows] == [str(d) for d in range(40)]
    assert [row["label"] for row in rows] == [str(d) for d in range(40)]
    assert rows[7]["tokens"] == "0"
    assert {row["converged"] for row in rows} == {"1"}
    means = proportions(run_folder, counts, "--estimate", "mean")[1]
    assert np.abs(means - theta).max() > 1e-3
    np.testing.assert_allclose(means.sum(1), 1, atol=1e-5)


@pytest.mark.slow
def test_transform_writes_the_sources_too(counts):
    fit_quickly(counts, "--model", "iftm", "--num-sources", "2", "--posterior", "taylor")
    # The counts are random, and their sources fade away in a fit.
    run = lntm.load_run("run")
    run.model.prior.set_(mixing=torch.tensor([[1.0, 0.5], [-1.0, 0.5], [0.2, -2.0]]))
    write_model(Path("run"), run.model)
    topics = lntm.inference.transform(run.guide(), lntm.read_corpus(counts))
    expected = topics.sources.mean.numpy()
    rows, _ = proportions("run", counts)
    assert (np.abs(expected).max(0) > 0.1).all()
    assert [float(row["source_1"]) for row in rows] == pytest.approx(expected[:, 1], abs=1e-4)
    assert list(rows[0])[-3:] == ["topic_2", "source_0", "source_1"]


def test_unknown_words_are_dropped_with_a_counted_warning(texts, capsys):
    assert main(["fit", texts, "--out", "run", *QUICK, "--stop-words", "english"]) == 0
    Path("new.txt").write_text("the cat meets a zebra\n\nzebra zebra\ndog and cat")
    capsys.readouterr()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        rows, _ = proportions("run", "new.txt")
    err = capsys.readouterr().err
    # "meets" once and "zebra" three times; "the", "a" and "and" are stop words, as in the fit.
    assert "warning: dropped 4 of 7 tokens: 2 words unknown" in err
    assert [row["tokens"] for row in rows] == ["1", "0", "0", "2"]


def test_counts_without_words_need_the_models_columns(workplace, capsys):
    lntm.Corpus.from_matrix(np.eye(6, 5, dtype=int) + 1).save("five")
    lntm.Corpus.from_matrix(np.eye(6, 4, dtype=int) + 1).save("four")
    assert main(["fit", "five", "--out", "run", *QUICK]) == 0
    assert main(["transform", "run", "five", "--out", "x.csv", "--no-progress"]) == 0
    assert main(["transform", "run", "four", "--out", "y.csv", "--no-progress"]) == 1
    assert "the corpus has 4 words and the model 5" in capsys.readouterr().err
    assert not Path("y.csv").exists()


@pytest.mark.slow
def test_evaluate_scores_held_out_documents(run_folder, counts, capsys):
    fitted = json.loads(Path("run/evaluation.json").read_text())
    capsys.readouterr()
    of_fit = ["--no-progress", "--out", "scores.json"]
    assert main(["evaluate", run_folder, counts, *of_fit]) == 0
    out, err = capsys.readouterr()
    assert "the 4 documents held out from the fit" in err
    scores = {score["metric"]: score for score in json.loads(Path("scores.json").read_text())}
    assert len(scores) == 6
    assert all(name in out for name in scores)
    assert json.loads(Path("scores.json").read_text())[:2] == fitted
    likelihood = scores["log likelihood"]["value"]
    assert scores["perplexity"]["value"] == pytest.approx(np.exp(-likelihood))
    assert scores["coherence NPMI"]["documents"] == 40
    assert scores["perplexity"]["documents"] == 4
    Path("blank.txt").write_text("\n\n")
    assert main(["evaluate", run_folder, "blank.txt"]) == 0
    assert "have no words, so the likelihood per token is undefined" in capsys.readouterr().err


# -------------------------------------------------------------------- documents


def rows_of(text):
    return list(csv.DictReader(text.splitlines()))


def write_posts(path, delimiter=",", field="body"):
    with open(path, "w", newline="") as file:
        writer = csv.writer(file, delimiter=delimiter)
        writer.writerow(["party", field])
        for d in range(12):
            text = "tax school tax" if d % 3 else "war a b"
            writer.writerow(["left" if d % 2 else "right", text])


@pytest.mark.slow
def test_transform_uses_the_reading_options_of_the_fit(workplace, capsys):
    write_posts("docs.csv")
    options = ["--text-field", "body", "--label-field", "party", "--encoding", "latin-1"]
    assert main(["fit", "docs.csv", "--out", "run", *QUICK, *options]) == 0
    write_posts("new.csv")
    assert main(["transform", "run", "new.csv", "--out", "x.csv"]) == 0
    assert len(rows_of(Path("x.csv").read_text())) == 12
    Path("other.txt").write_text("tax\nwar")
    assert main(["transform", "run", "other.txt", "--out", "y.csv"]) == 0
    # The fit's own corpus keeps its labels, too; and evaluate finds it by itself.
    assert main(["transform", "run", "docs.csv", "--out", "z.csv"]) == 0
    assert {row["label"] for row in rows_of(Path("z.csv").read_text())} == {"left", "right"}
    capsys.readouterr()
    assert main(["evaluate", "run", "--metrics", "completion", "--theta", "mode"]) == 0
    assert "held out from the fit" in capsys.readouterr().err
    # What is given counts more.
    write_posts("named.csv", field="text")
    assert main(["transform", "run", "named.csv", "--out", "n.csv", "--text-field", "text"]) == 0
    assert main(["transform", "run", "named.csv", "--out", "m.csv"]) == 1
    assert "'body'" in capsys.readouterr().err


@pytest.mark.slow
def test_transform_carries_the_documents_columns(run_folder, counts):
    corpus = lntm.read_corpus(counts)
    names = [f"d{d}" for d in range(40)]
    names[3] = None
    columns = {"id": names, "year": range(1900, 1940), "tokens": [float("nan"), *[0.5] * 39]}
    corpus.with_metadata(columns).save("more")
    rows, _ = proportions(run_folder, "more")
    assert set(rows[0]) > {"document", "id", "year", "metadata.tokens", "label", "tokens"}
    assert [row["id"] for row in rows[2:5]] == ["d2", "", "d4"]
    assert rows[5]["year"] == "1905"
    assert [row["metadata.tokens"] for row in rows[:2]] == ["", "0.5"]
    assert [int(row["tokens"]) for row in rows] == corpus.lengths.tolist()


# -------------------------------------------------------------------- what must not be lost


@pytest.mark.slow
@pytest.mark.parametrize("command", ["evaluate", "report", "effects"])
def test_a_corpus_changed_since_the_fit_is_detected(run_folder, counts, command, capsys):
    corpus = lntm.read_corpus(counts)
    matrix = corpus.to_scipy().toarray()
    matrix[0] += 1
    save_counts(lntm.Corpus.from_matrix(matrix, corpus.vocabulary), Path(counts))
    capsys.readouterr()
    more = ["--formula", "~ 1"] if command == "effects" else []
    assert main([command, run_folder, *more, "--no-progress"]) == 1
    assert "counts.npz: the documents or the options of reading" in capsys.readouterr().err
    if command == "evaluate":
        assert (
            main([command, run_folder, counts, "--metrics", "completion", "--theta", "mode"]) == 0
        )
        assert "including training documents" in capsys.readouterr().err


@pytest.mark.slow
def test_a_missing_corpus_of_the_fit_is_an_error(run_folder, counts, capsys):
    Path("elsewhere").mkdir()
    for path in Path().glob("counts.*"):
        path.rename("elsewhere" / path)
    for corpus in (counts, "reference://::http://127.0.0.1:9/r.json"):  # addresses are not fetched
        edit_json(Path(run_folder) / "config.json", corpus=corpus)
        capsys.readouterr()
        assert main(["evaluate", run_folder]) == 1
        assert "name the documents, as CORPUS" in capsys.readouterr().err
    brief = ["--metrics", "completion", "--theta", "mode"]
    assert main(["evaluate", run_folder, "elsewhere/counts.npz", *brief]) == 0
    assert "the 4 documents held out from the fit" in capsys.readouterr().err


@pytest.mark.slow
def test_files_are_replaced_only_with_overwrite(run_folder, counts, capsys):
    Path("out.csv").write_text("precious")
    call = ["transform", run_folder, counts, "--out", "out.csv", "--no-progress"]
    capsys.readouterr()
    assert main(call) == 1
    assert "out.csv: exists already; choose another path" in capsys.readouterr().err
    assert Path("out.csv").read_text() == "precious"
    assert main([*call, "--overwrite"]) == 0
    assert Path("out.csv").read_text() != "precious"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")  # of few draws
@pytest.mark.parametrize(("posterior", "method"), [("taylor", "importance"), ("hmc", "annealed")])
def test_the_estimator_of_the_likelihood_follows_the_run(counts, posterior, method, capsys):
    limit = "--max-epochs" if posterior == "hmc" else "--max-iterations"
    fit = ["--num-topics", "3", "--no-progress", "--posterior", posterior, limit, "2"]
    assert main(["fit", counts, "--out", "run", *fit, "--test-fraction", "0"]) == 0
    assert main(["evaluate", "run", "--metrics", "likelihood", "--out", "scores.json"]) == 0
    assert "warning: the model was fitted to these documents" in capsys.readouterr().err
    assert json.loads(Path("scores.json").read_text())[0]["method"].startswith(method)


@pytest.mark.slow
def test_a_run_with_configuration_values_of_wrong_types_is_refused(run_folder, counts, capsys):
    for name, value in (("text_field", {}), ("token_pattern", ["a"]), ("lowercase", 0)):
        edit_json(Path(run_folder) / "config.json", **{name: value})
        assert main(["transform", run_folder, counts, "--out", "-"]) == 1
        assert f"run/config.json: {name}: expected " in capsys.readouterr().err
        edit_json(Path(run_folder) / "config.json", **{name: None})


def example_posts():
    return [json.loads(line)["text"] for line in example_file().read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.filterwarnings("default:dropped")
@pytest.mark.parametrize("options", [["--min-df", "2"], [], ["--min-df", "2", "--max-df", "0.5"]])
def test_new_documents_under_the_name_of_the_fits_keep_their_words(workplace, capsys, options):
    """A name does not make documents those of the fit."""
    posts = example_posts()
    Path("daily.txt").write_text("\n".join(posts))
    assert main(["fit", "daily.txt", "--out", "run", *QUICK, *options]) == 0
    for new in (posts[:3], posts[:60], ["soil"]):
        printed = []
        for name in ("other.txt", "daily.txt"):
            Path(name).write_text("\n".join(new))
            capsys.readouterr()
            assert main(["transform", "run", name, "--out", "-"]) == 0
            printed.append(capsys.readouterr().out)
        assert printed[0] == printed[1]
        model = set(lntm.load_model("run").vocabulary)
        words = [re.findall(r"\w\w+", post.lower()) for post in new]
        tokens = [int(row["tokens"]) for row in rows_of(printed[0])]
        assert tokens == [sum(word in model for word in post) for post in words]
    # The documents of a fit are known by their contents, and their words are not said to be lost.
    Path("copy.txt").write_text("\n".join(posts))
    assert main(["evaluate", "run", "copy.txt", "--metrics", "completion", "--theta", "mode"]) == 0
    err = capsys.readouterr().err
    assert "held out from the fit" in err
    assert "dropped" not in err


HOSTILE = ["=1+1", "\r=1", "a\rb", "@x", "\t=1", "+2", "-cmd"]


@pytest.mark.slow
def test_tables_are_safe_for_spreadsheets(workplace, capsys):
    """Words, names and columns are strangers' texts, wherever a command writes them."""
    posts = [
        {"text": f"{post} =sum( @cmd", "col": HOSTILE[d % len(HOSTILE)]}
        for d, post in enumerate(example_posts())
    ]
    Path("posts.jsonl").write_text("\n".join(map(json.dumps, posts)))
    words = ["--token-pattern", r"\S+", "--stop-words", "none"]
    fit = ["--model", "iftm", "--num-sources", "2", *QUICK, *words]
    assert main(["fit", "posts.jsonl", "--out", "run", *fit]) == 0
    assert main(["names", "run", "--set", "0==1+1; 1=@x"]) == 0
    capsys.readouterr()
    few = ["--source", "guide", "--num-draws", "3", "--formula", "~ col", "--print-as", "csv"]
    for name, *options in (
        ["topics", "--print-as", "csv", "--top-n", "400"],
        ["topics", "--num-docs", "2", "--print-as", "csv"],
        ["topics", "--groups", "+a=0; -b=1", "--print-as", "csv"],
        ["sources", "--print-as", "csv"],
        ["names", "--print-as", "csv"],
        ["tree", "--levels", "2", "--print-as", "csv"],
        ["stability", "--num-fits", "1", "--print-as", "csv", "--no-progress"],
        ["transform", "posts.jsonl", "--out", "-", "--groups", "+a=0; -b=1"],
        ["effects", *few],
        ["effects", *few, "--predict", "col"],
    ):
        assert main([name, "run", *options]) == 0
        out = capsys.readouterr().out
        assert "\r" not in out
        rows = list(csv.reader(io.StringIO(out)))
        assert len(rows) > 2
        assert len({len(row) for row in rows}) == 1
        for cell in (cell for row in rows for cell in row):
            assert not cell.lstrip().startswith(("=", "@"))
            if cell.lstrip().startswith(("+", "-")):
                float(cell)


@pytest.mark.slow
def test_the_example_corpus_is_fitted_evaluated_and_reported_by_its_name():
    assert main(["fit", "example", "--out", "run", *QUICK]) == 0
    assert main(["evaluate", "run", "--metrics", "completion", "--theta", "mode"]) == 0
    assert main(["report", "run", "--no-progress", "--by", "season"]) == 0
    page = Path("run/report.html").read_text()
    assert "<blockquote" in page
    assert "By season" in page
    assert main(["convert", "example", "folder"]) == 0
    assert lntm.read_corpus("folder").num_docs == 75
