"""Draws ``report.png``, the first screen of a report.

python docs/figures/report.py

It needs Chromium, and the corpus *bbc* in ``../shared/data`` or the folder of the variable
LNTM_DATA.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import torch
from PIL import Image

import torch_lntm as lntm

FIGURE = Path(__file__).with_suffix(".png")
DATA = Path(os.environ.get("LNTM_DATA", FIGURE.parents[3] / "shared" / "data"))
#: The browser, without a screen, in a window of a laptop's width.
BROWSER = "chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --window-size=1052,917"


def main() -> None:
    """Fit the news articles, write the page, and take its picture."""
    torch.set_num_threads(1)
    labels = (DATA / "bbc.labels.txt").read_text(encoding="utf-8").split()
    corpus = lntm.read_corpus(DATA / "bbc.npz").with_metadata({"section": labels})
    run = lntm.fit(corpus, 20, progress=False)
    with tempfile.TemporaryDirectory() as folder:
        title = f"Topics of {len(corpus):,} BBC articles"
        page = run.report(Path(folder) / "page.html", corpus, title=title, progress=False)
        options = [f"--user-data-dir={folder}/user", f"--screenshot={FIGURE}", page.as_uri()]
        subprocess.run([*BROWSER.split(), *options], check=True, capture_output=True)
    Image.open(FIGURE).convert("RGB").quantize(128).save(FIGURE, optimize=True)


if __name__ == "__main__":
    main()
