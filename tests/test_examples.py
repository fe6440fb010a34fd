"""Every example in a docstring runs, and prints what the docstring shows."""

import doctest
import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import torch_lntm

REPOSITORY = Path(__file__).resolve().parent.parent


def examples() -> list[doctest.DocTest]:
    """The docstrings of the package that hold an example."""
    finder = doctest.DocTestFinder(exclude_empty=True)
    modules = pkgutil.walk_packages(torch_lntm.__path__, "torch_lntm.")
    names = [m.name for m in modules if m.name.rpartition(".")[2] not in ("triton_ops", "__main__")]
    found = (
        finder.find(importlib.import_module(name), globs={}) for name in ["torch_lntm", *names]
    )
    return [test for tests in found for test in tests if test.examples]


@pytest.fixture(scope="module")
def first_lines() -> dict[str, object]:
    """The names that the page of the Python interface says every example starts from."""
    page = (REPOSITORY / "docs" / "api.md").read_text()
    lines = re.search(r"```python\n(.*?)```", page, re.DOTALL)
    assert lines is not None
    names: dict[str, object] = {}
    exec(lines.group(1), names)
    return names


@pytest.mark.parametrize("example", examples(), ids=lambda example: example.name)
def test_an_example_prints_what_its_docstring_shows(
    example: doctest.DocTest,
    first_lines: dict[str, object],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    example.globs = dict(first_lines)
    report: list[str] = []
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    runner = doctest.DocTestRunner(verbose=False, optionflags=flags)
    failed = runner.run(example, out=report.append)
    assert not failed.failed, "".join(report)


#: The names that users meet first. Each has an example in its docstring.
MAIN = re.findall(
    r"\S+",
    """
    Corpus Corpus.from_texts Corpus.from_matrix Corpus.from_frame Corpus.from_records Corpus.split
    Corpus.hold_out_words read_corpus lee_corpus example_corpus
    models.ctm models.iftm models.lntm models.lda models.stm models.TopicModel models.register
    models.LogisticNormalPrior models.IndependentFactorPrior models.DirichletPrior
    models.DirichletTopics models.NormalTopics models.ContentTopics
    models.Multinomial models.DirichletMultinomial
    guides.TaylorGuide guides.LaplaceGuide guides.BleiLaffertyGuide guides.KhanBouchardGuide
    guides.FactorGuide guides.DirichletGuide guides.EPGuide
    inference.VariationalEM inference.StepwiseEM inference.MonteCarloEM inference.DocumentHMC
    inference.JointChain inference.transform inference.theta_draws inference.joint_draws
    CorrelatedTopicModel IndependentFactorTopicModel LogisticNormalTopicModel AspectModel
    StructuralTopicModel
    evaluation.document_completion evaluation.log_likelihood
    evaluation.ais_bracket evaluation.coherence
    evaluation.exclusivity evaluation.align_topics
    effects.estimate effects.permutation_test report select
    reports.topic_labels reports.representative_documents
    plotting.correlation_graph plotting.document_proportions
    save_model load_model load_run interop.topic_info interop.to_pyldavis
    testing.check_prior testing.check_topics testing.check_words testing.check_guide
""",
)


@pytest.mark.parametrize("name", MAIN)
def test_a_main_name_has_an_example(name: str) -> None:
    value = torch_lntm
    for part in name.split("."):
        value = getattr(value, part)
    assert ">>>" in (value.__doc__ or ""), f"{name} has no example"
