"""Queue: one server with constant service and Poisson arrivals (M/D/1), simulated and by formula.

The embedded engine with one slot and constant lengths is this queue: tests hold the two to each other.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]
_HALVINGS = 60


def waits_s(arrivals_s: Float64, service_s: float) -> Float64:
    """Seconds that each arrival waits for its service: Lindley's recursion, as a running maximum."""
    at = service_s * np.arange(len(arrivals_s))
    waits: Float64 = np.maximum.accumulate(arrivals_s - at) + at - arrivals_s
    return waits


def compute_share_over(utilisation: float, services: float) -> float:
    """The probability that an arrival waits longer than so much service.

    G. J. Franx, A simple solution for the M/D/c waiting time distribution, Operations Research Letters 29
    (2001): a sum of positive terms, unlike Erlang's.
    """
    k = math.floor(services) + 1
    below = np.cumsum(_in_system(utilisation, k + 1))
    left = utilisation * (k - services)
    terms = (math.exp(-left + j * math.log(left) - math.lgamma(j + 1)) * below[k - j] for j in range(k))
    return 1 - math.fsum(terms)


def utilisation_at(share: float, services: float) -> float:
    """The utilisation at which a share of arrivals waits longer than so much service; by bisection."""
    low, high = 1e-3, 0.99
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if compute_share_over(middle, services) < share else (low, middle)
    return (low + high) / 2


def _in_system(utilisation: float, most: int) -> list[float]:
    """The probabilities of 0 … `most` requests in the system by level crossings: positive terms alone."""
    arrivals = [
        math.exp(-utilisation + m * math.log(utilisation) - math.lgamma(m + 1)) for m in range(most + 60)
    ]
    more = np.cumsum(arrivals[::-1])[::-1][1:]  # than m arrivals in a service
    p = [1 - utilisation]
    for n in range(1, most + 1):
        crossing = p[0] * more[n - 1] + math.fsum(p[i] * more[n - i] for i in range(1, n))
        p.append(crossing / arrivals[0])
    return p
