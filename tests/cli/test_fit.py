"""``torch-lntm fit``: what it fits, prints and saves."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from support.commands import QUICK, fit_quickly
from support.corpora import save_counts

import torch_lntm as lntm
from torch_lntm.cli import main
from torch_lntm.models.registry import CONSTRUCTORS


@pytest.mark.slow
def test_fit_prints_topics_scores_and_the_folder(counts, capsys):
    assert main(["fit", counts, "--out", "run", *QUICK, "--top-n", "4"]) == 0
    out, err = capsys.readouterr()
    run = lntm.load_run("run")
    shares = run.metadata["topic_shares"]
    assert sum(shares) == pytest.approx(1.0)
    lines = out.splitlines()
    first = int(lines[2].split()[0])
    assert first == int(np.argmax(shares))
    assert lines[2].split()[1] == f"{max(shares):.1%}"
    top = run.model.topics.probs[first].detach().topk(4).indices.tolist()
    assert lines[2].split()[2:] == [f"w{v}" for v in top]
    assert "completion perplexity" in out
    assert out.endswith("The run is in run\n")
    assert "fitting 36 documents (1 without words) of 30 words, with 4 held out" in err
    scores = json.loads(Path("run/evaluation.json").read_text())
    assert len(scores) == 2
    corpus = lntm.read_corpus(counts)
    split = run.split_documents(corpus)
    expected = lntm.evaluation.document_completion(run.model, split.test)
    assert scores[0]["value"] == pytest.approx(expected.perplexity, rel=1e-4)
    error = expected.perplexity_standard_error
    assert scores[0]["standard_error"] == pytest.approx(error, rel=1e-3)


@pytest.mark.slow
def test_the_command_fit_equals_a_fit_in_python(counts):
    options = ["--seed", "4", "--posterior", "laplace", "--anchored", "--topic-smoothing", "0.2"]
    assert main(["fit", counts, "--out", "run", *QUICK, *options, "--test-fraction", "0"]) == 0
    corpus = lntm.read_corpus(counts)
    settings = {"anchored": True, "topic_smoothing": 0.2, "vocabulary": corpus.vocabulary}
    model = lntm.models.ctm(3, 30, seed=4, **settings)
    guide = lntm.guides.LaplaceGuide(model)
    options = {"max_iterations": 3, "start_epochs": 3, "stepwise_epochs": 2}
    engine = lntm.inference.VariationalEM(model, guide, seed=4, progress=False, **options)
    result = engine.fit(corpus)
    run = lntm.load_run("run")
    for name, tensor in run.model.state_dict().items():
        assert torch.equal(tensor, model.state_dict()[name])
    assert run.metadata["stop_reason"] == result.stop_reason
    assert [h["objective"] for h in run.history] == [h["objective"] for h in result.history]
    assert run.config["posterior"] == "laplace"
    assert not Path("run/split.npz").exists()
    assert not Path("run/evaluation.json").exists()
    assert not Path("run.partial").exists()


@pytest.mark.long
def test_every_model_is_fitted_with_each_of_its_posteriors(counts):
    for model, guides in {
        "ctm": ["taylor", "laplace", "blei-lafferty", "khan-bouchard"],
        "lntm": ["taylor", "laplace", "blei-lafferty", "khan-bouchard"],
        "iftm": ["factor", "taylor", "laplace"],
        "lda": ["vb", "ep"],
    }.items():
        for posterior in guides:
            run = fit_quickly(counts, "--model", model, "--posterior", posterior, "--overwrite")
            assert run.config["posterior"] == posterior
            assert run.metadata["objective_name"] == lntm.guides.GUIDES[posterior].objective
        # What the run says was fitted is resolved, whether it was asked for or not.
        assert fit_quickly(counts, "--model", model, out=model).config["posterior"] == guides[0]


@pytest.mark.slow
@pytest.mark.parametrize("model", ["ctm", "lntm", "iftm", "lda"])
def test_fit_by_sampling(counts, model, capsys):
    options = ("--model", model, "--posterior", "hmc", "--max-epochs", "6", "--num-chains", "2")
    assert main(["fit", counts, "--out", "run", *QUICK[:3], *options]) == 0
    out, err = capsys.readouterr()
    assert "completion perplexity" in out
    assert "phase averaging, iteration 6" in err
    run = lntm.load_run("run")
    assert run.config["posterior"] == "hmc"
    assert run.history[-1]["perplexity"] > 1
    train = run.split_documents(lntm.read_corpus(counts)).train
    same = CONSTRUCTORS[model](3, 30)
    engine = lntm.inference.MonteCarloEM(same, max_epochs=6, num_chains=2, progress=False)
    engine.fit(train)
    torch.testing.assert_close(same.topics.probs, run.model.topics.probs)


@pytest.mark.slow
def test_prevalence_and_content_depend_on_columns(workplace, capsys):
    words = np.random.default_rng(0).choice(["tax", "war", "vote", "poll"], (40, 9))
    rows = [f"{' '.join(line)},{('Left', 'Right')[d % 2]}" for d, line in enumerate(words)]
    Path("posts.csv").write_text("\n".join(["text,party", *rows]))
    stm = ("fit", "posts.csv", *QUICK, "--model", "stm")
    assert main([*stm[:-2], "--out", "run", "--prevalence", "~ party"]) == 0
    assert lntm.load_run("run").model.prior.names == ("Intercept", "party[T.Right]")
    assert main([*stm, "--out", "groups", "--content", "party", "--content-penalty", "1"]) == 0
    assert lntm.load_run("groups").model.topics.content.levels == ("Left", "Right")
    capsys.readouterr()
    assert main(["topics", "groups", "--by-level", "--print-as", "csv"]) == 0
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    pairs = {(str(k), group) for k in range(3) for group in ("Left", "Right")}
    assert {(row["topic"], row["level"]) for row in rows} <= pairs
    for arguments, message in (
        (stm, "stm needs prevalence, such as"),
        ((*stm, "--prevalence", "~ open('x', 'w')"), "which is forbidden"),
        ((*stm[:-1], "ctm", "--prevalence", "~ party"), "prevalence is an option of stm"),
        ((*stm, "--content", "text"), "no column 'text'"),
        (("topics", "run", "--by-level"), "the same in all documents"),
    ):
        assert main([*arguments]) == 1
        assert message in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "posterior"),
    [
        ([], "hmc"),
        (["--max-iterations", "1"], "taylor"),
        (["--posterior", "laplace", "--max-iterations", "1"], "laplace"),
        (["--model", "lda", "--topics-update", "bound"], "vb"),
    ],
)
def test_the_default_posterior_follows_options_and_documents(counts, options, posterior):
    """The documents are short."""
    common = ("--num-topics", "2", "--out", "run", "--no-progress", "--top-n", "1")
    assert main(["fit", counts, *common, *options]) == 0
    assert lntm.load_run("run").config["posterior"] == posterior


@pytest.mark.slow
def test_fit_counts_words_by_the_word_options(texts, capsys):
    Path("stop.txt").write_text("the\nand\n")
    options = ["--min-df", "2", "--stop-words", "stop.txt", "--token-pattern", r"\w{3,}"]
    assert main(["fit", texts, "--out", "run", *QUICK, *options]) == 0
    words = ("banks", "bonds", "cat", "dog", "mouse", "stocks")
    run = lntm.load_run("run")
    assert run.model.vocabulary == words
    assert run.transform(["the cat and the dog"], progress=False).lengths.tolist() == [2]


PLUGIN = """
import torch_lntm as lntm


