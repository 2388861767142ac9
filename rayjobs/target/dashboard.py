"""The Ray dashboard of a target: its address, its login, and a browser that shows it.

Ray's dashboard asks for the token in a dialog and keeps it as a cookie; it does not accept it in a
URL. So the browser opens the plain address, and the token is shown only on request.
"""

from __future__ import annotations

import webbrowser
from pathlib import Path

from rayjobs.core.errors import TargetError
from rayjobs.core.paths import TargetPaths
from rayjobs.core.paths import home as default_home
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.target.local_head import LOCAL
from rayjobs.target.reach import check_reachable
from rayjobs.target.record import load_target
from rayjobs.target.targets import dashboard_url
from rayjobs.target.token_check import read_token


@dataclass(frozen=True)
class Dashboard:
    """The address and login of a running target's dashboard.

    Attributes:
        token_file: File with the token for its login; None: it has no login.
    """

    url: str
    token_file: Path | None

    def read_token(self) -> str | None:
        """Return the token; show it only on request (`--show-token`)."""
        return None if self.token_file is None else read_token(self.token_file)

    def open(self) -> bool:
        """Open it in a browser; False if this machine has none."""
        return webbrowser.open(self.url)


def dashboard_of(name: str = LOCAL, *, home: Path | None = None) -> Dashboard:
    """Return the dashboard of a running target.

    Raises:
        UnreachedError: its cluster cannot be reached.
        TargetError: the target does not run, or its cluster has no dashboard.
    """
    at = home or default_home()
    record = load_target(name, home=at)
    url = dashboard_url(name, home=at)
    if not url:
        if record.address is not None:
            check_reachable(name, record.address)
        raise TargetError(
            f"target {name!r} has no dashboard now: it does not run, or Ray was started without "
            f"one. Start it with `rayjobs target start {name}`."
        )
    if record.without_token:
        return Dashboard(url, None)
    token_file = record.token_file or TargetPaths.of(name, under=at).token
    return Dashboard(url, Path(token_file))
