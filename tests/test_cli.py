"""The command line: every command, its options and files, and what it does when things go wrong."""

from __future__ import annotations

import csv
import inspect
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


def test_defaults_are_the_librarys():
    options = {field.name: field.default for field in fields(Fit)}
    for function in (lntm.models.ctm, lntm.inference.VariationalEM):
        parameters = inspect.signature(function).parameters.values()
        shared = [p for p in parameters if p.default is not p.empty and p.name in options]
        assert len(shared) >= 6
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
def test_fit_of_the_smallest_corpora(documents, options):
    Path("small.txt").write_text("\n".join(documents))
    assert main(["fit", "small.txt", "--out", "run", *QUICK, *options]) == 0
    run = lntm.load_run("run")
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
        ("posterior: ep", "posterior: expected 'taylor', 'laplace'"),
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
        ("fit x.npz --posterior ep", "'khan-bouchard'; got ep"),
        ("fit x.npz y.npz", "unrecognized arguments: y.npz"),
        ("fit", "CORPUS not given"),
        ("fit --config none.yaml", "none.yaml: cannot be read (No such file"),
        ("transform run x.npz", "--out not given"),
        ("topics", "RUN_FOLDER not given"),
        ("topics run --format xml", "format: expected 'text', 'json', 'csv'; got xml"),
        ("fti x.npz", "no command 'fti'; did you mean fit?"),
        ("zzz", "expected one of fit, topics, transform, evaluate"),
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


def test_the_quickstart_configuration_is_one(capsys):
    quick = ["--max-iterations", "0", "--out", "run", "--no-progress"]
    assert main(["fit", "--config", str(CONFIGS / "quickstart.yaml"), *quick]) == 0
    assert 10 <= lntm.load_run("run").model.num_topics <= 20


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
        ("topics none", "none: no such folder"),
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
