"""Readable results of a fitted model: topics' words, prevalence, scores and a report page.

Tables are pandas data frames, and every summary has a method ``frame`` that returns one.
"""

from torch_lntm.plotting.style import topic_labels
from torch_lntm.reports.labels import (
    keyword_topics,
    label_topics,
    level_words,
    moving_topics,
    summarise_groups,
    summarise_sources,
)
from torch_lntm.reports.naming import name_topics
from torch_lntm.reports.page import report
from torch_lntm.reports.prevalence import summarise_corpus
from torch_lntm.reports.representatives import representative_documents
from torch_lntm.reports.scores import score_table, topic_scores
from torch_lntm.reports.sections import register_section
from torch_lntm.reports.stability import topic_stability
from torch_lntm.reports.tree import topic_tree

__all__ = [
    "keyword_topics",
    "label_topics",
    "level_words",
    "moving_topics",
    "name_topics",
    "register_section",
    "report",
    "representative_documents",
    "score_table",
    "summarise_corpus",
    "summarise_groups",
    "summarise_sources",
    "topic_labels",
    "topic_scores",
    "topic_stability",
    "topic_tree",
]
