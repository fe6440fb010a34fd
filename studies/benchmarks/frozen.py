"""The frozen splits of the study ``quality``: training documents and scored tokens.

    python -m studies.benchmarks.frozen [CORPUS ...]

writes their hashes to ``studies/results/quality-splits.json``. These steps make a split:

1. Take ``max_docs`` documents at random if the corpus has more.
2. Test documents are named in the corpus's own ``NAME.split.txt``. Without the file, take
   a tenth of the documents at random.
3. Leave out words absent from all training documents.
4. Take ``max_test_docs`` test documents at random if there are more. Half of the tokens of each are
   observed, and the other half is scored.

Every choice is a function of the seed. A split for tuning differs in step 2: the corpus's own test
documents are left out, and a tenth of the others are for tests.

The seeds 0, 1 and 2 have the tables of before. Their test documents are the corpus's own for all
three, which are hold-outs of words then, or overlap by chance. Further seeds cut the documents in
ten folds instead of step 2, and seed s tests fold s modulo 10, so that ten seeds in a row share no
test document.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import torch_lntm as lntm
from studies.machine import ROOT
from studies.measure import corpus_file, write
from studies.scores.completion import check_hold_out
from torch_lntm.corpus import Corpus, WordHoldOut
from torch_lntm.errors import ConfigError

CORPORA = (
    *("searchsnippets", "m10", "cora", "ap", "bbc", "poliblog5k", "reuters21578", "ohsumed"),
    *("20ng_bydate", "nips_uci", "imdb100k"),
)
SEEDS = (0, 1, 2)
MAX_DOCS, MAX_TEST_DOCS = 20_000, 500
TEST_FRACTION, FOLDS = 0.1, 10
#: The committed hashes.
RECORD = ROOT / "studies" / "results" / "quality-splits.json"


@dataclass(frozen=True, eq=False)
class Frozen:
    """One split.

    Attributes:
        train: Training documents.
        train_index: ``(num_train,)`` int64 positions of the training documents in the whole corpus.
        hold_out: Test documents, half of their tokens observed.
        test_index: ``(num_test,)`` int64 positions of the test documents in the whole corpus.
        dropped_tokens: Tokens of test documents with words absent from the training documents.
        hashes: Fingerprints of ``train`` and ``hold_out``.
    """

    train: Corpus
    train_index: NDArray[np.int64]
    hold_out: WordHoldOut[Corpus]
    test_index: NDArray[np.int64]
    dropped_tokens: int
    hashes: dict[str, str]


def frozen(
    name: str, seed: int, max_docs: int, max_test_docs: int, *, tuning: bool = False
) -> Frozen:
    """The split of a corpus.

    Args:
        name: Name of a corpus, or a path.
        seed: Seed.
        max_docs: Largest number of documents taken from the corpus.
        max_test_docs: Largest number of scored test documents.
        tuning: Whether the corpus's own test documents are left out.

    Raises:
        ConfigError: The corpus does not exist, its split file does not fit, or the split differs
            from the frozen split.
    """
    path = corpus_file(name)
    corpus = lntm.read_corpus(path)
    rng = np.random.default_rng(seed)
    taken = _some(rng, np.arange(corpus.num_docs), max_docs)
    is_test = own_split(path, corpus.num_docs)
    if tuning and is_test is not None:
        taken, is_test = taken[~is_test[taken]], None
    elif seed not in SEEDS and not tuning:
        is_test = np.random.default_rng(0).permutation(corpus.num_docs) % FOLDS == seed % FOLDS
    if is_test is None:
        test = taken[corpus[taken].split(TEST_FRACTION, seed=seed).test_index]
    else:
        test = taken[is_test[taken]]
    training, test_index = np.setdiff1d(taken, test), _some(rng, test, max_test_docs)
    if not len(training) or not len(test_index):
        raise ConfigError(f"{name}: of {len(taken)} documents none train, or none are for tests")
    counts = corpus.to_scipy()
    known = np.flatnonzero(np.asarray(counts[training].sum(0)).ravel())
    words = None if corpus.vocabulary is None else [corpus.vocabulary[i] for i in known]

    def over_known(documents: NDArray[np.int64]) -> Corpus:
        return Corpus.from_matrix(counts[documents][:, known], words, name=corpus.name)

    train, scored = over_known(training), over_known(test_index)
    hold_out = scored.hold_out_words(observed_fraction=0.5, seed=seed)
    found = Frozen(
        train,
        training,
        hold_out,
        test_index,
        int(counts[test_index].sum()) - scored.num_tokens,
        {
            "train_fingerprint": train.fingerprint(),
            "hold_out_fingerprint": hold_out.fingerprint(),
        },
    )
    if not tuning:
        _check(found, name, seed, {"max_docs": max_docs, "max_test_docs": max_test_docs})
    return found


def _some(rng: np.random.Generator, positions: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    """At most a number of positions, at random and ascending."""
    if len(positions) <= most:
        return positions
    return np.sort(rng.choice(positions, most, replace=False))


def own_split(path: Path, num_docs: int) -> NDArray[np.bool_] | None:
    """Test documents by the corpus's own split file, or None without such a file."""
    file = path.with_name(f"{path.stem}.split.txt")
    if not file.exists():
        return None
    parts = file.read_text(encoding="utf-8").split()
    if len(parts) != num_docs:
        raise ConfigError(f"{file} has {len(parts)} lines; expected one for each of {num_docs}")
    return np.array(parts) == "test"


def _check(found: Frozen, name: str, seed: int, sizes: dict[str, int]) -> None:
    """Compare a split with the record, if the record has a split of equal sizes."""
    expected = recorded().get(f"{name}, seed {seed}")
    if expected is None or any(expected[key] != size for key, size in sizes.items()):
        return
    check_hold_out(found.hold_out, expected["hold_out_fingerprint"])
    train, frozen_train = (x["train_fingerprint"] for x in (found.hashes, expected))
    if train != frozen_train:
        raise ConfigError(
            f"the training documents of {name}, seed {seed}, have the fingerprint {train[:12]}…, "
            f"expected {frozen_train[:12]}…: the corpus differs"
        )


def recorded() -> dict[str, dict[str, Any]]:
    """The frozen splits, by corpus and seed. Empty without a record."""
    if not RECORD.exists():
        return {}
    return dict(json.loads(RECORD.read_text(encoding="utf-8")))


def main() -> None:
    """Freeze new splits, and check frozen ones."""
    parser = argparse.ArgumentParser(description="Freeze the splits of the study quality.")
    parser.add_argument("corpora", nargs="*", default=list(CORPORA))
    for name in parser.parse_args().corpora:
        for seed in SEEDS:
            split = frozen(name, seed, MAX_DOCS, MAX_TEST_DOCS)
            entry = {
                "corpus": name,
                "seed": seed,
                "max_docs": MAX_DOCS,
                "max_test_docs": MAX_TEST_DOCS,
                "train_docs": split.train.num_docs,
                "test_docs": split.hold_out.corpus.num_docs,
                "held_out_tokens": split.hold_out.held_out.num_tokens,
                **split.hashes,
            }
            record = recorded() | {f"{name}, seed {seed}": entry}
            write(RECORD, (json.dumps(record, indent=1) + "\n").encode())
            print(f"{name}, seed {seed}: {split.hashes['hold_out_fingerprint']}")


if __name__ == "__main__":
    main()
