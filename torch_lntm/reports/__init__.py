"""Results of a fitted model to read: topics, labels, sources, prevalence, scores, a report page.

Each result has a method ``frame`` with a tidy pandas data frame, and prints as a table.
"""

from torch_lntm.plotting.style import topic_labels
from torch_lntm.reports.keywords import keyword_topics
from torch_lntm.reports.labels import (
    group_words,
    label_topics,
    summarise_groups,
    word_scores,
)
from torch_lntm.reports.naming import name_topics
from torch_lntm.reports.page import report
from torch_lntm.reports.periods import moving_topics
from torch_lntm.reports.prevalence import CorpusSummary, summarise_corpus
from torch_lntm.reports.representatives import representative_documents
from torch_lntm.reports.scores import (
    Score,
    coherence_scores,
    completion_scores,
    diversity_score,
    likelihood_scores,
)
from torch_lntm.reports.sections import PageData, Picture, Section, Table, register_section
from torch_lntm.reports.sources import summarise_sources
from torch_lntm.reports.stability import topic_stability
from torch_lntm.reports.tree import TopicTree, topic_tree

__all__ = [
    "CorpusSummary",
    "PageData",
    "Picture",
    "Score",
    "Section",
    "Table",
    "TopicTree",
    "coherence_scores",
    "completion_scores",
    "diversity_score",
    "group_words",
    "keyword_topics",
    "label_topics",
    "likelihood_scores",
    "moving_topics",
    "name_topics",
    "register_section",
    "report",
    "representative_documents",
    "summarise_corpus",
    "summarise_groups",
    "summarise_sources",
    "topic_labels",
    "topic_stability",
    "topic_tree",
    "word_scores",
]