@lntm.models.register("plugged")
def plugged(num_topics, num_words, *, knob=1.0, topic_smoothing=0.5, seed=0):
    model = lntm.models.ctm(num_topics, num_words, topic_smoothing=topic_smoothing, seed=seed)
    model.prior.set_(loc=[knob] * num_topics)
    return model
"""


@pytest.fixture
def plugin(workplace, monkeypatch):
    """A module that registers a model, forgotten again after the test."""
    from torch_lntm.models.registry import CONSTRUCTORS

    Path("plugged_models.py").write_text(PLUGIN)
    yield "plugged_models"
    CONSTRUCTORS.pop("plugged", None)
    sys.modules.pop("plugged_models", None)


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["", ".py"])
def test_a_model_of_a_plugin_is_fitted_saved_and_used(counts, plugin, suffix, capsys):
    name = plugin + suffix
    options = ["--plugin", name, "--model", "plugged", "--model-options", '{"knob": 2.5}']
    assert main(["fit", counts, "--out", "run", *QUICK, *options]) == 0
    model = lntm.load_model("run")
    sizes = {"num_topics": 3, "num_words": 30}
    # The seed and the smoothing are its own defaults, not those of the command line.
    assert model.config == sizes | {"knob": 2.5, "topic_smoothing": 0.5, "seed": 0}
    assert model.vocabulary == lntm.read_corpus(counts).vocabulary
    assert "plugin" not in json.loads(Path("run/config.json").read_text())
    CONSTRUCTORS.pop("plugged")
    sys.modules.pop("plugged_models", None)
    assert main(["topics", "run"]) == 1
    assert "model 'plugged'; expected one of" in capsys.readouterr().err
    assert main(["topics", "run", "--plugin", name]) == 0


def test_errors_of_plugins_and_their_options_are_explained(counts, plugin, capsys):
    Path("broken.py").write_text("import nowhere_to_be_found")
    assert main(["fit", counts, "--plugin", "broken"]) == 1
    assert "the plug-in broken cannot be imported (ModuleNotFoundError" in capsys.readouterr().err
    assert main(["fit", counts, "--model-options", '{"nob": 1}']) == 1
    assert "the model ctm takes no nob" in capsys.readouterr().err
    arguments = ["--plugin", plugin, "--model", "plugged", "--model-options", '{"nob": 1}']
    assert main(["fit", counts, *arguments]) == 1
    assert "the model plugged takes no nob; did you mean knob?" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("structured", [False, True])
def test_a_model_worse_than_the_unigram_model_gives_a_warning(counts, structured, capsys):
    if structured:  # half of the documents use half of the words; else words are drawn alike
        matrix = np.kron(np.eye(2, dtype=int), np.full((20, 15), 2))
        save_counts(lntm.Corpus.from_matrix(matrix), Path(counts))
    # Many topics fit the noise of words that are drawn alike.
    fit_quickly(counts, "--num-topics", "3" if structured else "12")
    out, err = capsys.readouterr()
    rows = [line for line in out.splitlines() if line.startswith("completion")]
    model, unigram = (float(row.split()[2]) for row in rows)
    assert (model < unigram) == structured
    warning = "warning: a unigram model predicts these documents better than the topic model"
    assert (warning in err) == (model > unigram)


@pytest.mark.slow
def test_keywords_come_from_a_file_or_a_configuration(counts, capsys):
    Path("keys.yaml").write_text("first: [w3, w4]\nsecond:\n- w7\n")
    command = ["fit", counts, "--out", "run", *QUICK, "--keywords", "keys.yaml"]
    assert main([*command, "--keyword-strength", "5"]) == 0
    model = lntm.load_model("run")
    assert model.topics.keywords.columns == ((3, 4), (7,))
    assert model.topics.keywords.tokens == 5.0
    assert model.topic_names[:2] == ("first", "second")
    Path("keys.yaml").write_text("first: [w3]\n")
    capsys.readouterr()
    assert main([*command, "--keyword-strength", "5"]) == 1  # the run has other keywords
    Path("config.yaml").write_text("keywords: {first: [w3]}\n")
    assert main(["fit", counts, "--out", "other", *QUICK, "--config", "config.yaml"]) == 0
    assert lntm.load_model("other").topics.keywords.columns == ((3,),)


@pytest.mark.slow
def test_word_vectors_come_from_a_file(counts, capsys):
    lines = [f"w{i} {i} {i % 3}\n" for i in range(5)]
    Path("vectors.txt").write_text("".join(lines))
    command = ["fit", counts, "--out", "run", *QUICK, "--word-vectors", "vectors.txt"]
    assert main(command) == 0
    assert "word vectors of 4 of 30 words, " in capsys.readouterr().err
    assert (lntm.load_model("run").topics.belief > 0).all()
    assert main([*command, "--overwrite", "--model", "lntm"]) == 1
    assert "word_vectors" in capsys.readouterr().err
    assert main(["fit", counts, "--out", "other", *QUICK, "--vector-strength", "9"]) == 1
    assert "give word_vectors" in capsys.readouterr().err
    Path("vectors.txt").write_text("w0 1 2\nw1 1\n")
    assert main([*command, "--overwrite"]) == 1
    assert "vectors.txt, line 2: expected a word and 2 numbers" in capsys.readouterr().err


@pytest.mark.slow
def test_columns_of_another_file_are_metadata_of_counts(workplace, capsys):
    rng = np.random.default_rng(0)
    counts = sp.csr_matrix(rng.poisson(1.0, (40, 6)))
    sp.save_npz("counts.npz", counts)
    Path("columns.csv").write_text("\n".join(["side", *["left", "right"] * 20]))
    options = [*QUICK, "--metadata", "columns.csv", "--model", "stm", "--prevalence", "~ side"]
    assert main(["fit", "counts.npz", "--out", "run", *options]) == 0
    # The run reads the columns of its own corpus again.
    assert main(["effects", "run", "--source", "guide"]) == 0
    assert "side[T.right]" in capsys.readouterr().out
