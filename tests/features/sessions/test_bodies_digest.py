"""The digest of the bodies that sessions sent: models and salts are no part of it."""

from __future__ import annotations

import numpy as np

from fakes.scripted_server import drive, job_of, stream
from fakes.virtual_network import VirtualServer
from loadgen.features.sessions.turn_sending import SessionJob, TurnOrder
from loadgen.plan.planned_requests import make_turns


def digest(*bodies: bytes) -> str:
    """The digest of a run that sent these bodies, each in a session of its own."""
    turns = make_turns(np.ones(len(bodies), np.int64), np.zeros(len(bodies), np.int64))
    server = VirtualServer(lambda _: stream(1, 0.01))
    sessions = {"sessions": SessionJob(turns, lambda _: {}), "order": TurnOrder(turns, range(len(turns)))}
    job = job_of(server.target(), 0, 1, body=bodies.__getitem__, **sessions)
    return drive(job, "wire", server).health.bodies_digest


def test_a_models_name_a_salt_of_ours_and_the_order_change_no_digest() -> None:
    salts = [b'"cache_salt":"loadgen-%032x",' % number for number in (1, 2)]
    bodies = [b'{%b"model":"%b","messages":[1]}' % (salt, name) for salt in salts for name in (b"a", b"b")]
    assert {digest(body) for body in bodies} == {digest(b'{"model":"c","messages":[1]}')}
    assert digest(b'{"model":"a","n":1}', bodies[0]) == digest(bodies[3], b'{"model":"b","n":1}')
    assert digest(b'{"cache_salt":"mine","model":"a"}') != digest(b'{"cache_salt":"other","model":"a"}')
