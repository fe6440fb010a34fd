"""The command line: every command, its options and files, and what it does when things go wrong."""

from __future__ import annotations

import csv
import inspect
import itertools
import json
import os
import signal
import subprocess
import sys
import time
import warnings
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
import yaml

import torch_lntm as lntm
from torch_lntm.cli import main
from torch_lntm.cli.fit import Fit

QUICK = ("--no-progress", "--num-topics", "3", "--max-iterations", "3")
CONFIGS = Path(__file__).resolve().parent.parent / "configs"
SENTENCES = (
    "the cat and the dog chase the mouse",
    "a dog barks at the cat",
    "mouse and cat and dog play",
    "stocks and bonds fall as banks fail",
    "banks buy bonds and sell stocks",
    "stocks rise while bonds rest",
    "the cat buys stocks",
    "",
)


@pytest.fixture(autouse=True)
def workplace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def texts(workplace):
    Path("texts.txt").write_text("\n".join(SENTENCES))
    return "texts.txt"


@pytest.fixture
def counts(workplace):
    matrix = np.random.default_rng(0).poisson(0.5, (40, 30))
    matrix[7] = 0
    words = [f"w{v}" for v in range(30)]
    lntm.Corpus.from_matrix(matrix, words, labels=range(40)).save("counts.npz")
    return "counts.npz"


def fit_quickly(counts, *options, out="run"):
    assert main(["fit", counts, "--out", out, *QUICK, "--max-iterations", "1", *options]) == 0
    return lntm.load_run(out)


@pytest.fixture
def run_folder(counts):
    assert main(["fit", counts, "--out", "run", *QUICK]) == 0
    return "run"


def tensors(folder):
    return safetensors.torch.load_file(Path(folder) / "model.safetensors")


# -------------------------------------------------------------------- fit


def test_fit_prints_topics_scores_and_the_folder(counts, capsys):
    assert main(["fit", counts, "--out", "run", *QUICK, "--num-words", "4"]) == 0
    out, err = capsys.readouterr()
    run = lntm.load_run("run")
    shares = run.metadata["topic_shares"]
    assert sum(shares) == pytest.approx(1.0)
    lines = out.splitlines()
    first = int(lines[1].split()[0])
    assert first == int(np.argmax(shares))
    assert lines[1].split()[1] == f"{max(shares):.1%}"
    top = run.model.topics.probs[first].detach().topk(4).indices.tolist()
    assert lines[1].split()[2:] == [f"w{v}" for v in top]
    assert "completion perplexity" in out
    assert "50% of tokens observed" in out
    assert "unigram frequencies of 36 training documents" in out
    assert out.endswith("The run is in run\n")
    assert "fitting 36 documents of 30 words, with 4 held out" in err
    scores = json.loads(Path("run/evaluation.json").read_text())
    assert len(scores) == 2
    corpus = lntm.read_corpus(counts)
    split = run.split(corpus)
    guide = lntm.guides.TaylorGuide(run.model)
    expected = lntm.evaluation.document_completion(run.model, guide, split.test)
    assert scores[0]["value"] == pytest.approx(expected.perplexity, rel=1e-4)
    assert scores[0]["standard_error"] == pytest.approx(expected.standard_error, rel=1e-3)


def test_fit_is_the_libraries_fit(counts):
    options = ["--seed", "4", "--posterior", "laplace", "--anchored", "--topic-smoothing", "0.2"]
    assert main(["fit", counts, "--out", "run", *QUICK, *options, "--test-fraction", "0"]) == 0
    corpus = lntm.read_corpus(counts)
    model = lntm.models.ctm(
        3, 30, anchored=True, topic_smoothing=0.2, vocabulary=corpus.vocabulary, seed=4
    )
    guide = lntm.guides.LaplaceGuide(model)
    engine = lntm.inference.VariationalEM(model, guide, max_iterations=3, seed=4, progress=False)
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


@pytest.mark.parametrize(
    ("model", "options", "expected"),
    [
        ("iftm", "--num-sources 2 --source laplace", {"num_sources": 2, "source": "laplace"}),
        ("iftm", "--pseudo-documents 3 --pseudo-variance 2", {"pseudo_documents": 3.0}),
        ("lda", "--symmetric --concentration 0.3", {"symmetric": True}),
        ("lda", "--no-learn-concentration --dtype float64", {"dtype": "float64"}),
        ("ctm", "--anchored --topic-smoothing 0.2", {"anchored": True, "topic_smoothing": 0.2}),
    ],
)
def test_fit_passes_the_models_options_on(counts, model, options, expected):
    run = fit_quickly(counts, "--model", model, *options.split())
    assert run.model.prior.kind == run.config["model"] == model
    assert run.model.config | expected == run.model.config
    assert sum(run.metadata["topic_shares"]) == pytest.approx(1.0)


