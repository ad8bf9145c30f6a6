"""TensorBoard server: on loopback, under a path that cannot be guessed, because it has no authentication."""

import logging
import secrets
import sys
import threading
import time
import types
from collections.abc import Callable, Iterable
from typing import Any

from cluster.tunnels.events import Runs
from cluster.tunnels.service import ServicePaths, ServiceRequest

_REFRESH_S = 5.0
_GUESS_S = 1.0  # delay per wrong password; guesses are handled one at a time


class TensorBoardPage:
    """TensorBoard on the events of one job, or of all."""

    def __init__(self, wanted: ServiceRequest, paths: ServicePaths) -> None:
        _leave_out_what_is_slow()
        runs = Runs(wanted, paths.folder / "runs")
        prefix = "" if wanted.password else f"/{wanted.token or secrets.token_urlsafe(24)}"
        self.path = f"{prefix}/"
        self._ended = threading.Event()
        runs.refresh()
        threading.Thread(target=self._keep_fresh, args=(runs,), daemon=True).start()
        self._server = _server(str(paths.folder / "runs"), prefix, wanted)
        self.port = int(self._server.server_port)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def has_ended(self) -> bool:
        """Return False: it serves as long as this process lives."""
        return False

    def end(self) -> None:
        """Stop serving."""
        self._ended.set()
        self._server.server_close()

    def _keep_fresh(self, runs: Runs) -> None:
        while not self._ended.wait(_REFRESH_S):
            try:
                runs.refresh()
            except OSError as e:  # the shared folder is away for a while
                print(f"the jobs' folder: {e}", file=sys.stderr, flush=True)


def _server(folder: str, prefix: str, wanted: ServiceRequest) -> Any:
    """Return the server, not yet serving. Its settings are passed in memory, so that no process list shows them."""
    from tensorboard import default, program
    from tensorboard.backend import application

    logging.getLogger("tensorboard").setLevel(logging.ERROR)
    made = program.TensorBoard(default.get_static_plugins())
    words = ["--logdir", folder, "--host", "127.0.0.1", "--port", str(wanted.page_port), "--reload_interval", "5"]
    # The data server would be a second port, without the secret; one that reads several files of a run at a time is
    # what attempts of a job want: each writes its own.
    words += ["--path_prefix", prefix, "--load_fast", "false", "--reload_multifile", "true"]
    made.configure(argv=["tensorboard", *words])
    data, multiplexer = made._make_data_provider()
    app = application.TensorBoardWSGIApp(made.flags, made.plugin_loaders, data, made.assets_zip_provider, multiplexer)
    return made.server_class(_with_password(app, wanted.password) if wanted.password else app, made.flags)


def _leave_out_what_is_slow() -> None:
    """Register stand-ins for TensorFlow, setuptools' resources and S3, which TensorBoard would load without need."""
    sys.modules["tensorboard.compat.notf"] = types.ModuleType("notf")
    resources: Any = types.ModuleType("pkg_resources")
    resources.iter_entry_points = lambda *of: []
    sys.modules["pkg_resources"] = resources
    sys.modules["boto3"] = None  # type: ignore[assignment]


App = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


def _with_password(app: App, kept: str) -> App:
    """Return the app behind a password, for any user name. After each wrong password the client has to wait."""
    import base64
    import binascii

    from cluster.tunnels.tls_proxy import is_right

    known: set[str] = set()  # correct headers, which browsers repeat with every request
    one_guess_at_a_time = threading.Lock()

    def guarded(asked: dict[str, Any], answer: Callable[..., Any]) -> Iterable[bytes]:
        said = str(asked.get("HTTP_AUTHORIZATION", ""))
        if said not in known:
            try:
                password = base64.b64decode(said.removeprefix("Basic ")).decode().partition(":")[2]
            except (binascii.Error, ValueError):
                password = ""
            if not is_right(password, kept):
                if said:
                    with one_guess_at_a_time:
                        time.sleep(_GUESS_S)
                answer("401 Unauthorized", [("WWW-Authenticate", 'Basic realm="TensorBoard"')])
                return [b"a password is needed\n"]
            known.add(said)
        return app(asked, answer)

    return guarded
