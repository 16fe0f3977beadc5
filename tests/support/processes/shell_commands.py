"""``dst`` and ``dst-prep`` for shell scripts, without the seconds that importing PyTorch, DeepSpeed and MLflow takes.

Each command asks this process to fork it (:mod:`support.processes.forks`), with its own arguments, environment, folder,
input and output, and ends with the status of the fork.
"""

from __future__ import annotations

import json
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from support.processes.forks import Fork

COMMANDS = {"dst": "dstransformer", "dst-prep": "data_prep"}

CLIENT = """#!{python} -IS
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    job = [{module!r}, sys.argv[1:], dict(os.environ), os.getcwd(), os.getpid()]
    server.sendall(json.dumps(job).encode() + b"\\n")
    sys.exit(int(server.makefile().readline()))
"""


@contextmanager
def shell_commands() -> Iterator[Path]:
    """Yield a folder for ``PATH`` that holds the commands, which work until the block ends."""
    with tempfile.TemporaryDirectory(prefix="dst-test-") as name, socket.socket(socket.AF_UNIX) as listener:
        folder, address = Path(name), f"{name}/socket"
        for command, module in COMMANDS.items():
            (folder / command).write_text(CLIENT.format(python=sys.executable, address=address, module=module))
            (folder / command).chmod(0o755)
        listener.bind(address)
        listener.listen()
        forks: list[Fork] = []
        threading.Thread(target=_serve, args=(listener, forks), daemon=True).start()
        try:
            yield folder
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            for fork in forks:
                fork.close()


def _serve(listener: socket.socket, forks: list[Fork]) -> None:
    with suppress(OSError):  # the listener was closed
        while True:
            client, _ = listener.accept()
            threading.Thread(target=_run, args=(client, forks), daemon=True).start()


def _run(client: socket.socket, forks: list[Fork]) -> None:
    with closing(client), client.makefile() as requests:
        module, arguments, variables, folder, pid = json.loads(requests.readline())
        streams = [Path(f"/proc/{pid}/fd/{number}") for number in range(3)]
        fork = Fork(["-m", module, *arguments], variables, Path(folder), streams)
        forks.append(fork)
        status = fork.wait()
        client.sendall(f"{status if status >= 0 else 128 - status}\n".encode())
