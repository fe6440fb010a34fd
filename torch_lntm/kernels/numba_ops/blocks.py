"""Blocks of documents, whose words' rows of the topics lie side by side in the cache."""

# mypy: ignore-errors

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from torch_lntm.kernels.numba_ops.vectors import *

Array = Any

#: Largest number of bytes of a block's rows of the topics, most of a second-level cache: products
#: of a block take as long for one document as for eight.
BLOCK_BYTES = 5 * 2**17
#: Number of bytes of a line of the cache.
CACHE_LINE = 64
#: Logit of the padding, whose exponential is 0 beside any other.
NOWHERE = -1e30


class Documents(NamedTuple):
    """Words of documents, and the topics.

    Attributes:
        row_offsets: ``(num_docs + 1,)`` int64.
        word_index: ``(nnz,)`` int64.
        counts: ``(nnz,)``.
        lengths: ``(num_docs,)`` tokens.
        words: ``(num_words, num_topics)`` topics by word.
        length_terms: ``(num_docs,)`` float64 nats of a Dirichlet-multinomial likelihood; empty
            otherwise.
        concentration: That of a Dirichlet-multinomial, for whole counts; infinite for independent
            draws.
        floor: Least probability of a word.
    """

    row_offsets: Array
    word_index: Array
    counts: Array
    lengths: Array
    words: Array
    length_terms: Array
    concentration: float
    floor: float


class Block(NamedTuple):
    """Work space of one thread for a block of documents; rows are chains of documents.

    Rows of z, and of what is alike, have zeros behind their ``dim`` numbers.

    Attributes:
        words: ``(.., width * WIDTH)`` topics of the block's words, 8 words in a row: topics 0 to 7
            of the first word, of the second, …, topics 8 to 15 of the first, …; see
            :func:`place_of`. Sums read the memory from the beginning to the end.
        counts: Counts of these words.
        s: Probabilities of these words.
        ratio: ``(rows, ..)`` their counts divided by these, in each row.
        begin: First of the words of a row.
        end: End of the words of a row.
        row: Number of a row in the state of all chains.
        loc: ``(rows, width)`` logits at z = 0.
        theta: ``(rows, width)`` logits, and then proportions.
        slope: ``(rows, width)`` gradients in the logits.
        z: ``(rows, depth)`` proposals.
        r: ``(rows, depth)`` momenta.
        g: ``(rows, depth)`` gradients of the log likelihood at the proposals.
        h: ``(rows, depth)`` gradients of the log prior at the proposals.
        position: ``(rows, depth)`` z of the chains.
        gradient: ``(rows, depth)`` gradients of the log likelihood there.
        prior: ``(rows,)`` float64 log density of the prior there.
        likelihood: ``(rows,)`` float64 log likelihood there.
        bend: ``(depth,)`` derivatives x′(z) of a document's logits, for Dirichlet priors.
        draws: ``(dim + 2 * WIDTH,)`` float64 work space for normal numbers.
        epsilon: ``(rows,)`` step sizes, in the type of z.
        value: ``(rows,)`` float64 log likelihood at the proposals.
        kinetic: ``(rows,)`` float64 |r|² at the start.
        chance: ``(rows,)`` float64 uniform numbers for the acceptance.
    """

    words: Array
    counts: Array
    s: Array
    ratio: Array
    begin: Array
    end: Array
    row: Array
    loc: Array
    theta: Array
    slope: Array
    z: Array
    r: Array
    g: Array
    h: Array
    position: Array
    gradient: Array
    prior: Array
    likelihood: Array
    bend: Array
    draws: Array
    epsilon: Array
    value: Array
    kinetic: Array
    chance: Array


