"""A sweep's page in a real browser: it draws its plots, and loads nothing external."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from rayjobs.tuning.pages import write_html
from tests.unit.tuning.test_results import COMPLETED, MAX, trial

CHROMIUM = shutil.which("chromium")


@pytest.mark.skipif(CHROMIUM is None, reason="Debian's chromium is not installed (tools/apt.txt)")
def test_chromium_draws_every_plot(tmp_path: Path) -> None:
    trials = [
        trial(number, COMPLETED, 0.1 * number, 0.2 * number, parameters={"lr": 0.1 / (number + 1)})
        for number in range(6)
    ]
    page = write_html(tmp_path / "sweep.html", trials, name="digits", metric="accuracy", goal=MAX)
    assert CHROMIUM is not None
    text = page.read_text(encoding="utf-8")
    click = "const best = table.tHead.rows[0].cells[2]; best.click(); best.click();"
    page.write_text(text.replace("</script>\n</body>", f"{click}</script>\n</body>"))
    shown = subprocess.run(
        [
            CHROMIUM,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--host-resolver-rules=MAP * ~NOTFOUND",
            "--virtual-time-budget=20000",
            f"--user-data-dir={tmp_path / 'profile'}",
            "--dump-dom",
            page.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert shown.returncode == 0, shown.stderr[-2000:]
    assert len(re.findall(r"<svg", shown.stdout)) == 3, shown.stdout[-2000:]
    assert page.stat().st_size < 1_000_000
    # Sorted by a click on the head of the third column: the best value first comes last.
    first = re.search(r'<tbody><tr[^>]*data-trial="(\d+)"', shown.stdout.replace("\n", ""))
    assert first is not None and first[1] == "5", shown.stdout[-2000:]
