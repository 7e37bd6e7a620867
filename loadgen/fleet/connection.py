"""Connection: how Ray is reached, or one line on why not; Ray is imported only when it is needed."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from loadgen.base import clock
from loadgen.base.errors import MeasureError, UsageError
from loadgen.base.text import describe_install
from loadgen.features.shards.shard_settings import ADDRESS, AUTO, LOCAL

_VARIABLE = "RAY_ADDRESS"
_ANSWERS_S = 10.0
_PORTS = "the head's port is 6379, that of ray:// 10001"


@contextmanager
def connect_ray(address: str) -> Iterator[Any]:
    """Connect to the cluster at an address, yield the module `ray`, and disconnect afterwards.

    "auto" is RAY_ADDRESS if it is set. A program that was connected already stays so. Handlers of signals are
    restored. Raises UsageError and MeasureError, each within a time limit.
    """
    ray = _import_ray()
    if ray.is_initialized():
        yield ray
        return
    where = os.environ.get(_VARIABLE, AUTO) if address == AUTO else address
    _check_answers(where)
    handlers = _read_handlers()
    try:
        _init_ray(ray, where)
    finally:
        for number, handler in handlers.items():  # Ray sets its own
            signal.signal(number, handler)
    try:
        yield ray
    finally:
        ray.shutdown()


def _import_ray() -> Any:
    """Import `ray` with its warnings and usage reports off; raises UsageError if it is not installed."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else a warning about GPUs
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import ray
    except ImportError:
        raise UsageError(
            f"--cluster needs the ray extra: {describe_install('ray')} (on each node too)"
        ) from None
    return ray


def _read_handlers() -> dict[int, Any]:
    """Read the handlers of SIGTERM and SIGINT, by number; {} in a thread that may not set them again."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    return {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}


def _init_ray(ray: Any, where: str) -> None:
    """Connect `ray` to the cluster at `where`, its logs turned off; raises MeasureError."""
    logging.getLogger("ray").setLevel(logging.CRITICAL)
    vars(ray._private.worker)["_worker_logs_enabled"] = False  # else pages of a lost node's log
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ray.init(
                address=where,
                log_to_driver=False,
                logging_level=logging.CRITICAL,
                **({} if where != LOCAL else {"include_dashboard": False}),
            )
    except (ConnectionError, RuntimeError, ValueError, ImportError, TimeoutError) as error:
        raise _explain_refusal(where, error) from None
    except SystemExit:  # what its own code does where no cluster answers in time
        raise MeasureError(f"the Ray cluster at {where} does not answer: see `ray status` there") from None


def _explain_refusal(where: str, error: Exception) -> Exception:
    """Return a MeasureError that says in a line why Ray refused: no cluster, other versions, or its text."""
    text = " ".join(str(error).split())
    if where == AUTO:
        return MeasureError(
            "no Ray cluster runs on this machine: start one (ray start --head), or give its address: "
            f"--cluster HOST:6379, --cluster ray://HOST:10001, or {_VARIABLE}"
        )
    if "ersion" in text:
        return MeasureError(f"the Ray cluster at {where} runs another Ray or Python: {text[:300]}")
    return MeasureError(f"the Ray cluster at {where} refuses: {text[:300]}")


def _check_answers(where: str) -> None:
    """Raise MeasureError if no gRPC server answers at HOST:PORT in 10 s: Ray itself takes minutes for that.

    With TLS or without grpcio only TCP is tried; ray:// without grpcio raises UsageError. Another form of
    address is not checked.
    """
    match = ADDRESS.fullmatch(where)
    if match is None:
        return
    host, port = match[2].strip("[]"), int(match[3])
    try:
        socket.create_connection((host, port), _ANSWERS_S).close()
    except OSError as error:
        why = error.strerror or str(error)
        raise MeasureError(
            f"no Ray cluster at {where}: {why}: is it the head's address ({_PORTS})?"
        ) from None
    if os.environ.get("RAY_USE_TLS", "0") == "1":
        return
    try:
        import grpc  # of the extra; needed for ray:// alone
    except ImportError:
        if match[1]:
            raise UsageError(f"ray:// needs grpcio: {describe_install('ray')}") from None
        return
    channel = grpc.insecure_channel(f"{match[2]}:{port}")
    try:
        grpc.channel_ready_future(channel).result(timeout=_ANSWERS_S)
    except grpc.FutureTimeoutError:
        raise MeasureError(
            f"what listens at {where} is no Ray cluster: is it the head's address ({_PORTS})?"
        ) from None
    finally:
        channel.close()


_SOON_NS, _SOON_S, _LATER_S = 20_000_000, 0.0002, 0.02


def wait_for_answers(
    ray: Any, refs: Sequence[Any], within_s: float, turn: Callable[[], None], every: bool
) -> list[Any]:
    """Poll Ray until `every` reference is answered, or one of them, and return those that are.

    After `within_s` it returns those answered by then. `turn` is called between polls, and may raise.
    """
    began_ns = clock.now_ns()
    while True:
        answered, _ = ray.wait(list(refs), num_returns=len(refs), timeout=0)
        waited_ns = clock.now_ns() - began_ns
        if len(answered) >= (len(refs) if every else 1) or waited_ns >= within_s * 1e9:
            return list(answered)
        turn()
        time.sleep(_SOON_S if waited_ns < _SOON_NS else _LATER_S)


def read_last_line(error: Exception) -> str:
    """Return the last line of an error's text, 200 characters at most; the error's type if it has no text."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:200] if lines else type(error).__name__
