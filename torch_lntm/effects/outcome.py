"""Outcomes other than single topics: sums, differences, ratios and log-ratios of topics."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torch_lntm.errors import ConfigError

FORMS = (
    "expected sums and differences of topics or groups, a ratio of such sums, as in "
    "'economy / (economy + culture)', or log(...) of a ratio"
)


@dataclass(frozen=True, eq=False)
class Outcome:
    """An outcome of a document, by its topics' proportions.

    Attributes:
        text: The expression.
        above: ``(num_topics,)`` coefficients -1, 0 or 1 of the sum, or of the numerator.
        below: ``(num_topics,)`` coefficients 0 or 1 of the denominator of a ratio.
        is_log: Whether it is the logarithm of a ratio.
    """

    text: str
    above: Tensor
    below: Tensor | None = None
    is_log: bool = False

    @property
    def is_share(self) -> bool:
        """Whether it is a ratio between 0 and 1: the numerator is part of the denominator."""
        if self.below is None or self.is_log:
            return False
        return bool(((self.above >= 0) & (self.above <= self.below)).all())

    @property
    def measure(self) -> Literal["proportion", "value"]:
        """Whether the outcome is a proportion."""
        is_sum = self.below is None and bool((self.above >= 0).all())
        return "proportion" if is_sum or self.is_share else "value"

    def responses(self, link: str) -> Tensor:
        """Matrix ``(1, num_columns)`` from the columns of :meth:`transform` to the outcome.

        Raises:
            ConfigError: The outcome is no share of a logit.
        """
        if self.below is None:
            return self.above[None]
        if link == "logit" and not self.is_share:
            _refuse(self.text, "the logit needs a value between 0 and 1; use link='identity'")
        return torch.eye(2 if link == "logit" else 1, dtype=torch.float64)[:1]

    def transform(self, theta: Tensor, rows: NDArray[np.int64], link: str) -> Tensor:
        """Columns to regress ``(num_draws, num_docs, num_columns)``.

        The logit has a share and the rest, as it has the topics. Sums need all topics.

        Args:
            theta: ``(num_draws, num_docs, num_topics)`` proportions.
            rows: ``(num_docs,)`` numbers of the documents, for messages.
            link: Scale of the regression.

        Raises:
            ConfigError: A denominator is 0, or the logarithm of 0 is needed.
        """
        if self.below is None:
            return theta
        top, bottom = theta @ self.above, theta @ self.below
        zero = (bottom <= 0) | (top <= 0) if self.is_log else bottom <= 0
        if bool(zero.any()):
            document = rows[int(zero.any(0).nonzero()[0, 0])]
            side = "a side" if self.is_log else "the denominator"
            raise ConfigError(
                f"outcome {self.text!r} has no value in document {document}, counted from 0: in a "
                f"draw the topics of {side} are 0; leave such documents out, or take larger groups "
                "of topics"
            )
        values = (top / bottom).log() if self.is_log else top / bottom
        return torch.stack([values, 1 - values] if link == "logit" else [values], -1)


def parse_outcome(text: str, rows: Mapping[str, Tensor], num_topics: int) -> Outcome:
    """Parse an expression such as ``"log(economy / (culture + 7))"``.

    Names are found as they are, the longest first, so they need no quotes. Numbers, also as in
    ``"topic 3"``, are those of topics.

    Args:
        text: The expression.
        rows: ``(num_topics,)`` coefficients 0 and 1 by name of a topic or group.
        num_topics: Number of topics.

    Raises:
        ConfigError: The expression has another form or an unknown name, counts a topic twice, or is
            the same number in every document.
    """
    if not isinstance(text, str) or not text.strip():
        raise ConfigError(f"outcome is {text!r:.80}; {FORMS}")
    source, used = _source(text := text.strip(), rows, num_topics)
    try:
        node = ast.parse(source, mode="eval").body
    except SyntaxError:
        _refuse(text, FORMS)
    is_log = False
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "log" and node.args:
        node, is_log = node.args[0], True
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div)):
        if is_log:
            _refuse(text, "expected a ratio in the logarithm, as in 'log(economy / culture)'")
        above = _sum(node, used, text)
        if bool((above == above[0]).all()):
            _refuse(text, "it is the same number in every document")
        return Outcome(text, above)
    above, below = _sum(node.left, used, text), _sum(node.right, used, text)
    if not bool(below.any()) or bool((below < 0).any()):
        _refuse(text, "expected a sum of topics in the denominator")
    if is_log and (not bool(above.any()) or bool((above < 0).any())):
        _refuse(text, "expected sums of topics on both sides in the logarithm")
    if any(bool((above == sign * below).all()) for sign in (-1, 0, 1)):
        _refuse(text, "it is the same number in every document")
    both = (above != 0) & (below != 0)
    if bool(both.any()) and bool((both != (above != 0)).any()):
        k = int(both.nonzero()[0, 0])
        _refuse(
            text,
            f"topic {k} is on both sides, but the numerator has other topics too; expected sides "
            "without common topics, or a denominator that has all topics of the numerator",
        )
    return Outcome(text, above, below, is_log)


def _refuse(text: str, why: str) -> NoReturn:
    raise ConfigError(f"outcome {text!r:.200}: {why}")


def _source(text: str, rows: Mapping[str, Tensor], num_topics: int) -> tuple[str, list[Tensor]]:
    """The expression with names that Python can parse, and the rows of these names in order."""
    longest_first = sorted(map(re.escape, rows), key=len, reverse=True)
    token = re.compile(
        rf"(?P<log>log(?=\s*\())|(?<!\w)(?P<name>{'|'.join(longest_first)})(?!\w)|"
        r"topic\s+(?P<number>\d+)(?!\w)|[^-+/()\s][^-+/()]*"
    )
    used: list[Tensor] = []

    def placeholder(match: re.Match[str]) -> str:
        if match["log"]:
            return "log"
        name = match["name"] or match["number"]
        if name not in rows:
            known = ", ".join(repr(name) for name in rows if not name.isdigit()) or "no names"
            _refuse(
                text,
                f"{match[0].strip()!r:.80} is no topic; expected numbers from 0 to "
                f"{num_topics - 1}, or names of topics or groups: {known:.200}",
            )
        used.append(rows[name])
        return f" _{len(used) - 1} "

    return " ".join(token.sub(placeholder, text).split()), used


def _sum(node: ast.expr, used: list[Tensor], text: str) -> Tensor:
    """Coefficients of the topics in a sum or difference."""
    if isinstance(node, ast.Name) and node.id.startswith("_"):
        return used[int(node.id[1:])]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_sum(node.operand, used, text)
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub)):
        _refuse(text, FORMS)
    left, right = _sum(node.left, used, text), _sum(node.right, used, text)
    total = left + right if isinstance(node.op, ast.Add) else left - right
    if bool((total.abs() > 1).any()):
        k = int((total.abs() > 1).nonzero()[0, 0])
        _refuse(text, f"it counts topic {k} twice; expected groups without common topics")
    return total
