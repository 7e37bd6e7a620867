"""Key roles: every key of a profile declares one, and one without is an error."""

from __future__ import annotations

import pytest
from pydantic import BaseModel

from loadgen.plan.key_roles import OfClient, OfLoad, Role, keys_of, role_of
from loadgen.plan.profile import Profile


@pytest.mark.parametrize("name", Profile.model_fields)
def test_every_key_of_a_profile_has_a_role(name: str) -> None:
    assert role_of(Profile, name) in Role


class Keys(BaseModel):
    """Keys with a role, without one, and with two."""

    sent: OfLoad[int | None] = None
    forgotten: int = 0
    both: OfLoad[OfClient[int]] = 0


@pytest.mark.parametrize(("name", "roles"), [("forgotten", 0), ("both", 2)])
def test_a_key_without_one_role_is_an_error(name: str, roles: int) -> None:
    assert role_of(Keys, "sent") is Role.LOAD
    with pytest.raises(TypeError, match=rf"Keys\.{name} has {roles} roles"):
        role_of(Keys, name)
    with pytest.raises(TypeError, match=r"Keys\.forgotten has 0 roles"):
        keys_of(Keys, Role.LOAD)


def test_the_roles_share_out_the_keys() -> None:
    shared_out = [key for role in Role for key in keys_of(Profile, role)]
    assert sorted(shared_out) == sorted(Profile.model_fields)