def test_a_concentration_that_is_not_learned_stays(counts):
    options = ["--concentration", "0.7", "--no-learn-concentration"]
    run = fit_quickly(counts, "--model", "lda", *options)
    torch.testing.assert_close(run.model.prior.concentration, torch.full((3,), 0.7))
    learned = fit_quickly(counts, "--model", "lda", "--concentration", "0.7", out="learned")
    assert (learned.model.prior.concentration - 0.7).abs().min() > 1e-3


def test_every_kind_of_model_has_its_posteriors(counts):
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


@pytest.mark.parametrize("model", ["ctm", "lntm", "iftm"])
def test_fit_by_sampling(counts, model, capsys):
    options = ("--model", model, "--posterior", "hmc", "--max-epochs", "12", "--num-chains", "2")
    assert main(["fit", counts, "--out", "run", *QUICK[:3], *options]) == 0
    out, err = capsys.readouterr()
    assert "completion perplexity" in out
    assert "phase sampling, iteration 12" in err
    run = lntm.load_run("run")
    assert run.config["posterior"] == "hmc"
    assert run.history[-1]["perplexity"] > 1
    corpus = lntm.read_corpus(counts)
    train = run.split(corpus).train
    same = lntm.models.MODELS[model](3, 30)
    engine = lntm.inference.MonteCarloEM(same, max_epochs=12, num_chains=2, progress=False)
    engine.fit(train)
    torch.testing.assert_close(same.topics.probs, run.model.topics.probs)
    # Documents then get the default posterior of the kind.
    assert main(["transform", "run", counts, "--out", "theta.npz"]) == 0
    guide = lntm.guides.make_guide(None, run.model)
    with np.load("theta.npz") as found:
        mode = guide.posterior(corpus.batch()).theta_mode()
        np.testing.assert_allclose(found["theta"], mode.numpy(), atol=1e-4)


def test_options_of_the_other_engine_are_refused(counts, capsys):
    assert main(["fit", counts, "--max-epochs", "3"]) == 1
    assert "max_epochs is an option of posterior hmc; leave it out" in capsys.readouterr().err
    assert main(["fit", counts, "--posterior", "hmc", "--restarts", "3"]) == 1
    assert "restarts is an option of variational EM; leave it out" in capsys.readouterr().err
    assert main(["fit", counts, "--model", "lda", "--posterior", "hmc"]) == 1
    assert "DocumentHMC samples eta" in capsys.readouterr().err
    assert not Path("runs").exists()


def test_the_topics_update_is_the_guides(counts, monkeypatch):
    seen = []
    engine = lntm.inference.VariationalEM

    class Spy(engine):
        def fit(self, *args, **options):
            seen.append(self.guide)
            return super().fit(*args, **options)

    monkeypatch.setattr(lntm.inference, "VariationalEM", Spy)
    lda = ("--model", "lda", "--overwrite")
    fit_quickly(counts, *lda)
    fit_quickly(counts, *lda, "--posterior", "ep")
    fit_quickly(counts, *lda, "--topics-update", "second-order")
    fit_quickly(counts, *lda, "--posterior", "ep", "--topics-update", "bound")
    assert [guide.topics_update for guide in seen] == [
        *("bound", "second-order"),
        *("second-order", "bound"),
    ]
    assert seen[0].max_iterations == lntm.guides.DirichletGuide(seen[0].model).max_iterations


def test_defaults_are_the_librarys():
    options = {field.name: field.default for field in fields(Fit)}
    for function in (*lntm.models.MODELS.values(), lntm.inference.VariationalEM):
        parameters = inspect.signature(function).parameters.values()
        shared = [p for p in parameters if p.default is not p.empty and p.name in options]
        assert len(shared) >= 5
        for parameter in shared:
            if parameter.name not in ("vocabulary", "dtype"):
                assert options[parameter.name] == parameter.default, parameter.name


def test_fit_of_lee_into_the_default_folder(capsys):
    assert main(["fit", "lee", "--max-iterations", "0", "--num-topics", "5", "--no-progress"]) == 0
    (folder,) = Path("runs").iterdir()
    assert folder.name.startswith("lee_background-")
    assert f"The run is in {folder}" in capsys.readouterr().out
    assert lntm.load_run(folder).metadata["corpus"]["num_docs"] == 300


