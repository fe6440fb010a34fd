"""``python -m studies`` lists the studies; ``python -m studies NAME`` runs one."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from studies.measure import Study, measure
from studies.options import read
from torch_lntm.errors import LNTMError

#: The studies, by folder and module.
STUDIES = {
    "papers": {
        "ahmed_xing_simulation": "Recovery of theta by each posterior (Ahmed & Xing 2007)",
        "ahmed_xing_learning": "Parameters learned by each posterior (the same)",
        "ahmed_xing_fig5": "Learned densities of theta on the simplex (the same)",
        "ahmed_xing_fig6_9": "Topics, proportions and the topic graph (the same)",
        "ahmed_xing_fig7_8": "Perplexity and iterations on papers of NIPS (the same)",
        "ahmed_xing_table1": "Classifying abstracts by their topics (the same)",
        "khan_bouchard": "The gain of a full covariance (Khan & Bouchard 2009)",
        "factor_simulation": "Factor, correlated and Dirichlet models (Putthividhya et al. 2009)",
        "putthividhya_fig2": "Sources of correlation and their meaning (the same)",
        "putthividhya_fig4": "Likelihood by topics on real texts (the same)",
        "putthividhya_fig5": "Retrieval of newsgroup messages (the same)",
        "putthividhya_table1": "Training times of LDA, IFTM and CTM (the same)",
        "minka_lafferty_two_word": "The likelihood that EM climbs (Minka & Lafferty 2002)",
        "minka_lafferty_five_word": "Aspects of documents without aspects (the same)",
        "minka_lafferty_two_class": "Errors of classification (the same)",
        "minka_lafferty_text": "Perplexity of texts under VB and EP (the same)",
        "zhusuan_nips": "Monte-Carlo EM and AIS on papers of NIPS (the ZhuSuan tutorial)",
    },
    "benchmarks": {
        "completion": "Held-out words, seconds and memory, beside other programs",
        "quality": "Held-out words beside other programs, theta integrated out exactly",
        "search": "Settings of peers that predict held-out words best",
        "curves": "Held-out words against CPU seconds, and time by threads, beside other programs",
        "own_words": "Held-out words with and without a document's own, beside other programs",
        "scale": "Time and memory against documents, tokens, topics, words and processes",
        "large": "Two million documents in a folder mapped into memory",
        "parts": "Two million documents in parts, by 1, 2 and 4 processes",
        "hosts": "Fits in parts by two hosts, with and without delay between them",
        "iterations": "Held-out words against iterations of EM, and rules that stop it",
        "small": "Short and long searches of Monte-Carlo EM on thinned corpora",
        "recovery": "True topics and correlations of simulated corpora",
        "defaults": "The defaults beside alternative starts, schedules and priors",
        "aspect": "E-steps of LDA beside scikit-learn's",
        "accuracy": "Every posterior beside long chains",
        "sampling": "Effective samples per second beside Pyro's HMC and NUTS",
        "keywords": "Topics with keywords beside keyATM, SeededLDA and CorEx",
        "tables": "Clusters, classes and words beside neural topic models",
        "vectors": "Word vectors in the prior of topics, by number of documents",
        "trees": "Trees, groups and stability of topics beside the truth",
        "names": "Words that name topics, by the held-out documents that they find",
        "structural": "Structural topic models beside topica's STM",
        "nested": "Blogs and days as random effects of structural models",
        "outcomes": "Outcomes that depend on topics: bias and coverage of regressions on shares",
        "overfitting": "Effects in the words in which the topics were found, and in others",
        "coded": "Coverage of effects from coded documents, and of the precision of ratings",
        "levels": "Coverage of intervals of the levels of a random term",
        "time": "Words that move with time, beside other dynamic topic models",
        "coverage": "Coverage of intervals of effects, on simulated corpora",
        "stm": "Coverage of intervals of effects by R's stm, on the same corpora",
        "reproducibility": "Fits under other conditions: process, threads, order, seed",
        "gpu": "Fits on a GPU beside the CPU",
        "launches": "Kernels, waits and bytes of a fit on a pretend GPU",
        "versus": "CPU time beside another checkout of this repository",
    },
}


def load(name: str) -> Study[Any, Any]:
    """The study of a name.

    Raises:
        KeyError: No study has the name.
    """
    room = next((room for room, names in STUDIES.items() if name in names), None)
    if room is None:
        raise KeyError(name)
    study = import_module(f"studies.{room}.{name}").STUDY
    assert isinstance(study, Study)
    return study


def main(argv: Sequence[str] | None = None) -> int:
    """List the studies, or run one study and print its tables.

    Args:
        argv: Arguments. Defaults to the arguments of the process.

    Returns:
        The exit code: 0 for success, 1 for a reported error, 130 after Ctrl-C.

    Raises:
        SystemExit: With 2 for wrong options, with 0 after the help.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_listing())
        return 0
    name, *rest = arguments
    name = name.replace("-", "_")
    try:
        study = load(name)
    except KeyError:
        print(f"error: no study {name!r}\n\n{_listing()}", file=sys.stderr)
        return 2
    try:
        options = read(name, study, rest)
        if options.data is not None:
            # Child processes read the variable too.
            os.environ["LNTM_DATA"] = options.data
        result = measure(name, study, options.settings, options.out, again=options.again)
    except (LNTMError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; the same command continues with the next cell", file=sys.stderr)
        return 130
    print(study.table(result))
    print(f"\nwritten to {options.out}")
    return 0


def _listing() -> str:
    lines = ["python -m studies NAME [--option VALUE ...]    (NAME --help lists the options)"]
    for room, names in STUDIES.items():
        lines += ["", f"{room}:", *(f"  {name:26} {line}" for name, line in names.items())]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
