"""The cheat sheet of the Python interface, made from signatures and docstrings."""

from __future__ import annotations

import inspect
import operator
import re
import textwrap

import torch_lntm as lntm

#: Titles of tasks, each with lines of code, which run in this order, and with the names it needs.
TASKS = {
    "Read": """
        corpus = lntm.example_corpus()  # 75 short texts; yours: lntm.read_corpus("posts.csv")
        train, test = corpus.split(0.2, seed=0)
        > read_corpus Corpus.from_frame Corpus.from_texts Corpus.from_matrix""",
    "Fit": """
        model = lntm.models.stm(6, corpus, "~ season")  # without columns: models.ctm(6, corpus)
        result = lntm.inference.MonteCarloEM(model).fit(train)
        > models.ctm models.stm inference.MonteCarloEM inference.VariationalEM select""",
    "Topics": """
        print(result.topic_table())
        model.topic_names = {0: "first"}
        result.report("report.html")
        > report name_topics topic_tree topic_stability""",
    "Documents": """
        result.document_table(test)
        chains = lntm.inference.DocumentHMC(model)
        draws = lntm.inference.theta_draws(chains, test, 20)
        > inference.transform inference.theta_draws inference.joint_draws""",
    "Effects of columns on topics": """
        effects = result.effects("~ season")
        effects.predict("season")
        > effects.estimate effects.Effects.table effects.Effects.predict
        > effects.Effects.avg_comparisons""",
    "Topics as regressors of an outcome": """
        posts = corpus.with_metadata({"clicks": corpus.lengths})
        lntm.outcomes.estimate(model, posts, "clicks ~ topics + season").frame()
        > outcomes.estimate outcomes.Outcomes.frame""",
    "Codebook: discover in some documents, measure in others": """
        book = lntm.codebook(result, groups={"both": [0, 1]})
        book.measure(test).frame()
        > codebook Codebook.measure Codebook.intrusion Codebook.debias""",
    "Score": """
        lntm.evaluation.document_completion(model, test)
        lntm.evaluation.coherence(model, corpus)
        > evaluation.document_completion evaluation.log_likelihood""",
    "Save": """
        lntm.save_model(model, "topics")
        model = lntm.load_model("topics")
        > load_run Corpus.save models.TopicModel.push_to_hub models.TopicModel.from_pretrained""",
    "Extend": """
        topics = lntm.models.DirichletTopics(6, corpus.num_words)
        mine = lntm.models.TopicModel(model.prior, topics)
        lntm.testing.check_prior(mine.prior, model.encode(test).batch())
        > models.register models.DocumentPrior guides.Guide
        > corpus.register_reader reports.register_section""",
}


class _Sheet(str):
    """A text that an interactive session shows as it is."""

    __slots__ = ()
    __repr__ = str.__str__


def guide() -> str:
    """A cheat sheet for people and coding agents: code and public names, task by task.

    Returns:
        The text. An interactive session prints it.

    Example:
        >>> print(lntm.guide().splitlines()[2])
        # Read
    """
    text = (
        "import torch_lntm as lntm  # which has the indented names; help(lntm.select) says more\n"
    )
    for title, lines in TASKS.items():
        text += f"\n# {title}\n"
        for line in textwrap.dedent(lines).strip().split("\n"):
            names = line.removeprefix("> ").split() if line.startswith("> ") else ()
            text += "".join(map(_described, names)) if names else f"{line}\n"
    return _Sheet(text)


def _described(name: str) -> str:
    """A public name with its parameters and purpose."""
    found = operator.attrgetter(name)(lntm)
    signature = inspect.signature(found)
    given = [p.replace(annotation=p.empty) for n, p in signature.parameters.items() if n != "self"]
    call = f"{name}{signature.replace(parameters=given, return_annotation=signature.empty)}"
    purpose = re.sub(r":\w+:|[`*]", "", (inspect.getdoc(found) or "").partition("\n")[0])
    text = f"{textwrap.shorten(call, 145, placeholder=' ...)')}: {purpose}"
    lines = textwrap.wrap(text, 108, break_on_hyphens=False)
    return textwrap.indent("\n    ".join(lines), "  ") + "\n"