def test_fit_counts_words_of_texts_as_told(texts, capsys):
    Path("stop.txt").write_text("the\nand\n")
    options = ["--min-df", "2", "--stop-words", "stop.txt", "--token-pattern", r"\w{3,}"]
    assert main(["fit", texts, "--out", "run", *QUICK, *options]) == 0
    assert lntm.load_run("run").model.vocabulary == (
        *("banks", "bonds", "cat"),
        *("dog", "mouse", "stocks"),
    )


@pytest.mark.parametrize(
    ("documents", "options"),
    [
        (["word word word", "word", "", "word word"], []),
        (["one document of its own, one of a kind"], ["--test-fraction", "0"]),
    ],
)
@pytest.mark.parametrize(
    "model", ["--model ctm", "--model iftm", "--model iftm --source laplace", "--model lda"]
)
def test_fit_of_the_smallest_corpora(documents, options, model):
    Path("small.txt").write_text("\n".join(documents))
    assert main(["fit", "small.txt", "--out", "run", *QUICK, *options, *model.split()]) == 0
    run = lntm.load_run("run")
    assert all(torch.isfinite(tensor).all() for tensor in run.model.state_dict().values())
    assert torch.isfinite(run.model.topics.probs).all()
    assert all(np.isfinite(run.metadata["topic_shares"]))


# -------------------------------------------------------------------- configuration files


def write_config(**options):
    Path("config.yaml").write_text(yaml.safe_dump(options))
    return "config.yaml"


def test_options_come_from_the_file_and_then_from_the_line(counts):
    config = write_config(
        corpus=counts, num_topics=5, tolerance=1e-3, anchored=True, max_iterations=1, progress=False
    )
    assert main(["fit", "--config", config, "--out", "run", "--num-topics", "4"]) == 0
    run = lntm.load_run("run")
    assert run.model.num_topics == 4
    assert run.config["tolerance"] == 1e-3
    assert run.config["anchored"] is True
    assert main(["fit", "--no-anchored", f"--config={config}", "--out", "other"]) == 0
    assert lntm.load_run("other").config["anchored"] is False
    lntm.read_corpus(counts)[:20].save("half.npz")
    assert main(["fit", "half.npz", "--config", config, "--out", "half"]) == 0
    assert lntm.load_run("half").metadata["corpus"]["num_docs"] == 20


def test_a_runs_own_configuration_makes_the_same_run(run_folder):
    assert main(["fit", "--config", f"{run_folder}/config.json", "--out", "again"]) == 0
    for name, tensor in tensors("again").items():
        assert torch.equal(tensor, tensors("run")[name])


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("num_topic: 3", "unknown option 'num_topic'; did you mean num_topics?"),
        ("num-topics: 3", "did you mean num_topics?"),
        ("postrior: taylor", "did you mean posterior?"),
        ("zzz: 1", "unknown option 'zzz'; known: "),
        ("num_topics: many", "num_topics: expected int; got many"),
        ("num_topics: 2.5", "num_topics: expected int; got 2.5"),
        ("posterior: em", "posterior: expected 'taylor', 'laplace'"),
        ("anchored: 3", "anchored: expected true or false; got 3"),
        ("min_df: [1]", "min_df: expected int, float; got [1]"),
        ("- a\n- b", "expected lines 'option: value', got a list"),
        ("a: [1", "not YAML"),
    ],
)
def test_a_wrong_configuration_is_explained(config, message, counts, capsys):
    Path("config.yaml").write_text(config)
    with pytest.raises(SystemExit) as stop:
        main(["fit", counts, "--config", "config.yaml"])
    assert stop.value.code == 2
    err = capsys.readouterr().err
    assert err.startswith("error: config.yaml: ")
    assert message in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("fit x.npz --num-topcs 3", "did you mean --num-topics?"),
        ("fit x.npz --num_topics 3", "did you mean --num-topics?"),
        ("fit x.npz --num-topics x", "num_topics: expected int; got x"),
        ("fit x.npz --num-topics", "expected one argument"),
        ("fit x.npz --posterior em", "'ep', 'hmc'; got em"),
        ("fit x.npz --model lsa", "model: expected 'ctm', 'lntm', 'iftm', 'lda'; got lsa"),
        ("fit x.npz --num-sources few", "num_sources: expected int; got few"),
        ("fit x.npz --concentration low", "concentration: expected float; got low"),
        ("sources", "RUN_FOLDER not given"),
        ("fit x.npz y.npz", "unrecognized arguments: y.npz"),
        ("fit", "CORPUS not given"),
        ("fit --config none.yaml", "none.yaml: cannot be read (No such file"),
        ("transform run x.npz", "--out not given"),
        ("topics", "RUN_FOLDER not given"),
        ("topics run --format xml", "format: expected 'text', 'json', 'csv'; got xml"),
        ("fti x.npz", "no command 'fti'; did you mean fit?"),
        ("zzz", "expected one of fit, topics, sources, transform, evaluate"),
    ],
)
def test_wrong_arguments_are_explained(arguments, message, capsys):
    with pytest.raises(SystemExit) as stop:
        main(arguments.split())
    assert stop.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert err.startswith("error: ")


