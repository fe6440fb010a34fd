"""Every example in a docstring runs, and prints what the docstring shows."""

import doctest
import importlib
import operator
import re
from pathlib import Path

import pytest
from support.shared_state import restored

import torch_lntm

REPOSITORY = Path(__file__).resolve().parent.parent


PACKAGE = REPOSITORY / "torch_lntm"
#: Modules with an example, found without loading them.
MODULES = [
    ".".join(path.relative_to(REPOSITORY).with_suffix("").parts).removesuffix(".__init__")
    for path in sorted(PACKAGE.rglob("*.py"))
    if ">>>" in path.read_text(encoding="utf-8")
]


@pytest.fixture(scope="module")
def first_lines() -> dict[str, object]:
    """The names that the page of the Python interface says every example starts from."""
    page = (REPOSITORY / "docs" / "api.md").read_text()
    lines = re.search(r"```python\n(.*?)```", page, re.DOTALL)
    assert lines is not None
    names: dict[str, object] = {}
    exec(lines.group(1), names)
    return names


@pytest.mark.slow
@pytest.mark.parametrize("module", MODULES)
def test_examples_print_what_their_docstrings_show(
    module: str,
    first_lines: dict[str, object],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    examples = doctest.DocTestFinder(exclude_empty=True).find(importlib.import_module(module))
    report: list[str] = []
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    runner = doctest.DocTestRunner(verbose=False, optionflags=flags)
    for example in examples:
        (tmp_path / example.name).mkdir()
        monkeypatch.chdir(tmp_path / example.name)
        with restored():
            example.globs = dict(first_lines)
            runner.run(example, out=report.append)
    assert runner.tries > 0
    assert runner.failures == 0, "".join(report)


#: The names that users meet first. Each has an example in its docstring.
MAIN = re.findall(
    r"\S+",
    """
    Corpus Corpus.from_texts Corpus.from_matrix Corpus.from_frame Corpus.split
    Corpus.hold_out_words read_corpus lee_corpus example_corpus
    models.ctm models.iftm models.lntm models.lda models.stm models.TopicModel models.register
    models.LogisticNormalPrior models.IndependentFactorPrior models.DirichletPrior
    models.DirichletTopics models.ContentTopics
    models.DirichletMultinomial
    guides.TaylorGuide guides.LaplaceGuide guides.BleiLaffertyGuide guides.KhanBouchardGuide
    guides.FactorGuide guides.DirichletGuide guides.EPGuide
    inference.VariationalEM inference.StepwiseEM inference.MonteCarloEM inference.DocumentHMC
    inference.JointChain inference.transform inference.theta_draws inference.joint_draws
    CorrelatedTopicModel IndependentFactorTopicModel LogisticNormalTopicModel AspectModel
    StructuralTopicModel
    evaluation.document_completion evaluation.log_likelihood
    evaluation.ais_bracket evaluation.coherence
    evaluation.exclusivity evaluation.align_topics
    effects.estimate report select
    reports.topic_labels reports.representative_documents
    plotting.correlation_graph plotting.document_proportions
    save_model load_model load_run interop.topic_info
    testing.check_prior testing.check_topics testing.check_words testing.check_guide
""",
)


def test_the_main_names_have_examples() -> None:
    documents = {name: operator.attrgetter(name)(torch_lntm).__doc__ or "" for name in MAIN}
    assert [name for name, text in documents.items() if ">>>" not in text] == []