def new_block(num_words: int, num_topics: int, dim: int, dtype: Any) -> Block:
    """Work space for blocks of at most ``num_words`` padded words."""
    # The last numbers of z, one for each topic in a factor space, are read with their padding.
    width, depth, rows = padded(num_topics), padded(max(dim, 1)) + WIDTH, WIDTH

    def zeros(*shape: int, dtype: Any = dtype) -> Array:
        return aligned_zeros(shape, dtype)

    return Block(
        words=zeros(num_words // WIDTH, width * WIDTH),
        counts=zeros(num_words),
        s=zeros(num_words),
        ratio=zeros(rows, -(-num_words // CACHE_LINE) * CACHE_LINE),
        begin=zeros(rows, dtype=np.int64),
        end=zeros(rows, dtype=np.int64),
        row=zeros(rows, dtype=np.int64),
        loc=np.full((rows, width), NOWHERE, dtype),
        theta=zeros(rows, width),
        slope=zeros(rows, width),
        z=zeros(rows, depth),
        r=zeros(rows, depth),
        g=zeros(rows, depth),
        h=zeros(rows, depth),
        position=zeros(rows, depth),
        gradient=zeros(rows, depth),
        prior=zeros(rows, dtype=np.float64),
        likelihood=zeros(rows, dtype=np.float64),
        bend=zeros(depth),
        draws=zeros(dim + 2 * WIDTH, dtype=np.float64),
        epsilon=zeros(rows),
        value=zeros(rows, dtype=np.float64),
        kinetic=zeros(rows, dtype=np.float64),
        chance=zeros(rows, dtype=np.float64),
    )


def aligned_zeros(shape: int | tuple[int, ...], dtype: Any) -> Array:
    """Zeros at the beginning of a line of the cache; a vector in two lines takes twice as long."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.zeros(size + CACHE_LINE, np.uint8)
    first = -memory.ctypes.data % CACHE_LINE
    return memory[first : first + size].view(dtype).reshape(shape)


def padded(size: int) -> int:
    """A size rounded up to a multiple of ``WIDTH``."""
    return -(-size // WIDTH) * WIDTH


@kernel
def divide(row_offsets, num_chains, most_words, offsets):
    """Divide the chains of documents into blocks.

    Items are numbered document by document, so that the chains of a document share its words.

    Args:
        row_offsets: ``(num_docs + 1,)`` int64.
        num_chains: Number of chains of each document.
        most_words: Largest number of words of a block of several documents.
        offsets: ``(num_docs * num_chains + 1,)`` int64. Receives the offsets of the blocks in the
            items.

    Returns:
        Number of blocks, and the largest number of padded words of a block.
    """
    num_docs = len(row_offsets) - 1
    num_blocks, longest, size, first = 0, 0, 0, 0
    for item in range(num_docs * num_chains):
        doc = item // num_chains
        own = (row_offsets[doc + 1] - row_offsets[doc] + WIDTH - 1) // WIDTH * WIDTH
        is_new = item % num_chains == 0
        if item > first and (item - first == WIDTH or size + is_new * own > most_words):
            num_blocks += 1
            offsets[num_blocks] = first = item
            size, is_new = 0, True
        size += is_new * own
        longest = max(longest, size)
    num_items = num_docs * num_chains
    if num_items:
        num_blocks += 1
    offsets[0], offsets[num_blocks] = 0, num_items
    return num_blocks, longest


@inlined
def place_of(word, topic):
    """Column of a word's topic in the words of a block."""
    return topic // WIDTH * (WIDTH * WIDTH) + word % WIDTH * WIDTH + topic % WIDTH


@inlined
def copy_row(source, into, at):
    """Write the topics of a word into the words of a block. The padding stays."""
    tile, num_topics = at // WIDTH, len(source)
    rest = num_topics // WIDTH * WIDTH
    for k in range(0, rest, WIDTH):
        store(into, (tile, place_of(at, k)), load(source, k))
    for k in range(rest, num_topics):
        into[tile, place_of(at, k)] = source[k]


@inlined
def copy_words(words, index, counts, into, into_counts, at):
    """Write the words of a document from a place on, and return their end, a multiple of ``WIDTH``.

    The last word fills the padding, with the count 0.
    """
    for i in range((len(index) + WIDTH - 1) // WIDTH * WIDTH):
        entry = min(i, len(index) - 1)
        copy_row(words[index[entry]], into, at + i)
        into_counts[at + i] = counts[entry] if i < len(index) else 0
    return at + (len(index) + WIDTH - 1) // WIDTH * WIDTH


@inlined
def fill(block, documents, num_chains, loc, first, end):
    """Copy the words of the items ``first:end`` into a block, and their logits at z = 0."""
    num_docs, at, last, begin = len(documents.lengths), np.int64(0), -1, 0
    for item in range(first, end):
        doc = item // num_chains
        if doc != last:
            i, j = documents.row_offsets[doc], documents.row_offsets[doc + 1]
            index, counts = documents.word_index[i:j], documents.counts[i:j]
            begin, last = at, doc
            at = copy_words(documents.words, index, counts, block.words, block.counts, at)
        i = item - first
        block.begin[i], block.end[i] = begin, at
        block.row[i] = (item % num_chains) * num_docs + doc
        if len(loc):
            mean = loc[0 if len(loc) == 1 else doc]
            for k in range(len(mean)):
                block.loc[i, k] = mean[k]


# -- products of a block ---------------------------------------------------------------------------


@inlined
def product(x, matrix, ranges, result):
    """Products x · matrix of ``WIDTH`` rows.

    Args:
        x: ``(WIDTH, >= rows of the matrix)``.
        matrix: ``(rows, columns)``, with padded columns.
        ranges: ``(2, columns / WIDTH)`` rows outside of which these columns are 0.
        result: ``(WIDTH, >= columns)``, overwritten.
    """
    none = lanes_of(x.dtype.type(0))
    for tile in range(ranges.shape[1]):
        k = WIDTH * tile
        a = b = c = d = e = f = g = h = none
        for j in range(ranges[0, tile], ranges[1, tile]):
            row = load(matrix, (j, k))
            a, b = fma(spread(x, (0, j)), row, a), fma(spread(x, (1, j)), row, b)
            c, d = fma(spread(x, (2, j)), row, c), fma(spread(x, (3, j)), row, d)
            e, f = fma(spread(x, (4, j)), row, e), fma(spread(x, (5, j)), row, f)
            g, h = fma(spread(x, (6, j)), row, g), fma(spread(x, (7, j)), row, h)
        store(result, (0, k), a)
        store(result, (1, k), b)
        store(result, (2, k), c)
        store(result, (3, k), d)
        store(result, (4, k), e)
        store(result, (5, k), f)
        store(result, (6, k), g)
        store(result, (7, k), h)


@inlined_in_any_order
def _slope(count, s, concentration):
    """Derivative of a Dirichlet-multinomial's term in s: a (ψ(c + a s) − ψ(a s))."""
    rate, total = concentration * np.float64(s), 0.0
    for i in range(np.int64(count)):
        total += concentration / (rate + i)
    return total


@inlined
def words_pass(rows, counts, s, ratio, theta, gradient, a, floor, first, end):
    """Probabilities s of a document's words, c / s, and slope g = Σ_v (c_v / s_v) φ_v.

    For a Dirichlet-multinomial, :func:`_slope` takes the place of c / s.

    All other kernels share this one, so that it is compiled once.

    Args:
        rows: Words of a :class:`Block`.
        counts: Counts of these words.
        s: Overwritten.
        ratio: Overwritten.
        theta: ``(width,)`` padded proportions.
        gradient: ``(width,)``, overwritten.
        a: Concentration of a Dirichlet-multinomial; infinite for independent draws.
        floor: Least probability of a word.
        first: First of the document's words.
        end: End of the words.
    """
    width, cast = len(theta), theta.dtype.type
    none, least = lanes_of(cast(0)), lanes_of(cast(floor))
    for k in range(0, width, WIDTH):
        store(gradient, k, none)
    # Both sums read the rows of eight words before those of the next ones: from the first cache.
    for i in range(first, end, WIDTH):
        n, s0 = i // WIDTH, none
        s1 = s2 = s3 = s4 = s5 = s6 = s7 = none
        for k in range(0, width, WIDTH):
            t, j = load(theta, k), WIDTH * k
            s0, s1 = fma(load(rows, (n, j)), t, s0), fma(load(rows, (n, j + 8)), t, s1)
            s2, s3 = fma(load(rows, (n, j + 16)), t, s2), fma(load(rows, (n, j + 24)), t, s3)
            s4, s5 = fma(load(rows, (n, j + 32)), t, s4), fma(load(rows, (n, j + 40)), t, s5)
            s6, s7 = fma(load(rows, (n, j + 48)), t, s6), fma(load(rows, (n, j + 56)), t, s7)
        # A NaN stays.
        probability = larger(sums_of_eight(s0, s1, s2, s3, s4, s5, s6, s7), least)
        store(s, i, probability)
        store(ratio, i, over(load(counts, i), probability))
        if a < math.inf:
            for word in range(i, i + WIDTH):
                ratio[word] = cast(_slope(counts[word], s[word], a))
        r0, r1, r2 = spread(ratio, i), spread(ratio, i + 1), spread(ratio, i + 2)
        r3, r4, r5 = spread(ratio, i + 3), spread(ratio, i + 4), spread(ratio, i + 5)
        r6, r7 = spread(ratio, i + 6), spread(ratio, i + 7)
        for k in range(0, width, WIDTH):
            # Two chains of sums, which the processor makes at the same time.
            x, y, j = load(gradient, k), none, WIDTH * k
            x, y = fma(load(rows, (n, j)), r0, x), fma(load(rows, (n, j + 32)), r4, y)
            x, y = fma(load(rows, (n, j + 8)), r1, x), fma(load(rows, (n, j + 40)), r5, y)
            x, y = fma(load(rows, (n, j + 16)), r2, x), fma(load(rows, (n, j + 48)), r6, y)
            x, y = fma(load(rows, (n, j + 24)), r3, x), fma(load(rows, (n, j + 56)), r7, y)
            store(gradient, k, plus(x, y))


@inlined_in_any_order
def words_log_likelihood(counts, s, first, end, concentration):
    """Σ_v c_v log s_v, or Σ_v log Γ(c_v + a s_v) / Γ(a s_v); summed in float64."""
    total = 0.0
    if concentration < math.inf:
        for i in range(first, end):
            rate = concentration * np.float64(s[i])
            for j in range(np.int64(counts[i])):
                total += math.log(rate + j)
        return total
    terms, rest = lanes_of(0.0), first + (end - first) // WIDTH * WIDTH
    for i in range(first, rest, WIDTH):
        terms = plus(terms, doubled(times(load(counts, i), log(load(s, i)))))
    for i in range(rest, end):
        total += counts[i] * math.log(np.float64(s[i]))
    return total + sum_lanes(terms)


@inlined
def softmax_(logits, row):
    """Softmax of a row of padded logits, in place."""
    width = logits.shape[1]
    most = load(logits, (row, 0))
    for k in range(WIDTH, width, WIDTH):
        most = larger(most, load(logits, (row, k)))
    one = logits.dtype.type(1)
    lowest, total = lanes_of(-largest(most)), lanes_of(one - one)
    for k in range(0, width, WIDTH):
        e = exp(plus(load(logits, (row, k)), lowest))
        store(logits, (row, k), e)
        total = plus(total, e)
    inverse = lanes_of(one / sum_lanes(total))
    for k in range(0, width, WIDTH):
        store(logits, (row, k), times(load(logits, (row, k)), inverse))


@inlined
def square_norm(x, row):
    """Square norm of a padded row, in float64."""
    total = lanes_of(0.0)
    for k in range(0, x.shape[1], WIDTH):
        wide = doubled(load(x, (row, k)))
        total = fma(wide, wide, total)
    return sum_lanes(total)