def test_help_and_version(capsys):
    for arguments in (["--help"], ["fit", "--help"], ["evaluate", "-h"], ["--version"]):
        with pytest.raises(SystemExit) as stop:
            main(arguments)
        assert stop.value.code == 0
    out = capsys.readouterr().out
    assert "--num-topics NUM_TOPICS" in out
    assert "(default: 50)" in out
    assert out.endswith(f"torch-lntm {lntm.__version__}\n")


@pytest.mark.parametrize(
    ("name", "kind"), [("quickstart", "ctm"), ("iftm", "iftm"), ("aspect", "lda")]
)
def test_the_recommended_configurations_are_some(name, kind):
    quick = ["--max-iterations", "0", "--out", "run", "--no-progress"]
    assert main(["fit", "--config", str(CONFIGS / f"{name}.yaml"), *quick]) == 0
    model = lntm.load_run("run").model
    assert model.prior.kind == kind
    assert 10 <= model.num_topics <= 20


# -------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("fit none.npz", "none.npz: no such file or folder"),
        ("fit counts.npz --num-topics 1", "num_topics is 1; expected at least 2"),
        ("fit counts.npz --test-fraction 1", "test_fraction is 1.0"),
        ("fit counts.npz --min-df 3", "min_df would choose the words of texts"),
        ("fit lee --format txt", "the corpus lee takes no format"),
        ("fit counts.npz --threads 0", "threads is 0"),
        ("fit one.txt", "test_fraction: one document cannot be divided"),
        ("fit counts.npz --tolerance -1", "tolerance is -1.0"),
        ("fit counts.npz --num-sources 3", "num_sources is an option of iftm; leave it out"),
        ("fit counts.npz --model iftm --anchored", "anchored is an option of ctm;"),
        ("fit counts.npz --model lda --source laplace", "source is an option of iftm;"),
        ("fit counts.npz --model lda --pseudo-variance 2", "is an option of ctm, lntm and iftm;"),
        ("fit counts.npz --model iftm --no-learn-concentration", "is an option of lda;"),
        ("fit counts.npz --symmetric", "symmetric is an option of lda; leave it out with ctm"),
        ("fit counts.npz --topics-update bound", "topics_update is an option of lda;"),
        ("fit counts.npz --model lda --posterior taylor", "TaylorGuide is not for lda"),
        ("fit counts.npz --model lda --posterior taylor", "lda with DirichletGuide (vb), EPGuide"),
        ("fit counts.npz --posterior factor", "FactorGuide is not for ctm"),
        (
            "fit counts.npz --model iftm --source laplace --posterior taylor",
            "iftm(source='laplace') with FactorGuide (factor)",
        ),
        ("fit counts.npz --model iftm --num-sources 50", "num_sources is 50; expected 1 to 49"),
        ("fit counts.npz --model lda --concentration 0", "expected positive, finite numbers"),
        ("fit counts.npz --model lda --annealing ahmed-xing", "annealing is for"),
        ("topics none", "none: no such folder"),
        ("sources none", "none: no such folder"),
        ("transform none counts.npz --out x.csv", "none: no such folder"),
        ("transform none counts.npz --out x.txt", "ends in .npz or .csv"),
        ("evaluate none counts.npz --metrics coherance", "metrics: 'coherance'"),
    ],
)
def test_errors_are_one_line(arguments, message, counts, capsys):
    Path("one.txt").write_text("a single document")
    assert main([*arguments.split()]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert message in err
    assert err.count("\n") == 1
    assert not list(Path().glob("**/*.partial"))


def test_cuda_must_be_there(counts, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["fit", counts, "--device", "cuda", *QUICK]) == 1
    assert "torch finds no CUDA device here; use auto or cpu" in capsys.readouterr().err


def test_a_run_is_only_replaced_when_asked_to(run_folder, counts, capsys):
    before = tensors(run_folder)
    assert main(["fit", counts, "--out", "run", *QUICK, "--seed", "1"]) == 1
    assert "run: exists already" in capsys.readouterr().err
    assert all(torch.equal(before[name], tensor) for name, tensor in tensors("run").items())
    assert main(["fit", counts, "--out", "run", *QUICK, "--seed", "1", "--overwrite"]) == 0
    assert not torch.equal(before["topics.logits"], tensors("run")["topics.logits"])


# -------------------------------------------------------------------- topics


def test_topics(run_folder, capsys):
    capsys.readouterr()
    assert main(["topics", run_folder, "--num-words", "2"]) == 0
    assert capsys.readouterr().out.startswith("topic   share   top words")
    assert main(["topics", run_folder, "--format", "json", "--num-words", "2"]) == 0
    records = json.loads(capsys.readouterr().out)
    assert {record["topic"] for record in records} == {0, 1, 2}
    assert all(len(record["words"]) == 2 for record in records)
    assert main(["topics", run_folder, "--format", "csv"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 4


# -------------------------------------------------------------------- sources


def test_sources(counts, capsys):
    run = fit_quickly(counts, "--model", "iftm", "--num-sources", "2", "--source", "laplace")
    capsys.readouterr()
    arguments = ["sources", "run", "--num-words", "2", "--num-topics", "1"]
    assert main(arguments) == 0
    out = capsys.readouterr().out
    summaries = lntm.report.summarise_sources(run.model, num_topics=1, num_words=2)
    assert out == lntm.report.format_sources(summaries) + "\n"
    assert "laplace" in out
    assert main([*arguments, "--format", "json"]) == 0
    assert [record["source"] for record in json.loads(capsys.readouterr().out)] == [0, 1]
    assert main([*arguments, "--format", "csv"]) == 0
    assert capsys.readouterr().out.startswith("source,share,topic,loading,words\n0,")


def test_other_models_have_no_sources(run_folder, capsys):
    capsys.readouterr()
    assert main(["sources", run_folder]) == 1
    assert capsys.readouterr().err == "error: the model, ctm, has no sources; iftm has them\n"


# -------------------------------------------------------------------- transform


def test_transform_writes_every_document(run_folder, counts, capsys):
    for out in ("theta.npz", "theta.csv"):
        assert main(["transform", run_folder, counts, "--out", out, "--no-progress"]) == 0
    assert "40 documents to theta.csv: 1 empty" in capsys.readouterr().err
    with np.load("theta.npz", allow_pickle=False) as arrays:
        theta, converged, lengths = (arrays[n] for n in ("theta", "converged", "lengths"))
    assert theta.shape == (40, 3)
    np.testing.assert_allclose(theta.sum(1), 1, atol=1e-5)
    assert converged.all()
    assert lengths[7] == 0
    run = lntm.load_run(run_folder)
    posterior = lntm.guides.TaylorGuide(run.model).posterior(lntm.read_corpus(counts).batch())
    np.testing.assert_allclose(theta, posterior.theta_mode().numpy(), atol=1e-4)
    np.testing.assert_allclose(theta[7], run.model.theta(run.model.prior.loc).detach().numpy())
    rows = list(csv.DictReader(Path("theta.csv").read_text().splitlines()))
    assert [row["label"] for row in rows] == [str(d) for d in range(40)]
    assert [float(row["topic_2"]) for row in rows] == pytest.approx(theta[:, 2], abs=1e-5)
    assert {row["converged"] for row in rows} == {"1"}


@pytest.mark.parametrize("posterior", ["factor", "taylor"])
def test_transform_writes_the_sources_too(counts, posterior):
    options = ("--model", "iftm", "--num-sources", "2", "--posterior", posterior)
    fit_quickly(counts, *options)
    # The counts are random, and their sources fade away in a fit.
    mixing = torch.tensor([[1.0, 0.5], [-1.0, 0.5], [0.2, -2.0]])
    safetensors.torch.save_file(tensors("run") | {"prior.mixing": mixing}, "run/model.safetensors")
    run = lntm.load_run("run")
    for out in ("x.npz", "x.csv"):
        assert main(["transform", "run", counts, "--out", out, "--no-progress"]) == 0
    guide = lntm.guides.GUIDES[posterior](run.model)
    expected = lntm.report.source_activity(guide, lntm.read_corpus(counts)).mean.numpy()
    with np.load("x.npz", allow_pickle=False) as arrays:
        np.testing.assert_allclose(arrays["sources"], expected, atol=1e-5)
    assert (np.abs(expected).max(0) > 0.1).all()
    rows = list(csv.DictReader(Path("x.csv").read_text().splitlines()))
    assert [float(row["source_1"]) for row in rows] == pytest.approx(expected[:, 1], abs=1e-4)
    assert list(rows[0])[-3:] == ["topic_2", "source_0", "source_1"]


@pytest.mark.parametrize("posterior", ["vb", "ep"])
def test_transform_under_a_dirichlet(counts, posterior):
    run = fit_quickly(counts, "--model", "lda", "--posterior", posterior)
    assert main(["transform", "run", counts, "--out", "x.npz", "--no-progress"]) == 0
    guide = lntm.guides.GUIDES[posterior](run.model)
    mean = guide.posterior(lntm.read_corpus(counts).batch()).mean
    with np.load("x.npz", allow_pickle=False) as arrays:
        assert "sources" not in arrays
        np.testing.assert_allclose(arrays["theta"], mean.numpy(), atol=1e-4)
        prior = run.model.prior.mean.detach().numpy()
        np.testing.assert_allclose(arrays["theta"][7], prior, rtol=1e-5)  # the empty document


def test_transform_gives_posterior_means(run_folder, counts):
    arguments = ["transform", run_folder, counts, "--no-progress"]
    assert main([*arguments, "--out", "mode.npz"]) == 0
    assert main([*arguments, "--out", "mean.npz", "--estimate", "mean"]) == 0
    with np.load("mode.npz") as mode, np.load("mean.npz") as mean:
        assert np.abs(mode["theta"] - mean["theta"]).max() > 1e-3
        np.testing.assert_allclose(mean["theta"].sum(1), 1, atol=1e-5)


def test_unknown_words_are_dropped_with_a_counted_warning(texts, capsys):
    assert main(["fit", texts, "--out", "run", *QUICK, "--stop-words", "english"]) == 0
    Path("new.txt").write_text("the cat meets a zebra\n\nzebra zebra\ndog and cat")
    capsys.readouterr()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert main(["transform", "run", "new.txt", "--out", "x.npz", "--no-progress"]) == 0
    err = capsys.readouterr().err
    # "meets" once and "zebra" three times; "the", "a" and "and" are stop words, as in the fit.
    assert "warning: dropped 4 of 7 tokens: 2 words unknown" in err
    with np.load("x.npz") as arrays:
        assert arrays["lengths"].tolist() == [1, 0, 0, 2]


def test_counts_without_words_need_the_models_columns(workplace, capsys):
    lntm.Corpus.from_matrix(np.eye(6, 5, dtype=int) + 1).save("five.npz")
    lntm.Corpus.from_matrix(np.eye(6, 4, dtype=int) + 1).save("four.npz")
    assert main(["fit", "five.npz", "--out", "run", *QUICK]) == 0
    assert main(["transform", "run", "five.npz", "--out", "x.csv", "--no-progress"]) == 0
    assert main(["transform", "run", "four.npz", "--out", "y.csv", "--no-progress"]) == 1
    assert "has not the 5 words of the model" in capsys.readouterr().err
    assert not Path("y.csv").exists()


# -------------------------------------------------------------------- evaluate


def test_evaluate_scores_the_documents_held_out(run_folder, counts, capsys):
    fitted = json.loads(Path("run/evaluation.json").read_text())
    capsys.readouterr()
    options = ["--num-samples", "50", "--no-progress", "--out", "scores.json"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of few draws
        assert main(["evaluate", run_folder, counts, *options]) == 0
    out, err = capsys.readouterr()
    assert "the 4 documents held out from the fit" in err
    scores = {score["metric"]: score for score in json.loads(Path("scores.json").read_text())}
    assert scores.keys() == {
        *("completion perplexity", "perplexity", "log likelihood"),
        *("coherence NPMI", "coherence UMass", "topic diversity"),
    }
    assert all(name in out for name in scores)
    assert json.loads(Path("scores.json").read_text())[:2] == fitted
    assert scores["perplexity"]["value"] == pytest.approx(
        np.exp(-scores["log likelihood"]["value"])
    )
    assert scores["coherence NPMI"]["documents"] == 40
    assert scores["perplexity"]["documents"] == 4


def test_evaluate_on_other_documents_and_some_metrics(run_folder, counts, capsys):
    lntm.read_corpus(counts)[:10].save("other.npz")
    capsys.readouterr()
    metrics = ["--metrics", "completion, diversity", "--predictive", "mean"]
    assert main(["evaluate", run_folder, "other.npz", *metrics]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert [line.split()[0] for line in out.splitlines()[2:]] == ["completion", "topic"]
    assert "posterior mean" in out


@pytest.mark.parametrize(
    "options",
    ["--model iftm", "--model iftm --source laplace", "--model lda", "--model lda --posterior ep"],
)
def test_evaluate_scores_every_model(counts, options):
    fit_quickly(counts, *options.split())
    arguments = ["--num-samples", "50", "--no-progress", "--out", "scores.json"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of few draws
        assert main(["evaluate", "run", counts, *arguments]) == 0
    scores = json.loads(Path("scores.json").read_text())
    assert len(scores) == 7
    assert all(np.isfinite(score["value"]) for score in scores)
    assert scores[:2] == json.loads(Path("run/evaluation.json").read_text())
    # About as unpredictable as the 30 words, which were drawn equally often.
    assert [20 < score["value"] < 45 for score in scores[:3]] == [True] * 3


@pytest.mark.parametrize("change", [None, {"posterior": None}, {"posterior": "laplace"}])
def test_runs_of_earlier_versions_are_read(run_folder, counts, change):
    path = Path(run_folder, "config.json")
    config = json.loads(path.read_text())
    for name in ("num_sources", "source", "concentration", "symmetric", "learn_concentration"):
        del config[name]
    del config["topics_update"]
    path.write_text(json.dumps(config | (change or {})))
    assert main(["topics", run_folder]) == 0
    assert main(["transform", run_folder, counts, "--out", "x.npz", "--no-progress"]) == 0
    assert main(["fit", "--config", str(path), "--out", "again"]) == 0


@pytest.mark.parametrize("posterior", ["vb", "gibbs", ["taylor"], 3])
def test_a_posterior_that_the_model_cannot_have_is_said(run_folder, counts, posterior, capsys):
    path = Path(run_folder, "config.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"posterior": posterior}))
    capsys.readouterr()
    assert main(["evaluate", run_folder, counts]) == 1
    expected = f"posterior {posterior!r}; expected one of"
    if posterior == "vb":
        expected = "DirichletGuide is not for ctm. The models and guides that go together:"
    assert capsys.readouterr().err.startswith(f"error: {expected}")


@pytest.mark.parametrize("method", ["importance", "ais", "quadrature"])
def test_evaluate_takes_the_estimator(run_folder, counts, method, capsys):
    settings = {"importance": {}, "ais": {"num_temperatures": 20}, "quadrature": {}}[method]
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
    options = ["--metrics", "likelihood", "--method", method, *flags, "--out", "scores.json"]
    assert main(["evaluate", run_folder, counts, *options, "--no-progress"]) == 0
    run = lntm.load_run(run_folder)
    test = run.split(lntm.read_corpus(counts)).test
    chosen = lntm.evaluation.AIS(**settings) if method == "ais" else method
    expected = lntm.evaluation.log_likelihood(run.model, test, chosen)
    score = json.loads(Path("scores.json").read_text())[0]
    assert score["value"] == pytest.approx(expected.perplexity, rel=1e-5)
    assert score["method"].startswith(
        {"ais": "annealed importance sampling, 16 chains, 20 temp"}.get(method, method)
    )


def test_evaluate_says_when_it_scores_the_training_documents(counts, capsys):
    assert main(["fit", counts, "--out", "run", *QUICK, "--test-fraction", "0"]) == 0
    assert main(["evaluate", "run", counts, "--metrics", "completion"]) == 0
    assert "warning: the model was fitted to these very documents" in capsys.readouterr().err


def test_lee_is_read_as_in_the_fit(capsys):
    assert main(["fit", "lee", "--out", "run", *QUICK, "--min-df", "10"]) == 0
    assert main(["evaluate", "run", "lee", "--metrics", "completion"]) == 0
    assert "30 documents held out" in capsys.readouterr().err


# -------------------------------------------------------------------- interruption

ENDLESS = ("--num-topics", "3", "--tolerance", "0", "--no-progress", "--checkpoint-seconds", "0")


def start(*arguments):
    return subprocess.Popen(
        [sys.executable, "-m", "torch_lntm.cli", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def wait_for(path, process):
    deadline = time.monotonic() + 60
    while not path.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_ctrl_c_keeps_the_best_so_far(counts):
    process = start("fit", counts, "--out", "run", *ENDLESS, "--max-iterations", "1000000")
    wait_for(Path("run.partial/checkpoint.safetensors"), process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted: saved the best so far" in err
    assert "Traceback" not in err
    assert out == ""
    run = lntm.load_run("run")
    assert run.metadata["stop_reason"] == "interrupted"
    assert run.history
    assert not Path("run.partial").exists()


def test_a_killed_fit_continues_to_the_same_result(counts, capsys):
    torch.set_num_threads(1)
    fit = ["fit", counts, *ENDLESS, "--max-iterations", "150"]
    assert main([*fit, "--out", "whole"]) == 0
    process = start(*fit, "--out", "run")
    wait_for(Path("run.partial/checkpoint.safetensors"), process)
    process.kill()
    process.communicate(timeout=60)
    assert not Path("run").exists()

    other = [*fit[:2], "--seed", "1", *fit[2:], "--out", "run"]
    assert main(other) == 1
    assert "unfinished fit of another configuration (seed is 1, was 0)" in capsys.readouterr().err

    assert main([*fit, "--out", "run"]) == 0
    assert "continuing the unfinished fit of run.partial" in capsys.readouterr().err
    for name, tensor in tensors("whole").items():
        assert torch.equal(tensor, tensors("run")[name])
    whole, run = lntm.load_run("whole"), lntm.load_run("run")
    assert [h["objective"] for h in run.history] == [h["objective"] for h in whole.history]
    assert run.metadata["topic_shares"] == whole.metadata["topic_shares"]
    assert not Path("run.partial").exists()


def stop_at_checkpoint(patch, number, error):
    """Have an error happen right after a checkpoint, the how-manyth since the start."""
    from torch_lntm.inference import run

    written, write = itertools.count(1), run.write_checkpoint

    def write_and_stop(*arguments):
        write(*arguments)
        if next(written) == number:
            raise error

    patch.setattr(run, "write_checkpoint", write_and_stop)


@pytest.mark.parametrize(
    ("model", "number"),  # of the start's 40 epochs, of stepwise EM's 10, or of EM
    [
        ("--model iftm", 20),
        ("--model iftm --source laplace", 52),
        ("--model lda", 45),
        ("--model lda --posterior ep", 45),
        ("--model lda --posterior ep", 52),
    ],
)
def test_fits_of_every_model_continue(counts, model, number, monkeypatch, capsys):
    fit = ["fit", counts, *QUICK, *model.split(), "--checkpoint-seconds", "0", "--tolerance", "0"]
    assert main([*fit, "--out", "whole"]) == 0
    with monkeypatch.context() as patch:
        stop_at_checkpoint(patch, number, SystemError("killed"))
        with pytest.raises(SystemError):
            main([*fit, "--out", "run"])
    assert main([*fit, "--out", "run"]) == 0
    assert "continuing the unfinished fit of run.partial" in capsys.readouterr().err
    for name, tensor in tensors("whole").items():
        assert torch.equal(tensor, tensors("run")[name])
    whole, run = lntm.load_run("whole"), lntm.load_run("run")
    assert [h["objective"] for h in run.history] == [h["objective"] for h in whole.history]
    assert len(whole.history) > 52

    stop_at_checkpoint(monkeypatch, number, KeyboardInterrupt())
    assert main([*fit, "--out", "early"]) == 130
    early = lntm.load_run("early")
    assert early.metadata["stop_reason"] == "interrupted"
    assert len(early.history) == number
    assert sum(early.metadata["topic_shares"]) == pytest.approx(1.0)


def test_the_default_folder_continues_too(counts, capsys, monkeypatch):
    def killed(*arguments, **options):
        raise SystemError("killed")

    fit = ["fit", counts, *QUICK, "--checkpoint-seconds", "0"]
    with monkeypatch.context() as patch:
        patch.setattr("torch_lntm.io.save_run", killed)
        with pytest.raises(SystemError):
            main(fit)
    (partial,) = Path("runs").iterdir()
    assert main(fit) == 0
    assert f"continuing the unfinished fit of {partial}" in capsys.readouterr().err
    assert [path.name for path in Path("runs").iterdir()] == [partial.stem]
    assert main([*fit, "--seed", "1"]) == 0
    assert "continuing" not in capsys.readouterr().err


def test_fits_of_the_same_second_have_their_own_folders(counts, monkeypatch):
    monkeypatch.setattr(time, "strftime", lambda pattern: pattern.partition("%")[0] + "now")
    for _ in range(3):
        assert main(["fit", counts, *QUICK]) == 0
    assert sorted(path.name for path in Path("runs").iterdir()) == [
        *("counts-now", "counts-now-2", "counts-now-3"),
    ]
