"""The digest of the bodies that sessions sent: models and salts are no part of it."""

from __future__ import annotations

from loadgen.features.sessions.turn_queue import BodiesDigest


def digest(*bodies: bytes) -> str:
    """The digest of these bodies."""
    made = BodiesDigest()
    for body in bodies:
        made.add(body)
    return made.hex()


def test_a_models_name_a_salt_of_ours_and_the_order_change_no_digest() -> None:
    salts = [b'"cache_salt":"loadgen-%032x",' % number for number in (1, 2)]
    bodies = [b'{%b"model":"%b","messages":[1]}' % (salt, name) for salt in salts for name in (b"a", b"b")]
    assert {digest(body) for body in bodies} == {digest(b'{"model":"c","messages":[1]}')}
    assert digest(b'{"model":"a","n":1}', bodies[0]) == digest(bodies[3], b'{"model":"b","n":1}')
    assert digest(b'{"cache_salt":"mine","model":"a"}') != digest(b'{"cache_salt":"other","model":"a"}')
