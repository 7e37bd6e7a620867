"""A Ray cluster of three nodes on this machine, as a program of its own: Ray's threads would disturb pytest.

The last node has another CLOCK_MONOTONIC where the machine allows time namespaces. Prints a line of JSON
once all are up; a line `kill` on standard input kills the second node, and its end ends everything.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from importlib import import_module
from typing import Any

AHEAD_S = 5000  # of the last node's clock
_LIMIT_S = 400.0  # after which nothing is left, whatever the tests do
_OBJECTS = 100_000_000
_CPUS = 4  # as Ray counts them: shards of these tests compute little
_NAMESPACE = ("unshare", "--time", "--monotonic", str(AHEAD_S))


def namespaces() -> bool:
    """Whether this machine lets a process have a clock of its own."""
    return (
        shutil.which("unshare") is not None
        and not subprocess.run([*_NAMESPACE, "true"], capture_output=True, check=False).returncode
    )


def apart(address: str) -> subprocess.Popen[bytes]:
    """A node in a time namespace of its own, where those are."""
    start = ["--address", address, "--num-cpus", str(_CPUS), "--object-store-memory", str(_OBJECTS)]
    code = "import sys; from ray.scripts.scripts import main; sys.argv[0] = 'ray'; main()"
    words = [*(_NAMESPACE if namespaces() else ()), sys.executable, "-c", code, "start", *start, "--block"]
    unseen = subprocess.DEVNULL
    return subprocess.Popen(words, stdout=unseen, stderr=unseen, start_new_session=True)


def main() -> None:
    """Start the nodes, do what standard input says, and end them."""
    node: dict[str, Any] = {"num_cpus": _CPUS, "object_store_memory": _OBJECTS}
    ray: Any = import_module("ray")
    made = import_module("ray.cluster_utils").Cluster
    cluster: Any = made(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    second, third = cluster.add_node(**node), apart(cluster.address)
    watchdog = threading.Timer(_LIMIT_S, os.kill, (os.getpid(), signal.SIGTERM))
    watchdog.daemon = True
    watchdog.start()
    try:
        cluster.connect()
        while sum(one["Alive"] for one in ray.nodes()) < 3 and third.poll() is None:
            threading.Event().wait(0.2)
        ray.shutdown()
        print(json.dumps({"address": cluster.address, "apart": namespaces()}), flush=True)
        for line in sys.stdin:
            if line.strip() == "kill":
                cluster.remove_node(second, allow_graceful=False)
                print("killed", flush=True)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(third.pid, signal.SIGTERM)
        third.wait(20)
        cluster.shutdown()


if __name__ == "__main__":
    main()
