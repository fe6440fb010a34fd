"""The rows of the tables of leads, from made-up cells."""

from __future__ import annotations

from typing import Any

from studies.benchmarks.leads import LONG, OURS, rows


def cells(**systems: dict[int, str]) -> dict[str, Any]:
    """Splits 0 and 1 of two documents of two tokens, and a fit of each system and seed."""
    found: dict[str, Any] = {
        f"split, c, {seed}": {
            "corpus": "c",
            "seed": seed,
            "test_index": f"{2 * seed} {2 * seed + 1}",
            "tokens": "2 2",
        }
        for seed in (0, 1)
    }
    names = {"ours": OURS, "long": LONG, "tuned": "topica LDA, tuned", "plain": "topica LDA"}
    for key, scores in systems.items():
        for seed, nats in scores.items():
            found[f"c, 5, {seed}, {names[key]}"] = {
                "corpus": "c",
                "num_topics": 5,
                "seed": seed,
                "system": names[key],
                "cpu_seconds": 2.0,
                "log_predictive": nats,
            }
    return found


def test_the_lead_is_over_the_best_peer() -> None:
    same = {0: "-8 -8", 1: "-8 -8"}
    (row,) = rows(cells(ours={0: "-6 -6", 1: "-6 -6"}, plain=same, tuned={0: "-7 -7", 1: "-7 -7"}))
    assert (row["corpus"], row["K"], row["splits"]) == ("*c*", "5", "2")
    assert (row["best peer"], row["lead"]) == ("topica LDA, tuned", "+0.500 ± 0.000")
    assert (row[OURS], row["tomotopy LDA"]) == ("20, 2", "–")


def test_systems_are_compared_on_the_splits_that_all_have() -> None:
    (row,) = rows(cells(ours={0: "-6 -6", 1: "-2 -2"}, plain={0: "-8 -8"}))
    assert (row["splits"], row["lead"]) == ("1", "+1.000 ± 0.000")


def test_a_corpus_without_a_peer_has_no_row() -> None:
    assert rows(cells(ours={0: "-6 -6"})) == []


def test_a_longer_fit_is_compared_on_its_own_splits() -> None:
    fits = cells(ours={0: "-6 -6", 1: "-2 -2"}, plain={0: "-8 -8", 1: "-8 -8"}, long={1: "-1 -1"})
    (row,) = rows(fits)
    assert row["lead"].startswith("+2.000")
    assert row["lead of long over auto"] == "+0.500 ± 0.000"
    assert row["lead of long over peer"] == "+3.500 ± 0.000"
    assert (row["long"], row["auto, same splits"], row["peer, same splits"]) == ("2", "3", "55")
    assert rows(cells(ours={0: "-6 -6"}, plain={0: "-8 -8"}))[0]["long"] == "–"
