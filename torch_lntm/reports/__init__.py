"""Results of a fitted model to read: topics, labels, sources, prevalence, scores, a report page."""

from torch_lntm.reports.chat import ChatServer
from torch_lntm.reports.content import GroupWords, format_group_words, group_words
from torch_lntm.reports.groups import Grouping, group_documents
from torch_lntm.reports.keywords import KeywordTopic, keyword_topics
from torch_lntm.reports.labels import (
    LabelMeasure,
    RepresentativeDocument,
    TopicLabels,
    format_labels,
    label_topics,
    representative_documents,
    table_by,
    topic_labels,
    word_scores,
)
from torch_lntm.reports.merged import GroupSummary, format_groups, summarise_groups
from torch_lntm.reports.naming import name_topics
from torch_lntm.reports.page import report
from torch_lntm.reports.periods import MovingTopic, WordChange, moving_topics
from torch_lntm.reports.prevalence import CorpusSummary, Prevalence, summarise_corpus
from torch_lntm.reports.representatives import format_documents
from torch_lntm.reports.scores import (
    Score,
    coherence_scores,
    completion_scores,
    diversity_score,
    format_scores,
    likelihood_scores,
    read_scores,
    score_records,
    write_scores,
)
from torch_lntm.reports.sections import PageData, Picture, Section, Table, register_section
from torch_lntm.reports.sources import (
    SourceSummary,
    SourceTopic,
    format_sources,
    most_active_documents,
    source_activity,
    summarise_sources,
)
from torch_lntm.reports.stability import StableTopic, TopicStability, topic_stability
from torch_lntm.reports.tables import TableFormat
from torch_lntm.reports.topics import format_topics
from torch_lntm.reports.tree import TopicTree, format_tree, topic_tree

__all__ = [
    "ChatServer",
    "CorpusSummary",
    "GroupSummary",
    "GroupWords",
    "Grouping",
    "KeywordTopic",
    "LabelMeasure",
    "MovingTopic",
    "PageData",
    "Picture",
    "Prevalence",
    "RepresentativeDocument",
    "Score",
    "Section",
    "SourceSummary",
    "SourceTopic",
    "StableTopic",
    "Table",
    "TableFormat",
    "TopicLabels",
    "TopicStability",
    "TopicTree",
    "WordChange",
    "coherence_scores",
    "completion_scores",
    "diversity_score",
    "format_documents",
    "format_group_words",
    "format_groups",
    "format_labels",
    "format_scores",
    "format_sources",
    "format_topics",
    "format_tree",
    "group_documents",
    "group_words",
    "keyword_topics",
    "label_topics",
    "likelihood_scores",
    "most_active_documents",
    "moving_topics",
    "name_topics",
    "read_scores",
    "register_section",
    "report",
    "representative_documents",
    "score_records",
    "source_activity",
    "summarise_corpus",
    "summarise_groups",
    "summarise_sources",
    "table_by",
    "topic_labels",
    "topic_stability",
    "topic_tree",
    "word_scores",
    "write_scores",
]
